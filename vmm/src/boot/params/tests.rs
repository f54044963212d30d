//! Tests of what the kernel is told.

use std::io::{Seek, Write};

use super::*;

fn written(ram_mib: u64, line: &str, initramfs: Option<(GuestAddress, u64)>) -> (GuestRam, boot_params) {
    let ram = GuestRam::new(ram_mib << 20).unwrap();
    write(ram.memory(), ram.len(), line, initramfs).unwrap();
    let params = ram.memory().read_obj(layout::ZERO_PAGE).unwrap();
    (ram, params)
}

fn map(params: &boot_params) -> Vec<(u64, u64, u32)> {
    let entries = params.e820_table;
    entries[..usize::from(params.e820_entries)]
        .iter()
        .map(|entry| (entry.addr, entry.size, entry.r#type))
        .collect()
}

#[test]
fn memory_is_described_with_its_holes() {
    let (_, params) = written(256, "", None);
    assert_eq!(
        map(&params),
        [(0, 0x9_fc00, 1), (0x9_fc00, 0x400, 2), (0x10_0000, (256 << 20) - 0x10_0000, 1)]
    );
    let (_, params) = written(4096, "", None);
    assert_eq!(map(&params)[2..], [(0x10_0000, (3 << 30) - 0x10_0000, 1), (4 << 30, 1 << 30, 1)]);
}

#[test]
fn the_command_line_is_ended_by_nul() {
    let (ram, params) = written(96, "console=ttyS0 quiet", None);
    let header = params.hdr;
    assert_eq!({ header.cmd_line_ptr }, 0x2_0000);
    let line: [u8; 21] = ram.memory().read_obj(GuestAddress(0x2_0000)).unwrap();
    assert_eq!(&line, b"console=ttyS0 quiet\0\0");
    let long = "x".repeat(2047);
    written(96, &long, None);
    let ram = GuestRam::new(96 << 20).unwrap();
    let error = write(ram.memory(), ram.len(), &"x".repeat(2048), None).unwrap_err();
    assert_eq!(error.to_string(), "a kernel command line of 2048 bytes is longer than 2047");
}

#[test]
fn the_initramfs_lies_at_the_end_of_low_memory() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    file.rewind().unwrap();
    let image = SealedImage::of_file("test", &file).unwrap();
    for (mib, expected) in [(96, (96u64 << 20) - 12_288), (4096, (3 << 30) - 12_288)] {
        let mut ram = GuestRam::new(mib << 20).unwrap();
        let at = place_initramfs(&mut ram, GuestAddress(32 << 20), &image).unwrap();
        assert_eq!(at.0, expected);
        assert_eq!(ram.memory().read_obj::<u8>(GuestAddress(at.0 + 9_999)).unwrap(), 7);
    }
    let (_, params) = written(96, "", Some((GuestAddress(0x5ff_d000), 10_000)));
    let header = params.hdr;
    assert_eq!({ header.ramdisk_image }, 0x5ff_d000);
    assert_eq!({ header.ramdisk_size }, 10_000);
    let mut ram = GuestRam::new(32 << 20).unwrap();
    let error = place_initramfs(&mut ram, GuestAddress((32 << 20) - 8192), &image).unwrap_err();
    assert!(error.to_string().contains("give the guest more memory"), "{error}");
}
