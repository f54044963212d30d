//! The kernels and initramfs that this process has read, each kept for the next guest.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::BackendError;
use crate::boot::kernel::Kernel;
use crate::memory::SealedImage;

/// Files that are kept of each kind. A process uses one or two.
const KEPT: usize = 4;

/// An initramfs in memory.
#[derive(Debug)]
pub(crate) struct Initramfs {
    pub(crate) image: Arc<SealedImage>,
    /// Bytes of the file: the image is longer, by whole pages.
    pub(crate) len: u64,
}

/// What tells a file from another, or from what it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The newest files of one kind, newest last.
type Shelf<T> = Mutex<Vec<(Identity, Arc<T>)>>;

/// What has been read.
#[derive(Debug, Default)]
pub(crate) struct Images {
    kernels: Shelf<Kernel>,
    initramfs: Shelf<Initramfs>,
}

impl Images {
    /// The kernel at `path`.
    ///
    /// # Errors
    /// [`BackendError::ImageUnreadable`]
    pub(crate) fn kernel(&self, path: &Path) -> Result<Arc<Kernel>, BackendError> {
        fetch(&self.kernels, "kernel", path, |mut file, _| {
            Kernel::load(&mut file).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        })
    }

    /// The initramfs at `path`.
    ///
    /// # Errors
    /// [`BackendError::ImageUnreadable`]
    pub(crate) fn initramfs(&self, path: &Path) -> Result<Arc<Initramfs>, BackendError> {
        fetch(&self.initramfs, "initramfs", path, |file, len| {
            let image = SealedImage::of_file("hayfork-initramfs", &file).map_err(io::Error::other)?;
            Ok(Initramfs { image: Arc::new(image), len })
        })
    }
}

fn fetch<T>(
    shelf: &Shelf<T>,
    what: &'static str,
    path: &Path,
    read: impl FnOnce(File, u64) -> io::Result<T>,
) -> Result<Arc<T>, BackendError> {
    let unreadable = |source| BackendError::ImageUnreadable { what, path: path.to_path_buf(), source };
    let file = open(what, path)?;
    let identity = identity(&file).map_err(unreadable)?;
    // Held while reading: two guests that start at once read a file once. Entries are pushed whole.
    let mut kept = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, image)) = kept.iter().find(|(key, _)| *key == identity) {
        return Ok(Arc::clone(image));
    }
    let image = Arc::new(read(file, identity.size).map_err(unreadable)?);
    if kept.len() >= KEPT {
        kept.remove(0);
    }
    kept.push((identity, Arc::clone(&image)));
    Ok(image)
}

/// Opens an image for reading: a regular file that is not empty.
///
/// # Errors
/// [`BackendError::ImageUnreadable`]
pub(crate) fn open(what: &'static str, path: &Path) -> Result<File, BackendError> {
    let unreadable = |source| BackendError::ImageUnreadable { what, path: path.to_path_buf(), source };
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
    }
    if metadata.len() == 0 {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, "it is empty")));
    }
    // Reading tells what opening does not, on some network file systems.
    let mut first = [0];
    file.read_exact(&mut first).map_err(unreadable)?;
    io::Seek::rewind(&mut file).map_err(unreadable)?;
    Ok(file)
}

fn identity(file: &File) -> io::Result<Identity> {
    let metadata = file.metadata()?;
    Ok(Identity {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_and_again_when_it_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("initramfs");
        std::fs::write(&path, b"first").unwrap();
        let images = Images::default();
        let first = images.initramfs(&path).unwrap();
        assert_eq!((first.len, first.image.len()), (5, 4096));
        assert!(Arc::ptr_eq(&first, &images.initramfs(&path).unwrap()));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Arc::ptr_eq(&first, &images.initramfs(&link).unwrap()), "another name is no other file");
        let other = folder.path().join("other");
        std::fs::write(&other, b"second").unwrap();
        std::fs::rename(&other, &path).unwrap();
        let second = images.initramfs(&path).unwrap();
        assert_eq!(second.len, 6);
    }

    #[test]
    fn few_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let images = Images::default();
        for number in 0..KEPT + 3 {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, b"content").unwrap();
            images.initramfs(&path).unwrap();
        }
        assert_eq!(images.initramfs.lock().unwrap().len(), KEPT);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let images = Images::default();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, b"").unwrap();
        let text = folder.path().join("text");
        std::fs::write(&text, b"no kernel").unwrap();
        for (path, part) in [
            (folder.path().join("absent"), "No such file"),
            (folder.path().to_path_buf(), "no regular file"),
            (empty, "it is empty"),
            (text, "no uncompressed ELF kernel"),
        ] {
            let error = images.kernel(&path).unwrap_err();
            assert_eq!(error.code(), "image_unreadable");
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.contains(part), "{path:?}: {source}");
        }
    }
}
