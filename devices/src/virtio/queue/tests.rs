//! Freezing of queues, and what devices do with frozen ones.

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{ActiveQueue, ActiveQueues, QueueError, QueueRegisters, QueueState, Ring};
use crate::virtio::testing::{DriverQueue, Segment};

const SIZE: usize = 1 << 20;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), SIZE)]).unwrap()
}

fn set(registers: &mut QueueRegisters, ring: Ring, address: u64) {
    assert!(registers.set_address(ring, false, (address & 0xffff_ffff) as u32));
    assert!(registers.set_address(ring, true, (address >> 32) as u32));
}

fn registers(addresses: [u64; 3]) -> QueueRegisters {
    let mut registers = QueueRegisters::new(256);
    for (ring, address) in [Ring::Descriptors, Ring::Available, Ring::Used].into_iter().zip(addresses) {
        set(&mut registers, ring, address);
    }
    registers.set_ready(true);
    registers
}

#[test]
fn sizes_are_powers_of_two_up_to_the_largest() {
    let mut queue = QueueRegisters::new(128);
    for good in [1, 2, 64, 128] {
        assert!(queue.set_size(good), "{good}");
    }
    for bad in [0, 3, 127, 129, 256, 0x1_0000, 0x1_0040, u32::MAX] {
        assert!(!queue.set_size(bad), "{bad}");
    }
    assert_eq!(queue.save().size, 128);
}

#[test]
fn a_ready_queue_takes_no_settings() {
    let mut queue = registers([0x1000, 0x2000, 0x3000]);
    let before = queue.save();
    assert!(!queue.set_size(16));
    for ring in [Ring::Descriptors, Ring::Available, Ring::Used] {
        assert!(!queue.set_address(ring, false, 0x9000));
        assert!(!queue.set_address(ring, true, 1));
    }
    assert_eq!(queue.save(), before);
    queue.set_ready(false);
    assert!(queue.set_size(16));
}

#[test]
fn halves_of_an_address_keep_each_other() {
    let mut queue = QueueRegisters::new(16);
    assert!(queue.set_address(Ring::Used, true, 0x89ab_cdef));
    assert!(queue.set_address(Ring::Used, false, 0x0123_4567));
    assert_eq!(queue.save().used, 0x89ab_cdef_0123_4567);
    assert!(queue.set_address(Ring::Used, true, 0));
    assert_eq!(queue.save().used, 0x0123_4567);
}

/// A ring of 256: 4096 bytes of descriptors, 518 of available ring, 2054 of used ring.
#[test]
fn rings_must_be_in_memory_to_their_last_byte() {
    let mem = memory();
    let end = SIZE as u64;
    let good = [0x1000, 0x2000, 0x3000];
    registers(good).freeze(false, &mem).unwrap();
    registers([end - 4096, 0x2000, 0x3000]).freeze(false, &mem).unwrap();
    registers([0x1000, end - 518, 0x3000]).freeze(false, &mem).unwrap();
    registers([0x1000, 0x2000, end - 2056]).freeze(false, &mem).unwrap();
    let wild = [end - 16, end, 1 << 40, !15, 1 << 63];
    for (ring, last) in [(0, end - 4096 + 16), (1, end - 518 + 2), (2, end - 2056 + 4)] {
        for address in wild.into_iter().chain([last]) {
            let mut bad = good;
            bad[ring] = address;
            let result = registers(bad).freeze(false, &mem);
            assert!(matches!(result, Err(QueueError::Ring { .. })), "{bad:x?} {result:?}");
        }
    }
}

#[test]
fn rings_must_be_aligned() {
    let mem = memory();
    for (ring, by) in [(0, 8), (0, 1), (1, 1), (2, 2), (2, 1)] {
        let mut bad = [0x1000, 0x2000, 0x3000];
        bad[ring] += by;
        let result = registers(bad).freeze(false, &mem);
        assert!(matches!(result, Err(QueueError::Ring { .. })), "{bad:x?} {result:?}");
    }
}

#[test]
fn a_queue_whose_addresses_were_never_set_is_no_queue() {
    let mut queue = QueueRegisters::new(16);
    queue.set_ready(true);
    assert!(matches!(queue.freeze(false, &memory()), Err(QueueError::Ring { .. })));
}

/// A ring that crosses from one region into the next is in memory; one that crosses a hole is not.
#[test]
fn rings_may_cross_regions_but_no_holes() {
    let touching =
        GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x2000), (GuestAddress(0x2000), 0x8000)]);
    registers([0x1800, 0x4000, 0x5000]).freeze(false, &touching.unwrap()).unwrap();
    let apart =
        GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x2000), (GuestAddress(0x3000), 0x8000)]);
    assert!(registers([0x1800, 0x4000, 0x5000]).freeze(false, &apart.unwrap()).is_err());
}

fn in_use() -> (GuestMemoryMmap, DriverQueue, ActiveQueue) {
    let mem = memory();
    let driver = DriverQueue::new(&mem, 0x1000, 16);
    let queue = driver.device_queue(false);
    (mem, driver, queue)
}

