//! The guest kernel, read once per process.
//!
//! `linux-loader` puts the segments of an ELF file where they belong, in memory that stands for the beginning of the guest's
//! RAM; what it has written is then sealed, and every guest maps it ([`GuestRam::overlay`](crate::memory::GuestRam::overlay)). A guest
//! starts with some mappings instead of a copy of 11 MB, and the kernel's code is in memory once.

use std::fs::File;

use linux_loader::loader::elf::Elf;
use linux_loader::loader::{self, KernelLoader};
use vm_memory::GuestAddress;

use crate::memory::{GuestRam, ImageError, MemoryError, SealedImage, layout};

/// A kernel may reach up to here. hayfork's ends at 29 MiB.
pub const KERNEL_LIMIT: u64 = 256 << 20;

/// Why a kernel cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// It is no ELF file for this processor, or a broken one.
    #[error("it is no uncompressed ELF kernel (vmlinux) that fits below {limit} MiB: {0}", limit = KERNEL_LIMIT >> 20)]
    Elf(#[from] loader::Error),
    /// A segment lies below 1 MiB, where boot parameters and tables are.
    #[error("its segments begin at {0:#x}, below 1 MiB")]
    TooLow(u64),
    /// It has no content, or its entry lies outside of it.
    #[error("its entry {0:#x} lies outside of its segments")]
    Entry(u64),
    /// The memory for it could not be had.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The same.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A kernel that guests can be started with.
#[derive(Debug)]
pub struct Kernel {
    /// Its segments, at offsets that are guest addresses.
    pub image: SealedImage,
    /// Its first instruction for the 64-bit boot protocol.
    pub entry: GuestAddress,
    /// The end of its segments, the zeroed ones included.
    pub end: GuestAddress,
}

impl Kernel {
    /// Reads an ELF file.
    ///
    /// # Errors
    /// [`KernelError`]
    pub fn load(file: &mut File) -> Result<Self, KernelError> {
        let stage = GuestRam::stage(KERNEL_LIMIT)?;
        let loaded = Elf::load(stage.memory(), None, file, Some(layout::HIGH_RAM))?;
        if loaded.kernel_end > KERNEL_LIMIT {
            return Err(loader::Error::MemoryOverflow.into());
        }
        let image = stage.into_image("hayfork-kernel", loaded.kernel_end)?;
        let start = image.extents().first().map_or(0, |extent| extent.start);
        if !image.is_empty() && start < layout::HIGH_RAM.0 {
            return Err(KernelError::TooLow(start));
        }
        let entry = loaded.kernel_load;
        if !image.extents().iter().any(|extent| extent.contains(&entry.0)) {
            return Err(KernelError::Entry(entry.0));
        }
        Ok(Self { image, entry, end: GuestAddress(loaded.kernel_end) })
    }
}

#[cfg(test)]
mod tests;
