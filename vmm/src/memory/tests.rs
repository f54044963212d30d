//! Tests of guest memory.

use std::io::{Seek, Write};

use vm_memory::{Bytes, GuestAddress, GuestMemoryRegion};

use super::*;

fn image(content: &[u8]) -> SealedImage {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file.rewind().unwrap();
    SealedImage::of_file("test", &file).unwrap()
}

#[test]
fn memory_below_and_above_the_gap() {
    let gib = 1 << 30;
    assert_eq!(layout::ram_parts(gib), [(GuestAddress(0), gib)]);
    assert_eq!(layout::ram_parts(3 * gib), [(GuestAddress(0), 3 * gib)]);
    assert_eq!(layout::ram_parts(5 * gib), [(GuestAddress(0), 3 * gib), (GuestAddress(4 * gib), 2 * gib)]);
    let ram = GuestRam::new(4 * gib).unwrap();
    assert_eq!((ram.len(), ram.low_end()), (4 * gib, GuestAddress(3 * gib)));
    let regions = ram.regions();
    assert_eq!(regions.len(), 2);
    assert_eq!((regions[1].start_addr().0, regions[1].len()), (4 * gib, gib));
    let edge = GuestAddress(3 * gib - 1);
    assert!(ram.memory().write_obj(1u8, edge).is_ok());
    assert!(ram.memory().write_obj(1u16, edge).is_err(), "nothing reaches into the gap");
    assert!(ram.memory().write_obj(1u8, GuestAddress(5 * gib)).is_err());
}

#[test]
fn guests_share_an_image_and_write_to_their_own_pages() {
    let content: Vec<u8> = (0..10_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let image = image(&content);
    assert_eq!(image.len(), 12_288);
    assert_eq!(image.extents(), std::slice::from_ref(&(0..12_288)));
    let mut guests = [GuestRam::new(1 << 20).unwrap(), GuestRam::new(1 << 20).unwrap()];
    let at = GuestAddress(0x1_0000);
    for guest in &mut guests {
        guest.overlay(at, &image).unwrap();
    }
    let mut read = vec![0; content.len()];
    guests[0].memory().write_obj(0xffu8, GuestAddress(0x1_0005)).unwrap();
    guests[0].memory().read_slice(&mut read, at).unwrap();
    assert_eq!(read[5], 0xff);
    guests[1].memory().read_slice(&mut read, at).unwrap();
    assert_eq!(read, content, "one guest's write is not seen by the other");
    let mut third = GuestRam::new(1 << 20).unwrap();
    third.overlay(at, &image).unwrap();
    third.memory().read_slice(&mut read, at).unwrap();
    assert_eq!(read, content, "nor by later ones");
    assert_eq!(
        third.memory().read_obj::<u64>(GuestAddress(0x1_0000 + 12_288)).unwrap(),
        0,
        "the rest is zero"
    );
}

#[test]
fn holes_of_an_image_stay_the_guests_own() {
    let memory = std::fs::File::from(writable_memory("test").unwrap());
    std::os::unix::fs::FileExt::write_all_at(&memory, b"late", 0x5000).unwrap();
    let image = SealedImage::seal(memory.into()).unwrap();
    assert_eq!(image.extents(), std::slice::from_ref(&(0x5000..0x6000)));
    let mut ram = GuestRam::new(1 << 20).unwrap();
    ram.memory().write_slice(b"mine", GuestAddress(0x1000)).unwrap();
    ram.overlay(GuestAddress(0), &image).unwrap();
    assert_eq!(ram.memory().read_obj::<[u8; 4]>(GuestAddress(0x1000)).unwrap(), *b"mine");
    assert_eq!(ram.memory().read_obj::<[u8; 4]>(GuestAddress(0x5000)).unwrap(), *b"late");
}

#[test]
fn what_does_not_fit_is_refused() {
    let image = image(&[1; 8192]);
    let mut ram = GuestRam::new(1 << 20).unwrap();
    for (at, kind) in [
        ((1 << 20) - 4096, "outside"),
        (1 << 30, "outside"),
        (u64::MAX - 4095, "outside"),
        (100, "unaligned"),
    ] {
        let error = ram.overlay(GuestAddress(at), &image).unwrap_err();
        match kind {
            "outside" => assert!(matches!(error, MemoryError::Outside { .. }), "{at:#x}: {error}"),
            _ => assert!(matches!(error, MemoryError::Unaligned(100)), "{error}"),
        }
    }
    ram.overlay(GuestAddress((1 << 20) - 8192), &image).unwrap();
}

#[test]
fn an_image_cannot_be_changed_any_more() {
    use rustix::fs::{ftruncate, memfd_create};
    let image = image(b"fixed");
    assert!(rustix::io::pwrite(image.memory(), b"x", 0).is_err());
    assert!(ftruncate(image.memory(), 0).is_err());
    let empty = memfd_create("empty", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(SealedImage::seal(empty).unwrap().is_empty());
}

#[test]
fn touched_pages_count_and_image_pages_are_apart() {
    let mut ram = GuestRam::new(8 << 20).unwrap();
    ram.overlay(GuestAddress(1 << 20), &image(&vec![9; 256 << 10])).unwrap();
    let untouched = ram.resident().unwrap();
    assert_eq!((untouched.own, untouched.shared), (0, 0), "nothing was touched");
    assert!(untouched.rest > 0, "this test has memory of its own");
    let mut read = vec![0; 256 << 10];
    ram.memory().read_slice(&mut read, GuestAddress(1 << 20)).unwrap();
    ram.memory().write_slice(&vec![1; 1 << 20], GuestAddress(4 << 20)).unwrap();
    ram.memory().write_obj(1u8, GuestAddress(1 << 20)).unwrap();
    let found = ram.resident().unwrap();
    // The host may give more than a page at a time.
    assert!(((1 << 20) + 4096..=6 << 20).contains(&found.own), "{found:?}");
    assert_eq!(found.shared, (256 << 10) - 4096, "{found:?}");
}
