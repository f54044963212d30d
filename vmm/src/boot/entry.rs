//! The processor's state at the kernel's first instruction (Linux, Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").
//!
//! Long mode with flat segments, interrupts off, the first GiB mapped to itself by 2 MiB pages. Other processors wait for the
//! kernel to wake them (INIT and SIPI, SDM volume 3, 9.4).

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::hypervisor::x86_64::{Regs, Segment, Sregs};
use crate::memory::layout;

/// Selectors that the boot protocol names (`__BOOT_CS`, `__BOOT_DS`).
const CODE: u16 = 0x10;
const DATA: u16 = 0x18;
const TASK: u16 = 0x20;

/// Control register and feature bits (SDM volume 3, 2.2.1 and 2.5).
const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

/// Bits of page table entries (SDM volume 3, 5.5.4).
const PRESENT_WRITABLE: u64 = 0b11;
const LARGE: u64 = 1 << 7;

/// Bit 1 of RFLAGS is always set.
const RFLAGS: u64 = 2;

/// One descriptor: 4 GiB from 0, in pages. `access` is its type byte, `flags` the upper half of byte 6.
fn descriptor(access: u8, flags: u8) -> u64 {
    0x000f_0000_0000_ffff | u64::from(access) << 40 | u64::from(flags) << 52
}

/// Writes descriptor tables and page tables.
///
/// # Errors
/// The guest has no memory there.
pub fn write_tables(memory: &GuestMemoryMmap) -> Result<(), GuestMemoryError> {
    // Null, unused, 64-bit code, data, busy task.
    let gdt = [0, 0, descriptor(0x9b, 0xa), descriptor(0x93, 0xc), descriptor(0x8b, 0x8)];
    for (index, entry) in (0u64..).zip(gdt) {
        memory.write_obj(entry, GuestAddress(layout::GDT.0 + index * 8))?;
    }
    memory.write_obj(0u64, layout::IDT)?;
    let [top, middle, bottom] = [0, 1, 2].map(|page| layout::PAGE_TABLES.0 + page * 0x1000);
    memory.write_obj(middle | PRESENT_WRITABLE, GuestAddress(top))?;
    memory.write_obj(bottom | PRESENT_WRITABLE, GuestAddress(middle))?;
    for index in 0..512u64 {
        let entry = index << 21 | PRESENT_WRITABLE | LARGE;
        memory.write_obj(entry, GuestAddress(bottom + index * 8))?;
    }
    Ok(())
}

/// General registers for the kernel's `entry`.
pub fn registers(entry: GuestAddress) -> Regs {
    Regs {
        rip: entry.0,
        rsi: layout::ZERO_PAGE.0,
        rsp: layout::BOOT_STACK.0,
        rbp: layout::BOOT_STACK.0,
        rflags: RFLAGS,
        ..Regs::default()
    }
}

/// Puts a processor as it comes out of reset into long mode.
pub fn enter_long_mode(sregs: &mut Sregs) {
    let segment = |selector: u16, kind: u8, long: bool| Segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: kind,
        present: 1,
        dpl: 0,
        db: u8::from(!long),
        s: 1,
        l: u8::from(long),
        g: 1,
        avl: 0,
        unusable: 0,
    };
    let data = segment(DATA, 0x3, false);
    sregs.cs = segment(CODE, 0xb, true);
    sregs.ds = data;
    sregs.es = data;
    sregs.fs = data;
    sregs.gs = data;
    sregs.ss = data;
    sregs.tr = Segment { s: 0, db: 0, ..segment(TASK, 0xb, false) };
    sregs.gdt.base = layout::GDT.0;
    sregs.gdt.limit = 5 * 8 - 1;
    sregs.idt.base = layout::IDT.0;
    sregs.idt.limit = 7;
    sregs.cr3 = layout::PAGE_TABLES.0;
    sregs.cr4 = CR4_PAE;
    sregs.cr0 = CR0_PE | CR0_ET | CR0_NE | CR0_PG;
    sregs.efer = EFER_LME | EFER_LMA;
}
