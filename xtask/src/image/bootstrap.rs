//! Debian packages into a root file system, by mmdebstrap.
//!
//! mmdebstrap chooses the mirror by itself (the distribution's own, or the one in `HAYFORK_APT_MIRROR`, a
//! URL or a line for sources.list), and apt checks signatures with the archive keyring. The result comes
//! as a tar stream, so this works without root too (in a user namespace): owners and device nodes exist
//! in the stream only.

use std::env;
use std::fs;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::context::SOURCE_DATE_EPOCH;
use crate::process;
use crate::progress::Task;

use super::dpkg::Package;
use super::recipe::Recipe;

/// Environment variable with another mirror.
const MIRROR: &str = "HAYFORK_APT_MIRROR";

/// What is not even unpacked: documentation and translations, but never a licence.
const EXCLUDED: [&str; 5] = [
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
];

/// Asks the package index which packages, in which versions, the recipe leads to. Takes about 10 s, most
/// of it for fetching and reading the index.
///
/// # Errors
/// mmdebstrap is missing or fails: no network, unknown package.
pub(crate) fn simulate(recipe: &Recipe) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    let mut command = command(recipe)?;
    command.args(["--simulate", "--verbose", &recipe.apt.suite, "/dev/null"]);
    add_mirror(&mut command);
    process::stream(&mut command, |_| Ok(()), |line| packages.extend(installation(line)))
        .context("cannot ask the Debian package index")?;
    packages.sort();
    packages.dedup();
    if packages.is_empty() {
        bail!("mmdebstrap did not say which packages it would install");
    }
    Ok(packages)
}

/// Installs the recipe's packages, runs its commands, and hands the system to `consume` as a tar stream.
///
/// # Errors
/// mmdebstrap is missing or fails, or what `consume` reports.
pub(crate) fn install<T>(
    recipe: &Recipe,
    expected: usize,
    task: &Task,
    consume: impl FnOnce(ChildStdout) -> Result<T>,
) -> Result<T> {
    let mut command = command(recipe)?;
    for line in &recipe.build.run {
        command.arg(format!("--customize-hook=chroot \"$1\" /bin/sh -ec {}", quoted(line)));
    }
    command.args(["--verbose", "--format=tar", &recipe.apt.suite, "-"]);
    add_mirror(&mut command);
    let mut configured = 0;
    process::stream(&mut command, consume, |line| {
        if line.starts_with("Setting up ") {
            configured += 1;
            task.advance(configured, expected as u64);
        }
        if let Some(text) = line.strip_prefix("I: ").filter(|text| text.ends_with("...")) {
            task.detail(text.trim_end_matches('.'));
        }
    })
    .context("cannot install the image's Debian packages")
}

