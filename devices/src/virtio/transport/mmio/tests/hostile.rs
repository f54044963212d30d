//! Drivers that do what none should. The device ignores, counts, or stops; it never panics.

use proptest::prelude::*;
use virtio_bindings::virtio_mmio::{
    VIRTIO_MMIO_DRIVER_FEATURES, VIRTIO_MMIO_DRIVER_FEATURES_SEL, VIRTIO_MMIO_QUEUE_NUM,
    VIRTIO_MMIO_QUEUE_READY, VIRTIO_MMIO_QUEUE_SEL, VIRTIO_MMIO_STATUS,
};

use super::super::{
    ACKNOWLEDGE, DRIVER, DRIVER_OK, FAILED, FEATURES_OK, INTERRUPT_CONFIG, NEEDS_RESET, Notification,
};
use super::{Rig, VERSION_1};
use crate::virtio::Progress;
use crate::virtio::testing::Segment;

const LIVE: u32 = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK;

/// Queue settings are what they were at DRIVER_OK, whatever is written afterwards (CVE-2026-5747).
#[test]
fn queues_in_use_cannot_be_changed() {
    let mut rig = Rig::live();
    let before = rig.device.save();
    let ignored = rig.device.counters().ignored;
    let driver = rig.driver();
    for queue in [0, 1] {
        driver.write(VIRTIO_MMIO_QUEUE_SEL, queue);
        driver.write(VIRTIO_MMIO_QUEUE_NUM, 8);
        driver.write(VIRTIO_MMIO_QUEUE_NUM, 0);
        driver.set_addresses([0xdead_0000; 3]);
        driver.write(VIRTIO_MMIO_QUEUE_READY, 0);
        driver.write(VIRTIO_MMIO_QUEUE_READY, 1);
        driver.write(VIRTIO_MMIO_QUEUE_READY, 7);
    }
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES, 8);
    assert_eq!(rig.device.counters().ignored - ignored, 2 * 11 + 1);
    let mut after = rig.device.save();
    after.queue_sel = before.queue_sel;
    assert_eq!(after, before);
    // And it works on.
    rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
    assert!(rig.device.process_queue(0).interrupt);
    assert!(rig.queues[0].next_used().is_some());
}

/// Each register has its time (virtio 1.2, 3.1.1).
#[test]
fn writes_out_of_turn_are_ignored() {
    let rig = Rig::new();
    let driver = rig.driver();
    let features = |driver: &crate::virtio::testing::mmio::MmioDriver<'_>| {
        driver.write(VIRTIO_MMIO_DRIVER_FEATURES, 8);
        rig.device.save().driver_features
    };
    let ready = |driver: &crate::virtio::testing::mmio::MmioDriver<'_>| {
        driver.write(VIRTIO_MMIO_QUEUE_READY, 1);
        driver.read(VIRTIO_MMIO_QUEUE_READY)
    };
    assert_eq!((features(&driver), ready(&driver)), (0, 0));
    driver.add_status(ACKNOWLEDGE);
    assert_eq!((features(&driver), ready(&driver)), (0, 0));
    driver.add_status(DRIVER);
    assert_eq!((features(&driver), ready(&driver)), (8, 0));
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES, 1);
    assert_eq!(driver.add_status(FEATURES_OK), ACKNOWLEDGE | DRIVER | FEATURES_OK);
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES, 0);
    assert_eq!(rig.device.save().driver_features, VERSION_1 | 8);
    assert_eq!(ready(&driver), 1);
}

#[test]
fn the_ladder_has_no_short_cuts() {
    for (from, to) in [
        (0, DRIVER),
        (0, FEATURES_OK),
        (0, DRIVER_OK),
        (0, DRIVER | FEATURES_OK | DRIVER_OK),
        (ACKNOWLEDGE, FEATURES_OK),
        (ACKNOWLEDGE | DRIVER, DRIVER_OK),
    ] {
        let rig = Rig::new();
        rig.driver().add_status(from);
        assert_eq!(rig.driver().add_status(to), from, "{from:#x} {to:#x}");
    }
}

