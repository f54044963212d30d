//! Tests with small ELF files made here.

use std::io::{Seek, Write};

use vm_memory::Bytes;

use super::*;
use crate::memory::GuestRam;

struct Part {
    address: u64,
    content: Vec<u8>,
    memory_size: u64,
}

/// An ELF file with these segments.
fn elf(entry: u64, parts: &[Part]) -> Vec<u8> {
    let mut file = vec![0u8; 64];
    file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file[16..20].copy_from_slice(&[2, 0, 62, 0]); // executable, x86-64
    file[20] = 1;
    file[24..32].copy_from_slice(&entry.to_le_bytes());
    file[32..40].copy_from_slice(&64u64.to_le_bytes()); // program headers follow
    file[52..54].copy_from_slice(&64u16.to_le_bytes());
    file[54..56].copy_from_slice(&56u16.to_le_bytes());
    file[56..58].copy_from_slice(&u16::try_from(parts.len()).unwrap().to_le_bytes());
    let mut offset = 64 + 56 * parts.len() as u64;
    for part in parts {
        let mut header = [0u8; 56];
        header[..4].copy_from_slice(&1u32.to_le_bytes());
        header[4..8].copy_from_slice(&7u32.to_le_bytes());
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        header[16..24].copy_from_slice(&part.address.to_le_bytes());
        header[24..32].copy_from_slice(&part.address.to_le_bytes());
        header[32..40].copy_from_slice(&(part.content.len() as u64).to_le_bytes());
        header[40..48].copy_from_slice(&part.memory_size.to_le_bytes());
        file.extend_from_slice(&header);
        offset += part.content.len() as u64;
    }
    for part in parts {
        file.extend_from_slice(&part.content);
    }
    file
}

fn part(address: u64, content: &[u8], memory_size: u64) -> Part {
    Part { address, content: content.to_vec(), memory_size }
}

fn load(content: &[u8]) -> Result<Kernel, KernelError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file.rewind().unwrap();
    Kernel::load(&mut file)
}

#[test]
fn segments_lie_at_their_addresses_and_nothing_else_is_taken() {
    let parts = [part(0x100_0000, &[0xcc; 5000], 5000), part(0x180_0000, b"data", 0x10_0000)];
    let kernel = load(&elf(0x100_0123, &parts)).unwrap();
    assert_eq!((kernel.entry.0, kernel.end.0), (0x100_0123, 0x190_0000));
    assert_eq!(kernel.image.extents(), &[0x100_0000..0x100_2000, 0x180_0000..0x180_1000]);
    let mut ram = GuestRam::new(32 << 20).unwrap();
    ram.overlay(GuestAddress(0), &kernel.image).unwrap();
    assert_eq!(ram.memory().read_obj::<u8>(GuestAddress(0x100_1387)).unwrap(), 0xcc);
    assert_eq!(ram.memory().read_obj::<u8>(GuestAddress(0x100_1388)).unwrap(), 0);
    assert_eq!(ram.memory().read_obj::<[u8; 4]>(GuestAddress(0x180_0000)).unwrap(), *b"data");
}

#[test]
fn what_is_no_kernel_is_refused() {
    for content in [&b""[..], b"\x7fEL", b"MZ this is a compressed kernel", &[0; 4096]] {
        assert!(matches!(load(content), Err(KernelError::Elf(_))), "{content:?}");
    }
    let good = elf(0x100_0000, &[part(0x100_0000, b"code", 4)]);
    assert!(load(&good).is_ok());
    for end in [20, 63, 64, 100, 119, 123] {
        assert!(load(&good[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn addresses_out_of_range_are_refused() {
    let limit = KERNEL_LIMIT;
    let too_large = [
        part(limit - 2, b"code", 4),
        part(0x100_0000, b"code", limit),
        part(u64::MAX - 1, b"code", 4),
        part(0x100_0000, b"code", u64::MAX),
    ];
    for one in too_large {
        let address = one.address;
        let result = load(&elf(0x100_0000, &[part(0x100_0000, b"code", 4), one]));
        assert!(matches!(result, Err(KernelError::Elf(_))), "{address:#x}: {result:?}");
    }
    let low = load(&elf(0x100_0000, &[part(0x7000, b"evil", 4), part(0x100_0000, b"code", 4)]));
    assert!(matches!(low, Err(KernelError::TooLow(0x7000))), "{low:?}");
    let entry = load(&elf(0x200_0000, &[part(0x100_0000, b"code", 4)]));
    assert!(matches!(entry, Err(KernelError::Entry(0x200_0000))), "{entry:?}");
}

/// What a child inherits at such a moment must not keep anything from being sealed.
#[test]
fn kernels_are_read_while_children_are_made() {
    use std::os::unix::process::CommandExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    let content = elf(0x100_0000, &[part(0x100_0000, &vec![0xcc; 200_000], 200_000)]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                // With a user, so that it is a whole fork: a child that shares the memory until it executes shows nothing.
                let user = rustix::process::getuid().as_raw();
                std::process::Command::new("/bin/true").uid(user).status().unwrap();
            }
        });
        let failed = (0..300).find_map(|_| load(&content).err());
        over.store(true, Ordering::SeqCst);
        assert!(failed.is_none(), "{failed:?}");
    });
}
