//! Saving and restoring the transport.

use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::super::{
    DRIVER_OK, FAILED, FEATURES_OK, INTERRUPT_QUEUE, MmioState, NEEDS_RESET, Notification, StateError,
};
use super::{EVENT_IDX, OWN, Rig, VERSION_1};
use crate::virtio::testing::Segment;

fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap()
}

/// A live device that has used two chains, with an interrupt that nobody acknowledged.
fn worked(mem: &GuestMemoryMmap) -> Rig {
    let mut rig = Rig::with_memory(mem);
    rig.driver().start(VERSION_1 | EVENT_IDX, &[&rig.queues[0], &rig.queues[1]]);
    for _ in 0..2 {
        rig.queues[0].add(&[Segment::readable(0x8000, 1)]);
        rig.device.process_queue(0);
    }
    rig.device.config_changed();
    rig.driver().write(virtio_bindings::virtio_mmio::VIRTIO_MMIO_INTERRUPT_ACK, 2);
    rig
}

#[test]
fn a_driver_notices_nothing() {
    let mem = memory();
    let mut old = worked(&mem);
    let state = old.device.save();
    let text = serde_json::to_string(&state).unwrap();
    let state: MmioState = serde_json::from_str(&text).unwrap();
    let new = Rig::with_memory(&mem);
    new.device.restore(&state).unwrap();
    assert_eq!(new.device.save(), state);
    assert_eq!(new.device.device(|mock| (mock.features, mock.resets)), (Some(VERSION_1 | EVENT_IDX), 0));
    assert_eq!((new.pulses(), new.notifications()), (0, vec![]), "nothing before the machine runs");
    new.device.resume();
    assert_eq!(new.pulses(), 1);
    assert_eq!(
        new.notifications(),
        [Notification::Queue(0), Notification::Queue(1), Notification::StateChanged]
    );
    // The driver of the old one goes on with the new one.
    old.queues[0].next_used().unwrap();
    old.queues[0].next_used().unwrap();
    assert_eq!(new.driver().take_interrupts(), INTERRUPT_QUEUE);
    old.queues[0].add(&[Segment::readable(0x8000, 1)]);
    new.device.process_queue(0);
    assert!(old.queues[0].next_used().is_some());
    assert_eq!(new.driver().status(), 15);
}

#[test]
fn each_step_of_a_driver_can_be_saved() {
    let mem = memory();
    let rig = Rig::with_memory(&mem);
    let check = |rig: &Rig| {
        let state = rig.device.save();
        let other = Rig::with_memory(&mem);
        other.device.restore(&state).unwrap();
        assert_eq!(other.device.save(), state);
    };
    check(&rig);
    rig.driver().add_status(1);
    check(&rig);
    rig.driver().negotiate(1);
    check(&rig);
    rig.driver().negotiate(VERSION_1 | OWN);
    check(&rig);
    rig.driver().set_queue(1, &rig.queues[1]);
    check(&rig);
    rig.driver().add_status(DRIVER_OK);
    check(&rig);
    rig.driver().add_status(FAILED);
    check(&rig);
    rig.driver().start(VERSION_1, &[&rig.queues[0]]);
    check(&rig);
}

#[test]
fn a_stopped_device_stays_stopped() {
    let mem = memory();
    let mut rig = worked(&mem);
    rig.queues[0].set_avail_idx(999);
    rig.device.process_queue(0);
    let state = rig.device.save();
    assert_ne!(state.status & NEEDS_RESET, 0);
    let other = Rig::with_memory(&mem);
    other.device.restore(&state).unwrap();
    other.device.process_queue(0);
    assert!(other.device.device(|mock| mock.processed.is_empty()));
    other.device.resume();
    assert_eq!(other.notifications(), [Notification::StateChanged]);
}

#[test]
fn a_state_that_cannot_be_changes_nothing() {
    let mem = memory();
    let good = worked(&mem).device.save();
    let target = Rig::with_memory(&mem);
    let fresh = target.device.save();
    let refused = |change: &dyn Fn(&mut MmioState)| {
        let mut state = good.clone();
        change(&mut state);
        let error = target.device.restore(&state).unwrap_err();
        assert_eq!(target.device.save(), fresh);
        assert_eq!(target.device.device(|mock| mock.features), None);
        error
    };
    assert!(matches!(refused(&|s| s.version += 1), StateError::Foreign { .. }));
    assert!(matches!(refused(&|s| s.device_type = 2), StateError::Foreign { .. }));
    assert!(matches!(refused(&|s| s.status &= !FEATURES_OK), StateError::Contradiction(_)));
    assert!(matches!(refused(&|s| s.status |= 16), StateError::Contradiction(_)));
    assert!(matches!(refused(&|s| s.status = NEEDS_RESET), StateError::Contradiction(_)));
    assert!(matches!(refused(&|s| s.status = 3), StateError::Contradiction(_)));
    assert!(matches!(refused(&|s| s.interrupt_status = 4), StateError::Contradiction(_)));
    assert!(matches!(refused(&|s| s.alien_features = true), StateError::Contradiction(_)));
    assert!(matches!(refused(&|s| s.driver_features = 0), StateError::Features(_)));
    assert!(matches!(refused(&|s| s.driver_features |= 1), StateError::Features(_)));
    assert!(matches!(refused(&|s| s.queues.truncate(1)), StateError::Contradiction(_)));
    assert!(matches!(refused(&|s| s.queues.push(s.queues[0])), StateError::Contradiction(_)));
    for size in [0, 3, 32, u16::MAX] {
        assert!(matches!(refused(&|s| s.queues[0].size = size), StateError::Contradiction(_)), "{size}");
    }
    for address in [1 << 20, u64::MAX, 1] {
        assert!(matches!(refused(&|s| s.queues[0].descriptors = address), StateError::Queue(_)));
        assert!(matches!(refused(&|s| s.queues[0].available = address), StateError::Queue(_)));
        assert!(matches!(refused(&|s| s.queues[1].used = address), StateError::Queue(_)));
    }
    target.device.restore(&good).unwrap();
}

/// Positions are the guest's to choose in the end; wrong ones break the queue, and no more.
#[test]
fn wild_positions_stop_the_device() {
    let mem = memory();
    let mut state = worked(&mem).device.save();
    state.queues[0].next_available = 0x8000;
    state.queues[0].next_used = 0x4321;
    let rig = Rig::with_memory(&mem);
    rig.device.restore(&state).unwrap();
    rig.device.process_queue(0);
    assert_ne!(rig.driver().status() & NEEDS_RESET, 0);
}
