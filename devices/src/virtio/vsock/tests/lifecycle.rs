//! Connections from their beginning to their end, as a well-behaved guest and host would have it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use super::super::host::HostSocket;
use super::super::packet::{Header, Op, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use super::super::testing::{Guest, REFUSED_PORT, from_guest, pair};
use super::super::{CloseReason, Event, Readiness, VsockError};
use super::{close_reason, data, device, device_with, events, open, poke, received_ops, send};

fn shutdown(guest_port: u32, host_port: u32, flags: u32) -> Header {
    Header { flags, ..from_guest(guest_port, host_port, Op::Shutdown) }
}

#[test]
fn a_guest_connects_talks_and_closes() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);

    send(&mut guest, &mut device, &data(1000, 52, 5), b"hello");
    assert_eq!(host.read_available(), (b"hello".to_vec(), false));
    host.write_all(b"world!").unwrap();
    poke(&mut guest, &mut device, token);
    let (header, payload) = guest.receive().unwrap();
    assert_eq!((header.op(), payload.as_slice()), (Some(Op::Data), &b"world!"[..]));
    assert_eq!((header.src_port, header.dst_port), (52, 1000));
    assert_eq!(header.fwd_cnt, 5, "headers carry the credit of the moment");

    send(&mut guest, &mut device, &shutdown(1000, 52, SHUTDOWN_BOTH), &[]);
    assert_eq!(received_ops(&mut guest), [Op::Reset], "the clean answer");
    assert_eq!(close_reason(&mut device), Some(CloseReason::GuestClosed));
    assert!(host.hung_up());
    assert_eq!(device.connections(), 0);
}

#[test]
fn a_host_connects_and_the_guest_accepts() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    let (ours, mut host) = pair(1 << 20);
    let token = device.connect(77, ours).unwrap();
    host.write_all(b"early").unwrap();
    device.host_ready(token, Readiness::READABLE);
    guest.run(&mut device).unwrap();
    let (request, _) = guest.receive().unwrap();
    assert_eq!((request.op(), request.dst_port), (Some(Op::Request), 77));
    assert!(request.buf_alloc > 0);
    assert!(guest.receive().is_none(), "no data before the answer");

    let host_port = request.src_port;
    send(&mut guest, &mut device, &from_guest(77, host_port, Op::Response), &[]);
    assert!(
        events(&mut device).iter().any(|event| matches!(event, Event::Connected { token: t } if *t == token))
    );
    let (header, payload) = guest.receive().unwrap();
    assert_eq!((header.op(), payload.as_slice()), (Some(Op::Data), &b"early"[..]));
}

#[test]
fn host_ports_differ_between_connections() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    let mut hosts = Vec::new();
    for _ in 0..8 {
        let (ours, theirs) = pair(1);
        device.connect(77, ours).unwrap();
        hosts.push(theirs);
    }
    let (ours, _theirs) = pair(1);
    assert!(matches!(device.connect(77, ours), Err(VsockError::TooManyConnections { max: 8 })));
    guest.run(&mut device).unwrap();
    let mut ports: Vec<u32> =
        std::iter::from_fn(|| guest.receive()).map(|(header, _)| header.src_port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 8);
}

#[test]
fn a_guest_that_does_not_listen_refuses() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    let (ours, host) = pair(1);
    device.connect(77, ours).unwrap();
    guest.run(&mut device).unwrap();
    let port = guest.receive().unwrap().0.src_port;
    send(&mut guest, &mut device, &from_guest(77, port, Op::Reset), &[]);
    assert_eq!(close_reason(&mut device), Some(CloseReason::Refused));
    assert!(host.hung_up());
    assert!(guest.receive().is_none(), "a reset is not answered");
}

