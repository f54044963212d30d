//! No damage goes unnoticed: every byte of a file is under a digest, so every change of one gives a typed error, and nothing worse.

#![allow(clippy::single_range_in_vec_init)] // Tables of one run.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::format::{Header, SECTIONS, Section};
use super::*;

/// The outcome of a damaged file's reading.
fn verdict(bytes: &[u8]) -> Result<(), &'static str> {
    SnapshotFile::of(bytes, Path::new("damaged")).and_then(read_all).map_err(|error| error.code())
}

/// Places in every field of the header, in every section at its begin, end and inside, each bit of some.
fn places(bytes: &[u8]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..56 + SECTIONS * 56 + 8).collect();
    places.extend([500, 1000, 4094, 4095]);
    let header = Header::parse(&bytes[..4096], bytes.len() as u64).unwrap();
    for Section { offset, length, .. } in header.sections {
        let (start, length) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
        places.extend((start..start + length).take(24));
        places.extend((0..20).map(|part| start + length * part / 20));
        places.push(start + length - 1);
    }
    places
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = Sample::bytes();
    verdict(bytes).unwrap();
    let mut codes = BTreeMap::new();
    for place in places(bytes) {
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[place] ^= 1 << bit;
            let code = verdict(&damaged).expect_err("damage went unnoticed");
            let expected = if place < 8 { "not_a_snapshot" } else { "snapshot_corrupt" };
            assert_eq!(code, expected, "bit {bit} of byte {place}");
            *codes.entry(code).or_insert(0) += 1;
        }
    }
    let variants: usize = codes.values().sum();
    println!("{variants} variants: {codes:?}");
    assert!(variants >= 4000);
}

#[test]
fn every_cut_is_noticed() {
    let bytes = Sample::bytes();
    let mut lengths = places(bytes);
    lengths.extend((0..bytes.len()).step_by(31));
    for length in lengths {
        let expected = if length == 0 { "not_a_snapshot" } else { "snapshot_truncated" };
        assert_eq!(verdict(&bytes[..length]), Err(expected), "cut to {length}");
    }
    let longer = [bytes, &[0]].concat();
    assert_eq!(verdict(&longer), Err("snapshot_corrupt"));
    // What is cut away in the middle, doubled, or put in another's place.
    for at in places(bytes) {
        let without = [&bytes[..at], &bytes[at + 1..]].concat();
        assert!(verdict(&without).is_err(), "without {at}");
        let doubled = [&bytes[..at], &bytes[at..=at], &bytes[at..]].concat();
        assert!(verdict(&doubled).is_err(), "{at} twice");
    }
}

#[test]
fn a_block_that_never_reached_the_disk_is_noticed() {
    let bytes = Sample::bytes();
    for block in (0..bytes.len()).step_by(512) {
        let mut damaged = bytes.to_vec();
        let end = (block + 512).min(bytes.len());
        if damaged[block..end].iter().all(|&byte| byte == 0) {
            continue;
        }
        damaged[block..end].fill(0);
        assert!(verdict(&damaged).is_err(), "zeroes at {block}");
    }
}

/// A file whose digests are right and whose content is anything.
fn forge(parts: [&[u8]; SECTIONS]) -> Vec<u8> {
    let [memory, identity, about, extents, working_set, state] = parts.map(<[u8]>::to_vec);
    testing::Parts { memory, identity, about, extents, working_set, state }.forge(StateKind::Qemu)
}

/// Puts a number into a header, with a digest that is right.
fn with_field(mut bytes: Vec<u8>, at: usize, value: &[u8]) -> Vec<u8> {
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes[24..56].fill(0);
    let digest = blake3::hash(&bytes[..4096]);
    bytes[24..56].copy_from_slice(digest.as_bytes());
    bytes
}

