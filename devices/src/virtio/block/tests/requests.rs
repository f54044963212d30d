//! Good requests of every kind and shape.

use proptest::prelude::*;

use super::super::{BlockBackend, DISCARD_SECTORS_MAX, FileBackend, ZEROES_SECTORS_MAX};
use super::{
    DATA, DISCARD, F_FLUSH, F_RO, FLUSH, GET_ID, ID, IOERR, MockDisk, OK, OUT, Rig, UNSUPP, VERSION_1,
    WRITE_ZEROES, mock, pattern,
};
use crate::virtio::VirtioDevice;
use crate::virtio::testing::Segment;

fn in_file(sectors: usize) -> Rig<FileBackend> {
    let file = tempfile::tempfile().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(sectors * 512), 0).unwrap();
    Rig::new(FileBackend::writable(file).unwrap())
}

#[test]
fn the_configuration_space_has_the_layout_of_the_specification() {
    let rig = mock(1000);
    let u32_at = |at| u32::from_le_bytes(rig.config(at, 4).try_into().unwrap());
    assert_eq!(rig.config(0, 8), 1000u64.to_le_bytes());
    assert_eq!((u32_at(8), u32_at(12)), (64 * 1024, 126));
    assert_eq!((u32_at(36), u32_at(40), u32_at(44)), (DISCARD_SECTORS_MAX, 16, 1));
    assert_eq!((u32_at(48), u32_at(52), rig.config(56, 1)), (ZEROES_SECTORS_MAX, 1, vec![1]));
    assert_eq!(rig.config(60, 40), [0; 40]);
    assert_eq!(rig.config(u64::MAX, 4), [0; 4]);
    assert_eq!(rig.features() & (F_RO | F_FLUSH | VERSION_1), F_FLUSH | VERSION_1);
    let rig = Rig::new(MockDisk { bytes: pattern(512), read_only: true, ..MockDisk::default() });
    assert_eq!(rig.features() & (F_RO | F_FLUSH | 1 << 13 | 1 << 14), F_RO);
    assert_eq!(rig.config(36, 24), [0; 24]);
}

#[test]
fn sectors_are_read_where_they_are() {
    let all = pattern(64 * 512);
    let check = |status: u8, bytes: &[u8], sector: usize| {
        assert_eq!(status, OK);
        assert!(bytes == &all[sector * 512..sector * 512 + bytes.len()]);
    };
    let (mut in_memory, mut in_file) = (mock(64), in_file(64));
    for (sector, len) in [(0, 512), (1, 512), (63, 512), (7, 4096), (0, 64 * 512), (64, 0)] {
        let (status, bytes) = in_memory.read(sector, len, &[]);
        check(status, &bytes, usize::try_from(sector).unwrap());
        let (status, bytes) = in_file.read(sector, len, &[]);
        check(status, &bytes, usize::try_from(sector).unwrap());
    }
}

#[test]
fn what_is_written_is_read_and_its_neighbours_stay() {
    let (mut a, mut b) = (mock(16), in_file(16));
    let new = vec![0xab; 3 * 512];
    assert_eq!((a.write(5, &new, &[]), b.write(5, &new, &[])), (OK, OK));
    let mut expected = pattern(16 * 512);
    expected[5 * 512..8 * 512].copy_from_slice(&new);
    assert!(a.read(0, 16 * 512, &[]).1 == expected);
    assert!(b.read(0, 16 * 512, &[]).1 == expected);
}

/// As large as announced: 126 descriptors of 64 KiB, in one go.
#[test]
fn the_largest_request_that_is_announced_works() {
    let mut rig = in_file(126 * 128);
    let cuts = [64 * 1024; 125];
    let (status, bytes) = rig.read(0, 126 * 64 * 1024, &cuts);
    assert_eq!(status, OK);
    assert!(bytes == pattern(126 * 128 * 512));
    assert_eq!(rig.write(0, &vec![1; 126 * 64 * 1024], &cuts), OK);
}