#[test]
fn a_guest_that_does_not_answer_is_given_up() {
    let mut guest = Guest::new(false);
    let mut device = device_with(|c| c.connect_timeout = Duration::from_secs(5));
    guest.offer_all(4096);
    let (ours, host) = pair(1);
    device.connect(77, ours).unwrap();
    guest.run(&mut device).unwrap();
    assert_eq!(received_ops(&mut guest), [Op::Request]);
    let at = device.next_deadline().expect("a deadline");
    assert!(at <= Instant::now() + Duration::from_secs(5));
    device.expire(at.checked_sub(Duration::from_millis(1)).unwrap());
    assert_eq!(close_reason(&mut device), None);
    device.expire(at);
    guest.run(&mut device).unwrap();
    assert_eq!(close_reason(&mut device), Some(CloseReason::ConnectTimeout));
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
    assert!(host.hung_up() && device.next_deadline().is_none());

    // A guest that never even saw the request needs no reset.
    let (ours, _host) = pair(1);
    let mut silent = Guest::new(false);
    device.connect(77, ours).unwrap();
    silent.run(&mut device).unwrap();
    device.expire(device.next_deadline().unwrap());
    silent.offer_all(4096);
    silent.run(&mut device).unwrap();
    assert_eq!(received_ops(&mut silent), []);
    assert_eq!(device.connections(), 0);
}

#[test]
fn a_port_nobody_serves_is_refused() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    send(&mut guest, &mut device, &from_guest(9, REFUSED_PORT, Op::Request), &[]);
    let (header, _) = guest.receive().unwrap();
    assert_eq!(header.op(), Some(Op::Reset));
    assert_eq!((header.src_port, header.dst_port), (REFUSED_PORT, 9));
    assert_eq!(device.connections(), 0);
}

#[test]
fn a_guest_that_stops_sending_may_still_receive() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    send(&mut guest, &mut device, &data(1000, 52, 3), b"end");
    send(&mut guest, &mut device, &shutdown(1000, 52, SHUTDOWN_SEND), &[]);
    assert_eq!(host.read_available(), (b"end".to_vec(), true));
    assert_eq!(received_ops(&mut guest), []);

    host.write_all(b"still here").unwrap();
    poke(&mut guest, &mut device, token);
    assert_eq!(guest.receive().unwrap().1, b"still here");

    // The host ends too: both directions are over, so the connection is.
    host.shutdown(Shutdown::Write).unwrap();
    poke(&mut guest, &mut device, token);
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.flags), (Some(Op::Shutdown), SHUTDOWN_BOTH));
    assert_eq!(close_reason(&mut device), Some(CloseReason::Finished));
    send(&mut guest, &mut device, &from_guest(1000, 52, Op::Reset), &[]);
    assert_eq!(device.connections(), 0);
}

/// The end of the guest's stream waits for the bytes before it.
#[test]
fn the_end_of_a_stream_comes_behind_its_last_byte() {
    let mut guest = Guest::new(false);
    let mut device = device();
    device.connector_mut().capacity = 10;
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    send(&mut guest, &mut device, &data(1000, 52, 25), &[9; 25]);
    send(&mut guest, &mut device, &shutdown(1000, 52, SHUTDOWN_SEND), &[]);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (bytes, ended) = host.read_available();
        seen.extend(bytes);
        assert_eq!(ended, seen.len() == 25);
        poke(&mut guest, &mut device, token);
    }
    assert_eq!(seen, [9; 25]);
    assert!(host.read_available().1);
}

#[test]
fn a_host_that_stops_sending_may_still_receive() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    host.write_all(b"bye").unwrap();
    host.shutdown(Shutdown::Write).unwrap();
    poke(&mut guest, &mut device, token);
    assert_eq!(guest.receive().unwrap().1, b"bye");
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.flags), (Some(Op::Shutdown), SHUTDOWN_SEND));
    send(&mut guest, &mut device, &data(1000, 52, 2), b"ok");
    assert_eq!(host.read_available().0, b"ok");
    poke(&mut guest, &mut device, token);
    assert!(guest.receive().is_none(), "the end is told once");
}

