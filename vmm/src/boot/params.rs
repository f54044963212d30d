//! `struct boot_params`: the memory map, the command line and the initramfs.

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::memory::{GuestRam, MemoryError, PAGE, SealedImage, layout};

/// `setup_header.boot_flag`
const BOOT_FLAG: u16 = 0xaa55;
/// `setup_header.header`: "HdrS"
const HEADER_MAGIC: u32 = 0x5372_6448;
/// `setup_header.type_of_loader`: one without a number of its own
const LOADER_UNDEFINED: u8 = 0xff;
/// What the kernel asks for at its own address; ours is loaded where it was linked.
const KERNEL_ALIGNMENT: u32 = 0x100_0000;

const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;

/// Why the parameters cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsError {
    /// The command line is too long for the kernel.
    #[error("a kernel command line of {0} bytes is longer than {max}", max = layout::COMMAND_LINE_SIZE - 1)]
    CommandLine(usize),
    /// The initramfs does not fit between the kernel and the end of memory.
    #[error(
        "an initramfs of {bytes} bytes does not fit between {kernel_end:#x} and {memory_end:#x}; give the guest more memory"
    )]
    Initramfs {
        /// Bytes, in whole pages.
        bytes: u64,
        /// Where the kernel ends.
        kernel_end: u64,
        /// Where RAM below the device gap ends.
        memory_end: u64,
    },
    /// Mapping the initramfs failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The guest has too little memory for the fixed addresses.
    #[error("the guest's memory has no room for boot parameters")]
    Write(#[from] GuestMemoryError),
}

/// Puts the initramfs at the end of RAM below the device gap, and returns where it lies.
///
/// # Errors
/// [`ParamsError::Initramfs`], [`ParamsError::Memory`]
pub fn place_initramfs(
    ram: &mut GuestRam,
    kernel_end: GuestAddress,
    image: &SealedImage,
) -> Result<GuestAddress, ParamsError> {
    let memory_end = ram.low_end().0;
    let at = memory_end
        .checked_sub(image.len())
        .map(|at| at / PAGE * PAGE)
        .filter(|&at| at >= kernel_end.0)
        .ok_or(ParamsError::Initramfs { bytes: image.len(), kernel_end: kernel_end.0, memory_end })?;
    ram.overlay(GuestAddress(at), image)?;
    Ok(GuestAddress(at))
}

/// Writes command line and boot parameters. `initramfs` is its address and length in bytes.
///
/// # Errors
/// [`ParamsError::CommandLine`], [`ParamsError::Write`]
pub fn write(
    memory: &GuestMemoryMmap,
    ram_bytes: u64,
    command_line: &str,
    initramfs: Option<(GuestAddress, u64)>,
) -> Result<(), ParamsError> {
    if command_line.len() >= layout::COMMAND_LINE_SIZE {
        return Err(ParamsError::CommandLine(command_line.len()));
    }
    memory.write_slice(command_line.as_bytes(), layout::COMMAND_LINE)?;
    memory.write_obj(0u8, layout::COMMAND_LINE.unchecked_add(command_line.len() as u64))?;
    let mut params = boot_params {
        hdr: setup_header {
            type_of_loader: LOADER_UNDEFINED,
            boot_flag: BOOT_FLAG,
            header: HEADER_MAGIC,
            kernel_alignment: KERNEL_ALIGNMENT,
            cmd_line_ptr: low(layout::COMMAND_LINE.0),
            cmdline_size: low(layout::COMMAND_LINE_SIZE as u64),
            ..setup_header::default()
        },
        ..boot_params::default()
    };
    if let Some((at, len)) = initramfs {
        params.hdr.ramdisk_image = low(at.0);
        params.hdr.ramdisk_size = low(len);
    }
    let map = memory_map(ram_bytes);
    for (entry, range) in params.e820_table.iter_mut().zip(&map) {
        *entry = *range;
    }
    params.e820_entries = u8::try_from(map.len()).unwrap_or(u8::MAX);
    memory.write_obj(params, layout::ZERO_PAGE)?;
    Ok(())
}

/// The low half of an address or length below 4 GiB, which all of these are.
fn low(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn memory_map(ram_bytes: u64) -> Vec<boot_e820_entry> {
    let entry = |from: u64, to: u64, kind| boot_e820_entry { addr: from, size: to - from, r#type: kind };
    let mut map = vec![
        entry(0, layout::MP_TABLE.0, E820_RAM),
        entry(layout::MP_TABLE.0, layout::MP_TABLE.0 + layout::MP_TABLE_SIZE, E820_RESERVED),
    ];
    for (start, bytes) in layout::ram_parts(ram_bytes) {
        let end = start.0 + bytes;
        let start = if start.0 == 0 { layout::HIGH_RAM.0 } else { start.0 };
        if end > start {
            map.push(entry(start, end, E820_RAM));
        }
    }
    map
}

#[cfg(test)]
mod tests;
