//! Requests that no driver makes. Each gets an error or is given back; the disk is as before.

use super::super::{BlockBackend, REQUEST_BYTES_MAX};
use super::{
    DATA, DISCARD, FLUSH, GET_ID, HEADER, IN, IOERR, MEMORY, OK, OUT, STATUS, UNSUPP, WRITE_ZEROES, mock,
    pattern,
};
use crate::virtio::QueueError;
use crate::virtio::testing::{Segment, cut};

#[test]
fn sectors_outside_the_disk_are_refused() {
    let mut rig = mock(8);
    for (sector, len) in [
        (8, 512),
        (7, 1024),
        (0, 9 * 512),
        (9, 0),
        (u64::MAX, 512),
        (u64::MAX / 512, 512),
        (u64::MAX / 512 + 1, 512),
        (1 << 55, 512),
        (1 << 63, 0),
    ] {
        assert_eq!(rig.read(sector, len, &[]).0, IOERR, "read {sector:#x} {len}");
        assert_eq!(rig.write(sector, &vec![1; len as usize], &[]), IOERR, "write {sector:#x} {len}");
    }
    assert_eq!(rig.device.backend_mut().calls, 0);
    assert!(rig.device.backend_mut().bytes == pattern(8 * 512));
}

#[test]
fn data_that_is_no_whole_sectors_is_refused() {
    let mut rig = mock(8);
    for len in [1, 511, 513, 1000] {
        assert_eq!(rig.read(0, len, &[]).0, IOERR);
        assert_eq!(rig.write(0, &vec![1; len as usize], &[]), IOERR);
    }
    assert_eq!(rig.device.backend_mut().calls, 0);
}

#[test]
fn requests_beyond_the_bound_are_refused() {
    let mut rig = mock(REQUEST_BYTES_MAX / 512 + 8);
    let len = u32::try_from(REQUEST_BYTES_MAX).unwrap();
    assert_eq!(rig.request(IN, 0, &[Segment::writable(DATA, len)]).0, OK);
    assert_eq!(rig.request(IN, 0, &[Segment::writable(DATA, len + 512)]).0, IOERR);
    assert_eq!(rig.request(OUT, 0, &[Segment::readable(DATA, len + 512)]).0, IOERR);
    // The same memory again and again, up to what 32 bits can say.
    let again = vec![Segment::writable(DATA, 16 << 20); 200];
    assert_eq!(rig.request(IN, 0, &again).0, IOERR);
}

#[test]
fn unknown_types_are_unsupported() {
    let mut rig = mock(8);
    for type_ in [2, 3, 5, 6, 7, 9, 10, 12, 14, 15, 26, 0x8000_0000, u32::MAX] {
        assert_eq!(rig.request(type_, 0, &[Segment::writable(DATA, 512)]), (UNSUPP, 0), "{type_}");
    }
    assert_eq!(rig.device.backend_mut().calls, 0);
}

#[test]
fn bad_segments_are_refused_before_a_good_one_is_done() {
    let mut rig = mock(100);
    for type_ in [DISCARD, WRITE_ZEROES] {
        assert_eq!(rig.segments(type_, &[]), IOERR);
        assert_eq!(rig.segments(type_, &[(0, 1, 0); 17]), IOERR);
        assert_eq!(rig.segments(type_, &[(100, 1, 0)]), IOERR);
        assert_eq!(rig.segments(type_, &[(99, 2, 0)]), IOERR);
        assert_eq!(rig.segments(type_, &[(u64::MAX, 1, 0)]), IOERR);
        assert_eq!(rig.segments(type_, &[(0, u32::MAX, 0)]), IOERR);
        assert_eq!(rig.segments(type_, &[(0, 1, 2)]), UNSUPP);
        assert_eq!(rig.segments(type_, &[(0, 1, 0xffff_fff0)]), UNSUPP);
        for len in [1, 15, 17, 31] {
            assert_eq!(rig.request(type_, 0, &[Segment::readable(DATA, len)]).0, IOERR);
        }
    }
    assert_eq!(rig.segments(DISCARD, &[(0, 1, 0), (100, 1, 0)]), IOERR);
    assert_eq!(rig.segments(DISCARD, &[(0, 1, 1)]), UNSUPP);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(0, 1, 0), (1, 1, 0)]), IOERR);
    assert_eq!(rig.device.backend_mut().calls, 0);
}

#[test]
fn a_failing_backend_makes_failed_requests() {
    let mut rig = mock(8);
    rig.device.backend_mut().failing = true;
    assert_eq!(rig.read(0, 512, &[]).0, IOERR);
    assert_eq!(rig.write(0, &[1; 512], &[]), IOERR);
    assert_eq!(rig.request(FLUSH, 0, &[]).0, IOERR);
    assert_eq!(rig.segments(DISCARD, &[(0, 1, 0)]), IOERR);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(0, 1, 0)]), IOERR);
    assert_eq!(rig.device.counters().failed, 5);
    rig.device.backend_mut().failing = false;
    assert_eq!(rig.read(0, 512, &[]).0, OK);
}