#[test]
fn a_guest_that_stops_receiving_may_still_send() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    send(&mut guest, &mut device, &shutdown(1000, 52, SHUTDOWN_RECEIVE), &[]);
    assert!(host.write(b"x").is_err(), "nobody would read it");
    poke(&mut guest, &mut device, token);
    send(&mut guest, &mut device, &data(1000, 52, 2), b"on");
    assert_eq!(host.read_available().0, b"on");
    assert!(!received_ops(&mut guest).contains(&Op::Data));
    // The second half ends it.
    send(&mut guest, &mut device, &shutdown(1000, 52, SHUTDOWN_SEND), &[]);
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
    assert_eq!(close_reason(&mut device), Some(CloseReason::GuestClosed));
}

#[test]
fn a_host_that_closes_sends_everything_first() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    let last = vec![5; 10_000];
    host.write_all(&last).unwrap();
    drop(host);
    device.host_ready(token, Readiness::READABLE | Readiness::HANGUP);
    guest.offer_all(4096);
    guest.run(&mut device).unwrap();
    let mut seen = Vec::new();
    let mut ends = Vec::new();
    while let Some((header, payload)) = guest.receive() {
        match header.op() {
            Some(Op::Data) => seen.extend(payload),
            op => ends.push((op, header.flags)),
        }
    }
    assert_eq!(seen, last);
    assert_eq!(ends, [(Some(Op::Shutdown), SHUTDOWN_BOTH)]);
    assert_eq!(close_reason(&mut device), Some(CloseReason::HostClosed));

    // The guest may have sent something before it heard of the end.
    send(&mut guest, &mut device, &data(1000, 52, 4), b"late");
    assert_eq!(received_ops(&mut guest), []);
    assert_eq!(device.connections(), 1);
    send(&mut guest, &mut device, &from_guest(1000, 52, Op::Reset), &[]);
    assert_eq!((device.connections(), device.next_deadline()), (0, None));
}

/// A poll may report the hangup and not the bytes before it.
#[test]
fn a_hangup_alone_loses_no_bytes() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    // Nothing to read: the device waits for the next report.
    poke(&mut guest, &mut device, token);
    host.write_all(b"last words").unwrap();
    drop(host);
    device.host_ready(token, Readiness::HANGUP);
    guest.run(&mut device).unwrap();
    assert_eq!(guest.receive().unwrap().1, b"last words");
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.flags), (Some(Op::Shutdown), SHUTDOWN_BOTH));
}

#[test]
fn a_guest_that_does_not_confirm_the_end_is_reset() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    drop(host);
    device.host_ready(token, Readiness::READABLE | Readiness::HANGUP);
    guest.run(&mut device).unwrap();
    assert_eq!(received_ops(&mut guest), [Op::Shutdown]);
    let at = device.next_deadline().expect("a bounded wait");
    device.expire(at);
    guest.run(&mut device).unwrap();
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
    assert_eq!((device.connections(), device.next_deadline()), (0, None));
}

/// Both sides close at once: the guest's shutdown crosses ours, and is answered.
#[test]
fn crossing_shutdowns_end_by_a_reset() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    drop(host);
    device.host_ready(token, Readiness::READABLE | Readiness::HANGUP);
    guest.run(&mut device).unwrap();
    send(&mut guest, &mut device, &shutdown(1000, 52, SHUTDOWN_BOTH), &[]);
    assert_eq!(received_ops(&mut guest), [Op::Shutdown, Op::Reset]);
    assert_eq!(device.connections(), 0);
}

