//! The system packages that building needs, by what they are needed for.
//!
//! Nothing is asked for that is there already, and nothing for a part that need not be built. What is
//! missing is installed by apt-get when we are root, and this is said; otherwise one error names all of it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;
use crate::progress::Progress;

/// What something is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Building the guest kernel.
    Kernel,
    /// Building a root image.
    Image,
    /// Root images with packages of the npm registry.
    Npm,
    /// Running guests.
    Run,
    /// The nested rig.
    Rig,
}

/// A program, header or file, and the Debian package that brings it.
#[derive(Clone, Copy, Debug)]
struct Need {
    purpose: Purpose,
    /// A program's name, or an absolute path.
    what: &'static str,
    package: &'static str,
}

const NEEDS: [Need; 10] = [
    need(Purpose::Image, "mmdebstrap", "mmdebstrap"),
    need(Purpose::Image, "mkfs.erofs", "erofs-utils"),
    need(Purpose::Image, "fsck.erofs", "erofs-utils"),
    need(Purpose::Image, "/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring"),
    need(Purpose::Npm, "npm", "npm"),
    need(Purpose::Run, "qemu-system-x86_64", "qemu-system-x86"),
    need(Purpose::Rig, "qemu-system-x86_64", "qemu-system-x86"),
    need(Purpose::Rig, "mkfs.erofs", "erofs-utils"),
    need(Purpose::Rig, "setpriv", "util-linux"),
    need(Purpose::Rig, "dpkg-deb", "dpkg"),
];

const fn need(purpose: Purpose, what: &'static str, package: &'static str) -> Need {
    Need { purpose, what, package }
}

/// Makes sure that everything for `purposes` is there.
///
/// # Errors
/// Something is missing and cannot be installed here; the error names it.
pub(crate) fn ensure(purposes: &[Purpose], progress: &Progress) -> Result<()> {
    let mut missing = missing(purposes, is_there);
    if purposes.contains(&Purpose::Kernel) {
        missing.extend(missing_for_the_kernel());
    }
    if missing.is_empty() {
        return Ok(());
    }
    let packages = packages(&missing);
    let root = rustix::process::geteuid().is_root();
    if !root || !process::exists("apt-get") {
        bail!(explain(&missing));
    }
    progress.note(&format!("installing the Debian packages {} by apt-get", packages.join(" ")));
    let task = progress.task("packages");
    // A machine whose lists are missing or old cannot find the packages.
    task.step("apt-get update");
    process::output(&mut apt_get(&["update"])).with_context(|| explain(&missing))?;
    task.step("apt-get install");
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&packages);
    process::output(&mut apt_get(&arguments)).with_context(|| explain(&missing))?;
    task.done(&format!("installed {}", packages.join(" ")));
    Ok(())
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet").args(arguments);
    command
}

fn is_there(what: &str) -> bool {
    if what.starts_with('/') { Path::new(what).exists() } else { process::exists(what) }
}

fn missing(purposes: &[Purpose], is_there: impl Fn(&str) -> bool) -> Vec<Need> {
    NEEDS.into_iter().filter(|need| purposes.contains(&need.purpose) && !is_there(need.what)).collect()
}

/// What the kernel's builder misses.
fn missing_for_the_kernel() -> Vec<Need> {
    match hayfork_guest_kernel::check_tools(true) {
        Err(hayfork_guest_kernel::Error::MissingTools(tools)) => {
            tools.into_iter().map(|tool| need(Purpose::Kernel, tool.name, tool.package)).collect()
        }
        // Any other trouble is reported by the builder itself.
        _ => Vec::new(),
    }
}

/// The packages, sorted, each once.
fn packages(missing: &[Need]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn explain(missing: &[Need]) -> String {
    let names: Vec<&str> = missing.iter().map(|need| need.what).collect();
    format!(
        "this needs {}; install the Debian packages (as root: apt-get install {})",
        names.join(", "),
        packages(missing).join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_for_the_purpose_is_named() {
        let all = [Purpose::Kernel, Purpose::Image, Purpose::Npm];
        assert!(missing(&all, |_| true).is_empty());
        assert!(missing(&[], |_| false).is_empty());
        let image = missing(&[Purpose::Image], |_| false);
        assert_eq!(packages(&image), ["debian-archive-keyring", "erofs-utils", "mmdebstrap"]);
        let rig = missing(&[Purpose::Rig], |what| what == "setpriv" || what == "dpkg-deb");
        assert_eq!(packages(&rig), ["erofs-utils", "qemu-system-x86"]);
        let npm = missing(&all, |what| what != "npm");
        assert_eq!(packages(&npm), ["npm"]);
        assert!(explain(&image).contains("mkfs.erofs") && explain(&image).contains("apt-get install"));
    }

    #[test]
    fn paths_and_programs_are_looked_for() {
        assert!(is_there("sh") && is_there("/etc"));
        assert!(!is_there("hayfork-no-such-program") && !is_there("/hayfork/no/such/file"));
    }
}
