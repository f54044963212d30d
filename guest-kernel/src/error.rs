//! Everything that can go wrong with a kernel build, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::{Deviation, ParseError, Step, Tool};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why no kernel was built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Programs or headers that the build needs are not installed.
    #[error("{}", missing_tools(.0))]
    MissingTools(Vec<Tool>),

    /// The package index has no kernel source.
    #[error(
        "the package index offers no {package}: run `apt-get update` as root (Debian 13 has the package, Debian 12 has it in its \
         security and backports archives), or give a source tree of Linux 6.12"
    )]
    NoPackage {
        /// The package that was looked for.
        package: String,
    },

    /// There is no package index: not a Debian machine.
    #[error(
        "this machine has no apt (`{program}` is not on the PATH): give a source tree of Linux 6.12 instead"
    )]
    NotDebian {
        /// The program that was looked for.
        program: String,
    },

    /// The package index answered with something this crate does not understand.
    #[error(
        "the package index describes {package} without a usable `{field}` field; run `apt-get update` as root"
    )]
    BadIndex {
        /// The package.
        package: String,
        /// The field that is missing or malformed.
        field: &'static str,
    },

    /// The downloaded file is not the one that the index describes.
    #[error(
        "the downloaded {file} has the digest {found}, the package index says {expected}; run `apt-get update` and try again"
    )]
    WrongDigest {
        /// File name of the package.
        file: String,
        /// What the index says: `sha256:` and 64 hexadecimal digits.
        expected: String,
        /// What the file has.
        found: String,
    },

    /// The given directory is no kernel source.
    #[error("{} is not a Linux source tree: {reason}", path.display())]
    NotATree {
        /// The directory.
        path: PathBuf,
        /// What is missing or wrong.
        reason: String,
    },

    /// The given tree is not what it was when its digest was taken.
    #[error("the source tree {} changed while it was being copied; try again when nothing writes to it", path.display())]
    TreeChanged {
        /// The directory.
        path: PathBuf,
    },

    /// A package whose contents are not as expected.
    #[error("the kernel source package is not usable: {reason}")]
    BadPackage {
        /// What is missing or wrong.
        reason: String,
    },

    /// One of our patches does not fit the source.
    #[error(
        "the patch {name} does not apply to Linux {version}; it must be adapted to this source:\n{output}"
    )]
    Patch {
        /// File name of the patch.
        name: &'static str,
        /// Version of the source.
        version: String,
        /// What `patch` said.
        output: String,
    },

    /// The fragment or the forbidden list is malformed.
    #[error("{file}: {source}")]
    Fragment {
        /// Which of the two.
        file: &'static str,
        /// What is wrong with it.
        source: ParseError,
    },

    /// The final configuration is not the one asked for.
    #[error("{}", deviations(version, list))]
    Configuration {
        /// Version of the source.
        version: String,
        /// Every option that deviates.
        list: Vec<Deviation>,
    },

    /// A program failed.
    #[error("{step} failed: `{program}` ended with {status}; its last lines:\n{tail}")]
    Failed {
        /// What was being done.
        step: Step,
        /// The program.
        program: String,
        /// Exit code or signal, in words.
        status: String,
        /// The last lines of its output, at most 40.
        tail: String,
    },

    /// This machine's processor cannot build the kernel.
    #[error(
        "the guest kernel is built on x86_64 only, and this machine is {0}; copy a built kernel here instead"
    )]
    HostArchitecture(&'static str),

    /// A file operation failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: `fs::read(p).map_err(Error::io("read", p))`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

fn missing_tools(tools: &[Tool]) -> String {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
    let mut packages: Vec<&str> = tools.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    format!(
        "building the guest kernel needs {}, which this machine does not have; on Debian: `apt-get install {}` as root",
        names.join(", "),
        packages.join(" ")
    )
}

fn deviations(version: &str, list: &[Deviation]) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "Linux {version} does not take the guest kernel's configuration as asked for ({} options):",
        list.len()
    );
    for deviation in list {
        let _ = write!(text, "\n  {deviation}");
    }
    text.push_str("\nAdapt the fragment or the forbidden list in guest-kernel/config to this source.");
    text
}
