//! Guests that do what no driver does. Nothing may panic, hang or grow.

use std::io::Write;

use super::super::packet::{HEADER_LEN, Header, Op, SHUTDOWN_SEND, TYPE_STREAM};
use super::super::testing::{Guest, from_guest};
use super::super::{CloseReason, HOST_CID, Readiness};
use super::{close_reason, data, device, device_with, events, open, received_ops, send};
use crate::virtio::QueueError;
use crate::virtio::testing::Segment;

#[test]
fn packets_of_unknown_connections_are_reset() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    for op in [Op::Response, Op::Shutdown, Op::Data, Op::CreditUpdate, Op::CreditRequest] {
        send(&mut guest, &mut device, &from_guest(1, 2, op), &[]);
        let (header, _) = guest.receive().unwrap();
        assert_eq!(header.op(), Some(Op::Reset), "{op:?}");
        assert_eq!((header.src_port, header.dst_port), (2, 1));
    }
    for op in [0, 8, u16::MAX] {
        let header = Header { op, ..from_guest(1, 2, Op::Data) };
        send(&mut guest, &mut device, &header, &[]);
        assert_eq!(received_ops(&mut guest), [Op::Reset]);
    }
    send(&mut guest, &mut device, &from_guest(1, 2, Op::Reset), &[]);
    assert_eq!(received_ops(&mut guest), []);
}

#[test]
fn an_unknown_type_is_reset_with_that_type() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    for type_ in [0, 2, 0xffff] {
        let request = Header { type_, ..from_guest(1, 2, Op::Request) };
        send(&mut guest, &mut device, &request, &[]);
        let (header, _) = guest.receive().unwrap();
        assert_eq!((header.op(), header.type_), (Some(Op::Reset), type_));
    }
    assert_eq!(device.connections(), 0);
}

#[test]
fn wrong_addresses_reach_nobody() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    // Somebody else's sender: not a word.
    let spoofed = Header { src_cid: 4, ..from_guest(1, 2, Op::Request) };
    send(&mut guest, &mut device, &spoofed, &[]);
    assert_eq!(received_ops(&mut guest), []);
    assert_eq!(device.counters().misaddressed, 1);
    // Another receiver than the host: refused in its name.
    for dst_cid in [0, 1, 3, 4, 1 << 32 | HOST_CID] {
        let lost = Header { dst_cid, ..from_guest(1, 2, Op::Request) };
        send(&mut guest, &mut device, &lost, &[]);
        let (header, _) = guest.receive().unwrap();
        assert_eq!((header.op(), header.src_cid), (Some(Op::Reset), dst_cid));
    }
    assert_eq!(device.connections(), 0);
}

/// Each of these breaks a rule within a connection: it ends, and so does trust.
#[test]
fn broken_rules_end_the_connection() {
    let unknown_op = Header { op: 99, ..from_guest(1000, 52, Op::Data) };
    for bad in [
        from_guest(1000, 52, Op::Request),
        from_guest(1000, 52, Op::Response),
        unknown_op,
        data(1000, 52, 100), // but no payload in the chain
        data(1000, 52, u32::MAX as usize),
    ] {
        let mut guest = Guest::new(false);
        let mut device = device();
        let (_, host) = open(&mut guest, &mut device, 1000, 52);
        guest.offer_all(4096);
        send(&mut guest, &mut device, &bad, &[]);
        assert_eq!(received_ops(&mut guest), [Op::Reset], "{bad:?}");
        assert_eq!(close_reason(&mut device), Some(CloseReason::Violation));
        assert!(host.hung_up());
        assert_eq!(device.connections(), 0);
    }
}

#[test]
fn data_after_the_end_of_data_breaks_a_rule() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    let end = Header { flags: SHUTDOWN_SEND, ..from_guest(1000, 52, Op::Shutdown) };
    send(&mut guest, &mut device, &end, &[]);
    send(&mut guest, &mut device, &data(1000, 52, 1), b"x");
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
    assert_eq!(host.read_available(), (Vec::new(), true));
}

/// A payload that does not fit into the credit, in a chain that does hold it.
#[test]
fn an_oversized_packet_breaks_a_rule() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, _host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    let payload = vec![0; 64 * 1024 + 1];
    send(&mut guest, &mut device, &data(1000, 52, payload.len()), &payload);
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
}

#[test]
fn extra_bytes_behind_a_packet_are_ignored() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    send(&mut guest, &mut device, &data(1000, 52, 3), b"abcdef");
    assert_eq!(host.read_available().0, b"abc");
    send(&mut guest, &mut device, &from_guest(1000, 52, Op::CreditUpdate), b"junk");
    assert_eq!(host.read_available().0, b"");
}

