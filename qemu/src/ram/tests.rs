//! This process plays the one that maps the memory: what is private is written to by a mapping of its own.

use std::os::unix::fs::FileExt;

use super::*;

const MIB: u64 = 1 << 20;
/// The same, for places in what was read.
const AT: usize = 1 << 20;

fn own(mib: u32) -> (Ram, File) {
    let ram = Ram::new(mib).unwrap();
    let file = File::from(ram.descriptor().try_clone_to_owned().unwrap());
    (ram, file)
}

fn content(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(image.0.len().unwrap()).unwrap()];
    image.0.file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn blocks(image: &Image) -> u64 {
    image.0.file.metadata().unwrap().blocks() * 512
}

#[test]
fn ram_has_its_size_and_keeps_it() {
    let (ram, file) = own(64);
    assert!(ram.is_shared());
    assert_eq!(file.metadata().unwrap().len(), 64 * MIB);
    ftruncate(&file, 0).unwrap_err();
    ftruncate(&file, 128 * MIB).unwrap_err();
}

#[test]
fn what_is_kept_is_what_was_there_and_nobody_changes_it() {
    let (ram, file) = own(8);
    file.write_all_at(b"low", 5).unwrap();
    file.write_all_at(&vec![7; 200_000], 3 * MIB - 100_000).unwrap();
    // A page that was touched and holds nothing takes no memory in the copy.
    file.write_all_at(&vec![0; 300_000], 6 * MIB).unwrap();
    let image = ram.keep(0).unwrap();
    file.write_all_at(b"later", 5).unwrap();
    let bytes = content(&image);
    assert_eq!(&bytes[5..9], b"low\0");
    let (start, end) = (3 * AT - 100_000, 3 * AT + 100_000);
    assert!(bytes[start..end].iter().all(|&byte| byte == 7) && bytes[start - 1] == 0 && bytes[end] == 0);
    assert!(blocks(&image) <= 4096 + 4096 + 204_800, "{}", blocks(&image));
    image.0.file.write_all_at(b"x", 0).unwrap_err();
    ftruncate(&image.0.file, MIB).unwrap_err();
}

#[test]
fn what_is_private_is_read_from_the_process_that_has_it() {
    let (ram, file) = own(8);
    file.write_all_at(&vec![1; 3 * AT], MIB).unwrap();
    let base = Arc::new(ram.keep(0).unwrap());
    let mut mapping = unsafe_private::Mapping::of(&base.0.file, 8 * AT);
    let bytes = mapping.bytes();
    bytes[..4].copy_from_slice(b"mine");
    bytes[2 * AT..2 * AT + 9000].fill(2);
    // Zeroes over something must arrive as zeroes.
    bytes[3 * AT..3 * AT + 4096].fill(0);
    *bytes.last_mut().unwrap() = 9;
    let expected = bytes.to_vec();
    let restored = Ram::Over(Arc::clone(&base));
    assert!(!restored.is_shared());
    let image = restored.keep(std::process::id()).unwrap();
    assert!(content(&image) == expected);
    // What it is over is as before.
    assert!(content(&base)[AT..4 * AT].iter().all(|&byte| byte == 1));
    assert_eq!(content(&base)[0], 0);
    drop(mapping);
    assert_eq!(restored.keep(std::process::id()).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_process_that_maps_more_than_there_is_is_refused() {
    let (ram, _) = own(8);
    let base = Arc::new(ram.keep(0).unwrap());
    // The kernel lets it, and kills who touches what is beyond.
    let mut mapping = unsafe_private::Mapping::of(&base.0.file, 9 * AT);
    mapping.bytes()[0] = 1;
    let error = Ram::Over(base).keep(std::process::id()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("more than there is"), "{error}");
}

#[test]
fn mappings_are_told_by_the_file_they_are_of() {
    let maps = "\
7f81e8000000-7f81ebfff000 rw-p 00000000 00:01 10730                      /memfd:hayfork-template (deleted)
7f81ebfff000-7f81f3fff000 rw-p 03fff000 00:01 10730                      /memfd:hayfork-template (deleted)
7f81f4000000-7f81f4001000 r--p 00000000 00:02 10730                      /another device
7f81f5000000-7f81f5001000 rw-p 00000000 00:00 0 
7f81f6000000-7f81f6001000 rw-p 00000000 00:01 107301                     /memfd:hayfork-template (deleted)
garbage
";
    let found = mappings(maps, 10730, rustix::fs::makedev(0, 1));
    let expected = [
        Mapping { address: 0x7f81_e800_0000..0x7f81_ebff_f000, offset: 0 },
        Mapping { address: 0x7f81_ebff_f000..0x7f81_f3ff_f000, offset: 0x3ff_f000 },
    ];
    assert_eq!(found, expected);
    assert_eq!(mappings("", 1, 1), []);
}

#[test]
fn pages_that_are_not_zero_come_in_runs() {
    let mut bytes = vec![0; 5 * PAGE_BYTES + 10];
    assert!(runs(&bytes).is_empty());
    bytes[PAGE_BYTES] = 1;
    bytes[3 * PAGE_BYTES - 1] = 1;
    bytes[5 * PAGE_BYTES + 9] = 1;
    assert_eq!(runs(&bytes), [PAGE_BYTES..3 * PAGE_BYTES, 5 * PAGE_BYTES..5 * PAGE_BYTES + 10]);
}

mod unsafe_private;
