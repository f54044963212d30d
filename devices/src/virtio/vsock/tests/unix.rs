//! The device over real Unix sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;

use super::super::host::{Connector, HostSocket, UnixConnector, UnixSocket};
use super::super::packet::Op;
use super::super::testing::{GUEST_CID, Guest, from_guest};
use super::super::{Readiness, VsockConfig, VsockDevice};
use super::data;

#[test]
fn sockets_do_not_block() {
    let (mut ours, theirs) = UnixSocket::pair().unwrap();
    let mut byte = [0];
    assert_eq!(ours.read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
    let piece = vec![0; 65536];
    let error = loop {
        if let Err(error) = ours.write(&piece) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    ours.shutdown(Shutdown::Read).unwrap();
    drop(theirs);
    // The process would be gone if this raised SIGPIPE with its default action; the error shows that
    // the path is taken.
    assert_eq!(ours.write(&piece).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn only_listed_ports_are_connected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut connector = UnixConnector::new();
    connector.allow(52, &path).allow(53, dir.path().join("nobody"));
    assert!(connector.connect(52).is_err(), "nobody listens yet");
    let listener = UnixListener::bind(&path).unwrap();
    let mut socket = connector.connect(52).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    socket.write_all(b"hi").unwrap();
    let mut two = [0; 2];
    accepted.read_exact(&mut two).unwrap();
    assert_eq!(&two, b"hi");
    assert!(connector.connect(53).is_err());
    assert_eq!(connector.connect(1).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// A listener that accepts nobody must not hold up the device.
#[test]
fn a_full_backlog_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut connector = UnixConnector::new();
    connector.allow(52, &path);
    let mut held = Vec::new();
    // The backlog is bounded by the system, 4096 on most.
    for _ in 0..20_000 {
        match connector.connect(52) {
            Ok(socket) => held.push(socket),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::WouldBlock) || error.raw_os_error() == Some(24),
                    "{error}"
                );
                return;
            }
        }
    }
    panic!("the backlog took {} connections", held.len());
}

#[test]
fn bytes_pass_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connector = UnixConnector::new();
    connector.allow(52, &path);
    let mut device = VsockDevice::new(VsockConfig::new(GUEST_CID), connector).unwrap();
    let mut guest = Guest::new(false);
    guest.offer_all(4096);
    guest.send(&from_guest(9, 52, Op::Request), &[], &[]).unwrap();
    guest.send(&data(9, 52, 4), b"ping", &[]).unwrap();
    guest.run(&mut device).unwrap();
    let token = match device.next_event() {
        Some(super::Event::Opened { token, .. }) => token,
        other => panic!("{other:?}"),
    };
    let (mut peer, _) = listener.accept().unwrap();
    let mut four = [0; 4];
    peer.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"ping");
    peer.write_all(b"pong").unwrap();
    device.host_ready(token, Readiness::READABLE);
    guest.run(&mut device).unwrap();
    assert_eq!(guest.receive().unwrap().0.op(), Some(Op::Response));
    assert_eq!(guest.receive().unwrap().1, b"pong");
}
