//! Positional reads and writes of a file, straight into and out of guest memory.
//!
//! Guest memory cannot be a `&mut [u8]`: the guest's processors write it at the same time. The kernel does
//! not mind, so it gets the addresses themselves.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use vm_memory::VolatileSlice;
use vm_memory::bitmap::BitmapSlice;

use crate::virtio::buffers::Buffers;

/// Most pieces in one system call (IOV_MAX is 1024 on Linux and macOS).
const PIECES_MAX: usize = 1024;

/// Fills all of `buffers` from `offset` of the file on; they are empty afterwards.
pub(super) fn read_exact_at<B: BitmapSlice>(
    file: &File,
    mut offset: u64,
    buffers: &mut Buffers<'_, B>,
) -> io::Result<()> {
    while buffers.len() > 0 {
        let guards: Vec<_> = buffers.slices().take(PIECES_MAX).map(VolatileSlice::ptr_guard_mut).collect();
        let pieces: Vec<_> = guards
            .iter()
            .map(|guard| libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: guard.len() })
            .collect();
        let position = position(offset)?;
        // SAFETY: each piece is a slice of guest memory that stays mapped and writable for its whole length
        // while `buffers` borrows it, and `guards` lives across the call. Nothing in Rust refers to those
        // bytes; that the guest may use them at the same time is what such memory is for.
        let n = unsafe { libc::preadv(file.as_raw_fd(), pieces.as_ptr(), count(&pieces), position) };
        let n = match usize::try_from(n) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
        };
        let mut rest = n;
        for slice in buffers.slices() {
            let part = rest.min(slice.len());
            slice.bitmap().mark_dirty(0, part);
            rest -= part;
            if rest == 0 {
                break;
            }
        }
        buffers.skip(n);
        offset += n as u64;
    }
    Ok(())
}

/// Writes all of `buffers` at `offset` of the file; they are empty afterwards.
pub(super) fn write_all_at<B: BitmapSlice>(
    file: &File,
    mut offset: u64,
    buffers: &mut Buffers<'_, B>,
) -> io::Result<()> {
    while buffers.len() > 0 {
        let guards: Vec<_> = buffers.slices().take(PIECES_MAX).map(VolatileSlice::ptr_guard).collect();
        let pieces: Vec<_> = guards
            .iter()
            .map(|guard| libc::iovec { iov_base: guard.as_ptr().cast_mut().cast(), iov_len: guard.len() })
            .collect();
        let position = position(offset)?;
        // SAFETY: as in `read_exact_at`; the kernel only reads from these pieces.
        let n = unsafe { libc::pwritev(file.as_raw_fd(), pieces.as_ptr(), count(&pieces), position) };
        match usize::try_from(n) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                buffers.skip(n);
                offset += n as u64;
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

fn position(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Fits: there are at most [`PIECES_MAX`].
fn count(pieces: &[libc::iovec]) -> libc::c_int {
    libc::c_int::try_from(pieces.len()).unwrap_or(libc::c_int::MAX)
}
