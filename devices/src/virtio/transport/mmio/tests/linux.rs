//! What Linux's virtio_mmio driver does, step by step.

use virtio_bindings::virtio_mmio::{
    VIRTIO_MMIO_CONFIG_GENERATION, VIRTIO_MMIO_DEVICE_FEATURES, VIRTIO_MMIO_DEVICE_FEATURES_SEL,
    VIRTIO_MMIO_DEVICE_ID, VIRTIO_MMIO_MAGIC_VALUE, VIRTIO_MMIO_QUEUE_NUM_MAX, VIRTIO_MMIO_QUEUE_READY,
    VIRTIO_MMIO_QUEUE_SEL, VIRTIO_MMIO_SHM_BASE_HIGH, VIRTIO_MMIO_SHM_BASE_LOW, VIRTIO_MMIO_SHM_LEN_HIGH,
    VIRTIO_MMIO_SHM_LEN_LOW, VIRTIO_MMIO_SHM_SEL, VIRTIO_MMIO_VENDOR_ID, VIRTIO_MMIO_VERSION,
};

use super::super::{ACKNOWLEDGE, DRIVER, FEATURES_OK, INTERRUPT_CONFIG, INTERRUPT_QUEUE, Notification};
use super::{EVENT_IDX, OWN, Rig, VERSION_1};
use crate::virtio::testing::Segment;

