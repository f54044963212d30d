//! A file's content in sealed memory, from which guests are made.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, seek,
};
use rustix::io::Errno;

use super::PAGE;

/// What can go wrong while an image is made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Why memory from another process is no image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignImage {
    /// Its owner could still change it, or it is no such memory at all.
    #[error("it is no sealed memory")]
    NotSealed,
    /// Extents that are not whole pages inside of it, in order.
    #[error("its parts do not lie inside of it")]
    Extents,
}

pub(super) fn failed<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> ImageError {
    move |error| ImageError::Io { what, source: error.into() }
}

/// Bytes that nobody can change any more, page by page at offsets that are guest addresses or multiples of a page. Pages
/// that were never written are holes: they cost nothing and are not mapped into guests.
#[derive(Debug)]
pub struct SealedImage {
    memory: OwnedFd,
    len: u64,
    /// Where there is content, in whole pages.
    extents: Vec<Range<u64>>,
}

impl SealedImage {
    /// A copy of a whole file, at offset 0.
    ///
    /// # Errors
    /// The file cannot be read, or there is no memory or descriptor left.
    pub fn of_file(name: &str, file: &File) -> Result<Self, ImageError> {
        let memory = File::from(writable_memory(name)?);
        // Both files keep count of what is copied, so a signal to this thread, which the program may get any number of, costs nothing.
        while let Err(error) = io::copy(&mut &*file, &mut &memory) {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(failed("copying the file into memory")(error));
            }
        }
        Self::seal(memory.into())
    }

    /// Takes memory that [`writable_memory`] made, as it is now.
    pub(crate) fn seal(memory: OwnedFd) -> Result<Self, ImageError> {
        let len = fstat(&memory).map_err(failed("asking for the image's size"))?.st_size.cast_unsigned();
        // Whole pages, so that no mapping reaches beyond the end.
        let len = len.next_multiple_of(PAGE);
        ftruncate(&memory, len).map_err(failed("rounding the image up"))?;
        fcntl_add_seals(&memory, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(failed("sealing the image"))?;
        let extents = extents(memory.as_fd()).map_err(failed("looking for the image's content"))?;
        Ok(Self { memory, len, extents })
    }

    /// The same, with `extents` (whole pages) in place of what was written: holes in them are pages of zeroes.
    pub(super) fn seal_as(memory: OwnedFd, extents: Vec<Range<u64>>) -> Result<Self, ImageError> {
        let image = Self::seal(memory)?;
        debug_assert!(extents.iter().all(|extent| extent.end <= image.len));
        Ok(Self { extents, ..image })
    }

    /// Takes sealed memory that another process made, with the extents that it had there.
    ///
    /// # Errors
    /// [`ForeignImage`]
    pub(crate) fn adopt(memory: OwnedFd, extents: Vec<Range<u64>>) -> Result<Self, ForeignImage> {
        let seals = fcntl_get_seals(&memory).map_err(|_| ForeignImage::NotSealed)?;
        if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW) {
            return Err(ForeignImage::NotSealed);
        }
        let len = fstat(&memory).map_err(|_| ForeignImage::NotSealed)?.st_size.cast_unsigned();
        let mut last = 0;
        for extent in &extents {
            let whole = extent.start.is_multiple_of(PAGE) && extent.end.is_multiple_of(PAGE);
            if !whole || extent.start < last || extent.end <= extent.start || extent.end > len {
                return Err(ForeignImage::Extents);
            }
            last = extent.end;
        }
        if len.is_multiple_of(PAGE) { Ok(Self { memory, len, extents }) } else { Err(ForeignImage::Extents) }
    }

    /// Bytes, in whole pages, holes included.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Where there is content, in whole pages.
    pub fn extents(&self) -> &[Range<u64>] {
        &self.extents
    }

    /// Where there is content by now: of an image that is mapped as a whole, what was ever touched. Nothing beyond its extents,
    /// since no guest sees that; memory that another process made may have any.
    pub(super) fn content(&self) -> Vec<Range<u64>> {
        // The memory was looked through before, so nothing is in the way.
        extents(self.memory.as_fd())
            .map_or_else(|_| self.extents.clone(), |content| common(&content, &self.extents))
    }

    /// The memory, to be mapped or handed to another process.
    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Memory without a name in a file system that can be sealed later.
pub(crate) fn writable_memory(name: &str) -> Result<OwnedFd, ImageError> {
    memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(failed("making memory for an image"))
}

/// What is in both of two lists of ranges that are in order.
fn common(one: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut all = Vec::new();
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        let both = a.start.max(b.start)..a.end.min(b.end);
        if a.end <= b.end {
            one.next();
        } else {
            other.next();
        }
        if !both.is_empty() {
            all.push(both);
        }
    }
    all
}

fn extents(memory: BorrowedFd<'_>) -> rustix::io::Result<Vec<Range<u64>>> {
    let mut all = Vec::new();
    let mut at = 0;
    loop {
        let start = match seek(memory, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(all), // only a hole from here on
            Err(errno) => return Err(errno),
        };
        at = seek(memory, SeekFrom::Hole(start))?;
        all.push(start..at.next_multiple_of(PAGE));
    }
}
