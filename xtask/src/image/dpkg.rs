//! What dpkg's records in an installed system say: packages with versions, and the files of a package.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::rootfs::Root;

/// An installed package, or one that would be installed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) architecture: String,
}

/// The installed packages, sorted.
///
/// # Errors
/// The records cannot be read, or a package is only half installed.
pub(crate) fn installed(root: &Root) -> Result<Vec<Package>> {
    let path = root.host_path("/var/lib/dpkg/status")?;
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_status(&text)
}

/// Reads a status file: paragraphs of `Field: value` lines, with continuation lines that begin with a space.
fn parse_status(text: &str) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    for paragraph in text.split("\n\n") {
        let field = |name: &str| {
            paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        let Some(name) = field("Package") else { continue };
        let status = field("Status").unwrap_or_default();
        ensure!(status == "install ok installed", "package {name} is in state {status:?}, not installed");
        let version = field("Version").with_context(|| format!("package {name} has no version"))?;
        let architecture =
            field("Architecture").with_context(|| format!("package {name} has no architecture"))?;
        packages.push(Package { name, version, architecture });
    }
    packages.sort();
    Ok(packages)
}

/// Removes all files of a package, and the directories that are empty then.
///
/// # Errors
/// The package is not installed, or a file cannot be removed.
pub(crate) fn remove_files(root: &mut Root, package: &Package) -> Result<()> {
    let records = "/var/lib/dpkg/info";
    let candidates = [
        format!("{records}/{}.list", package.name),
        format!("{records}/{}:{}.list", package.name, package.architecture),
    ];
    let list = candidates.iter().find_map(|path| fs::read_to_string(root.host_path(path).ok()?).ok());
    let list = list.with_context(|| format!("the files of package {} are not on record", package.name))?;
    // Longest paths first, so that a directory comes after what is in it.
    let mut paths: Vec<&str> = list.lines().filter(|path| path.len() > 1 && path.starts_with('/')).collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    for path in paths {
        root.remove_file_or_empty_directory(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "\
Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.3
Description: compression
 Package: not a field

Package: bash
Essential: yes
Status: install ok installed
Architecture: amd64
Version: 5.2.37-2+b10
";

    #[test]
    fn paragraphs_are_read_and_sorted() {
        let packages = parse_status(STATUS).expect("parses");
        let shown: Vec<String> =
            packages.iter().map(|package| format!("{} {}", package.name, package.version)).collect();
        assert_eq!(shown, ["bash 5.2.37-2+b10", "zlib1g 1:1.3"]);
    }

    #[test]
    fn half_installed_packages_are_an_error() {
        let text = STATUS.replacen("install ok installed", "install ok half-configured", 1);
        let error = parse_status(&text).expect_err("half");
        assert!(error.to_string().contains("zlib1g"), "{error}");
    }
}
