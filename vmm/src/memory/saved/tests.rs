#![allow(clippy::unwrap_used)]

use std::io::Read;

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::memory::PAGE;

const RAM: u64 = 32 << 20;

fn put(ram: &GuestRam, page: u64, value: u64) {
    ram.memory().write_obj(value, GuestAddress(page * PAGE + 16)).unwrap();
}

fn get(ram: &GuestRam, page: u64) -> u64 {
    ram.memory().read_obj(GuestAddress(page * PAGE + 16)).unwrap()
}

fn file_of(byte: u8, bytes: usize) -> SealedImage {
    use std::io::{Seek, Write};
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![byte; bytes]).unwrap();
    file.rewind().unwrap();
    SealedImage::of_file("test", &file).unwrap()
}

#[test]
fn a_clone_begins_where_the_original_stood_and_neither_sees_the_other() {
    let mut original = GuestRam::new(RAM).unwrap();
    original.overlay(GuestAddress(1 << 20), &file_of(0x77, 3 * 4096)).unwrap();
    put(&original, 5, 1);
    put(&original, 257, 2); // in the overlaid image
    let image = Arc::new(original.capture().unwrap());
    put(&original, 5, 3);
    let clones = [GuestRam::of_image(&image).unwrap(), GuestRam::of_image(&image).unwrap()];
    for clone in &clones {
        assert_eq!((get(clone, 5), get(clone, 257)), (1, 2));
        // Read-only pages of the original's image, and pages that nobody ever touched.
        assert_eq!((get(clone, 256), get(clone, 258)), (0x7777_7777_7777_7777, 0x7777_7777_7777_7777));
        assert_eq!(get(clone, 4000), 0);
    }
    put(&clones[0], 5, 4);
    put(&clones[0], 4000, 5);
    assert_eq!((get(&clones[1], 5), get(&clones[1], 4000)), (1, 0));
    assert_eq!(get(&original, 5), 3);
}

#[test]
fn generations_keep_what_each_wrote_and_layers_stay_few() {
    let first = GuestRam::new(RAM).unwrap();
    put(&first, 0, 100);
    let mut image = Arc::new(first.capture().unwrap());
    let mut depths = Vec::new();
    for generation in 1..=10 {
        let clone = GuestRam::of_image(&image).unwrap();
        for earlier in 0..generation {
            assert_eq!(get(&clone, earlier * 40), 100 + earlier, "generation {generation}");
        }
        put(&clone, generation * 40, 100 + generation);
        put(&clone, 7000, generation);
        image = Arc::new(clone.capture().unwrap());
        depths.push(image.depth());
        assert_eq!(get(&GuestRam::of_image(&image).unwrap(), 7000), generation);
    }
    assert_eq!(depths, [2, 3, 4, 1, 2, 3, 4, 1, 2, 3]);
}

#[test]
fn a_layer_holds_only_what_was_written() {
    let first = GuestRam::new(RAM).unwrap();
    for page in 0..2000 {
        put(&first, page, page);
    }
    let image = Arc::new(first.capture().unwrap());
    let clone = GuestRam::of_image(&image).unwrap();
    put(&clone, 10, 1);
    put(&clone, 20, 1);
    put(&clone, 1000, 1);
    let next = clone.capture().unwrap();
    let extents = next.layers()[1].extents();
    assert_eq!(extents, [10 * PAGE..21 * PAGE, 1000 * PAGE..1001 * PAGE]);
}

#[test]
fn populated_pages_are_the_clone_s_own_and_unchanged() {
    let first = GuestRam::new(RAM).unwrap();
    put(&first, 100, 9);
    let image = Arc::new(first.capture().unwrap());
    let clone = GuestRam::of_image(&image).unwrap();
    assert_eq!(clone.written(0).unwrap(), []);
    let set = [100 * PAGE..102 * PAGE, 5000 * PAGE..5001 * PAGE];
    // What lies outside is passed over.
    clone.populate(&set);
    clone.populate(&[RAM - PAGE..RAM + PAGE, 1 << 40..(1 << 40) + PAGE]);
    assert_eq!(clone.written(0).unwrap(), set);
    assert_eq!((get(&clone, 100), get(&clone, 101)), (9, 0));
}

#[test]
fn memory_beyond_the_device_gap_is_kept_too() {
    let ram = GuestRam::new(4 << 30).unwrap();
    ram.memory().write_obj(1u64, GuestAddress(layout::RAM_ABOVE_GAP.0 + 8192)).unwrap();
    ram.memory().write_obj(2u64, GuestAddress(8192)).unwrap();
    let clone = GuestRam::of_image(&Arc::new(ram.capture().unwrap())).unwrap();
    let read = |at| clone.memory().read_obj::<u64>(GuestAddress(at)).unwrap();
    assert_eq!((read(layout::RAM_ABOVE_GAP.0 + 8192), read(8192)), (1, 2));
}