#[test]
fn bits_cannot_be_taken_back_or_made_up() {
    let rig = Rig::live();
    let driver = rig.driver();
    let ignored = rig.device.counters().ignored;
    for bad in [ACKNOWLEDGE, LIVE & !FEATURES_OK, LIVE & !DRIVER_OK, LIVE | 16, LIVE | 1 << 31] {
        driver.write(VIRTIO_MMIO_STATUS, bad);
        assert_eq!(driver.status(), LIVE, "{bad:#x}");
    }
    assert_eq!(rig.device.counters().ignored - ignored, 5);
    // A driver cannot set NEEDS_RESET, and writing it back is no fault.
    driver.write(VIRTIO_MMIO_STATUS, LIVE | NEEDS_RESET);
    assert_eq!(driver.status(), LIVE);
}

#[test]
fn a_driver_that_has_given_up_gets_nothing_until_it_resets() {
    let mut rig = Rig::live();
    rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
    assert_eq!(rig.driver().add_status(FAILED), LIVE | FAILED);
    assert_eq!(rig.notifications(), [Notification::StateChanged]);
    rig.device.process_queue(0);
    rig.driver().ring(0);
    assert_eq!((rig.pulses(), rig.notifications()), (0, vec![]));
    assert!(rig.queues[0].next_used().is_none());
    rig.driver().reset();
    assert_eq!(rig.driver().status(), 0);
}

#[test]
fn wild_rings_need_a_reset_and_say_so() {
    for ring in 0..3 {
        for address in [0, 8, 0x3001, (1 << 20) - 16, 1 << 20, 1 << 52, !0xfff, u64::MAX] {
            let rig = Rig::new();
            let driver = rig.driver();
            driver.negotiate(VERSION_1);
            driver.set_queue(1, &rig.queues[1]);
            driver.write(VIRTIO_MMIO_QUEUE_SEL, 0);
            driver.write(VIRTIO_MMIO_QUEUE_NUM, 16);
            let mut addresses = [0x1000, 0x2000, 0x3000];
            addresses[ring] = address;
            // Descriptors at 0 and rings at 8 are odd, but possible.
            if (ring == 0 && address == 0) || (ring > 0 && address == 8) || (ring == 2 && address == 0) {
                continue;
            }
            driver.set_addresses(addresses);
            driver.write(VIRTIO_MMIO_QUEUE_READY, 1);
            let status = driver.add_status(DRIVER_OK);
            assert_eq!(status, LIVE | NEEDS_RESET, "ring {ring} at {address:#x}");
            assert_eq!(driver.take_interrupts(), INTERRUPT_CONFIG);
            assert!(rig.device.failure().is_some());
            rig.device.process_queue(0);
            rig.device.process_queue(1);
            assert!(rig.device.device(|mock| mock.processed.is_empty()), "a stopped device was called");
            // The way out.
            driver.start(VERSION_1, &[&rig.queues[0], &rig.queues[1]]);
            assert!(rig.device.failure().is_none());
        }
    }
}

#[test]
fn a_queue_broken_later_stops_the_device() {
    let mut rig = Rig::live();
    rig.queues[0].set_avail_idx(500);
    rig.queues[1].add(&[Segment::readable(0x8000, 1)]);
    assert_eq!(rig.device.process_queue(0), Progress::default());
    assert_eq!(rig.driver().status(), LIVE | NEEDS_RESET);
    assert_eq!(rig.driver().take_interrupts(), INTERRUPT_CONFIG);
    assert_eq!(rig.notifications(), [Notification::StateChanged]);
    rig.device.process_queue(1);
    assert!(rig.queues[1].next_used().is_none());
    assert!(rig.device.with_device(|_, queues, _| (queues.is_none(), Ok(Progress::default()))));
    // A driver that goes on as if nothing had happened is not heard.
    rig.driver().ring(1);
    rig.driver().write(VIRTIO_MMIO_STATUS, LIVE | NEEDS_RESET);
    assert_eq!(rig.driver().status(), LIVE | NEEDS_RESET);
    assert_eq!(rig.notifications(), []);
}

