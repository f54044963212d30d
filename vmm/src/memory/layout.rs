//! Guest physical addresses on x86-64.
//!
//! ```text
//!  0x0000_0000  real-mode leftovers                 0x0500  GDT, 0x0540 IDT            (boot)
//!                                                   0x7000  boot parameters ("zero page")
//!                                                   0x9000  page tables for the entry
//!                                                   0x2_0000 kernel command line
//!  0x0009_fc00  MP table, reserved in the e820 map
//!  0x000a_0000  hole up to 1 MiB (video memory and firmware on a PC)
//!  0x0010_0000  RAM: kernel at 16 MiB (CONFIG_PHYSICAL_START), initramfs at the top
//!  0xc000_0000  devices: virtio-mmio register files, one page each
//!  0xfec0_0000  I/O APIC     0xfee0_0000  local APIC     0xfffb_c000  pages that KVM wants for itself on Intel
//!  0x1_0000_0000 RAM beyond 3 GiB
//! ```

use vm_memory::GuestAddress;

/// Where the entry's descriptor table lies.
pub const GDT: GuestAddress = GuestAddress(0x500);
/// An empty interrupt descriptor table.
pub const IDT: GuestAddress = GuestAddress(0x540);
/// `struct boot_params` (Linux, Documentation/arch/x86/zero-page.rst).
pub const ZERO_PAGE: GuestAddress = GuestAddress(0x7000);
/// The entry's stack grows down from here. The kernel brings its own at once.
pub const BOOT_STACK: GuestAddress = GuestAddress(0x8ff0);
/// Page tables of the entry: three pages that map the first GiB to itself.
pub const PAGE_TABLES: GuestAddress = GuestAddress(0x9000);
/// The kernel command line, NUL-terminated.
pub const COMMAND_LINE: GuestAddress = GuestAddress(0x2_0000);
/// The longest command line that Linux takes on x86, NUL included (`COMMAND_LINE_SIZE`).
pub const COMMAND_LINE_SIZE: usize = 2048;
/// The MP table, in the last KiB of base memory, where Linux looks for it (`smp_scan_config`).
pub const MP_TABLE: GuestAddress = GuestAddress(0x9_fc00);
/// Bytes for the MP table.
pub const MP_TABLE_SIZE: u64 = 0x400;
/// Where RAM goes on after the hole below 1 MiB.
pub const HIGH_RAM: GuestAddress = GuestAddress(0x10_0000);
/// The gap for devices: RAM ends here and goes on at [`RAM_ABOVE_GAP`].
pub const DEVICE_GAP: GuestAddress = GuestAddress(0xc000_0000);
/// Register files of the virtio devices, [`DEVICE_STRIDE`] apart.
pub const DEVICES: GuestAddress = GuestAddress(0xc000_0000);
/// Bytes from one register file to the next.
pub const DEVICE_STRIDE: u64 = 0x1000;
/// Where the second part of RAM begins.
pub const RAM_ABOVE_GAP: GuestAddress = GuestAddress(0x1_0000_0000);
/// The I/O APIC (Intel 82093AA data sheet, 3.0).
pub const IO_APIC: u32 = 0xfec0_0000;
/// The local APIC (SDM volume 3, 12.4.1).
pub const LOCAL_APIC: u32 = 0xfee0_0000;

/// Interrupt line of the serial port, as on a PC.
pub const SERIAL_LINE: u32 = 4;
/// First port of the serial port (COM1).
pub const SERIAL_PORT: u16 = 0x3f8;
/// Interrupt line of the first virtio device; the others follow. Lines below belong to devices of a PC that a guest may look for, and
/// line 8, the real-time clock's, is not like others: of interrupts that are raised by `KVM_IRQ_LINE`, KVM drops those that
/// come before the guest has said that it is done with the last.
pub const FIRST_DEVICE_LINE: u32 = 9;
/// Inputs of the I/O APIC.
pub const INTERRUPT_LINES: u32 = 24;
/// Virtio devices that addresses and lines are kept for.
pub const MAX_DEVICES: usize = (INTERRUPT_LINES - FIRST_DEVICE_LINE) as usize;

/// A device's register file.
pub fn device_address(index: usize) -> GuestAddress {
    GuestAddress(DEVICES.0 + index as u64 * DEVICE_STRIDE)
}

/// A device's interrupt line. There are [`MAX_DEVICES`] of them.
pub fn device_line(index: usize) -> u32 {
    // An index beyond any line is caught where machines are put together.
    FIRST_DEVICE_LINE + u32::try_from(index).unwrap_or(u32::MAX - FIRST_DEVICE_LINE)
}

/// The parts that `bytes` of RAM are split into, as (address, bytes).
pub fn ram_parts(bytes: u64) -> Vec<(GuestAddress, u64)> {
    let below = bytes.min(DEVICE_GAP.0);
    let mut parts = vec![(GuestAddress(0), below)];
    if bytes > below {
        parts.push((RAM_ABOVE_GAP, bytes - below));
    }
    parts
}
