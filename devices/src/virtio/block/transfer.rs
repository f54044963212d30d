//! Moving data between a backend and guest memory: by the file itself if there is one, else through a
//! bounded buffer.

use std::io;

use vm_memory::bitmap::BitmapSlice;

use super::backend::BlockBackend;
use super::unsafe_vectored::{read_exact_at, write_all_at};
use crate::virtio::buffers::Buffers;

/// Bytes of the buffer for backends without a file.
const BOUNCE: usize = 64 * 1024;

/// Fills `buffers` from `offset` on.
pub(super) fn read<B: BitmapSlice>(
    backend: &mut impl BlockBackend,
    mut offset: u64,
    buffers: &mut Buffers<'_, B>,
    bounce: &mut Vec<u8>,
) -> io::Result<()> {
    if let Some(file) = backend.file() {
        return read_exact_at(file, offset, buffers);
    }
    bounce.resize(BOUNCE, 0);
    while buffers.len() > 0 {
        let part = &mut bounce[..buffers.len().min(BOUNCE)];
        backend.read_at(offset, part)?;
        buffers.write(part);
        offset += part.len() as u64;
    }
    Ok(())
}

/// Writes `buffers` at `offset`.
pub(super) fn write<B: BitmapSlice>(
    backend: &mut impl BlockBackend,
    mut offset: u64,
    buffers: &mut Buffers<'_, B>,
    bounce: &mut Vec<u8>,
) -> io::Result<()> {
    if let Some(file) = backend.file() {
        return write_all_at(file, offset, buffers);
    }
    bounce.resize(BOUNCE, 0);
    while buffers.len() > 0 {
        let part = &mut bounce[..buffers.len().min(BOUNCE)];
        buffers.read(part);
        backend.write_at(offset, part)?;
        offset += part.len() as u64;
    }
    Ok(())
}
