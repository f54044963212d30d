//! The kernel source package: what the package index offers, and fetching it.
//!
//! apt does the work that matters: it checked the signature of the index when it was updated, and checks the package against
//! the index when it downloads. Nothing is installed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::command::{Tail, words};
use crate::{Error, Identity, Progress, Result, Step};

/// The long-term kernel that hayfork's guests run.
pub(crate) const NAME: &str = "linux-source-6.12";

/// A package version that the index offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the package.
    pub package: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of the package file, 64 hexadecimal digits, as the index says.
    pub sha256: String,
    /// Size of the package file in bytes, as the index says.
    pub bytes: u64,
}

impl Candidate {
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            package: Some(self.package.clone()),
            version: self.version.clone(),
            digest: format!("sha256:{}", self.sha256),
        }
    }
}

/// The version of a package that apt would install, which is the newest one unless the machine's owner prefers another.
pub(crate) fn candidate(package: &str) -> Result<Candidate> {
    let output = Command::new("apt-cache")
        .args(["show", "--no-all-versions", package])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| not_debian("apt-cache", error))?;
    parse_show(package, &String::from_utf8_lossy(&output.stdout))
}

/// Reads the first stanza of `apt-cache show`. An unknown package gives no stanza at all.
fn parse_show(package: &str, text: &str) -> Result<Candidate> {
    let stanza = text.split("\n\n").next().unwrap_or_default();
    let field = |name: &'static str| {
        // A continuation line starts with a space and so never looks like a field.
        stanza
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
            .filter(|value| !value.is_empty())
    };
    if field("Package") != Some(package) {
        return Err(Error::NoPackage { package: package.to_owned() });
    }
    let bad = |field: &'static str| Error::BadIndex { package: package.to_owned(), field };
    let sha256 = field("SHA256").ok_or_else(|| bad("SHA256"))?;
    if sha256.len() != 64 || !sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(bad("SHA256"));
    }
    Ok(Candidate {
        package: package.to_owned(),
        version: field("Version").ok_or_else(|| bad("Version"))?.to_owned(),
        sha256: sha256.to_ascii_lowercase(),
        bytes: field("Size").and_then(|size| size.parse().ok()).ok_or_else(|| bad("Size"))?,
    })
}

/// Downloads exactly this version into an empty folder and gives the file's path.
pub(crate) fn download(
    candidate: &Candidate,
    folder: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf> {
    let wanted = format!("{}={}", candidate.package, candidate.version);
    let log = folder.join("apt.log");
    let output = File::create(&log).map_err(Error::io("create", &log))?;
    let errors = output.try_clone().map_err(Error::io("share", &log))?;
    let mut child = Command::new("apt-get")
        // Started by root, apt would drop to a user who cannot write here, and warn.
        .args(["-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", &wanted])
        .current_dir(folder)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|error| not_debian("apt-get", error))?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(Error::io("wait for apt-get in", folder))? {
            break status;
        }
        let done = bytes_below(folder).min(candidate.bytes);
        progress(Progress { step: Step::Download, done, total: candidate.bytes, line: None });
        thread::sleep(Duration::from_millis(100));
    };
    if !status.success() {
        let mut tail = Tail::default();
        for line in fs::read_to_string(&log).unwrap_or_default().lines() {
            tail.push(line);
        }
        let program = format!("apt-get download {wanted}");
        return Err(Error::Failed {
            step: Step::Download,
            program,
            status: words(status),
            tail: tail.text(),
        });
    }
    let file = only_package(folder)?;
    let found = sha256(&file)?;
    if found != candidate.sha256 {
        return Err(Error::WrongDigest {
            file: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            expected: format!("sha256:{}", candidate.sha256),
            found: format!("sha256:{found}"),
        });
    }
    Ok(file)
}

fn not_debian(program: &str, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        return Error::NotDebian { program: program.to_owned() };
    }
    Error::Io { action: "run", path: program.into(), source: error }
}

/// What lies in a folder and its sub-folders (apt keeps unfinished files in one), as far as it can be read right now.
fn bytes_below(folder: &Path) -> u64 {
    walkdir::WalkDir::new(folder)
        .into_iter()
        .filter_map(std::result::Result::ok)
        .filter_map(|entry| entry.metadata().ok())
        .filter(fs::Metadata::is_file)
        .map(|metadata| metadata.len())
        .sum()
}

fn only_package(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let mut packages: Vec<PathBuf> = entries
        .filter_map(std::result::Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .collect();
    match (packages.pop(), packages.pop()) {
        (Some(package), None) => Ok(package),
        _ => Err(Error::BadPackage {
            reason: "apt-get download did not leave exactly one package file".to_owned(),
        }),
    }
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher).map_err(Error::io("read", path))?;
    Ok(format!("{:x}", hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF";

    fn stanza() -> String {
        format!(
            "Package: linux-source-6.12\nSource: linux (6.12.117-1)\nVersion: 6.12.117-1~deb12u1\nDepends: binutils, xz-utils\n\
             Filename: pool/l.deb\nSize: 153476148\nSHA256: {DIGEST}\nDescription: Linux source\n Version: 9 is only text\n\n\
             Package: linux-source-6.12\nVersion: 1\n\n"
        )
    }

    #[test]
    fn the_first_stanza_counts() {
        let candidate = parse_show(NAME, &stanza()).expect("parses");
        assert_eq!(candidate.version, "6.12.117-1~deb12u1");
        assert_eq!(candidate.bytes, 153_476_148);
        assert_eq!(candidate.identity().digest, format!("sha256:{}", DIGEST.to_lowercase()));
    }

    #[test]
    fn nothing_offered_says_what_to_do() {
        let error = parse_show(NAME, "").expect_err("no package");
        assert!(error.to_string().contains("apt-get update"), "{error}");
        let other = stanza().replace("Package: linux-source-6.12\n", "Package: linux-source-6.12-rt\n");
        assert!(matches!(parse_show(NAME, &other), Err(Error::NoPackage { .. })));
    }

    #[test]
    fn malformed_fields_are_named() {
        for (from, to, name) in [
            (DIGEST, "12", "SHA256"),
            ("Size: 153476148", "Size: many", "Size"),
            ("Version: 6.12.117-1~deb12u1", "Version:", "Version"),
        ] {
            let error = parse_show(NAME, &stanza().replace(from, to)).expect_err("malformed");
            assert!(matches!(error, Error::BadIndex { field, .. } if field == name), "{error}");
        }
    }

    #[test]
    fn digests_are_those_of_the_file() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("x.deb");
        fs::write(&path, "abc").expect("write");
        // FIPS 180-4, the one-block example.
        assert_eq!(
            sha256(&path).expect("reads"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(only_package(folder.path()).expect("one"), path);
        fs::write(folder.path().join("y.deb"), "").expect("write");
        assert!(matches!(only_package(folder.path()), Err(Error::BadPackage { .. })));
    }
}