#[test]
fn the_name_is_twenty_bytes() {
    let mut rig = mock(1);
    let (status, used) = rig.request(GET_ID, 99, &[Segment::writable(DATA, 20)]);
    assert_eq!((status, used, rig.data(20)), (OK, 21, ID.to_vec()));
    let (status, _) = rig.request(GET_ID, 0, &[Segment::writable(DATA, 5), Segment::writable(DATA + 64, 3)]);
    assert_eq!(status, OK);
    // A buffer that is longer keeps its rest.
    rig.mem_fill(DATA, 40, 7);
    assert_eq!(rig.request(GET_ID, 0, &[Segment::writable(DATA, 40)]), (OK, 20));
    assert_eq!(rig.data(40)[20..], [7; 20]);
}

#[test]
fn a_flush_reaches_the_backend() {
    let mut rig = mock(4);
    rig.write(0, &[1; 512], &[]);
    assert_eq!(rig.device.backend_mut().flushes, 0);
    assert_eq!(rig.request(FLUSH, 0, &[]), (OK, 1));
    assert_eq!(rig.device.backend_mut().flushes, 1);
    assert_eq!(in_file(4).request(FLUSH, 0, &[]), (OK, 1));
}

/// A driver that knows no flush must find its writes safe (virtio 1.2, 5.2.6.2).
#[test]
fn without_flush_every_write_is_safe() {
    let mut rig = mock(4);
    let device: &mut dyn VirtioDevice<vm_memory::GuestMemoryMmap> = &mut rig.device;
    device.reset();
    device.accept_features(VERSION_1).unwrap();
    assert_eq!(rig.write(0, &[1; 512], &[]), OK);
    assert_eq!(rig.device.backend_mut().flushes, 1);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(0, 1, 0)]), OK);
    assert_eq!(rig.device.backend_mut().flushes, 2);
    assert_eq!(rig.read(0, 512, &[]).0, OK);
    assert_eq!(rig.device.backend_mut().flushes, 2);
}

#[test]
fn segments_reach_the_backend_in_bytes() {
    let mut rig = mock(100);
    assert_eq!(rig.segments(DISCARD, &[(1, 2, 0), (50, 50, 0), (100, 0, 0)]), OK);
    assert_eq!(rig.device.backend_mut().discarded, [(512, 1024), (25600, 25600), (51200, 0)]);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(3, 1, 0)]), OK);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(4, 2, 1)]), OK);
    assert_eq!(rig.device.backend_mut().zeroed, [(1536, 512, false), (2048, 1024, true)]);
}

/// Neither the shape of the header, nor of the data, nor where the status lies, makes a difference.
#[test]
fn headers_and_status_may_be_anywhere_in_their_runs() {
    use super::{HEADER, IN};
    use crate::virtio::testing::cut;
    for header_cuts in [&[1u32; 15][..], &[8], &[0, 16], &[15, 0, 0, 1]] {
        let mut rig = mock(8);
        rig.write_header(IN, 3);
        let mut chain = cut(HEADER, 16, header_cuts, false);
        // Data and status in one descriptor.
        chain.push(Segment::writable(DATA, 512 + 1));
        rig.queue.add(&chain).unwrap();
        rig.process().unwrap();
        assert_eq!(rig.queue.next_used().unwrap().len, 513);
        let bytes = rig.data(513);
        assert!(bytes[..512] == pattern(8 * 512)[3 * 512..4 * 512]);
        assert_eq!(bytes[512], OK);
    }
    // A write whose header and data are one descriptor, with the status cut off by empty ones.
    let mut rig = mock(8);
    let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([0x77; 1024]);
    rig.mem_write(DATA, &bytes);
    rig.queue
        .add(&[
            Segment::readable(DATA, 16 + 1024),
            Segment::writable(super::STATUS, 0),
            Segment::writable(super::STATUS, 1),
            Segment::writable(super::STATUS, 0),
        ])
        .unwrap();
    rig.process().unwrap();
    assert_eq!(rig.queue.next_used().unwrap().len, 1);
    assert_eq!(rig.read(2, 1024, &[]), (OK, vec![0x77; 1024]));
}