#[test]
fn unreadable_chains_are_used_and_forgotten() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    let chains: &[&[Segment]] = &[
        // Shorter than a header, down to nothing.
        &[Segment::readable(0x10_0000, 43)],
        &[Segment::readable(0x10_0000, 0)],
        // Nothing to read.
        &[Segment::writable(0x10_0000, 4096)],
        // A header half of which the device may not read.
        &[Segment::readable(0x10_0000, 20), Segment::writable(0x10_0014, 24)],
        // Outside memory, at its border, and where an address overflows.
        &[Segment::readable(1 << 40, 100)],
        &[Segment::readable((16 << 20) - 50, 51)],
        &[Segment::readable(u64::MAX - 10, 100)],
        &[Segment::readable(0x10_0000, u32::MAX)],
        // Together longer than 32 bits can say.
        &[Segment::readable(0x10_0000, 44), Segment::readable(0x10_0000, u32::MAX)],
    ];
    for (i, chain) in chains.iter().enumerate() {
        guest.tx.add(chain).unwrap();
        guest.run(&mut device).unwrap();
        assert_eq!(guest.reap(), 1, "chain {i}");
    }
    assert_eq!(received_ops(&mut guest), []);
    assert!(device.counters().malformed >= 7);
    assert_eq!(device.connections(), 0);
}

#[test]
fn chains_that_bite_their_tail_end() {
    let mut guest = Guest::new(false);
    let mut device = device();
    // A header of zeros, again and again.
    guest.tx.write_descriptor(7, 0x10_0000, 44, 1, 8);
    guest.tx.write_descriptor(8, 0x10_0000, 1000, 1, 7);
    guest.tx.offer(7);
    // A chain that leads out of the table.
    guest.tx.write_descriptor(9, 0x10_0000, 44, 1, 300);
    guest.tx.offer(9);
    guest.run(&mut device).unwrap();
    assert_eq!(guest.tx.next_used_raw(), Some((7, 0)));
    assert_eq!(guest.tx.next_used_raw(), Some((9, 0)));
    // The same as receive buffers, with a packet to send.
    let write_next = 3;
    guest.rx.write_descriptor(7, 0x10_0000, 100, write_next, 8);
    guest.rx.write_descriptor(8, 0x10_0000, 100, write_next, 7);
    guest.rx.offer(7);
    send(&mut guest, &mut device, &from_guest(1, 2, Op::Data), &[]);
    let (head, len) = guest.rx.next_used_raw().unwrap();
    assert_eq!((head, len as usize), (7, HEADER_LEN));
}

#[test]
fn broken_rings_are_an_error_and_no_loop() {
    let broken = |change: fn(&mut Guest)| {
        let mut guest = Guest::new(false);
        let mut device = device();
        guest.offer_all(4096);
        change(&mut guest);
        let result = guest.run(&mut device);
        (result, device)
    };
    // More chains than the queue is long.
    let (result, _) = broken(|guest| guest.tx.set_avail_idx(257));
    assert!(matches!(result, Err(QueueError::Broken(_))), "{result:?}");
    // A head outside the table.
    let (result, _) = broken(|guest| guest.tx.offer(256));
    assert!(matches!(result, Err(QueueError::Broken(_))), "{result:?}");
}

/// Receive buffers that can hold no packet are given back, and the packet waits for a good one.
#[test]
fn unfit_receive_buffers_are_given_back() {
    let mut guest = Guest::new(false);
    let mut device = device();
    for chain in [
        &[Segment::readable(0x10_0000, 4096)][..],
        &[Segment::writable(0x10_0000, 44)],
        &[Segment::writable(0x10_0000, 0)],
        &[Segment::writable(1 << 40, 4096)],
    ] {
        guest.rx.add(chain).unwrap();
    }
    send(&mut guest, &mut device, &from_guest(1, 2, Op::Data), &[]);
    for _ in 0..4 {
        assert_eq!(guest.rx.next_used().unwrap().len, 0);
    }
    assert!(device.has_rx_work());
    guest.offer(45, &[]).unwrap();
    guest.run(&mut device).unwrap();
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
}

/// A bad buffer in the middle of good ones, while data flows.
#[test]
fn unfit_buffers_among_good_ones_lose_no_data() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    for i in 0..60 {
        if i % 3 == 1 {
            guest.rx.add(&[Segment::writable(0x10_0000, 10)]).unwrap();
        } else {
            guest.offer(300, &[7]).unwrap();
        }
    }
    let payload: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
    host.write_all(&payload).unwrap();
    device.host_ready(token, Readiness::READABLE);
    guest.run(&mut device).unwrap();
    let mut seen: Vec<u8> = Vec::new();
    while let Some(used) = guest.rx.next_used() {
        if used.len > 0 {
            seen.extend(&guest.bytes_of(&used)[HEADER_LEN..]);
        }
    }
    assert!(seen == payload);
}

