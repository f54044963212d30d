//! Saving and restoring, alone and behind the transport.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vm_memory::GuestMemoryMmap;

use super::super::{BlockDevice, BlockState, BlockStateError, FileBackend};
use super::{DATA, HEADER, ID, IN, MockDisk, OK, Rig, STATUS, VERSION_1, mock, pattern};
use crate::virtio::testing::mmio::MmioDriver;
use crate::virtio::testing::{DriverQueue, Segment};
use crate::virtio::transport::mmio::MmioDevice;

fn disk(sectors: usize) -> MockDisk {
    MockDisk { bytes: pattern(sectors * 512), ..MockDisk::default() }
}

type Transport = MmioDevice<BlockDevice<MockDisk>, GuestMemoryMmap>;

fn behind_mmio(device: BlockDevice<MockDisk>, mem: &GuestMemoryMmap) -> Transport {
    MmioDevice::new(device, mem.clone(), Box::new(|| ()), Box::new(|_| ()))
}

fn offer_read(rig: &mut Rig<MockDisk>, sector: u64) {
    rig.write_header(IN, sector);
    rig.queue
        .add(&[Segment::readable(HEADER, 16), Segment::writable(DATA, 512), Segment::writable(STATUS, 1)])
        .unwrap();
}

#[test]
fn a_disk_goes_on_behind_a_restored_transport() {
    let mut rig = mock(8);
    let old = behind_mmio(BlockDevice::new(disk(8), ID), &rig.mem);
    let driver = MmioDriver(&old);
    driver.start(driver.offered() & !(1 << 29), &[&rig.queue]);
    offer_read(&mut rig, 3);
    assert!(old.process_queue(0).interrupt);
    assert_eq!(rig.queue.next_used().unwrap().len, 513);
    offer_read(&mut rig, 5);
    let text = serde_json::to_string(&(old.save(), old.device(|block| block.save()))).unwrap();
    let (transport, block): (_, BlockState) = serde_json::from_str(&text).unwrap();
    let new = behind_mmio(BlockDevice::restore(disk(8), &block).unwrap(), &rig.mem);
    new.restore(&transport).unwrap();
    new.process_queue(0);
    assert_eq!(rig.queue.next_used().unwrap().len, 513);
    assert!(rig.data(512) == pattern(8 * 512)[5 * 512..6 * 512]);
    // The features of the driver came with the transport: no flush after a write.
    new.device(|block| assert!(!block.write_through()));
    assert_eq!(rig.read(0, 0, &[]).0, OK);
}

#[test]
fn another_disk_is_no_substitute() {
    let state = BlockDevice::new(disk(8), ID).save();
    assert!(BlockDevice::restore(disk(8), &state).is_ok());
    let other = |backend, change: fn(&mut BlockState)| {
        let mut state = state;
        change(&mut state);
        BlockDevice::restore(backend, &state).unwrap_err()
    };
    assert!(matches!(other(disk(9), |_| {}), BlockStateError::OtherDisk { .. }));
    assert!(matches!(
        other(MockDisk { read_only: true, ..disk(8) }, |_| {}),
        BlockStateError::OtherDisk { .. }
    ));
    assert!(matches!(other(disk(8), |s| s.version = 2), BlockStateError::Version(2)));
}

/// A driver's reset in the middle: the requests that were not begun are forgotten, the disk goes on.
#[test]
fn a_reset_forgets_requests() {
    let mut rig = mock(8);
    let transport = behind_mmio(BlockDevice::new(disk(8), ID), &rig.mem);
    let driver = MmioDriver(&transport);
    driver.start(VERSION_1, &[&rig.queue]);
    offer_read(&mut rig, 1);
    driver.reset();
    transport.process_queue(0);
    assert!(rig.queue.next_used().is_none());
    transport.device(|block| assert_eq!(block.counters().requests, 0));
    let mut rig = mock(8);
    let transport = behind_mmio(BlockDevice::new(disk(8), ID), &rig.mem);
    MmioDriver(&transport).start(VERSION_1, &[&rig.queue]);
    offer_read(&mut rig, 2);
    transport.process_queue(0);
    assert_eq!(rig.queue.next_used().unwrap().len, 513);
}

/// Ends the loop of another thread.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The same with a device's thread at work all the time, for as long as requests take: when a reset has
/// returned, no byte of guest memory changes on behalf of a request from before (CVE-2026-45782 was one
/// that did).
#[test]
fn after_a_reset_no_memory_is_touched() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8 << 20).unwrap();
    let mut rig = mock(1);
    let disk = BlockDevice::new(FileBackend::read_only(file).unwrap(), ID);
    let transport = MmioDevice::new(disk, rig.mem.clone(), Box::new(|| ()), Box::new(|_| ()));
    let done = AtomicBool::new(false);
    let mut interrupted = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                transport.process_queue(0);
            }
        });
        // Also when an assertion fails.
        let _stop = Stop(&done);
        for round in 0..60u32 {
            rig.mem_write(0x1000, &[0; 0x3000]);
            rig.queue = DriverQueue::new(&rig.mem, 0x1000, 256);
            MmioDriver(&transport).start(VERSION_1, &[&rig.queue]);
            rig.write_header(IN, 0);
            // The disk is all zeros.
            rig.mem_write(DATA, &vec![0xff; 256 << 10]);
            for _ in 0..40 {
                let data = Segment::writable(DATA, 256 << 10);
                rig.queue.add(&[Segment::readable(HEADER, 16), data, Segment::writable(STATUS, 1)]).unwrap();
            }
            std::thread::sleep(Duration::from_micros(u64::from(round % 7) * 100));
            MmioDriver(&transport).reset();
            rig.mem_write(DATA, &vec![0xff; 256 << 10]);
            rig.mem_write(STATUS, &[0xff]);
            std::thread::sleep(Duration::from_micros(200));
            assert!(rig.data(256 << 10).iter().all(|byte| *byte == 0xff), "round {round}");
            let used = std::iter::from_fn(|| rig.queue.next_used_raw()).count();
            interrupted += u32::from((1..40).contains(&used));
        }
    });
    assert!(interrupted > 0, "no reset came in the middle");
}