#[test]
fn a_call_stops_after_the_largest_requests_worth() {
    let mut rig = mock(16384);
    let chain = |rig: &mut Rig<MockDisk>| {
        rig.write_header(super::IN, 0);
        let data = Segment::writable(DATA, 4 << 20);
        rig.queue.add(&[Segment::readable(super::HEADER, 16), data, Segment::writable(super::STATUS, 1)])
    };
    for _ in 0..5 {
        chain(&mut rig).unwrap();
    }
    let progress = rig.process().unwrap();
    assert!(progress.again && progress.interrupt);
    assert_eq!(rig.device.counters().requests, 2);
    while rig.process().unwrap().again {}
    assert_eq!(rig.device.counters().requests, 5);
}

/// Flushes take their time, and a guest can ask for many.
#[test]
fn a_call_makes_few_flushes() {
    let mut rig = mock(16);
    rig.write_header(FLUSH, 0);
    for _ in 0..100 {
        rig.queue.add(&[Segment::readable(super::HEADER, 16), Segment::writable(super::STATUS, 1)]).unwrap();
    }
    assert!(rig.process().unwrap().again);
    assert!(rig.device.backend_mut().flushes <= 8);
    while rig.process().unwrap().again {}
    assert_eq!(rig.device.backend_mut().flushes, 100);
}

/// What a read-only disk answers to everything that would change it, and that it asks its backend nothing.
#[test]
fn read_only_is_the_devices_own_rule() {
    let mut rig = Rig::new(MockDisk { bytes: pattern(64 * 512), read_only: true, ..MockDisk::default() });
    // Even a driver that leaves the bit out.
    VirtioDevice::<vm_memory::GuestMemoryMmap>::accept_features(&mut rig.device, VERSION_1).unwrap();
    assert_eq!(rig.write(0, &[1; 512], &[]), IOERR);
    assert_eq!(rig.request(OUT, 0, &[]).0, IOERR);
    assert_eq!(rig.request(FLUSH, 0, &[]).0, IOERR);
    assert_eq!(rig.segments(DISCARD, &[(0, 1, 0)]), IOERR);
    assert_eq!(rig.segments(WRITE_ZEROES, &[(0, 1, 1)]), IOERR);
    assert_eq!(rig.device.backend_mut().calls, 0);
    assert!(rig.read(0, 64 * 512, &[]).1 == pattern(64 * 512));
    assert_eq!(rig.request(GET_ID, 0, &[Segment::writable(DATA, 20)]).0, OK);
    assert_eq!(rig.request(14, 0, &[]).0, UNSUPP);
}

proptest! {
    /// Any cuts, over both kinds of backend, against a plain array.
    #[test]
    fn data_cut_anywhere_is_moved_whole(
        sector in 0u64..32,
        sectors in 0u32..32,
        cuts in prop::collection::vec(0u32..3000, 0..40),
        write in any::<bool>(),
    ) {
        let mut expected = pattern(64 * 512);
        let (mut a, mut b) = (mock(64), in_file(64));
        let at = usize::try_from(sector).unwrap() * 512;
        let len = sectors as usize * 512;
        if write {
            let new: Vec<u8> = (0..len).map(|i| (i % 13) as u8).collect();
            expected[at..at + len].copy_from_slice(&new);
            prop_assert_eq!((a.write(sector, &new, &cuts), b.write(sector, &new, &cuts)), (OK, OK));
            prop_assert!(a.device.backend_mut().bytes == expected);
        }
        let (status, bytes) = a.read(sector, sectors * 512, &cuts);
        prop_assert!(status == OK && bytes == expected[at..at + len]);
        let (status, bytes) = b.read(sector, sectors * 512, &cuts);
        prop_assert!(status == OK && bytes == expected[at..at + len]);
    }
}

impl<B: BlockBackend> Rig<B> {
    fn mem_fill(&self, at: u64, len: usize, byte: u8) {
        self.mem_write(at, &vec![byte; len]);
    }

    pub(super) fn mem_write(&self, at: u64, bytes: &[u8]) {
        vm_memory::Bytes::write_slice(&self.mem, bytes, vm_memory::GuestAddress(at)).unwrap();
    }
}