/// What a guest sent before it went reaches a slow host, and its ports are free at once.
#[test]
fn bytes_outlive_the_guests_end() {
    for last in [shutdown(1000, 52, SHUTDOWN_BOTH), from_guest(1000, 52, Op::Reset)] {
        let mut guest = Guest::new(false);
        let mut device = device();
        device.connector_mut().capacity = 100;
        let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
        guest.offer_all(4096);
        send(&mut guest, &mut device, &data(1000, 52, 250), &[8; 250]);
        send(&mut guest, &mut device, &last, &[]);
        assert_eq!(device.connections(), 1);
        received_ops(&mut guest);

        let (second, mut other) = open(&mut guest, &mut device, 1000, 52);
        assert_ne!(second, token);
        send(&mut guest, &mut device, &data(1000, 52, 3), b"new");
        assert_eq!(other.read_available().0, b"new");

        let mut seen = Vec::new();
        for _ in 0..3 {
            let (bytes, ended) = host.read_available();
            seen.extend(bytes);
            assert!(!ended || seen.len() == 250);
            poke(&mut guest, &mut device, token);
        }
        assert_eq!(seen, [8; 250]);
        let reason = close_reason(&mut device).unwrap();
        assert!(matches!(reason, CloseReason::GuestClosed | CloseReason::GuestReset));
        assert!(host.hung_up());
        assert_eq!(device.connections(), 1);
    }
}

/// A host that is gone without reading: the guest learns that nobody receives.
#[test]
fn a_failed_write_is_told_to_the_guest() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    host.shutdown(Shutdown::Read).unwrap();
    send(&mut guest, &mut device, &data(1000, 52, 4), b"void");
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.flags), (Some(Op::Shutdown), SHUTDOWN_RECEIVE));
    send(&mut guest, &mut device, &data(1000, 52, 4), b"void");
    assert_eq!(device.buffered(), 0);
    assert!(guest.receive().is_none());
}

#[test]
fn the_embedder_can_close() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    device.close(token);
    guest.run(&mut device).unwrap();
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.flags), (Some(Op::Shutdown), SHUTDOWN_BOTH));
    assert_eq!(close_reason(&mut device), Some(CloseReason::Closed));
    assert!(host.hung_up());
}

#[test]
fn a_device_reset_ends_everything() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, host) = open(&mut guest, &mut device, 1000, 52);
    let (ours, _other) = pair(1);
    device.connect(5, ours).unwrap();
    device.reset();
    device.assert_consistent();
    let closed = events(&mut device)
        .iter()
        .filter(|e| matches!(e, Event::Closed { reason: CloseReason::DeviceReset, .. }))
        .count();
    assert_eq!(closed, 2);
    assert!(host.hung_up());
    assert_eq!((device.connections(), device.has_rx_work()), (0, false));
    device.host_ready(token, Readiness::READABLE);
}

/// Everyone gets a turn: one busy stream does not keep a small one waiting.
#[test]
fn streams_take_turns() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (busy, mut flood) = open(&mut guest, &mut device, 1, 52);
    let (quiet, mut drop_) = open(&mut guest, &mut device, 2, 52);
    flood.write_all(&vec![0; 200_000]).unwrap();
    drop_.write_all(b"drop").unwrap();
    device.host_ready(busy, Readiness::READABLE);
    device.host_ready(quiet, Readiness::READABLE);
    guest.offer_all(4096);
    guest.run(&mut device).unwrap();
    let mut before = 0;
    loop {
        let (header, payload) = guest.receive().expect("the small stream's packet");
        if header.dst_port == 2 {
            assert_eq!(payload, b"drop");
            break;
        }
        before += payload.len();
    }
    assert!(before <= 64 * 1024, "{before} bytes of the other stream came first");
}

#[test]
fn a_socket_with_an_end_already_there_needs_no_hangup() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    let mut rest = [0; 1];
    assert!(host.read(&mut rest).is_err());
    guest.offer_all(4096);
    drop(host);
    // Only "readable" is reported; the guest is told of a half, and of the rest when it is known.
    device.host_ready(token, Readiness::READABLE);
    guest.run(&mut device).unwrap();
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.flags), (Some(Op::Shutdown), SHUTDOWN_SEND));
    device.host_ready(token, Readiness::HANGUP);
    guest.run(&mut device).unwrap();
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.flags), (Some(Op::Shutdown), SHUTDOWN_BOTH));
}
