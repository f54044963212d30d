//! Feature bits, configuration space, notifications, and the event queue.

use virtio_queue::QueueT;

use super::super::packet::Op;
use super::super::testing::{Guest, MockConnector, from_guest};
use super::super::{VsockConfig, VsockError};
use super::{Device, data, device, events, open, received_ops};
use crate::virtio::FeatureError;
use crate::virtio::queue::ActiveQueue;
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

/// Sends a packet that causes no answer, and says whether the driver is interrupted for its use.
fn sent(guest: &mut Guest, device: &mut Device, payload: &[u8]) -> bool {
    guest.send(&from_guest(1, 2, Op::Reset), payload, &[]).unwrap();
    device.process_tx(&mut guest.tx_queue, &guest.mem).unwrap().interrupt
}

/// With EVENT_IDX the driver says when it wants to be interrupted.
#[test]
fn interrupts_follow_the_used_event() {
    let mut guest = Guest::new(true);
    let mut device = device();
    guest.tx.set_used_event(1);
    assert!(!sent(&mut guest, &mut device, &[0; 5000]));
    assert!(sent(&mut guest, &mut device, &[0; 5000]));
    assert!(!sent(&mut guest, &mut device, &[0; 5000]));
}

#[test]
fn of_short_packets_the_driver_hears_when_there_are_some() {
    for event_idx in [false, true] {
        let mut guest = Guest::new(event_idx);
        let mut device = device();
        let told: Vec<_> = (0..40).filter(|_| sent(&mut guest, &mut device, b"short")).collect();
        // With EVENT_IDX the driver asked for the first one alone.
        assert_eq!(told, if event_idx { vec![16] } else { vec![16, 33] });
        assert_eq!(guest.reap(), 40, "they are used all the same");
        if !event_idx {
            assert!(sent(&mut guest, &mut device, &[0; 5000]), "a long one is told of at once");
        }
    }
}

#[test]
fn a_driver_with_few_descriptors_hears_of_each_packet() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let mut registers = guest.tx.queue(false);
    registers.set_size(8);
    guest.tx_queue = ActiveQueue::new(registers, &guest.mem).unwrap();
    for _ in 0..3 {
        assert!(sent(&mut guest, &mut device, b"short"));
    }
}

#[test]
fn an_interrupt_for_the_other_queue_tells_of_packets_too() {
    let mut guest = Guest::new(true);
    let mut device = device();
    guest.offer_all(4096);
    assert!(!sent(&mut guest, &mut device, b"short"));
    // A request to a port where nobody listens: a reset is the answer.
    guest.send(&from_guest(1000, 53, Op::Request), &[], &[]).unwrap();
    let (rx, tx) = device.process(&mut guest.rx_queue, &mut guest.tx_queue, &guest.mem).unwrap();
    assert!(rx.interrupt && tx.interrupt, "each queue may have an interrupt of its own");
    // From here on the driver wants to hear of the fortieth.
    guest.tx.set_used_event(40);
    let told: Vec<_> = (2..60).filter(|_| sent(&mut guest, &mut device, b"short")).collect();
    assert_eq!(told, [52], "the first seventeen since the fortieth make a bound of their own");
}

#[test]
fn a_driver_that_notifies_of_nothing_new_hears_of_packets() {
    let mut guest = Guest::new(true);
    let mut device = device();
    assert!(!sent(&mut guest, &mut device, b"short"));
    assert!(device.process_tx(&mut guest.tx_queue, &guest.mem).unwrap().interrupt);
    assert!(!device.process_tx(&mut guest.tx_queue, &guest.mem).unwrap().interrupt, "once");
}

#[test]
fn a_restored_device_tells_of_what_the_saved_one_did_not() {
    let mut guest = Guest::new(true);
    let mut device = device();
    assert!(!sent(&mut guest, &mut device, b"short"));
    let state = device.save();
    let (mut device, _) =
        Device::restore(device.config().clone(), MockConnector::default(), state, |_| None).unwrap();
    // The queue begins to count behind the place where the driver wanted to hear of it.
    let saved = guest.tx_queue.save();
    guest.tx_queue = guest.tx.device_queue(true);
    guest.tx_queue.set_position(saved.next_available, saved.next_used);
    let told: Vec<_> = (1..40).filter(|_| sent(&mut guest, &mut device, b"short")).collect();
    assert_eq!(told, [17]);
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
