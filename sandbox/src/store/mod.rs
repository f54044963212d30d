//! Templates on disk, by content: what one process has warmed up, others load.
//!
//! ```text
//! <cache>/hayfork/templates/
//!   <key>.template            an entry: whole, read-only, never changed
//!   .hayfork-….partial        one that is being written
//!   .<key>.lock               held (flock) by who makes an entry
//! ```
//! A key is a digest of everything that a template is made of, so two entries of one key are as good as each other. Of several who
//! want to make the same one, in whatever processes, one does and the others wait and get it. An entry appears whole or not at all
//! (see [`hayfork_vmm::snapshot`]); when all are too many bytes, those that were not used for longest go. Whoever is loading an entry
//! that goes keeps it, since an open file stays; whoever comes later makes it again.
//!
//! What dead processes leave, unfinished files and locks, is removed when the store is opened: the kernel has let go of their locks.

#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hayfork_vmm::snapshot::remove_leftovers;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::images::locate::cache_directory;

/// Environment variable: the most that templates may take on disk, in MiB; 0 for none at all.
pub const SIZE_ENVIRONMENT: &str = "HAYFORK_TEMPLATE_CACHE_MB";

/// Environment variable: the folder of templates.
pub const FOLDER_ENVIRONMENT: &str = "HAYFORK_TEMPLATE_CACHE_DIR";

/// The most that templates may take on disk if nothing is said, in MiB.
pub const DEFAULT_SIZE_MIB: u64 = 4096;

/// The folder inside the cache.
const FOLDER: &str = "templates";

const ENTRY: &str = ".template";
const LOCK: &str = ".lock";

/// Names an entry: a digest of what it is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The key of a template made of these, in this order. Where one ends and the next begins makes a difference.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("hayfork 2026 key of a template");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.finalize().to_hex().to_string())
    }

    /// 64 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A folder of templates. Cheap to clone; any number of processes may use one at once.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    most: u64,
}