#[test]
fn the_device_shows_what_it_is() {
    let rig = Rig::new();
    let driver = rig.driver();
    assert_eq!(&driver.read(VIRTIO_MMIO_MAGIC_VALUE).to_le_bytes(), b"virt");
    assert_eq!(driver.read(VIRTIO_MMIO_VERSION), 2);
    assert_eq!(driver.read(VIRTIO_MMIO_DEVICE_ID), 77);
    assert_ne!(driver.read(VIRTIO_MMIO_VENDOR_ID), 0);
    assert_eq!(driver.status(), 0);
    assert_eq!(driver.offered(), VERSION_1 | EVENT_IDX | OWN);
    driver.write(VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
    assert_eq!(driver.read(VIRTIO_MMIO_DEVICE_FEATURES), 0);
    assert_eq!(rig.device.counters().ignored, 0);
}

/// Linux looks for regions of shared memory: a length of all ones says that there is none.
#[test]
fn there_is_no_shared_memory() {
    let rig = Rig::new();
    let driver = rig.driver();
    for region in [0, 1, 255] {
        driver.write(VIRTIO_MMIO_SHM_SEL, region);
        for register in [
            VIRTIO_MMIO_SHM_LEN_LOW,
            VIRTIO_MMIO_SHM_LEN_HIGH,
            VIRTIO_MMIO_SHM_BASE_LOW,
            VIRTIO_MMIO_SHM_BASE_HIGH,
        ] {
            assert_eq!(driver.read(register), u32::MAX);
        }
    }
    assert_eq!(rig.device.counters().ignored, 0);
}

#[test]
fn a_driver_starts_works_and_leaves() {
    let mut rig = Rig::new();
    let features = VERSION_1 | OWN;
    rig.driver().start(features, &[&rig.queues[0], &rig.queues[1]]);
    assert_eq!(rig.device.device(|mock| mock.features), Some(features));
    assert_eq!(rig.device.counters().ignored, 0, "a good driver does nothing that is ignored");
    assert!(rig.notifications().contains(&Notification::StateChanged));
    for index in [0u16, 1] {
        rig.driver().write(VIRTIO_MMIO_QUEUE_SEL, index.into());
        assert_eq!(rig.driver().read(VIRTIO_MMIO_QUEUE_READY), 1);
        let head = rig.queues[usize::from(index)].add(&[Segment::readable(0x8000, 1)]).unwrap();
        rig.driver().ring(index.into());
        assert_eq!(rig.notifications(), [Notification::Queue(index)]);
        assert!(rig.device.process_queue(index).interrupt);
        assert_eq!(rig.pulses(), 1);
        assert_eq!(rig.driver().take_interrupts(), INTERRUPT_QUEUE);
        assert_eq!(rig.driver().take_interrupts(), 0);
        let used = rig.queues[usize::from(index)].next_used().unwrap();
        assert_eq!((used.head, used.len), (head, head.into()));
    }
    // Nothing to do, nothing to tell.
    assert_eq!(rig.device.process_queue(0), crate::virtio::Progress::default());
    assert_eq!(rig.pulses(), 0);
    // As when a module is unloaded: reset, then the queues are found down.
    rig.driver().reset();
    for index in [0, 1] {
        rig.driver().write(VIRTIO_MMIO_QUEUE_SEL, index);
        assert_eq!(rig.driver().read(VIRTIO_MMIO_QUEUE_READY), 0);
    }
    let counters = rig.device.counters();
    assert_eq!((counters.ignored, counters.notifications, counters.interrupts), (0, 2, 2));
}

#[test]
fn queues_that_a_driver_leaves_out_are_missing() {
    let mut rig = Rig::new();
    rig.driver().start(VERSION_1, &[&rig.queues[0]]);
    rig.driver().write(VIRTIO_MMIO_QUEUE_SEL, 1);
    assert_eq!(rig.driver().read(VIRTIO_MMIO_QUEUE_READY), 0);
    rig.queues[1].add(&[Segment::readable(0x8000, 1)]);
    rig.device.process_queue(1);
    assert!(rig.queues[1].next_used().is_none());
    assert_eq!(rig.driver().read(VIRTIO_MMIO_QUEUE_NUM_MAX), 256);
    rig.driver().write(VIRTIO_MMIO_QUEUE_SEL, 2);
    assert_eq!(rig.driver().read(VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
}

#[test]
fn features_that_do_not_do_are_refused_by_the_missing_bit() {
    for bad in [0, OWN, VERSION_1 | 1, VERSION_1 | 1 << 63, u64::MAX] {
        let rig = Rig::new();
        assert_eq!(rig.driver().negotiate(bad), ACKNOWLEDGE | DRIVER, "{bad:#x}");
        assert_eq!(rig.device.device(|mock| mock.features), None);
        // A better choice later does.
        assert_ne!(rig.driver().negotiate(VERSION_1) & FEATURES_OK, 0);
    }
}

#[test]
fn event_idx_reaches_the_queues() {
    let mut rig = Rig::new();
    rig.driver().start(VERSION_1 | EVENT_IDX, &[&rig.queues[0]]);
    rig.queues[0].set_used_event(1);
    rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
    assert!(!rig.device.process_queue(0).interrupt);
    assert_eq!((rig.pulses(), rig.driver().take_interrupts()), (0, 0));
    rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
    assert!(rig.device.process_queue(0).interrupt);
    assert_eq!(rig.pulses(), 1);
}

#[test]
fn the_configuration_space_is_the_devices() {
    let rig = Rig::live();
    rig.device.device(|mock| mock.config = [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(rig.driver().config(0, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(rig.driver().config(6, 4), [7, 8, 0, 0]);
    let mut eight = [0; 8];
    rig.device.read(0x100, &mut eight);
    assert_eq!(eight, [1, 2, 3, 4, 5, 6, 7, 8]);
    rig.device.write(0x102, &[9, 9]);
    assert_eq!(rig.driver().config(0, 4), [1, 2, 9, 9]);
}

#[test]
fn a_changed_configuration_is_told_with_a_new_generation() {
    let rig = Rig::live();
    let before = rig.driver().read(VIRTIO_MMIO_CONFIG_GENERATION);
    rig.device.config_changed();
    assert_ne!(rig.driver().read(VIRTIO_MMIO_CONFIG_GENERATION), before);
    assert_eq!(rig.pulses(), 1);
    assert_eq!(rig.driver().take_interrupts(), INTERRUPT_CONFIG);
}

/// Before the driver is ready it hears nothing, and finds the new generation.
#[test]
fn nobody_is_interrupted_before_driver_ok() {
    let rig = Rig::new();
    let before = rig.driver().read(VIRTIO_MMIO_CONFIG_GENERATION);
    rig.device.config_changed();
    assert_ne!(rig.driver().read(VIRTIO_MMIO_CONFIG_GENERATION), before);
    assert_eq!((rig.pulses(), rig.driver().take_interrupts()), (0, 0));
}

/// A tiny guest may do it with fewer writes.
#[test]
fn several_steps_in_one_write_are_taken_in_order() {
    let rig = Rig::new();
    let driver = rig.driver();
    assert_eq!(driver.add_status(ACKNOWLEDGE | DRIVER), ACKNOWLEDGE | DRIVER);
    driver.write(virtio_bindings::virtio_mmio::VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
    driver.write(virtio_bindings::virtio_mmio::VIRTIO_MMIO_DRIVER_FEATURES, 1);
    assert_eq!(driver.add_status(FEATURES_OK | super::super::DRIVER_OK), 15);
    assert_eq!(rig.device.counters().ignored, 0);
}