#[test]
fn what_is_taken_away_is_gone_and_nothing_else() {
    let pieces = vec![(0..10, 'a'), (20..30, 'b'), (40..50, 'c')];
    let left = |taken: &[Range<u64>]| without(pieces.clone(), taken);
    assert_eq!(left(&[]), pieces);
    assert_eq!(left(&[10..20, 30..40, 60..70]), pieces);
    assert_eq!(left(std::slice::from_ref(&(0..100))), []);
    assert_eq!(
        left(&[2..4, 6..7, 9..22, 25..26]),
        [(0..2, 'a'), (4..6, 'a'), (7..9, 'a'), (22..25, 'b'), (26..30, 'b'), (40..50, 'c')]
    );
    assert_eq!(left(&[5..45, 48..49]), [(0..5, 'a'), (45..48, 'c'), (49..50, 'c')]);
}

#[test]
fn pieces_are_what_a_clone_sees() {
    let ram = GuestRam::new(2 << 20).unwrap();
    let write = |ram: &GuestRam, page: u64, byte: u8| {
        ram.memory().write_slice(&vec![byte; 4096], GuestAddress(page * PAGE)).unwrap();
    };
    (0..100).for_each(|page| write(&ram, page, 1));
    let mut image = Arc::new(ram.capture().unwrap());
    for (layer, pages) in [(2, vec![5, 6, 40, 300]), (3, vec![6, 99, 301]), (4, vec![0, 7, 511])] {
        let clone = GuestRam::of_image(&image).unwrap();
        for page in pages {
            write(&clone, page, layer);
        }
        image = Arc::new(clone.capture().unwrap());
    }
    assert_eq!(image.depth(), 4);
    let mut seen = vec![0; 2 << 20];
    GuestRam::of_image(&image).unwrap().memory().read_slice(&mut seen, GuestAddress(0)).unwrap();
    let mut found = vec![0; 2 << 20];
    let mut end = 0;
    for (range, memory) in image.pieces() {
        assert!(range.start >= end && !range.is_empty());
        end = range.end;
        let mut file = File::from(memory.try_clone_to_owned().unwrap());
        file.seek(SeekFrom::Start(range.start)).unwrap();
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        file.read_exact(&mut found[range]).unwrap();
    }
    assert!(found == seen);
    assert_eq!([0, 5, 6, 7, 99, 300, 511].map(|page| seen[page << 12]), [4, 2, 3, 4, 3, 2, 4]);
}

/// A layer as another process may make it: content where it says, and extents as it likes.
fn foreign(len: u64, content: &[(u64, u8)], extents: Vec<Range<u64>>) -> SealedImage {
    use std::os::unix::fs::FileExt;
    let file = File::from(writable_memory("test").unwrap());
    file.set_len(len).unwrap();
    for &(page, byte) in content {
        file.write_all_at(&[byte; 4096], page * PAGE).unwrap();
    }
    let sealed = SealedImage::seal(file.into()).unwrap();
    SealedImage::adopt(sealed.memory().try_clone_to_owned().unwrap(), extents).unwrap()
}

#[test]
fn content_beyond_its_extents_is_no_part_of_a_layer() {
    let ram = 64 * PAGE;
    let lower = foreign(ram, &[(0, 1), (5, 1), (20, 1)], std::iter::once(0..10 * PAGE).collect());
    let upper = foreign(
        ram,
        &[(0, 2), (4, 2), (5, 2), (6, 2), (30, 2)],
        vec![5 * PAGE..7 * PAGE, 8 * PAGE..9 * PAGE, 29 * PAGE..31 * PAGE],
    );
    let image = Arc::new(MemoryImage::of_layers(ram, vec![lower, upper]).unwrap());
    let pieces: Vec<_> = image.pieces().into_iter().map(|(range, _)| range).collect();
    assert_eq!(pieces, [0..PAGE, 5 * PAGE..7 * PAGE, 30 * PAGE..31 * PAGE]);
    // What a clone sees, and what a clone of the clone is made of, is the same.
    let clone = GuestRam::of_image(&image).unwrap();
    let first = |page: u64| clone.memory().read_obj::<u8>(GuestAddress(page * PAGE)).unwrap();
    assert_eq!([0, 4, 5, 6, 20, 30].map(first), [1, 0, 2, 2, 0, 2]);
}

#[test]
fn layers_that_reach_beyond_the_ram_are_refused() {
    let extents: Vec<_> = std::iter::once(0..PAGE).collect();
    let layer = |len| foreign(len, &[(0, 1)], extents.clone());
    MemoryImage::of_layers(64 * PAGE, vec![layer(64 * PAGE)]).unwrap();
    MemoryImage::of_layers(64 * PAGE, vec![layer(PAGE)]).unwrap();
    let refused = MemoryImage::of_layers(64 * PAGE, vec![layer(65 * PAGE)]);
    assert_eq!(refused.unwrap_err(), ForeignImage::Extents);
    // RAM has a gap, in which no layer has anything.
    let ram = layout::DEVICE_GAP.0 + PAGE;
    let gap = layout::DEVICE_GAP.0..layout::DEVICE_GAP.0 + PAGE;
    let layer = foreign(layout::RAM_ABOVE_GAP.0 + PAGE, &[], std::iter::once(gap).collect());
    assert_eq!(MemoryImage::of_layers(ram, vec![layer]).unwrap_err(), ForeignImage::Extents);
}