impl Store {
    /// The user's store, as the environment says: in the folder that `HAYFORK_TEMPLATE_CACHE_DIR` names, else in
    /// `$XDG_CACHE_HOME/hayfork/templates` or `~/.cache/hayfork/templates`. `None` if there is to be none, or no place for it.
    ///
    /// # Errors
    /// As [`Store::open`], or a size that is no number.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let size = match std::env::var(SIZE_ENVIRONMENT) {
            Ok(size) if !size.is_empty() => size.parse().map_err(|_| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{SIZE_ENVIRONMENT} is a number of MiB, not {size:?}"),
                )
            })?,
            _ => DEFAULT_SIZE_MIB,
        };
        let named =
            std::env::var_os(FOLDER_ENVIRONMENT).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        match named.or_else(|| cache_directory().map(|cache| cache.join(FOLDER))) {
            Some(folder) if size > 0 => Self::open(&folder, size.saturating_mul(1 << 20)).map(Some),
            _ => Ok(None),
        }
    }

    /// The store in `folder`, which is made if it is not there, of `most` bytes. Removes what dead processes have left.
    ///
    /// # Errors
    /// The folder cannot be made or read, or somebody else may write to it: what is loaded from there runs.
    pub fn open(folder: &Path, most: u64) -> io::Result<Self> {
        own_folder(folder)?;
        remove_leftovers(folder)?;
        remove_dead_locks(folder)?;
        Ok(Self { folder: folder.to_path_buf(), most })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of an entry, if there is one; it counts as used now. It may be gone when it is opened: then there is none.
    pub fn get(&self, key: &Key) -> Option<PathBuf> {
        let path = self.entry(key);
        let file = File::open(&path).ok()?;
        // A store that cannot be written to still has what it has.
        let _ = file.set_modified(SystemTime::now());
        Some(path)
    }

    /// The file of an entry, which `save` makes at the path it is given if there is none, all at once or not at all
    /// (as [`Template::save`](hayfork_vmm::backend::Template::save) does). Of several callers with one key, in whatever processes,
    /// one is asked to and the others wait. Then the store is brought back to its size; the new entry stays in any case.
    ///
    /// # Errors
    /// What `save` says, or the folder cannot be written to.
    pub fn put<E: From<io::Error>>(
        &self,
        key: &Key,
        save: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        let _lock = Lock::take(self.lock_of(key))?;
        if let Some(path) = self.get(key) {
            return Ok(path);
        }
        self.put_locked(key, save)
    }

    /// Leave to make an entry, for who makes it piece by piece: `None` while somebody else has it, in whatever process.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub(crate) fn try_lock(&self, key: &Key) -> io::Result<Option<Lock>> {
        Lock::try_take(self.lock_of(key))
    }

    /// As [`Store::put`], for who has the [lock](Store::try_lock) and has looked whether it is there.
    ///
    /// # Errors
    /// What `save` says.
    pub(crate) fn put_locked<E>(
        &self,
        key: &Key,
        save: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        let path = self.entry(key);
        save(&path)?;
        self.shrink(Some(&path));
        Ok(path)
    }

    fn lock_of(&self, key: &Key) -> PathBuf {
        self.folder.join(format!(".{}{LOCK}", key.0))
    }

    /// Removes an entry, for one a damaged one. Gives whether there was one.
    pub fn remove(&self, key: &Key) -> bool {
        fs::remove_file(self.entry(key)).is_ok()
    }

    /// Brings the store back to its size: those that were not used for longest go. Gives how many.
    pub fn evict(&self) -> usize {
        self.shrink(None)
    }

    /// Bytes of all entries.
    pub fn size(&self) -> u64 {
        self.entries().iter().map(|entry| entry.bytes).sum()
    }

    fn entry(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}{ENTRY}", key.0))
    }

    fn shrink(&self, keep: Option<&Path>) -> usize {
        let mut entries = self.entries();
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        entries.sort_unstable_by_key(|entry| entry.used);
        let mut removed = 0;
        for Entry { path, bytes: its, .. } in entries {
            if bytes <= self.most {
                break;
            }
            if keep == Some(path.as_path()) {
                continue;
            }
            // Another process may have been faster; then it is gone all the same.
            removed += usize::from(fs::remove_file(&path).is_ok());
            bytes -= its;
        }
        removed
    }

    fn entries(&self) -> Vec<Entry> {
        let Ok(folder) = fs::read_dir(&self.folder) else { return Vec::new() };
        let entry = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let metadata = entry.metadata().ok()?;
            (name.to_str()?.ends_with(ENTRY) && metadata.is_file()).then(|| Entry {
                path: entry.path(),
                bytes: metadata.len(),
                used: (metadata.mtime(), metadata.mtime_nsec()),
            })
        };
        folder.flatten().filter_map(entry).collect()
    }
}

struct Entry {
    path: PathBuf,
    bytes: u64,
    used: (i64, i64),
}

/// A locked file, which goes with the lock.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    /// The lock is let go when it is closed.
    _file: File,
}

impl Lock {
    /// Makes the file and waits for its lock.
    pub(crate) fn take(path: PathBuf) -> io::Result<Self> {
        loop {
            let file = open_lock(&path, true)?;
            flock(&file, FlockOperation::LockExclusive)?;
            // Who had it before has removed it: whoever comes now sees another.
            if file.metadata()?.nlink() > 0 {
                return Ok(Self { path, _file: file });
            }
        }
    }

    /// The same without waiting: `None` while somebody else has it.
    fn try_take(path: PathBuf) -> io::Result<Option<Self>> {
        loop {
            let file = open_lock(&path, true)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if file.metadata()?.nlink() > 0 => return Ok(Some(Self { path, _file: file })),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the locks of a folder whose owners have died.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn remove_dead_locks(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !(name.starts_with('.') && name.ends_with(LOCK)) {
            continue;
        }
        let Ok(file) = open_lock(&path, false) else { continue };
        // One that its owner has removed meanwhile has left its name to another's.
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
        {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

fn open_lock(path: &Path, create: bool) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    File::options().read(true).write(true).create(create).mode(0o600).custom_flags(flags).open(path)
}

/// Makes a folder that only this user can write to, and looks whether it is one.
///
/// # Errors
/// It cannot be made, or is another's.
pub(crate) fn own_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let metadata = fs::metadata(folder)?;
    let own = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if own {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("others than this user can write to {}", folder.display()),
    ))
}
