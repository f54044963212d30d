//! What a disk is kept in.

use std::fs::File;
use std::io;

/// Keeps the bytes of a disk. Offsets and lengths are bytes; the device calls only with ranges inside
/// `capacity`.
///
/// The calls may wait for storage, and for nothing else.
pub trait BlockBackend: Send {
    /// Bytes, a multiple of 512. The same at every call.
    fn capacity(&self) -> u64;

    /// Whether nothing may be written. The same at every call.
    fn is_read_only(&self) -> bool;

    /// Fills `data` from `offset` on.
    ///
    /// # Errors
    /// If not all bytes can be read.
    fn read_at(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// If not all bytes can be written; some may have been.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Returns when everything written before would survive a crash of the host.
    ///
    /// # Errors
    /// If that cannot be said.
    fn flush(&mut self) -> io::Result<()>;

    /// These bytes are not needed any more; they may read as anything.
    ///
    /// # Errors
    /// If storage failed. A backend that cannot discard does nothing, which is no error.
    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes these bytes zero; with `may_unmap` the storage for them may be given up.
    ///
    /// # Errors
    /// If not all of them could be made zero.
    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()>;

    /// The file whose bytes these are, offset for offset: then data is moved between it and guest memory
    /// without a copy in between, and `read_at` and `write_at` are not called.
    fn file(&self) -> Option<&File> {
        None
    }
}

impl<T: BlockBackend + ?Sized> BlockBackend for Box<T> {
    fn capacity(&self) -> u64 {
        (**self).capacity()
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }

    fn read_at(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, data)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, data)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        (**self).discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
        (**self).write_zeroes(offset, len, may_unmap)
    }

    fn file(&self) -> Option<&File> {
        (**self).file()
    }
}
