//! The entropy device against a good and a bad driver.

use std::io;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{EntropySource, FILL_MAX, RngDevice};
use crate::virtio::testing::mmio::MmioDriver;
use crate::virtio::testing::{DriverQueue, Segment};
use crate::virtio::transport::mmio::{MmioDevice, NEEDS_RESET};

/// Counts up from 1, or has nothing.
struct Numbers(Option<u8>);

impl EntropySource for Numbers {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let next = self.0.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        for byte in bytes {
            *byte = *next;
            *next = next.wrapping_add(1).max(1);
        }
        Ok(())
    }
}

const MEMORY: u32 = 4 << 20;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap()
}

fn start<E: EntropySource>(
    mem: &GuestMemoryMmap,
    source: E,
) -> (MmioDevice<RngDevice<E>, GuestMemoryMmap>, DriverQueue) {
    let device = MmioDevice::new(RngDevice::new(source), mem.clone(), Box::new(|| ()), Box::new(|_| ()));
    let queue = DriverQueue::new(mem, 0x1000, 64);
    MmioDriver(&device).start(1 << 32, &[&queue]);
    (device, queue)
}

#[test]
fn a_buffer_is_filled_and_no_byte_beyond() {
    let mem = memory();
    let (device, mut queue) = start(&mem, Numbers(Some(1)));
    queue.add(&[Segment::writable(0x1_0000, 10), Segment::writable(0x2_0000, 54)]).unwrap();
    assert!(device.process_queue(0).interrupt);
    assert_eq!(queue.next_used().unwrap().len, 64);
    let (mut first, mut second) = ([0; 11], [0; 55]);
    mem.read_slice(&mut first, GuestAddress(0x1_0000)).unwrap();
    mem.read_slice(&mut second, GuestAddress(0x2_0000)).unwrap();
    assert_eq!(first, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
    assert_eq!((second[0], second[53], second[54]), (11, 64, 0));
}

#[test]
fn the_hosts_bytes_differ() {
    let mem = memory();
    let (device, mut queue) = start(&mem, super::HostEntropy);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        queue.add(&[Segment::writable(0x1_0000, 16)]).unwrap();
        device.process_queue(0);
        assert_eq!(queue.next_used().unwrap().len, 16);
        let mut bytes = [0; 16];
        mem.read_slice(&mut bytes, GuestAddress(0x1_0000)).unwrap();
        assert!(seen.insert(bytes));
    }
}

/// However much a guest asks for at once: a bound for a buffer, a bound for a call.
#[test]
fn large_buffers_get_a_bounded_part() {
    let mem = memory();
    let (device, mut queue) = start(&mem, Numbers(Some(1)));
    for _ in 0..64 {
        queue.add(&[Segment::writable(0x1_0000, 3 << 20)]).unwrap();
    }
    let progress = device.process_queue(0);
    assert!(progress.interrupt && progress.again);
    while let Some(used) = queue.next_used() {
        assert_eq!(used.len as usize, FILL_MAX);
    }
    assert_eq!(device.device(|rng| rng.counters().bytes), 64 * FILL_MAX as u64);
    assert!(!device.process_queue(0).again);
}

#[test]
fn without_entropy_nothing_is_given_back() {
    let mem = memory();
    let (device, mut queue) = start(&mem, Numbers(None));
    queue.add(&[Segment::writable(0x1_0000, 64)]).unwrap();
    assert!(!device.process_queue(0).interrupt);
    assert!(queue.next_used().is_none());
    device.device(|rng| rng.source.0 = Some(1));
    assert!(device.process_queue(0).interrupt, "the same buffer, later");
    assert_eq!(queue.next_used().unwrap().len, 64);
}

#[test]
fn useless_buffers_come_back_empty() {
    let mem = memory();
    let (device, mut queue) = start(&mem, Numbers(Some(1)));
    for bad in [
        Segment::readable(0x1_0000, 64),
        Segment::writable(0x1_0000, 0),
        Segment::writable(u64::from(MEMORY) - 8, 9),
        Segment::writable(u64::MAX - 3, 64),
        Segment::writable(1 << 50, 64),
    ] {
        queue.add(&[bad]).unwrap();
        device.process_queue(0);
        assert_eq!(queue.next_used().unwrap().len, 0, "{bad:?}");
    }
    assert_eq!(device.device(|rng| rng.counters().malformed), 5);
    // A chain that bites its tail.
    queue.write_descriptor(5, 0x1_0000, 100, 3, 6);
    queue.write_descriptor(6, 0x1_0000, 100, 3, 5);
    queue.offer(5);
    device.process_queue(0);
    assert_eq!(queue.next_used_raw(), Some((5, 4096)));
}

#[test]
fn a_broken_ring_stops_the_device() {
    let mem = memory();
    let (device, mut queue) = start(&mem, Numbers(Some(1)));
    queue.set_avail_idx(65);
    device.process_queue(0);
    assert_ne!(device.status() & NEEDS_RESET, 0);
}

/// The transport's state is all there is.
#[test]
fn a_restored_device_goes_on() {
    let mem = memory();
    let (old, mut queue) = start(&mem, Numbers(Some(1)));
    for _ in 0..3 {
        queue.add(&[Segment::writable(0x1_0000, 64)]).unwrap();
        old.process_queue(0);
        queue.next_used().unwrap();
    }
    let new = MmioDevice::new(RngDevice::default(), mem.clone(), Box::new(|| ()), Box::new(|_| ()));
    new.restore(&old.save()).unwrap();
    queue.add(&[Segment::writable(0x1_0000, 64)]).unwrap();
    new.process_queue(0);
    assert_eq!(queue.next_used().unwrap().len, 64);
}
