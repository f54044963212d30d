//! The programs and headers that a kernel build needs, and the Debian packages that bring them.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Error, Result};

/// A program or header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    /// Name of the program, or of the header with its `.h`.
    pub name: &'static str,
    /// Debian package that brings it.
    pub package: &'static str,
}

const fn tool(name: &'static str, package: &'static str) -> Tool {
    Tool { name, package }
}

/// Needed for every build.
const PROGRAMS: &[Tool] = &[
    tool("make", "make"),
    tool("gcc", "gcc"),
    tool("ld", "binutils"),
    tool("strip", "binutils"),
    tool("flex", "flex"),
    tool("bison", "bison"),
    tool("bc", "bc"),
    tool("patch", "patch"),
];

/// Needed to unpack a source package besides.
const UNPACKERS: &[Tool] = &[tool("dpkg-deb", "dpkg"), tool("xz", "xz-utils")];

/// Headers that programs of the build itself include. objtool reads ELF files.
const HEADERS: &[Tool] = &[tool("stdlib.h", "libc6-dev"), tool("gelf.h", "libelf-dev")];

/// The Debian packages that a machine needs for a build from the source package, sorted.
pub fn required_packages() -> Vec<&'static str> {
    let mut packages: Vec<_> =
        PROGRAMS.iter().chain(UNPACKERS).chain(HEADERS).map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Looks for everything that a build needs; `from_package` when the source is a Debian package rather than a tree.
///
/// # Errors
/// [`Error::MissingTools`] names everything that is missing, not only the first.
pub fn check_tools(from_package: bool) -> Result<()> {
    let mut missing: Vec<Tool> = PROGRAMS
        .iter()
        .chain(if from_package { UNPACKERS } else { &[] })
        .filter(|tool| find_program(tool.name).is_none())
        .copied()
        .collect();
    // Without a compiler nothing can be said about headers.
    if !missing.iter().any(|tool| tool.name == "gcc") {
        missing.extend(HEADERS.iter().filter(|tool| !has_header(tool.name)));
    }
    if missing.is_empty() { Ok(()) } else { Err(Error::MissingTools(missing)) }
}

/// First line of `gcc --version`.
pub(crate) fn compiler() -> Result<String> {
    let output = Command::new("gcc")
        .arg("--version")
        .env("LC_ALL", "C")
        .output()
        .map_err(Error::io("run", Path::new("gcc")))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("unknown").to_owned())
}

/// The program's path, if the PATH has an executable file of that name.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| {
        fs::metadata(path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

fn has_header(name: &str) -> bool {
    Command::new("gcc")
        .args(["-fsyntax-only", "-x", "c", "-include", name, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_sorted_and_single() {
        let packages = required_packages();
        assert!(packages.is_sorted());
        assert!(packages.windows(2).all(|pair| pair[0] != pair[1]));
        for package in ["bc", "bison", "flex", "gcc", "libelf-dev", "make"] {
            assert!(packages.contains(&package), "{package}");
        }
    }

    #[test]
    fn programs_are_found_by_their_executable_bit() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-as-this").is_none());
    }

    #[test]
    fn the_message_names_tools_and_packages() {
        let error =
            Error::MissingTools(vec![tool("ld", "binutils"), tool("strip", "binutils"), tool("bc", "bc")]);
        let text = error.to_string();
        assert!(text.contains("ld, strip, bc"), "{text}");
        assert!(text.contains("apt-get install bc binutils`"), "{text}");
    }
}
