//! Flow control: the arithmetic, and the device that uses it.

use std::io::Write;

use proptest::prelude::*;

use super::super::credit::{CreditError, ReceiveWindow, SendWindow, WINDOW_MAX};
use super::super::packet::{Header, Op};
use super::super::testing::{Guest, from_guest};
use super::super::{CloseReason, Interest, Readiness};
use super::{close_reason, data, device, events, open, poke, received_ops, send};

#[test]
fn a_send_window_follows_the_formula() {
    let mut window = SendWindow::default();
    assert_eq!(window.free(), 0);
    window.update(1000, 0).unwrap();
    window.send(600);
    assert_eq!((window.free(), window.in_flight()), (400, 600));
    window.update(1000, 100).unwrap();
    assert_eq!(window.free(), 500);
    // A shrinking buffer may leave less than nothing.
    window.update(10, 100).unwrap();
    assert_eq!(window.free(), 0);
    window.update(1000, 600).unwrap();
    assert_eq!(window.free(), 1000);
}

#[test]
fn a_send_window_refuses_counters_from_the_future_and_ignores_those_from_the_past() {
    let mut window = SendWindow::default();
    window.update(1000, 0).unwrap();
    window.send(100);
    assert_eq!(window.update(1000, 101), Err(CreditError::Impossible { excess: 1 }));
    window.update(1000, 60).unwrap();
    window.update(1000, 50).unwrap();
    assert_eq!(window.in_flight(), 40);
}

proptest! {
    /// Both windows against 64-bit counters that never wrap, from any starting point of the counters.
    #[test]
    fn windows_agree_with_unbounded_counters(
        steps in prop::collection::vec((0u32..70_000, 0u32..70_000), 1..400),
        buf_alloc in 1u32..200_000,
        laps in 0u32..3,
    ) {
        let mut receive = ReceiveWindow::new(buf_alloc);
        let mut send = SendWindow::default();
        // Move both near the place where 32 bits wrap.
        let mut total: u64 = 0;
        for _ in 0..laps * 4 {
            let step = WINDOW_MAX - 1000;
            send.update(WINDOW_MAX, total as u32).unwrap();
            send.send(step);
            total += u64::from(step);
            send.update(buf_alloc, total as u32).unwrap();
        }
        send.update(buf_alloc, total as u32).unwrap();
        let (mut sent, mut taken) = (total, total);
        let (mut received, mut forwarded) = (0u64, 0u64);
        for (a, b) in steps {
            let free = u64::from(buf_alloc) - (sent - taken);
            prop_assert_eq!(u64::from(send.free()), free);
            let n = u64::from(a).min(free);
            send.send(n as u32);
            sent += n;
            taken += u64::from(b).min(sent - taken);
            send.update(buf_alloc, taken as u32).unwrap();
            prop_assert!(send.update(buf_alloc, (sent + 1) as u32).is_err());

            let room = u64::from(buf_alloc) - (received - forwarded);
            prop_assert_eq!(receive.receive(a).is_ok(), u64::from(a) <= room);
            if u64::from(a) <= room {
                received += u64::from(a);
            }
            let n = u64::from(b).min(received - forwarded);
            receive.forward(n as u32);
            forwarded += n;
            prop_assert_eq!(u64::from(receive.in_flight()), received - forwarded);
            if receive.update_due() {
                prop_assert_eq!(receive.announce(), forwarded as u32);
                prop_assert!(!receive.update_due());
            }
            prop_assert!(receive.is_consistent() && send.is_consistent());
        }
    }

    /// A sender that fills the window and waits for updates never waits for ever.
    #[test]
    fn a_waiting_sender_is_always_woken(buf_alloc in 1u32..5000, takes in prop::collection::vec(1u32..600, 1..100)) {
        let mut window = ReceiveWindow::new(buf_alloc);
        let (mut sent, mut known) = (0u32, 0u32);
        for take in takes {
            // The sender uses up all that it knows of.
            let free = buf_alloc - (sent - known);
            window.receive(free).unwrap();
            sent += free;
            prop_assert_eq!(sent - known, buf_alloc);
            // The receiver takes all, in pieces; the sender must hear of it at last.
            let mut woken = false;
            while window.in_flight() > 0 {
                window.forward(take.min(window.in_flight()));
                if window.update_due() {
                    window.announce();
                    woken = true;
                }
            }
            prop_assert!(woken);
            known = window.announce();
        }
    }
}

#[test]
fn more_data_than_credit_ends_the_connection() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, host) = open(&mut guest, &mut device, 1000, 52);
    drop(device.connector_mut().accepted.pop_front());
    // The far end does not read: its pipe holds 1 MiB, then the device buffers 64 KiB.
    guest.offer_all(4096);
    let piece = vec![7u8; 64 * 1024];
    for _ in 0..16 {
        send(&mut guest, &mut device, &data(1000, 52, piece.len()), &piece);
    }
    assert_eq!(device.buffered(), 0);
    send(&mut guest, &mut device, &data(1000, 52, piece.len()), &piece);
    assert_eq!(device.buffered(), 64 * 1024);
    assert!(!received_ops(&mut guest).contains(&Op::Reset));
    send(&mut guest, &mut device, &data(1000, 52, 1), b"x");
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
    assert_eq!(close_reason(&mut device), Some(CloseReason::Violation));
    assert_eq!((device.connections(), device.buffered()), (0, 0));
    assert_eq!(device.counters().violations, 1);
    drop(host);
}

