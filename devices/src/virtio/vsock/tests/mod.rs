//! Tests of the whole device against a mock driver and mock sockets.
// Counters are 32 bits on the wire, and tests keep them wider on purpose.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod credit;
mod hostile;
mod lifecycle;
mod packet;
mod queues;
mod state;
mod streams;
mod transport;
mod unix;

use super::packet::{Header, Op};
use super::testing::{Guest, MockConnector, MockSocket, from_guest};
use super::{Event, Readiness, Token, VsockConfig, VsockDevice, testing};

pub(super) type Device = VsockDevice<MockSocket, MockConnector>;

/// A device with small limits, so that tests reach them.
pub(super) fn device() -> Device {
    device_with(|_| {})
}

pub(super) fn device_with(change: impl FnOnce(&mut VsockConfig)) -> Device {
    let mut config = VsockConfig::new(testing::GUEST_CID);
    config.connections_max = 8;
    config.buffer_max = 64 * 1024;
    config.buffer_min = 4 * 1024;
    config.buffer_total = 256 * 1024;
    config.resets_max = 4;
    change(&mut config);
    Device::new(config, MockConnector::default()).unwrap()
}

/// Opens a connection from `guest_port` to `host_port`, and gives the far end of the host socket.
pub(super) fn open(
    guest: &mut Guest,
    device: &mut Device,
    guest_port: u32,
    host_port: u32,
) -> (Token, MockSocket) {
    guest.send(&from_guest(guest_port, host_port, Op::Request), &[], &[]).unwrap();
    // No matter if the queue is full of buffers already.
    let _ = guest.offer(4096, &[]);
    guest.run(device).unwrap();
    assert_eq!(guest.reap(), 1);
    let (answer, _) = guest.receive().expect("an answer");
    assert_eq!(answer.op(), Some(Op::Response));
    let token = loop {
        match device.next_event() {
            Some(Event::Opened { token, guest_port: g, host_port: h }) => {
                assert_eq!((g, h), (guest_port, host_port));
                break token;
            }
            Some(_) => {}
            None => panic!("no Opened event"),
        }
    };
    let (port, socket) = device.connector_mut().accepted.pop_front().unwrap();
    assert_eq!(port, host_port);
    (token, socket)
}

/// Sends one packet and lets the device handle it.
pub(super) fn send(guest: &mut Guest, device: &mut Device, header: &Header, payload: &[u8]) {
    guest.send(header, payload, &[]).unwrap();
    guest.run(device).unwrap();
    guest.reap();
    device.assert_consistent();
}

/// A data packet.
pub(super) fn data(guest_port: u32, host_port: u32, len: usize) -> Header {
    Header { len: u32::try_from(len).unwrap(), ..from_guest(guest_port, host_port, Op::Data) }
}

/// Tells the device that a host socket is ready for everything, and lets it handle that.
pub(super) fn poke(guest: &mut Guest, device: &mut Device, token: Token) {
    device.host_ready(token, Readiness::READABLE | Readiness::WRITABLE);
    guest.run(device).unwrap();
    device.assert_consistent();
}

/// All operations that the device sent, in order.
pub(super) fn received_ops(guest: &mut Guest) -> Vec<Op> {
    std::iter::from_fn(|| guest.receive()).map(|(header, _)| header.op().unwrap()).collect()
}

/// All events of a device.
pub(super) fn events(device: &mut Device) -> Vec<Event<MockSocket>> {
    std::iter::from_fn(|| device.next_event()).collect()
}

/// The one reason for which a connection was closed in `events`.
pub(super) fn close_reason(device: &mut Device) -> Option<super::CloseReason> {
    let mut reasons = events(device).into_iter().filter_map(|event| match event {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    });
    let reason = reasons.next();
    assert!(reasons.next().is_none(), "more than one connection closed");
    reason
}
