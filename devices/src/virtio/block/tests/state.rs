//! Saving and restoring, alone and behind the transport.

use vm_memory::GuestMemoryMmap;

use super::super::{BlockDevice, BlockState, BlockStateError};
use super::{DATA, HEADER, ID, IN, MockDisk, OK, Rig, STATUS, VERSION_1, mock, pattern};
use crate::virtio::testing::Segment;
use crate::virtio::testing::mmio::MmioDriver;
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