/// A guest that takes no packets can make the device hold no more than its bounds.
#[test]
fn resets_owed_are_bounded() {
    let mut guest = Guest::new(false);
    let mut device = device();
    for _ in 0..100 {
        guest.send(&from_guest(1, 2, Op::Data), &[], &[]).unwrap();
    }
    guest.run(&mut device).unwrap();
    assert_eq!(guest.reap(), 4, "as many as resets_max, then it waits");
    device.assert_consistent();
    guest.offer_all(4096);
    guest.run(&mut device).unwrap();
    assert_eq!(guest.reap(), 96);
    assert_eq!(received_ops(&mut guest).len(), 100);
}

#[test]
fn connections_are_bounded() {
    let mut guest = Guest::new(false);
    let mut device = device();
    guest.offer_all(4096);
    for port in 0..20 {
        send(&mut guest, &mut device, &from_guest(port, 52, Op::Request), &[]);
    }
    let ops = received_ops(&mut guest);
    assert_eq!(ops.iter().filter(|op| **op == Op::Response).count(), 8);
    assert_eq!(ops.iter().filter(|op| **op == Op::Reset).count(), 12);
    assert_eq!(device.connector_mut().accepted.len(), 8);
}

/// A guest that connects and resets for ever, and takes nothing, is stopped by the same limits.
#[test]
fn churn_without_taking_packets_is_bounded() {
    let mut guest = Guest::new(false);
    let mut device = device();
    for round in 0..2000u32 {
        for op in [Op::Request, Op::Reset] {
            guest.send(&from_guest(round, 52, op), &[], &[]);
        }
        guest.run(&mut device).unwrap();
        guest.reap();
        device.assert_consistent();
        drop(events(&mut device));
        device.connector_mut().accepted.clear();
    }
    assert!(device.connections() <= 8);
    guest.offer_all(4096);
    guest.run(&mut device).unwrap();
    device.assert_consistent();
}

/// Nor does an embedder that never reads its events make it grow.
#[test]
fn events_nobody_reads_are_bounded() {
    let mut guest = Guest::new(false);
    let mut device = device();
    for round in 0..5000u32 {
        guest.offer(4096, &[]);
        for op in [Op::Request, Op::Reset] {
            guest.send(&from_guest(round, 52, op), &[], &[]);
        }
        let _ = device.process(&mut guest.rx_queue, &mut guest.tx_queue, &guest.mem).unwrap();
        guest.reap();
        while guest.rx.next_used().is_some() {}
    }
    assert!(device.connector_mut().accepted.len() <= 1024);
    device.assert_consistent();
    let n = events(&mut device).len();
    assert!((1024..=1024 + 16).contains(&n), "{n}");
    device.process(&mut guest.rx_queue, &mut guest.tx_queue, &guest.mem).unwrap();
    assert!(guest.reap() > 0, "goes on when they were read");
}

/// The buffers of all connections together keep to their limit, whatever the guest sends.
#[test]
fn buffers_are_bounded_in_all() {
    let mut guest = Guest::new(false);
    let mut device = device_with(|c| {
        c.connections_max = 50;
        c.buffer_min = 1024;
        c.buffer_max = 64 * 1024;
        c.buffer_total = 200 * 1024;
    });
    device.connector_mut().capacity = 0;
    let mut hosts = Vec::new();
    for port in 0..50 {
        guest.offer_all(4096);
        guest.send(&from_guest(port, 52, Op::Request), &[], &[]).unwrap();
        guest.run(&mut device).unwrap();
        guest.reap();
        let (answer, _) = guest.receive().unwrap();
        assert_eq!(answer.op(), Some(Op::Response), "buffers never limit connections");
        let payload = vec![1; answer.buf_alloc as usize];
        send(&mut guest, &mut device, &data(port, 52, payload.len()), &payload);
        hosts.extend(device.connector_mut().accepted.pop_front());
    }
    assert!(device.buffered() <= 200 * 1024);
    assert!(device.buffered() >= 50 * 1024 + 2 * 63 * 1024);
}

#[test]
fn a_type_other_than_stream_never_touches_a_connection() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    let packet = Header { type_: TYPE_STREAM + 1, ..data(1000, 52, 3) };
    send(&mut guest, &mut device, &packet, b"abc");
    assert_eq!(host.read_available().0, b"");
    assert_eq!(device.connections(), 1);
}
