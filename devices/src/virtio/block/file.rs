//! A disk in a file.
//!
//! The file is read and written at positions, so that many disks can share one open file, each at its own
//! place and none moving another's. It is never mapped: a file that somebody cuts short or changes makes
//! failed requests, not a dead process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::SECTOR;
use super::backend::BlockBackend;

/// Zeros that are written where a file system cannot make them by itself.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// A regular file as a disk: raw, of as many whole sectors as it had when this was made. Bytes behind the
/// last whole sector are not readable.
#[derive(Debug, Clone)]
pub struct FileBackend {
    file: Arc<File>,
    capacity: u64,
    read_only: bool,
}

impl FileBackend {
    /// A disk that is only read; the file need not be open for more.
    ///
    /// # Errors
    /// If it is no regular file, or cannot be asked for its length.
    pub fn read_only(file: impl Into<Arc<File>>) -> io::Result<Self> {
        Self::new(file.into(), true)
    }

    /// A disk that is written too. Nobody else should have the file.
    ///
    /// # Errors
    /// As [`Self::read_only`].
    pub fn writable(file: impl Into<Arc<File>>) -> io::Result<Self> {
        Self::new(file.into(), false)
    }

    fn new(file: Arc<File>, read_only: bool) -> io::Result<Self> {
        // Not `File::metadata`, which asks by a path as well: a confined process may not.
        let status = rustix::fs::fstat(&file)?;
        if !rustix::fs::FileType::from_raw_mode(status.st_mode).is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a disk image must be a regular file"));
        }
        let capacity = status.st_size.cast_unsigned() / SECTOR * SECTOR;
        Ok(Self { file, capacity, read_only })
    }

    fn may_write(&self) -> io::Result<()> {
        if self.read_only { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }
}

impl BlockBackend for FileBackend {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(data, offset)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.may_write()?;
        self.file.write_all_at(data, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.may_write()?;
        punch_hole(&self.file, offset, len).map(drop)
    }

    fn write_zeroes(&mut self, mut offset: u64, mut len: u64, may_unmap: bool) -> io::Result<()> {
        self.may_write()?;
        if may_unmap && punch_hole(&self.file, offset, len)? || zero_range(&self.file, offset, len)? {
            return Ok(());
        }
        while len > 0 {
            let part = len.min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..usize::try_from(part).unwrap_or(ZEROS.len())], offset)?;
            offset += part;
            len -= part;
        }
        Ok(())
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

/// Gives the storage of a range up, which then reads as zeros. Gives whether the file system can do that.
#[cfg(target_os = "linux")]
fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    use rustix::fs::FallocateFlags;
    allocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Makes a range zero and keeps its storage. Gives whether the file system can do that.
#[cfg(target_os = "linux")]
fn zero_range(file: &File, offset: u64, len: u64) -> io::Result<bool> {
    use rustix::fs::FallocateFlags;
    allocate(file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, offset, len)
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, flags: rustix::fs::FallocateFlags, offset: u64, len: u64) -> io::Result<bool> {
    use rustix::io::Errno;
    if len == 0 {
        return Ok(true);
    }
    match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, len)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn punch_hole(_file: &File, _offset: u64, _len: u64) -> io::Result<bool> {
    Ok(false)
}

#[cfg(not(target_os = "linux"))]
fn zero_range(_file: &File, _offset: u64, _len: u64) -> io::Result<bool> {
    Ok(false)
}
