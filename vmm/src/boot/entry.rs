//! The processor's state at the kernel's first instruction (Linux, Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").
//!
//! Long mode with flat segments, interrupts off, the first GiB mapped to itself by 2 MiB pages. Other processors wait for the
//! kernel to wake them (INIT and SIPI, SDM volume 3, 9.4).

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::hypervisor::HypervisorError;
use crate::hypervisor::x86_64::{CpuidEntry, Msr, Registers, Segment, SystemRegisters, X86Vcpu};
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
pub fn registers(entry: GuestAddress) -> Registers {
    Registers {
        rip: entry.0,
        rsi: layout::ZERO_PAGE.0,
        rsp: layout::BOOT_STACK.0,
        rbp: layout::BOOT_STACK.0,
        rflags: RFLAGS,
        ..Registers::default()
    }
}

/// Puts a processor as it comes out of reset into long mode.
pub fn enter_long_mode(sregs: &mut SystemRegisters) {
    let segment = |selector: u16, kind: u8, long: bool| Segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        kind,
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

/// Model-specific registers that firmware would have set: fast string instructions, and all memory cached (the two registers'
/// addresses and bits: SDM volume 4, table 2-2, and volume 3, 12.11.2.1).
const FIRMWARE_MSRS: [Msr; 2] = [Msr { index: 0x1a0, value: 1 }, Msr { index: 0x2ff, value: 1 << 11 | 6 }];

/// Local interrupts of the local APIC (SDM volume 3, 11.5.1): line 0 takes what the PIC asks for, line 1 is the NMI.
const LVT_LINT0: usize = 0x350;
const LVT_LINT1: usize = 0x360;
const MODE_MASK: u32 = 0x700;
const MODE_EXTERNAL: u32 = 0x700;
const MODE_NMI: u32 = 0x400;
const LVT_MASKED: u32 = 1 << 16;

/// Prepares a processor. Only the first, which is given the kernel's `entry`, starts by itself.
///
/// # Errors
/// The hypervisor refuses.
pub fn prepare<V: X86Vcpu>(
    vcpu: &mut V,
    cpuid: &[CpuidEntry],
    entry: Option<GuestAddress>,
) -> Result<(), HypervisorError> {
    vcpu.set_cpuid(cpuid)?;
    vcpu.set_msrs(&FIRMWARE_MSRS)?;
    if let Some(entry) = entry {
        vcpu.set_registers(&registers(entry))?;
        let mut system = vcpu.system_registers()?;
        enter_long_mode(&mut system);
        vcpu.set_system_registers(&system)?;
    }
    let mut apic = vcpu.local_apic()?;
    for (register, mode) in [(LVT_LINT0, MODE_EXTERNAL), (LVT_LINT1, MODE_NMI)] {
        let value = apic.register(register).unwrap_or_default();
        apic.set_register(register, value & !(MODE_MASK | LVT_MASKED) | mode);
    }
    vcpu.set_local_apic(&apic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_gigabyte_is_mapped_to_itself() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_tables(&memory).unwrap();
        let mut registers = SystemRegisters::default();
        enter_long_mode(&mut registers);
        for address in [0u64, 0x1234, 0x100_0123, (1 << 30) - 1] {
            // As the processor walks.
            let read = |table: u64, index: u64| -> u64 {
                memory.read_obj(GuestAddress((table & 0x000f_ffff_ffff_f000) + (index & 511) * 8)).unwrap()
            };
            let middle = read(registers.cr3, address >> 39);
            let bottom = read(middle, address >> 30);
            let page = read(bottom, address >> 21);
            assert_eq!((middle & 3, bottom & 3, page & 0x83), (3, 3, 0x83));
            assert_eq!((page & !0x1f_ffff) + (address & 0x1f_ffff), address);
        }
    }

    #[test]
    fn descriptors_say_what_the_segment_registers_say() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write_tables(&memory).unwrap();
        let mut registers = SystemRegisters::default();
        enter_long_mode(&mut registers);
        for segment in [registers.cs, registers.ds, registers.ss, registers.tr] {
            let at = registers.gdt.base + u64::from(segment.selector);
            assert!(u64::from(segment.selector) + 7 <= u64::from(registers.gdt.limit));
            let entry: u64 = memory.read_obj(GuestAddress(at)).unwrap();
            let bit = |number: u32| u8::try_from(entry >> number & 1).unwrap();
            assert_eq!(u8::try_from(entry >> 40 & 0xf).unwrap(), segment.kind);
            assert_eq!(
                (bit(44), bit(47), bit(53), bit(54), bit(55)),
                (segment.s, 1, segment.l, segment.db, segment.g)
            );
        }
    }

    #[test]
    fn the_kernel_finds_its_parameters() {
        let registers = registers(GuestAddress(0x100_0123));
        assert_eq!((registers.rip, registers.rsi, registers.rflags), (0x100_0123, 0x7000, 2));
    }
}