#[test]
fn a_header_that_contradicts_itself_is_refused_though_its_digest_is_right() {
    let bytes = Sample::bytes();
    let corrupt = |at: usize, value: &[u8]| {
        let code = verdict(&with_field(bytes.to_vec(), at, value)).unwrap_err();
        assert!(["snapshot_corrupt", "snapshot_truncated", "snapshot_newer"].contains(&code), "{at}: {code}");
    };
    for number in [0u32, 1, 2, 5, 7, 8, 0x7fff_ffff, u32::MAX] {
        for at in (0..SECTIONS).map(|index| 56 + index * 56) {
            if bytes[at..at + 4] != number.to_le_bytes() {
                corrupt(at, &number.to_le_bytes());
            }
            corrupt(at + 4, &1u32.to_le_bytes());
        }
        if number != 1 {
            corrupt(8, &number.to_le_bytes());
        }
        corrupt(12, &number.to_le_bytes());
    }
    for number in [0u64, 1, 4095, 4097, 1 << 31, 1 << 40, 1 << 63, u64::MAX, u64::MAX - 4095] {
        corrupt(16, &number.to_le_bytes());
        for at in (0..SECTIONS).flat_map(|index| [64 + index * 56, 72 + index * 56]) {
            corrupt(at, &number.to_le_bytes());
        }
    }
    corrupt(4095, &[1]);
    corrupt(56 + SECTIONS * 56, &[1]);
}

#[test]
fn tables_that_contradict_themselves_are_refused_though_their_digests_are_right() {
    let identity = postcard::to_allocvec(&identity()).unwrap();
    let page = [7; 4096];
    let extents = |length: u64, runs: &[Range<u64>]| {
        let mut bytes = length.to_le_bytes().to_vec();
        super::super::format::write_runs(&mut bytes, runs);
        bytes
    };
    let file = |extents: &[u8], working_set: &[u8]| {
        verdict(&forge([&page, &identity, b"", extents, working_set, b"state"]))
    };
    let good = extents(8192, &[4096..8192]);
    file(&good, &[]).unwrap();
    for bad in [
        vec![],
        vec![1; 7],
        extents(8192, &[]),
        extents(8192, &[0..8192]),
        extents(8192, &[0..4096, 4096..8192]),
        extents(8192, &[8192..12288]),
        extents(8193, &[4096..8192]),
        extents(4096, &[4096..8192]),
        extents(8192, &[4096..4096]),
        extents(8192, &[Range { start: 8192, end: 4096 }]),
        extents(8192, &[1..4097]),
        extents(1 << 60, &[4096..8192]),
        extents(u64::MAX - 4095, &[4096..8192]),
        [&good[..], &[0]].concat(),
    ] {
        assert_eq!(file(&bad, &[]), Err("snapshot_corrupt"), "{bad:?}");
    }
    for bad in [&extents(0, &[])[..], &extents(0, &[0..4096, 0..4096])[8..], &extents(0, &[8192..16384])[8..]]
    {
        assert_eq!(file(&good, bad), Err("snapshot_corrupt"), "{bad:?}");
    }
    // An identity with something behind it, and none at all.
    for bad in [[&identity[..], &[0]].concat(), vec![], vec![0xff; 9]] {
        assert_eq!(verdict(&forge([&page, &bad, b"", &good, b"", b""])), Err("snapshot_corrupt"));
    }
}

proptest! {
    #[test]
    fn the_reader_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..9000), magic: bool) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 12 {
            bytes[..12].copy_from_slice(b"HAYSNAP\n\x01\0\0\0");
        }
        prop_assert!(verdict(&bytes).is_err());
    }

    #[test]
    fn nor_for_files_whose_digests_are_right(
        memory in proptest::collection::vec(any::<u8>(), 0..3).prop_map(|pages| pages.into_iter().flat_map(|byte| [byte; 4096]).collect::<Vec<_>>()),
        parts in proptest::array::uniform4(proptest::collection::vec(any::<u8>(), 0..60)),
        good_identity: bool,
        words in proptest::collection::vec(0u64..5, 0..6),
    ) {
        let identity = if good_identity { postcard::to_allocvec(&identity()).unwrap() } else { parts[0].clone() };
        let extents: Vec<u8> = words.iter().flat_map(|word| (word * 4096).to_le_bytes()).collect();
        let _ = verdict(&forge([&memory, &identity, &parts[1], &extents, &parts[2], &parts[3]]));
    }

    #[test]
    fn and_two_changes_at_once_are_noticed_as_well(at in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
        let bytes = Sample::bytes();
        let mut damaged = bytes.to_vec();
        for (index, value) in at {
            let at = index.index(bytes.len());
            damaged[at] = value;
        }
        prop_assert_eq!(verdict(&damaged).is_ok(), damaged == bytes);
    }
}
