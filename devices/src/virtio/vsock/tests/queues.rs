//! Feature bits, configuration space, notifications, and the event queue.

use super::super::packet::Op;
use super::super::testing::{Guest, MockConnector, from_guest};
use super::super::{VsockConfig, VsockError};
use super::{Device, data, device, events, open, received_ops};
use crate::virtio::FeatureError;
use crate::virtio::testing::Segment;

const VERSION_1: u64 = 1 << 32;
const EVENT_IDX: u64 = 1 << 29;

#[test]
fn features_are_version_1_and_event_idx() {
    assert_eq!(Device::FEATURES, VERSION_1 | EVENT_IDX);
    let mut device = device();
    device.accept_features(VERSION_1).unwrap();
    device.accept_features(VERSION_1 | EVENT_IDX).unwrap();
    assert_eq!(device.acked_features(), VERSION_1 | EVENT_IDX);
    for bad in [0, EVENT_IDX, VERSION_1 | 1, VERSION_1 | 2, u64::MAX] {
        assert!(matches!(
            device.accept_features(bad),
            Err(FeatureError::NotOffered { .. } | FeatureError::Legacy { .. })
        ));
    }
    device.reset();
    assert_eq!(device.acked_features(), 0);
}

#[test]
fn the_configuration_space_is_the_address() {
    let device = Device::new(VsockConfig::new(0x0102_0304), MockConnector::default()).unwrap();
    let mut all = [0xff; 8];
    device.read_config(0, &mut all);
    assert_eq!(all, [4, 3, 2, 1, 0, 0, 0, 0]);
    let mut two = [0xff; 2];
    device.read_config(1, &mut two);
    assert_eq!(two, [3, 2]);
    let mut over = [0xff; 4];
    device.read_config(6, &mut over);
    assert_eq!(over, [0; 4]);
    for offset in [8, 100, u64::MAX] {
        over = [0xff; 4];
        device.read_config(offset, &mut over);
        assert_eq!(over, [0; 4]);
    }
}

#[test]
fn contradicting_limits_are_refused() {
    let refused = |change: fn(&mut VsockConfig)| {
        let mut config = VsockConfig::new(3);
        change(&mut config);
        matches!(Device::new(config, MockConnector::default()), Err(VsockError::Config(_)))
    };
    for cid in [0, 1, 2, 0xffff_ffff, 1 << 32, u64::MAX] {
        assert!(VsockConfig::new(cid).validate().is_err(), "{cid}");
    }
    assert!(!refused(|_| {}));
    assert!(refused(|c| c.connections_max = 0));
    assert!(refused(|c| c.resets_max = 0));
    assert!(refused(|c| c.buffer_min = 0));
    assert!(refused(|c| c.buffer_min = c.buffer_max + 1));
    assert!(refused(|c| c.buffer_max = u32::MAX));
    assert!(refused(|c| c.buffer_total = 1000));
    assert!(refused(|c| c.connections_max = usize::MAX));
}

#[test]
fn a_call_handles_a_bounded_number_of_chains() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    for _ in 0..256 {
        guest.send(&data(1000, 52, 1), b"x", &[]).unwrap();
    }
    let progress = device.process_tx(&mut guest.tx_queue, &guest.mem).unwrap();
    assert!(progress.interrupt && progress.again);
    assert_eq!(guest.reap(), 256);
    let progress = device.process_tx(&mut guest.tx_queue, &guest.mem).unwrap();
    assert!(!progress.interrupt && !progress.again);
    assert_eq!(host.read_available().0.len(), 256);
}

/// With EVENT_IDX the driver says when it wants to be interrupted.
#[test]
fn interrupts_follow_the_used_event() {
    let mut guest = Guest::new(true);
    let mut device = device();
    guest.tx.set_used_event(1);
    guest.send(&from_guest(1, 2, Op::Reset), &[], &[]).unwrap();
    let progress = device.process_tx(&mut guest.tx_queue, &guest.mem).unwrap();
    assert!(!progress.interrupt);
    guest.send(&from_guest(1, 2, Op::Reset), &[], &[]).unwrap();
    let progress = device.process_tx(&mut guest.tx_queue, &guest.mem).unwrap();
    assert!(progress.interrupt);
}

#[test]
fn event_idx_changes_nothing_else() {
    let mut guest = Guest::new(true);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    for _ in 0..1000 {
        guest.send(&data(1000, 52, 2), b"ab", &[45]).unwrap();
        guest.run(&mut device).unwrap();
        assert_eq!(guest.reap(), 1);
    }
    assert_eq!(host.read_available().0.len(), 2000);
}

#[test]
fn a_transport_reset_is_told_once_the_driver_can_hear_it() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, host) = open(&mut guest, &mut device, 1000, 52);
    let quiet = device.process_event(&mut guest.event_queue, &guest.mem).unwrap();
    assert!(!quiet.interrupt);
    device.reset_transport();
    drop(events(&mut device));
    assert!(host.hung_up());
    let early = device.process_event(&mut guest.event_queue, &guest.mem).unwrap();
    assert!(!early.interrupt, "no buffer yet");
    // Buffers that cannot hold an event come back empty.
    guest.event.add(&[Segment::writable(0x10_0000, 3)]).unwrap();
    guest.event.add(&[Segment::readable(0x10_0000, 8)]).unwrap();
    guest.event.add(&[Segment::writable(0x10_0000, 4)]).unwrap();
    guest.event.add(&[Segment::writable(0x10_0000, 4)]).unwrap();
    let told = device.process_event(&mut guest.event_queue, &guest.mem).unwrap();
    assert!(told.interrupt);
    assert_eq!(guest.event.next_used().unwrap().len, 0);
    assert_eq!(guest.event.next_used().unwrap().len, 0);
    let used = guest.event.next_used().unwrap();
    assert_eq!(guest.bytes_of(&used), [0; 4]);
    let again = device.process_event(&mut guest.event_queue, &guest.mem).unwrap();
    assert!(!again.interrupt && guest.event.next_used().is_none());
    assert_eq!(received_ops(&mut guest), []);
}
