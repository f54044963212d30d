//! Finds QEMU and asks it for its version.
//!
//! Looked for in this order, and the first that is named wins, even if it turns out not to work: an explicit path, the
//! environment variable `HAYFORK_QEMU`, the folders of `PATH`.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hayfork_vmm::backend::{BackendError, ProcessStatus};

use hayfork_vmm::process;

/// Names the binary where it is not in `PATH`.
pub const BINARY_VARIABLE: &str = "HAYFORK_QEMU";
/// What is looked for in `PATH`.
pub const BINARY_NAME: &str = "qemu-system-x86_64";
/// The oldest version that works (Debian 12's).
pub const OLDEST: Version = Version { major: 7, minor: 2, patch: 0 };

/// How long QEMU may take to say its version: it loads some hundred libraries, possibly from a cold disk.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// How much of its answer is read, in bytes.
const ANSWER_BYTES: usize = 4096;

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 7 of 7.2.22
    pub major: u32,
    /// 2 of 7.2.22
    pub minor: u32,
    /// 22 of 7.2.22; 50 and above are development versions
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A QEMU that is there and new enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// The file.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
}

/// Where to look. Apart from the real environment for the sake of tests.
pub(crate) struct Places<'a> {
    pub(crate) explicit: Option<&'a Path>,
    pub(crate) variable: Option<&'a OsStr>,
    pub(crate) search_path: Option<&'a OsStr>,
}

/// Finds QEMU and checks its version.
///
/// # Errors
/// [`BackendError::QemuMissing`], [`BackendError::QemuTooOld`], or [`BackendError::QemuUnusable`] if what was found does
/// not answer as QEMU does.
pub fn find(explicit: Option<&Path>) -> Result<Binary, BackendError> {
    let variable = env::var_os(BINARY_VARIABLE);
    let search_path = env::var_os("PATH");
    let path =
        locate(&Places { explicit, variable: variable.as_deref(), search_path: search_path.as_deref() })?;
    let version = ask_version(&path, ANSWER_TIME)?;
    if version < OLDEST {
        return Err(BackendError::QemuTooOld {
            path,
            found: version.to_string(),
            needed: OLDEST.to_string(),
        });
    }
    Ok(Binary { path, version })
}

/// The path of the binary, which is an executable file.
pub(crate) fn locate(places: &Places<'_>) -> Result<PathBuf, BackendError> {
    let named = match (places.explicit, places.variable) {
        (Some(path), _) => Some((path, "the path given")),
        (None, Some(path)) if !path.is_empty() => Some((Path::new(path), BINARY_VARIABLE)),
        _ => None,
    };
    if let Some((path, by)) = named {
        return if is_executable(path) {
            Ok(path.to_path_buf())
        } else {
            Err(BackendError::QemuMissing {
                looked_for: format!("{} ({by}), which is no executable file", path.display()),
            })
        };
    }
    let search_path = places.search_path.unwrap_or_default();
    env::split_paths(search_path)
        // An empty entry means the current folder to a shell. Nobody wants his QEMU from there.
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(BINARY_NAME))
        .find(|path| is_executable(path))
        .ok_or_else(|| BackendError::QemuMissing {
            looked_for: format!("{BINARY_NAME} in PATH ({})", search_path.to_string_lossy()),
        })
}

/// Whether this is a file that somebody may execute.
fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Runs `QEMU --version`.
fn ask_version(path: &Path, timeout: Duration) -> Result<Version, BackendError> {
    let unusable = |detail: String| BackendError::QemuUnusable { path: path.to_path_buf(), detail };
    let mut command = Command::new(path);
    command.arg("--version").env_clear().current_dir("/");
    let answer = process::run(command, timeout, ANSWER_BYTES).map_err(|error| unusable(error.to_string()))?;
    let Some((status, stdout, stderr)) = answer else {
        return Err(unusable(format!("no answer to --version within {} s", timeout.as_secs_f64())));
    };
    // A status that other code of this program collected first is unknown, and the answer is good all the same.
    if !matches!(status, ProcessStatus::Code(0) | ProcessStatus::Unknown) {
        return Err(unusable(format!("--version ended with {status}; {}", stderr.trim())));
    }
    parse_version(&stdout).ok_or_else(|| {
        let first = stdout.lines().next().unwrap_or_default();
        unusable(format!("--version answered {first:?}"))
    })
}

/// The version in the first line of the answer: `QEMU emulator version 7.2.22 (Debian …)`.
pub(crate) fn parse_version(answer: &str) -> Option<Version> {
    let words = answer.lines().next()?.strip_prefix("QEMU emulator version ")?;
    let numbers = words.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut numbers = numbers.split('.').map(str::parse::<u32>);
    let version = Version {
        major: numbers.next()?.ok()?,
        minor: numbers.next()?.ok()?,
        patch: numbers.next().and_then(Result::ok).unwrap_or(0),
    };
    Some(version)
}

#[cfg(test)]
mod tests;