#[test]
fn odd_accesses_are_counted_and_have_no_effect() {
    let rig = Rig::live();
    let before = rig.device.save();
    let ignored = rig.device.counters().ignored;
    let mut n = 0;
    for len in [0, 1, 2, 3, 5, 8, 16] {
        for offset in [0u64, 0x50, 0x64, 0x70, 0x44, 0xfc] {
            rig.device.write(offset, &vec![0; len]);
            let mut data = vec![0xff; len];
            rig.device.read(offset, &mut data);
            assert!(data.iter().all(|byte| *byte == 0));
            n += 2;
        }
    }
    // Unknown offsets, unaligned ones, legacy registers, read-only and write-only ones.
    for offset in [0x1c, 0x28, 0x3c, 0x40, 0x48, 0x51, 0x72, 0xc0, 0xf8, 0xff] {
        rig.driver().write(offset, 0);
        assert_eq!(rig.driver().read(offset), 0);
        n += 2;
    }
    for read_only in [0, 4, 8, 0xc, 0x10, 0x34, 0x60, 0xfc] {
        rig.driver().write(read_only, 1);
        n += 1;
    }
    for write_only in [0x14, 0x24, 0x30, 0x38, 0x50, 0x64, 0x80, 0x94, 0xac] {
        assert_eq!(rig.driver().read(write_only), 0);
        n += 1;
    }
    // The configuration space in sizes that no processor has.
    for len in [0, 3, 5, 7, 9, 64] {
        rig.device.write(0x100, &vec![1; len]);
        rig.device.read(0x100, &mut vec![0; len]);
        n += 2;
    }
    for queue in [2, 0xffff, 0x1_0000, u32::MAX] {
        rig.driver().ring(queue);
        n += 1;
    }
    assert_eq!(rig.device.counters().ignored - ignored, n);
    assert_eq!(rig.device.save(), before);
    assert_eq!(rig.notifications(), []);
    let mut far = [1; 4];
    rig.device.read(u64::MAX, &mut far);
    rig.device.write(u64::MAX, &far);
    assert_eq!(far, [0; 4]);
}

#[test]
fn a_doorbell_of_a_device_that_is_not_live_reaches_nobody() {
    let rig = Rig::new();
    rig.driver().ring(0);
    rig.driver().negotiate(VERSION_1);
    rig.notifications();
    rig.driver().ring(0);
    rig.device.process_queue(0);
    assert_eq!(rig.notifications(), []);
    assert!(rig.device.device(|mock| mock.processed.is_empty()));
}

#[test]
fn a_reset_forgets_everything() {
    let rig = Rig::live();
    rig.driver().write(VIRTIO_MMIO_QUEUE_SEL, 1);
    rig.device.config_changed();
    rig.driver().reset();
    let mut state = rig.device.save();
    // The generation is the only thing that goes on.
    state.config_generation = 0;
    assert_eq!(state, Rig::new().device.save());
    assert_eq!(rig.device.device(|mock| (mock.resets, mock.features)), (2, None));
}

proptest! {
    /// Any sequence of accesses of any kind, between real work: the status is always one that can be.
    #[test]
    fn any_sequence_of_accesses(
        accesses in prop::collection::vec((0u64..0x120, any::<bool>(), any::<u32>(), 0usize..9, any::<bool>()), 0..300),
    ) {
        let mut rig = Rig::new();
        for (offset, write, value, len, tidy) in accesses {
            let (offset, len) = if tidy { (offset & !3, 4) } else { (offset, len) };
            // Small values hit more.
            let value = if tidy { value & 0xff } else { value };
            if write {
                let bytes = u64::from(value).to_le_bytes();
                rig.device.write(offset, &bytes[..len]);
            } else {
                rig.device.read(offset, &mut vec![0; len]);
            }
            if offset == 0x70 && value & 3 == 1 {
                rig.driver().start(VERSION_1, &[&rig.queues[0], &rig.queues[1]]);
                rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
            }
            rig.device.process_queue(0);
            let state = rig.device.save();
            prop_assert!(super::super::registers::is_possible(state.status), "{:#x}", state.status);
        }
    }
}
