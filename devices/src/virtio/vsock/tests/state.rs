//! Saving and restoring.

use std::io::Write;

use super::super::packet::{Header, Op, SHUTDOWN_BOTH};
use super::super::state::{ConnectionPhase, STATE_VERSION, VsockState};
use super::super::testing::{GUEST_CID, Guest, MockConnector, MockSocket, from_guest, pair};
use super::super::{CloseReason, Event, Readiness, VsockConfig, VsockError};
use super::{Device, close_reason, data, device, events, open, poke, received_ops, send};

fn restore(state: VsockState) -> Result<Device, VsockError> {
    let config = VsockConfig { buffer_min: 1, ..VsockConfig::new(GUEST_CID) };
    Device::restore(config, MockConnector::default(), state, |_| None).map(|(device, _)| device)
}

/// A device in the middle of several things.
fn busy(guest: &mut Guest) -> (Device, Vec<MockSocket>) {
    let mut device = device();
    device.accept_features(1 << 32).unwrap();
    device.connector_mut().capacity = 100;
    let mut hosts = Vec::new();
    for port in [1000, 1001, 1002] {
        hosts.push(open(guest, &mut device, port, 52).1);
    }
    // Undelivered bytes, with and without their sender.
    guest.send(&data(1000, 52, 300), &[1; 300], &[]).unwrap();
    guest.send(&data(1001, 52, 400), &[2; 400], &[]).unwrap();
    let bye = Header { flags: SHUTDOWN_BOTH, ..from_guest(1001, 52, Op::Shutdown) };
    guest.send(&bye, &[], &[]).unwrap();
    // A request that was not sent, a reset that was not sent.
    let (ours, theirs) = pair(10);
    device.connect(77, ours).unwrap();
    hosts.push(theirs);
    guest.send(&from_guest(5, 6, Op::Data), &[], &[]).unwrap();
    guest.run(&mut device).unwrap();
    guest.reap();
    device.assert_consistent();
    (device, hosts)
}

#[test]
fn a_state_survives_writing_and_reading() {
    let mut guest = Guest::new(false);
    let (device, _hosts) = busy(&mut guest);
    let state = device.save();
    assert_eq!((state.version, state.guest_cid), (STATE_VERSION, GUEST_CID));
    assert_eq!((state.connections.len(), state.resets.len()), (4, 1));
    assert_eq!(state.connections[0].buffer, [1; 200]);
    let text = serde_json::to_string(&state).unwrap();
    let back: VsockState = serde_json::from_str(&text).unwrap();
    assert_eq!(back, state);
}

/// What is carried on is exactly what was saved: saving again gives the same.
#[test]
fn a_restored_device_saves_the_same_state() {
    let mut guest = Guest::new(false);
    let (device, _hosts) = busy(&mut guest);
    let mut state = device.save();
    // A connection that cannot be carried changes; leave it out here.
    state.connections.retain(|c| c.guest != ConnectionPhase::Requesting);
    let mut theirs = Vec::new();
    let (restored, carried) =
        Device::restore(device.config().clone(), MockConnector::default(), state.clone(), |_| {
            let (ours, far) = pair(0);
            theirs.push(far);
            Some(ours)
        })
        .unwrap();
    restored.assert_consistent();
    assert_eq!(carried.len(), 3);
    assert_eq!(restored.save(), state);
}

#[test]
fn a_carried_connection_goes_on_to_the_byte() {
    let mut guest = Guest::new(false);
    let (device, old_hosts) = busy(&mut guest);
    let state = device.save();
    drop((device, old_hosts));

    let mut fars = Vec::new();
    let (mut device, carried) = Device::restore(
        VsockConfig { buffer_min: 1, ..VsockConfig::new(GUEST_CID) },
        MockConnector::default(),
        state,
        |connection| {
            let (ours, far) = pair(1 << 16);
            fars.push((connection.ports.guest, far));
            Some(ours)
        },
    )
    .unwrap();
    assert_eq!(device.acked_features(), 1 << 32);
    let tokens: Vec<_> = carried.iter().map(|(ports, token)| (ports.guest, *token)).collect();
    assert_eq!(tokens.iter().map(|t| t.0).collect::<Vec<_>>(), [1000, 1001, 1002]);
    guest.offer_all(4096);
    for (_, token) in &tokens {
        poke(&mut guest, &mut device, *token);
    }
    assert_eq!(close_reason(&mut device), Some(CloseReason::GuestClosed));
    assert_eq!(fars[0].1.read_available(), (vec![1; 200], false));
    assert_eq!(fars[1].1.read_available(), (vec![2; 300], true));
    // Resets: for the packet without a connection, for the connection that the guest closed. The
    // request that was never sent is forgotten on both sides.
    assert_eq!(received_ops(&mut guest), [Op::Reset, Op::Reset]);

    send(&mut guest, &mut device, &data(1000, 52, 4), b"more");
    assert_eq!(fars[0].1.read_available().0, b"more");
    fars[2].1.write_all(b"back").unwrap();
    poke(&mut guest, &mut device, tokens[2].1);
    assert_eq!(guest.receive().unwrap().1, b"back");
}