#[test]
fn credit_for_bytes_never_sent_ends_the_connection() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, _host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    let lie = Header { fwd_cnt: 1, ..from_guest(1000, 52, Op::CreditUpdate) };
    send(&mut guest, &mut device, &lie, &[]);
    assert_eq!(received_ops(&mut guest), [Op::Reset]);
    assert_eq!(close_reason(&mut device), Some(CloseReason::Violation));
}

/// The device never sends more than the guest has room for, asks once, and goes on when told.
#[test]
fn the_device_keeps_to_the_guests_credit() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    let credit = |fwd_cnt| Header { buf_alloc: 10_000, fwd_cnt, ..from_guest(1000, 52, Op::CreditUpdate) };
    send(&mut guest, &mut device, &credit(0), &[]);
    host.write_all(&vec![1; 25_000]).unwrap();
    poke(&mut guest, &mut device, token);
    let mut got = 0;
    let mut ops = Vec::new();
    while let Some((header, payload)) = guest.receive() {
        got += payload.len();
        ops.push(header.op().unwrap());
    }
    assert_eq!(got, 10_000);
    assert_eq!(ops.iter().filter(|op| **op == Op::CreditRequest).count(), 1);
    // Without credit there is nothing to poll for but the end.
    events(&mut device);
    let interest = device.reported_interest(token);
    assert_eq!(interest, Interest { read: false, write: false, hangup: true });
    poke(&mut guest, &mut device, token);
    assert!(guest.receive().is_none(), "asked for credit again");

    send(&mut guest, &mut device, &credit(4_000), &[]);
    let more: usize = std::iter::from_fn(|| guest.receive()).map(|(_, payload)| payload.len()).sum();
    assert_eq!(more, 4_000);
    send(&mut guest, &mut device, &credit(14_000), &[]);
    let more: usize = std::iter::from_fn(|| guest.receive()).map(|(_, payload)| payload.len()).sum();
    assert_eq!(more, 10_000);
}

/// Room that the host makes is announced without being asked for.
#[test]
fn the_guest_hears_of_new_room() {
    let mut guest = Guest::new(false);
    let mut device = device();
    device.connector_mut().capacity = 1000;
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    let payload = vec![3; 40_000];
    send(&mut guest, &mut device, &data(1000, 52, payload.len()), &payload);
    assert_eq!(device.buffered(), 39_000);
    assert_eq!(received_ops(&mut guest), [], "1000 bytes are no news");
    events(&mut device);
    assert!(device.reported_interest(token).write);
    let mut total = 0;
    let mut updates = Vec::new();
    while total < payload.len() {
        total += host.read_available().0.len();
        poke(&mut guest, &mut device, token);
        while let Some((header, _)) = guest.receive() {
            assert_eq!(header.op(), Some(Op::CreditUpdate));
            updates.push(header.fwd_cnt);
        }
    }
    // Each piece of news is worth a quarter of the buffer; the last leaves the guest with half of it.
    assert!(updates.len() <= 4, "{updates:?}");
    let believed_free = 64 * 1024 - (40_000 - updates.last().unwrap());
    assert!(believed_free >= 32 * 1024, "{updates:?}");
    events(&mut device);
    assert!(!device.reported_interest(token).write);
}

#[test]
fn a_request_for_credit_is_answered() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, _host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    send(&mut guest, &mut device, &from_guest(1000, 52, Op::CreditRequest), &[]);
    let (header, _) = guest.receive().unwrap();
    assert_eq!((header.op(), header.buf_alloc, header.fwd_cnt), (Some(Op::CreditUpdate), 64 * 1024, 0));
    assert!(guest.receive().is_none());
}

/// Nothing else goes on: no bytes to read that could carry the news.
#[test]
fn writing_alone_announces_new_room() {
    let mut guest = Guest::new(false);
    let mut device = device();
    device.connector_mut().capacity = 1000;
    let (token, mut host) = open(&mut guest, &mut device, 1000, 52);
    guest.offer_all(4096);
    // Everything that is to read is read, so that only the write can wake the device.
    poke(&mut guest, &mut device, token);
    let payload = vec![3; 60_000];
    send(&mut guest, &mut device, &data(1000, 52, payload.len()), &payload);
    for _ in 0..60 {
        host.read_available();
        device.host_ready(token, Readiness::WRITABLE);
        guest.run(&mut device).unwrap();
    }
    assert!(received_ops(&mut guest).contains(&Op::CreditUpdate));
}
