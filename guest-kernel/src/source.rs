//! Where kernel source comes from, and what names it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::package::{self, Candidate};
use crate::{Error, Result, tree};

/// What was built from: recorded in the manifest, part of the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Debian package, or nothing for a source tree.
    pub package: Option<String>,
    /// Version of the package, or of the tree as its Makefile says.
    pub version: String,
    /// `sha256:…` of the package file, or `blake3:…` over the files of the tree that a build reads.
    pub digest: String,
}

/// Kernel source, found and named but not fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The Debian package that apt would install.
    Package(Candidate),
    /// A directory; it is only read.
    Tree {
        /// The directory.
        path: PathBuf,
        /// Taken when the source was named. A tree that changes afterwards is refused.
        identity: Identity,
    },
}

impl Source {
    /// The newest linux-source-6.12 that the package index offers. Asks the local index only, and downloads nothing.
    ///
    /// # Errors
    /// No apt on this machine, or no such package in its index.
    pub fn newest_package() -> Result<Self> {
        package::candidate(package::NAME).map(Self::Package)
    }

    /// A source tree given by the caller, such as an unpacked linux-6.12.y tarball. Reads the whole tree once (some 350 MB).
    ///
    /// # Errors
    /// Not a kernel source tree, or not readable.
    pub fn tree(path: &Path) -> Result<Self> {
        let version = tree_version(path)?;
        let digest = tree::digest(path)?;
        Ok(Self::Tree { path: path.to_owned(), identity: Identity { package: None, version, digest } })
    }

    /// What this source is.
    pub fn identity(&self) -> Identity {
        match self {
            Self::Package(candidate) => candidate.identity(),
            Self::Tree { identity, .. } => identity.clone(),
        }
    }
}

/// Reads `VERSION`, `PATCHLEVEL`, `SUBLEVEL` and `EXTRAVERSION` from the top Makefile.
fn tree_version(path: &Path) -> Result<String> {
    let not_a_tree = |reason: &str| Error::NotATree { path: path.to_owned(), reason: reason.to_owned() };
    let makefile = fs::read_to_string(path.join("Makefile"))
        .map_err(|error| not_a_tree(&format!("its Makefile: {error}")))?;
    if !path.join("arch/x86/Kconfig").is_file() {
        return Err(not_a_tree("it has no arch/x86/Kconfig"));
    }
    if path.join(".config").exists() || path.join("include/config").exists() {
        return Err(not_a_tree(
            "it has been configured or built in; run `make mrproper` in it, or give a fresh one",
        ));
    }
    let value = |name: &str| {
        makefile.lines().take(20).find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let number = |name: &str| {
        value(name).filter(|value| !value.is_empty()).ok_or_else(|| not_a_tree("its Makefile has no version"))
    };
    Ok(format!(
        "{}.{}.{}{}",
        number("VERSION")?,
        number("PATCHLEVEL")?,
        number("SUBLEVEL")?,
        value("EXTRAVERSION").unwrap_or_default()
    ))
}