#[test]
fn chains_go_there_and_back() {
    let (mem, mut driver, mut queue) = in_use();
    assert!(queue.next_chain(&mem).unwrap().is_none());
    let head = driver.add(&[Segment::readable(0x8000, 10), Segment::writable(0x9000, 20)]).unwrap();
    let chain = queue.next_chain(&mem).unwrap().unwrap();
    assert_eq!(chain.head_index(), head);
    assert!(queue.next_chain(&mem).unwrap().is_none());
    queue.put_back();
    assert_eq!(queue.next_chain(&mem).unwrap().unwrap().head_index(), head);
    queue.add_used(&mem, head, 5).unwrap();
    assert_eq!(driver.next_used().unwrap().len, 5);
}

/// A loop over a queue ends with its budget, even if the driver has always something more; and it leaves
/// notifications on only where it found nothing.
#[test]
fn a_loop_ends_with_its_budget() {
    let (mem, mut driver, mut queue) = in_use();
    for _ in 0..3 {
        driver.add(&[Segment::readable(0x8000, 1)]).unwrap();
    }
    let no_notify = || {
        let flags: u16 = mem.read_obj(GuestAddress(driver.addresses()[2])).unwrap();
        flags == 1
    };
    let mut budget = 2;
    assert!(queue.next_or_listen(&mem, &mut budget).unwrap().is_some());
    assert!(queue.next_or_listen(&mem, &mut budget).unwrap().is_some());
    assert!(queue.next_or_listen(&mem, &mut budget).unwrap().is_none());
    assert_eq!((budget, no_notify()), (0, true));
    budget = 9;
    assert!(queue.next_or_listen(&mem, &mut budget).unwrap().is_some(), "it was left in the queue");
    assert!(queue.next_or_listen(&mem, &mut budget).unwrap().is_none());
    assert_eq!((budget, no_notify()), (7, false));
}

#[test]
fn broken_indices_are_errors() {
    let (mem, mut driver, mut queue) = in_use();
    driver.set_avail_idx(17);
    assert!(matches!(queue.next_chain(&mem), Err(QueueError::Broken(_))));
    let (mem, mut driver, mut queue) = in_use();
    driver.offer(16);
    let head = queue.next_chain(&mem).unwrap().unwrap().head_index();
    assert!(matches!(queue.add_used(&mem, head, 0), Err(QueueError::Broken(_))));
}

/// Without EVENT_IDX a driver can say by a flag that it polls.
#[test]
fn the_no_interrupt_flag_is_heard() {
    let (mem, mut driver, mut queue) = in_use();
    for (flags, wanted) in [(0, true), (1, false), (0xfffe, true)] {
        driver.set_avail_flags(flags);
        let head = driver.add(&[Segment::readable(0x8000, 1)]).unwrap();
        queue.next_chain(&mem).unwrap();
        queue.add_used(&mem, head, 0).unwrap();
        assert_eq!(queue.needs_interrupt(&mem).unwrap(), wanted, "{flags:#x}");
        driver.next_used().unwrap();
    }
}

#[test]
fn two_queues_at_once_are_two_different_ones() {
    let mem = memory();
    let driver = DriverQueue::new(&mem, 0x1000, 16);
    let queue = || Some(driver.device_queue(false));
    let mut queues = ActiveQueues::new(vec![queue(), None, queue()]);
    assert!(matches!(queues.pair_mut(0, 2), (Some(_), Some(_))));
    assert!(matches!(queues.pair_mut(2, 1), (Some(_), None)));
    assert!(matches!(queues.pair_mut(0, 0), (None, None)));
    assert!(matches!(queues.pair_mut(0, 3), (None, None)));
    assert!(queues.get_mut(3).is_none() && queues.get(1).is_none());
}

proptest! {
    /// Whatever is in the registers, freezing gives a queue inside memory, or an error.
    #[test]
    fn freezing_never_trusts(
        size in any::<u32>(),
        addresses in any::<[u64; 3]>(),
        small in any::<[bool; 3]>(),
    ) {
        let mem = memory();
        let mut addresses = addresses;
        for (address, small) in addresses.iter_mut().zip(small) {
            if small {
                *address &= 0x1f_fff0;
            }
        }
        let mut queue = registers(addresses);
        queue.set_ready(false);
        let _ = queue.set_size(size);
        queue.set_ready(true);
        if let Ok(mut queue) = queue.freeze(true, &mem) {
            let QueueState { size, descriptors, available, used, .. } = queue.save();
            let size = u64::from(size);
            for (at, bytes) in [(descriptors, 16 * size), (available, 6 + 2 * size), (used, 6 + 8 * size)] {
                prop_assert!(at.checked_add(bytes).is_some_and(|end| end <= SIZE as u64));
            }
            let _ = queue.enable_notification(&mem);
            let _ = queue.next_chain(&mem).map(|chain| chain.map(Iterator::count));
            let _ = queue.add_used(&mem, 0, 0);
            let _ = queue.needs_interrupt(&mem);
        }
    }
}