/// Chains that cannot carry an answer, or lead out of memory: given back, and nothing else.
#[test]
fn chains_that_are_no_requests_are_given_back() {
    let mut rig = mock(8);
    rig.write_header(IN, 0);
    let header = Segment::readable(HEADER, 16);
    let status = Segment::writable(STATUS, 1);
    let chains: &[&[Segment]] = &[
        &[header],
        &[header, Segment::writable(STATUS, 0)],
        &[header, Segment::readable(DATA, 512)],
        &[header, Segment::writable(MEMORY - 100, 512), status],
        &[header, Segment::writable(1 << 45, 512), status],
        &[header, Segment::writable(u64::MAX - 100, 512), status],
        &[header, Segment::writable(DATA, 512), Segment::writable(MEMORY, 1)],
        &[Segment::readable(MEMORY - 8, 16), status],
        &[Segment::readable(u64::MAX, 16), status],
        &[header, Segment::writable(DATA, u32::MAX), status],
    ];
    for (i, chain) in chains.iter().enumerate() {
        rig.queue.add(chain).unwrap();
        rig.process().unwrap();
        assert_eq!(rig.queue.next_used().unwrap().len, 0, "chain {i}");
    }
    let counters = rig.device.counters();
    assert_eq!((counters.malformed, counters.requests), (chains.len() as u64, 0));
    assert_eq!(rig.device.backend_mut().calls, 0);
}

#[test]
fn short_headers_are_refused() {
    let mut rig = mock(8);
    rig.write_header(IN, 0);
    for len in [0, 1, 15] {
        rig.mem_write(STATUS, &[0xee]);
        rig.queue
            .add(&[
                Segment::readable(HEADER, len),
                Segment::writable(DATA, 512),
                Segment::writable(STATUS, 1),
            ])
            .unwrap();
        rig.process().unwrap();
        rig.queue.next_used().unwrap();
        let mut status = [0];
        vm_memory::Bytes::read_slice(&rig.mem, &mut status, vm_memory::GuestAddress(STATUS)).unwrap();
        assert_eq!(status[0], IOERR);
    }
    assert_eq!(rig.device.backend_mut().calls, 0);
}

#[test]
fn loops_and_broken_links_are_no_requests() {
    let mut rig = mock(8);
    rig.write_header(OUT, 0);
    // Two descriptors in a circle, one that is its own next, one that leads out of the table.
    rig.queue.write_descriptor(7, HEADER, 16, 1, 8);
    rig.queue.write_descriptor(8, STATUS, 1, 3, 7);
    rig.queue.write_descriptor(9, HEADER, 16, 1, 9);
    rig.queue.write_descriptor(10, HEADER, 16, 1, 11);
    rig.queue.write_descriptor(11, STATUS, 1, 3, 256);
    for head in [7, 9, 10] {
        rig.queue.offer(head);
        rig.process().unwrap();
        assert_eq!(rig.queue.next_used_raw(), Some((head, 0)));
    }
    assert_eq!(rig.device.counters().malformed, 3);
    assert_eq!(rig.device.backend_mut().calls, 0);
}

/// Indirect tables are not on offer. One that comes all the same is followed as far as a queue is long.
#[test]
fn indirect_tables_are_bounded() {
    let mut rig = mock(8);
    rig.write_header(IN, 1);
    let table = 0x40_0000;
    let mut chain = vec![Segment::readable(HEADER, 16)];
    chain.extend(cut(DATA, 512, &[2; 200], true));
    chain.push(Segment::writable(STATUS, 1));
    rig.queue.add_indirect(table, &chain).unwrap();
    rig.process().unwrap();
    assert_eq!(rig.queue.next_used().unwrap().len, 513);
    assert!(rig.data(512) == pattern(8 * 512)[512..1024]);
    let long = vec![Segment::writable(DATA, 1); 60_000];
    rig.queue.add_indirect(table, &long).unwrap();
    rig.process().unwrap();
    assert_eq!(rig.queue.next_used().unwrap().len, 0);
    assert_eq!(rig.device.counters().malformed, 1);
}

#[test]
fn broken_rings_are_errors() {
    let mut rig = mock(8);
    rig.queue.set_avail_idx(257);
    assert!(matches!(rig.process(), Err(QueueError::Broken(_))));
    let mut rig = mock(8);
    rig.queue.offer(256);
    assert!(matches!(rig.process(), Err(QueueError::Broken(_))));
}

#[test]
fn a_name_needs_no_room() {
    let mut rig = mock(8);
    assert_eq!(rig.request(GET_ID, 0, &[]), (OK, 1));
    assert_eq!(rig.request(GET_ID, 0, &[Segment::writable(MEMORY - 3, 3)]), (OK, 4));
}

/// A file that is cut short under the device makes failed reads, where a mapping would have made a signal.
#[test]
fn a_file_cut_short_makes_failed_reads() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(64 * 512).unwrap();
    let backend = super::super::FileBackend::writable(file.try_clone().unwrap()).unwrap();
    let mut rig = super::Rig::new(backend);
    file.set_len(10 * 512).unwrap();
    assert_eq!(rig.read(0, 10 * 512, &[]).0, OK);
    assert_eq!(rig.read(9, 1024, &[]).0, IOERR);
    assert_eq!(rig.read(63, 512, &[]).0, IOERR);
    assert_eq!(rig.device.counters().failed, 2);
    assert_eq!(rig.device.backend_mut().capacity(), 64 * 512);
}
