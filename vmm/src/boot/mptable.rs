//! The MP table: processors, the I/O APIC and its interrupt lines (Intel MultiProcessor Specification 1.4, chapter 4).
//!
//! ```text
//!  floating pointer (16 bytes) ──► header (44) │ processor (20) × n │ bus (8) │ I/O APIC (8) │ interrupt (8) × lines │ local interrupt (8) × 2
//! ```
//! All lines are those of an ISA bus: edge-triggered, active high. So one rise of an input is one interrupt.

use vm_memory::{Bytes, GuestMemoryError, GuestMemoryMmap};

use crate::memory::layout;

/// Version of local and I/O APIC: integrated ones.
const APIC_VERSION: u8 = 0x14;
const ENABLED: u8 = 1;
const BOOT_PROCESSOR: u8 = 2;
/// The table's entries by their kind.
const PROCESSOR: u8 = 0;
const BUS: u8 = 1;
const IO_APIC: u8 = 2;
const IO_INTERRUPT: u8 = 3;
const LOCAL_INTERRUPT: u8 = 4;
/// Kinds of interrupt.
const VECTORED: u8 = 0;
const NMI: u8 = 1;
const EXTERNAL: u8 = 3;
/// All local APICs.
const ALL: u8 = 0xff;
const ISA_BUS: u8 = 0;

/// Writes the table for `vcpus` processors.
///
/// # Errors
/// The guest has no memory there.
pub fn write(memory: &GuestMemoryMmap, vcpus: u8) -> Result<(), GuestMemoryError> {
    memory.write_slice(&build(vcpus), layout::MP_TABLE)
}

fn build(vcpus: u8) -> Vec<u8> {
    let io_apic_id = vcpus; // the first number that no local APIC has
    let mut entries = Vec::new();
    let mut count: u16 = 0;
    let mut add = |bytes: &[u8]| {
        entries.extend_from_slice(bytes);
        count += 1;
    };
    for id in 0..vcpus {
        let mut entry = [0; 20];
        let flags = if id == 0 { ENABLED | BOOT_PROCESSOR } else { ENABLED };
        entry[..4].copy_from_slice(&[PROCESSOR, id, APIC_VERSION, flags]);
        // Family 6, and the features FPU and APIC. Linux asks CPUID instead.
        entry[4..8].copy_from_slice(&0x600u32.to_le_bytes());
        entry[8..12].copy_from_slice(&0x201u32.to_le_bytes());
        add(&entry);
    }
    add(&[BUS, ISA_BUS, b'I', b'S', b'A', b' ', b' ', b' ']);
    let [a, b, c, d] = layout::IO_APIC.to_le_bytes();
    add(&[IO_APIC, io_apic_id, APIC_VERSION, ENABLED, a, b, c, d]);
    for line in 0..layout::INTERRUPT_LINES {
        let line = u8::try_from(line).unwrap_or(u8::MAX);
        add(&[IO_INTERRUPT, VECTORED, 0, 0, ISA_BUS, line, io_apic_id, line]);
    }
    add(&[LOCAL_INTERRUPT, EXTERNAL, 0, 0, ISA_BUS, 0, 0, 0]);
    add(&[LOCAL_INTERRUPT, NMI, 0, 0, ISA_BUS, 0, ALL, 1]);

    let mut header = [0; 44];
    header[..4].copy_from_slice(b"PCMP");
    let length = u16::try_from(header.len() + entries.len()).unwrap_or(u16::MAX);
    header[4..6].copy_from_slice(&length.to_le_bytes());
    header[6] = 4; // version 1.4
    header[8..28].copy_from_slice(b"HAYFORK MICROVM     ");
    header[34..36].copy_from_slice(&count.to_le_bytes());
    header[36..40].copy_from_slice(&layout::LOCAL_APIC.to_le_bytes());
    header[7] = checksum([&header[..], &entries].concat());

    let mut pointer = [0; 16];
    pointer[..4].copy_from_slice(b"_MP_");
    let table = u32::try_from(layout::MP_TABLE.0 + 16).unwrap_or(u32::MAX);
    pointer[4..8].copy_from_slice(&table.to_le_bytes());
    pointer[8] = 1; // length in units of 16 bytes
    pointer[9] = 4; // version 1.4
    pointer[10] = checksum(pointer);
    [&pointer[..], &header, &entries].concat()
}

/// What makes the sum of all bytes 0.
fn checksum(bytes: impl AsRef<[u8]>) -> u8 {
    bytes.as_ref().iter().fold(0u8, |sum, &byte| sum.wrapping_sub(byte))
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;

    #[test]
    fn sums_lengths_and_counts_are_right() {
        for vcpus in [1, 2, 8, 32] {
            let bytes = build(vcpus);
            assert!(bytes.len() as u64 <= layout::MP_TABLE_SIZE, "{vcpus} processors: {} bytes", bytes.len());
            let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
            assert_eq!(sum(&bytes[..16]), 0);
            assert_eq!(u32::from_le_bytes(bytes[4..8].try_into().unwrap()), 0x9_fc10);
            let table = &bytes[16..];
            assert_eq!(sum(table), 0);
            assert_eq!(usize::from(u16::from_le_bytes([table[4], table[5]])), table.len());
            // Walk the entries as a guest does.
            let (mut at, mut kinds) = (44, [0; 5]);
            while at < table.len() {
                let kind = usize::from(table[at]);
                kinds[kind] += 1;
                at += if kind == 0 { 20 } else { 8 };
            }
            assert_eq!(at, table.len());
            assert_eq!(kinds, [usize::from(vcpus), 1, 1, 24, 2]);
            assert_eq!(usize::from(u16::from_le_bytes([table[34], table[35]])), kinds.iter().sum::<usize>());
        }
    }

    #[test]
    fn only_the_first_processor_boots() {
        let bytes = build(3);
        let flags: Vec<u8> = (0..3).map(|n| bytes[16 + 44 + n * 20 + 3]).collect();
        assert_eq!(flags, [3, 1, 1]);
    }

    #[test]
    fn it_is_written_where_linux_looks() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        write(&memory, 1).unwrap();
        assert_eq!(memory.read_obj::<[u8; 4]>(GuestAddress(0x9_fc00)).unwrap(), *b"_MP_");
    }
}
