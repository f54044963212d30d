//! The cache: every part that is built, in a directory named by the content of what it was built from.
//!
//! ```text
//! <cache>/
//!   kernel/<key>/ …  manifest.json      an entry: complete, read-only, never changed
//!   initramfs/<key>/ …  image-python/<key>/ …
//!   sets/<key>/                         image sets: hard links into the entries
//!   current -> sets/<key>
//!   partial/<kind>-<key>/               an entry being built
//!   locks/<kind>-<key>.lock             held (flock) while building it
//!   answers/…                           cached answers of package indexes
//! ```
//!
//! An entry is built in `partial`, its files are synced, and then it is renamed into place: a reader
//! sees the whole entry or none, whatever happens to the builder. The lock makes a second builder of
//! the same entry wait and then find it done. A builder that dies lets go of the lock; what it left in
//! `partial` is removed by the next one that holds the lock. Lock files are never removed, since
//! another process may be waiting on them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Name of the manifest of an entry.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The cache directory.
pub(crate) struct Store {
    root: PathBuf,
}

/// A complete entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Where it is.
    pub(crate) directory: PathBuf,
    /// What it holds.
    pub(crate) manifest: EntryManifest,
    /// Whether this call built it (false: it was there).
    pub(crate) built: bool,
}

/// What an entry was built from and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryManifest {
    /// Kind, for instance `image-python`.
    pub(crate) kind: String,
    /// Key: the digest of the inputs.
    pub(crate) key: String,
    /// Name and version of the main ingredient, for people.
    pub(crate) source: String,
    /// Facts about the build that are not part of the key, for instance versions of tools.
    pub(crate) facts: BTreeMap<String, String>,
    /// The files by name.
    pub(crate) files: BTreeMap<String, FileDigest>,
}

/// Length and digest of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileDigest {
    /// BLAKE3, 64 hexadecimal digits.
    pub(crate) blake3: String,
    /// Length in bytes.
    pub(crate) bytes: u64,
}

/// What a builder tells about its entry, beside the files it made.
#[derive(Debug, Default)]
pub(crate) struct Built {
    /// Becomes [`EntryManifest::source`].
    pub(crate) source: String,
    /// Becomes [`EntryManifest::facts`].
    pub(crate) facts: BTreeMap<String, String>,
}

impl Store {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The cache directory.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The entry, if it is there.
    pub(crate) fn find(&self, kind: &str, key: &str) -> Option<Entry> {
        let directory = self.root.join(kind).join(key);
        let manifest = fs::read(directory.join(MANIFEST)).ok()?;
        let manifest = serde_json::from_slice(&manifest).ok()?;
        Some(Entry { directory, manifest, built: false })
    }

    /// The entry, built by `build` if it is not there. `build` fills the directory that it is given;
    /// `on_wait` is called if another process is building the same entry.
    ///
    /// # Errors
    /// What `build` reports, or a failure to write the cache. No entry is left then.
    pub(crate) fn get_or_build(
        &self,
        kind: &str,
        key: &str,
        on_wait: impl FnOnce(),
        build: impl FnOnce(&Path) -> Result<Built>,
    ) -> Result<Entry> {
        if let Some(entry) = self.find(kind, key) {
            return Ok(entry);
        }
        let _lock = self.lock(&format!("{kind}-{key}"), on_wait)?;
        if let Some(entry) = self.find(kind, key) {
            return Ok(entry);
        }
        let partial = self.root.join("partial").join(format!("{kind}-{key}"));
        remove_tree(&partial)?;
        fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
        let made = build(&partial).and_then(|built| self.finish(kind, key, &partial, built));
        if made.is_err() {
            // The builder's error is the one to report; what stays is removed by the next builder.
            drop(remove_tree(&partial));
        }
        made
    }

    /// Writes the manifest, syncs and renames.
    fn finish(&self, kind: &str, key: &str, partial: &Path, built: Built) -> Result<Entry> {
        let manifest = EntryManifest {
            kind: kind.to_owned(),
            key: key.to_owned(),
            source: built.source,
            facts: built.facts,
            files: digest_directory(partial)?,
        };
        write_synced(&partial.join(MANIFEST), (serde_json::to_string_pretty(&manifest)? + "\n").as_bytes())?;
        for name in manifest.files.keys().map(String::as_str).chain([MANIFEST]) {
            let path = partial.join(name);
            let file = File::open(&path)?;
            file.set_permissions(Permissions::from_mode(0o444))?;
            file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
        }
        File::open(partial)?.sync_all()?;
        let parent = self.root.join(kind);
        fs::create_dir_all(&parent)?;
        let directory = parent.join(key);
        // Without a manifest (else `find` had found it) this is no entry, but something in its place.
        remove_tree(&directory)?;
        fs::rename(partial, &directory)
            .with_context(|| format!("cannot move the new entry to {}", directory.display()))?;
        File::open(&parent)?.sync_all()?;
        Ok(Entry { directory, manifest, built: true })
    }

    /// Takes a lock by name and holds it as long as the file is open.
    ///
    /// # Errors
    /// The lock file cannot be made or locked.
    pub(crate) fn lock(&self, name: &str, on_wait: impl FnOnce()) -> Result<File> {
        let directory = self.root.join("locks");
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let path = directory.join(format!("{name}.lock"));
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                on_wait();
                flock(&file, FlockOperation::LockExclusive)
            }
            other => other,
        }
        .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(file)
    }
}

/// The key of something made from `inputs`: 32 hexadecimal digits of the digest of their JSON form. Use
/// types with a fixed order (structs, `BTreeMap`).
///
/// # Errors
/// `inputs` has no JSON form.
pub(crate) fn key(inputs: &impl Serialize) -> Result<String> {
    let text = serde_json::to_vec(inputs)?;
    Ok(blake3::hash(&text).to_hex()[..32].to_owned())
}

/// Length and digest of a file.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn digest_file(path: &Path) -> Result<FileDigest> {
    let mut hasher = blake3::Hasher::new();
    let bytes = File::open(path)
        .and_then(|mut file| io::copy(&mut file, &mut hasher))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(FileDigest { blake3: hasher.finalize().to_hex().to_string(), bytes })
}

/// The regular files of a flat directory with their digests.
fn digest_directory(directory: &Path) -> Result<BTreeMap<String, FileDigest>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != MANIFEST {
            files.insert(entry.file_name().to_string_lossy().into_owned(), digest_file(&entry.path())?);
        }
    }
    Ok(files)
}

/// Writes a file and waits until it is on the disk.
fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        fs::write(path, bytes)?;
        File::open(path)?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces a small file as a whole: written aside, then renamed.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let directory = path.parent().context("a file without a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut file = tempfile::NamedTempFile::new_in(directory)
        .with_context(|| format!("cannot write in {}", directory.display()))?;
    io::Write::write_all(&mut file, bytes)?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path).with_context(|| format!("cannot replace {}", path.display()))?;
    Ok(())
}

/// Removes a directory tree, if there is one. Directories without write permission are no hindrance.
///
/// # Errors
/// Something in it cannot be removed.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    fn make_writable(directory: &Path) -> io::Result<()> {
        fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                make_writable(&entry.path())?;
            }
        }
        Ok(())
    }
    let remove = || match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(path)?;
            fs::remove_dir_all(path)
        }
        other => other,
    };
    match remove() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("cannot remove {}", path.display())),
    }
}

#[cfg(test)]
mod tests;