#[test]
fn without_sockets_the_guest_is_told_of_each_loss() {
    let mut guest = Guest::new(false);
    let (device, _hosts) = busy(&mut guest);
    let next_port = device.save().next_host_port;
    let mut restored = restore(device.save()).unwrap();
    restored.assert_consistent();
    assert_eq!(restored.buffered(), 0);
    guest.offer_all(4096);
    guest.run(&mut restored).unwrap();
    let mut ports: Vec<u32> = std::iter::from_fn(|| guest.receive())
        .map(|(header, _)| {
            assert_eq!(header.op(), Some(Op::Reset));
            header.dst_port
        })
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [5, 1000, 1001, 1002]);
    assert_eq!((restored.connections(), events(&mut restored).len()), (0, 0));

    // Ports are not used again.
    let (ours, _far) = pair(1);
    restored.connect(77, ours).unwrap();
    guest.run(&mut restored).unwrap();
    assert_eq!(guest.receive().unwrap().0.src_port, next_port);
}

/// The counter of host ports has gone round, and meets a connection that is still there.
#[test]
fn a_host_port_in_use_is_passed_over() {
    let mut guest = Guest::new(false);
    let mut first = device();
    guest.offer_all(4096);
    let (ours, _far) = pair(1);
    first.connect(77, ours).unwrap();
    guest.run(&mut first).unwrap();
    let port = guest.receive().unwrap().0.src_port;
    send(&mut guest, &mut first, &from_guest(77, port, Op::Response), &[]);
    let mut state = first.save();
    state.next_host_port = port;
    let mut fars = Vec::new();
    let (mut second, carried) =
        Device::restore(first.config().clone(), MockConnector::default(), state, |_| {
            let (ours, far) = pair(1);
            fars.push(far);
            Some(ours)
        })
        .unwrap();
    assert_eq!(carried.len(), 1);
    let (ours, _far) = pair(1);
    second.connect(77, ours).unwrap();
    guest.run(&mut second).unwrap();
    assert_eq!(guest.receive().unwrap().0.src_port, port + 1);
    second.assert_consistent();
}

#[test]
fn a_transport_reset_is_kept_until_it_is_told() {
    let mut guest = Guest::new(false);
    let mut first = device();
    first.reset_transport();
    let mut restored = restore(first.save()).unwrap();
    guest.event.add(&[crate::virtio::testing::Segment::writable(0x10_0000, 4)]).unwrap();
    restored.process_event(&mut guest.event_queue, &guest.mem).unwrap();
    assert_eq!(guest.event.next_used().unwrap().len, 4);
}

#[test]
fn states_that_cannot_be_are_refused() {
    let mut guest = Guest::new(false);
    let (device, _hosts) = busy(&mut guest);
    let refused = |change: &dyn Fn(&mut VsockState)| {
        let mut state = device.save();
        change(&mut state);
        matches!(restore(state), Err(VsockError::State(_)))
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|s| s.version += 1));
    assert!(refused(&|s| s.guest_cid += 1));
    assert!(refused(&|s| s.acked_features = 1));
    assert!(refused(&|s| s.connections[1].ports = s.connections[0].ports));
    assert!(refused(&|s| s.connections[0].buffer.push(0)));
    assert!(refused(&|s| s.connections[0].guest_flags = 4));
    assert!(refused(&|s| {
        let reset = s.resets[0];
        s.resets = vec![reset; 1000];
    }));
    // Counters that contradict each other, by way of the stored form.
    let mut value = serde_json::to_value(device.save()).unwrap();
    value["connections"][0]["send"]["tx_cnt"] = serde_json::json!(0x8000_0000u32);
    value["connections"][0]["send"]["fwd_cnt"] = serde_json::json!(1);
    let state: VsockState = serde_json::from_value(value).unwrap();
    assert!(matches!(restore(state), Err(VsockError::State(_))));
    let mut value = serde_json::to_value(device.save()).unwrap();
    value["connections"][0]["receive"]["buf_alloc"] = serde_json::json!(u32::MAX);
    let state: VsockState = serde_json::from_value(value).unwrap();
    assert!(matches!(restore(state), Err(VsockError::State(_))));
}

#[test]
fn saving_changes_nothing() {
    let mut guest = Guest::new(false);
    let (mut device, mut hosts) = busy(&mut guest);
    let before = device.save();
    assert_eq!(device.save(), before);
    let token = events(&mut device)
        .into_iter()
        .find_map(|event| match event {
            Event::Interest { token, .. } => Some(token),
            _ => None,
        })
        .unwrap();
    hosts[0].read_available();
    device.host_ready(token, Readiness::WRITABLE);
    device.assert_consistent();
}