/// Hands the files of a package, and of those that it needs, to `consume` as a tar stream. Nothing is installed.
///
/// # Errors
/// mmdebstrap is missing or fails, or what `consume` reports.
pub(crate) fn extract<T>(
    suite: &str,
    package: &str,
    consume: impl FnOnce(ChildStdout) -> Result<T>,
) -> Result<T> {
    let mut command = Command::new("mmdebstrap");
    command
        .env("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH.to_string())
        .env("LC_ALL", "C.UTF-8")
        .arg(format!("--mode={}", mode()?))
        .arg("--variant=extract")
        .arg(format!("--include={package}"))
        .args(["--format=tar", suite, "-"]);
    add_mirror(&mut command);
    process::stream(&mut command, consume, |_| {})
        .with_context(|| format!("cannot fetch the Debian package {package}"))
}

/// What both calls of a recipe have in common.
fn command(recipe: &Recipe) -> Result<Command> {
    let mut command = Command::new("mmdebstrap");
    command
        .env("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH.to_string())
        .env("LC_ALL", "C.UTF-8")
        .env_remove("LANGUAGE")
        .arg(format!("--mode={}", mode()?))
        .arg("--variant=essential")
        .arg(format!("--include={}", recipe.apt.packages.join(",")))
        // The system that dpkg writes lives for a minute: there is nothing to protect from a power cut.
        .arg("--dpkgopt=force-unsafe-io")
        .args(EXCLUDED.map(|option| format!("--dpkgopt={option}")));
    Ok(command)
}

fn add_mirror(command: &mut Command) {
    if let Some(mirror) = env::var_os(MIRROR).filter(|mirror| !mirror.is_empty()) {
        command.arg(mirror);
    }
}

/// How mmdebstrap can be root for its packages: as root, in a user namespace, or by fakechroot.
fn mode() -> Result<&'static str> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Ok("root");
    }
    let namespaces = Command::new("unshare")
        .args(["--user", "--map-root-user", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let name = env::var("USER").unwrap_or_default();
    let ranges = fs::read_to_string("/etc/subuid").unwrap_or_default();
    let has_range = has_range(&ranges, &name, user.as_raw());
    if namespaces && has_range && process::exists("newuidmap") {
        return Ok("unshare");
    }
    if process::exists("fakechroot") && process::exists("fakeroot") {
        return Ok("fakechroot");
    }
    bail!(
        "building a root image needs root, or user namespaces (here: {}), a line for this user in /etc/subuid and \
         /etc/subgid ({}) and the package uidmap ({}), or the packages fakechroot and fakeroot",
        if namespaces { "allowed" } else { "not allowed" },
        if has_range { "present" } else { "missing" },
        if process::exists("newuidmap") { "installed" } else { "missing" },
    )
}

/// Whether /etc/subuid gives the user a range of 65536 ids or more.
fn has_range(file: &str, name: &str, id: u32) -> bool {
    file.lines().any(|line| {
        let mut fields = line.split(':');
        let owner = fields.next().unwrap_or_default();
        let length = fields.nth(1).and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        (!name.is_empty() && owner == name || owner == id.to_string()) && length >= 65_536
    })
}

/// Reads `Inst name (version origin [architecture])`, apt's line for a package it would install. Upgrades
/// have `[old version]` before the parenthesis; there are none in an empty system.
fn installation(line: &str) -> Option<Package> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
    let (inner, _) = rest.split_once(')')?;
    let version = inner.split_whitespace().next()?;
    let architecture = inner.rsplit_once('[')?.1.strip_suffix(']')?;
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    Some(Package {
        name: name.to_owned(),
        version: version.to_owned(),
        architecture: architecture.to_owned(),
    })
}

/// The text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apts_lines_are_read() {
        let package = |name: &str, version: &str, architecture: &str| {
            Some(Package { name: name.into(), version: version.into(), architecture: architecture.into() })
        };
        assert_eq!(
            installation("Inst libc6 (2.41-12+deb13u5 Debian:13.8/stable [amd64]) []"),
            package("libc6", "2.41-12+deb13u5", "amd64")
        );
        assert_eq!(
            installation(
                "Inst bsdutils (1:2.41.5-0+deb13u1 Debian:13.8/stable, Debian-Security:13/stable [amd64])"
            ),
            package("bsdutils", "1:2.41.5-0+deb13u1", "amd64")
        );
        assert_eq!(
            installation("Inst tzdata:amd64 (2026b-0 Debian:13.8/stable [all]) [a:b c:d ]"),
            package("tzdata", "2026b-0", "all")
        );
        for other in ["Conf libc6 (2.41 Debian [amd64])", "Inst libc6", "Inst libc6 (2.41", "I: Inst", ""] {
            assert_eq!(installation(other), None, "{other}");
        }
    }

    #[test]
    fn ranges_of_ids_are_found_by_name_or_number() {
        let file = "other:100000:65536\nme:165536:65536\n1234:231072:65536\nsmall:1:10\n";
        assert!(has_range(file, "me", 1) && has_range(file, "", 1234));
        assert!(!has_range(file, "small", 1) && !has_range(file, "", 1) && !has_range("", "me", 1));
    }

    #[test]
    fn commands_survive_the_shell() {
        for text in ["plain", "it's \"$1\" `x` \\", ""] {
            let mut echo = Command::new("sh");
            echo.args(["-c", &format!("printf %s {}", quoted(text))]);
            assert_eq!(process::output(&mut echo).expect("runs"), text);
        }
    }
}
