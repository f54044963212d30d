//! The vsock device against the driver of Linux: served to QEMU as a vhost-user device, with a guest that
//! runs one small program (tests/guest).
//!
//! These tests need QEMU, the target x86_64-unknown-linux-musl and the guest kernel of an image set:
//! `HAYFORK_IMAGES_DIR=… cargo nextest run -p hayfork-devices --run-ignored all`. They are ignored where
//! nobody asks for them, and fail where something is missing. vhost-user is for the test alone: QEMU cannot
//! migrate such a device, so the product uses another carrier under QEMU.

#![cfg(target_os = "linux")]
// Sizes and rates are small numbers here, and helpers of a test fail by panicking.
#![allow(clippy::cast_precision_loss, clippy::unwrap_used)]

mod linux;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use hayfork_devices::virtio::vsock::CloseReason;
use linux::pattern::{Digest, Pattern};
use linux::{ECHO, Linux, MANUAL, Notice, PATIENCE, SINK, closed};

// Ports of the guest; see tests/guest/init.rs.
const GUEST_ECHO: u32 = 100;
const GUEST_DIGEST: u32 = 101;
const GUEST_SOURCE: u32 = 102;
const GUEST_SLAM: u32 = 103;
const GUEST_SINK: u32 = 104;
const NOBODY: u32 = 999;

const ECONNRESET: i32 = 104;

/// Sends `len` bytes of a pattern in writes of `chunk`; gives their digest.
fn send_pattern(stream: &mut UnixStream, len: usize, chunk: usize, seed: u64) -> (u64, u64) {
    let mut pattern = Pattern::new(seed);
    let mut digest = Digest::default();
    let mut buf = vec![0; chunk];
    let mut left = len;
    while left > 0 {
        let n = left.min(chunk);
        pattern.fill(&mut buf[..n]);
        digest.update(&buf[..n]);
        stream.write_all(&buf[..n]).unwrap();
        left -= n;
    }
    digest.finish()
}

/// Everything up to the end: length and digest.
fn receive_all(stream: &mut UnixStream) -> (u64, u64) {
    let mut digest = Digest::default();
    let mut buf = vec![0; 64 * 1024];
    loop {
        let n = stream.read(&mut buf).expect("data or an end in time");
        if n == 0 {
            return digest.finish();
        }
        digest.update(&buf[..n]);
    }
}

fn rate(len: usize, time: Duration) -> f64 {
    len as f64 / 1e6 / time.as_secs_f64()
}

#[test]
#[ignore = "needs the image set"]
fn echoes_of_all_sizes_arrive_to_the_byte() {
    let mut guest = Linux::boot();
    for (seed, len) in [(1, 1), (2, 2 << 10), (3, 64 << 10), (4, 1 << 20), (5, 8 << 20)] {
        // One write each: Linux divides it into packets, and packets into descriptors.
        assert_eq!(guest.ask(&format!("echo {ECHO} {len} {len} {seed}")), "ok", "{len} bytes of the guest");

        let (_, stream) = guest.service.connect(GUEST_ECHO);
        let mut writer = stream.try_clone().unwrap();
        let sender = thread::spawn(move || {
            let sum = send_pattern(&mut writer, len, len, seed);
            writer.shutdown(Shutdown::Write).unwrap();
            sum
        });
        let mut reader = stream;
        assert_eq!(receive_all(&mut reader), sender.join().unwrap(), "{len} bytes of the host");
    }
    // Odd sizes of writes.
    assert_eq!(guest.ask(&format!("echo {ECHO} 300000 777 9")), "ok");
    guest.wait_until_idle();
}

#[test]
#[ignore = "needs the image set"]
fn a_hundred_connections_at_once_each_way() {
    let mut guest = Linux::boot();
    assert_eq!(guest.ask(&format!("many {ECHO} 100 40000")), "ok");

    let streams: Vec<_> = (0..100).map(|_| guest.service.connect(GUEST_ECHO).1).collect();
    let workers: Vec<_> = streams
        .into_iter()
        .enumerate()
        .map(|(i, mut stream)| {
            let mut writer = stream.try_clone().unwrap();
            let sender = thread::spawn(move || {
                let sum = send_pattern(&mut writer, 40_000, 3000, i as u64);
                writer.shutdown(Shutdown::Write).unwrap();
                sum
            });
            thread::spawn(move || assert_eq!(receive_all(&mut stream), sender.join().unwrap()))
        })
        .collect();
    for worker in workers {
        worker.join().unwrap();
    }
    guest.wait_until_idle();
}

#[test]
#[ignore = "needs the image set"]
fn half_close_works_both_ways() {
    let mut guest = Linux::boot();
    // The host ends its direction, and still gets an answer.
    let (_, mut stream) = guest.service.connect(GUEST_DIGEST);
    let sent = send_pattern(&mut stream, 500_000, 50_000, 1);
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [sent.0.to_le_bytes(), sent.1.to_le_bytes()].concat());

    // The guest ends its direction, and still waits for the host.
    let (token, mut stream) = guest.service.connect(GUEST_SOURCE);
    let order = [500_000u64.to_le_bytes(), 70_000u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
    stream.write_all(&order).unwrap();
    let mut expected = Pattern::new(2);
    let mut bytes = vec![0; 500_000];
    expected.fill(&mut bytes);
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got == bytes);
    assert!(!closed(&guest.notices).contains_key(&token.0), "one direction is still open");
    stream.write_all(b"thanks").unwrap();
    drop(stream);

    // The guest stops receiving, and still sends.
    guest.tell(&format!("deaf {MANUAL} 100000"));
    let mut stream = guest.manual.recv_timeout(PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"!").unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), 100_000);
    assert_eq!(guest.answer(), "ok");
    guest.wait_until_idle();
}

#[test]
#[ignore = "needs the image set"]
fn refusals_and_resets_reach_both_sides() {
    let mut guest = Linux::boot();
    // Nobody there: an answer, not Linux's timeout (errno 110).
    assert_eq!(guest.ask(&format!("connect 2 {NOBODY}")), format!("errno {ECONNRESET}"));
    assert_eq!(guest.ask(&format!("connect 77 {ECHO}")), format!("errno {ECONNRESET}"), "another guest");

    let (token, mut stream) = guest.service.connect(NOBODY);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    loop {
        match guest.notices.recv_timeout(PATIENCE).unwrap() {
            Notice::Closed(t, reason) if t == token => {
                assert_eq!(reason, CloseReason::Refused);
                break;
            }
            _ => {}
        }
    }

    // The guest closes without reading what it was sent.
    let (_, mut stream) = guest.service.connect(GUEST_SLAM);
    stream.write_all(b"0123456789").unwrap();
    let mut got = Vec::new();
    match stream.read_to_end(&mut got) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    assert_eq!(got, b"!");

    // The host closes without reading: the guest's writes fail.
    guest.tell(&format!("push {MANUAL}"));
    drop(guest.manual.recv_timeout(PATIENCE).unwrap());
    let answer = guest.answer();
    assert!(["errno 32", "errno 104"].contains(&answer.as_str()), "{answer}");

    // The host closes in good order: the guest sees an end.
    guest.tell(&format!("hold {MANUAL}"));
    let mut stream = guest.manual.recv_timeout(PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    stream.write_all(b"bye").unwrap();
    drop(stream);
    assert_eq!(guest.answer(), "end 3");
    guest.wait_until_idle();
}

/// The device loses all its connections, as after a restore without them: what the guest still sends is
/// answered by resets.
#[test]
#[ignore = "needs the image set"]
fn connections_that_only_the_guest_knows_are_reset() {
    let mut guest = Linux::boot();
    guest.tell(&format!("push {MANUAL}"));
    let mut stream = guest.manual.recv_timeout(PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    guest.service.reset_transport();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    // The next bytes of that stream are answered by a reset, so are those of the command channel, which the
    // guest opens again.
    guest.wait_for_new_channel();
    assert!(guest.service.with_device(|d| d.counters().resets_sent) >= 2);
    assert_eq!(guest.ask(&format!("echo {ECHO} 100000 5000 3")), "ok");
    let (_, mut stream) = guest.service.connect(GUEST_ECHO);
    stream.write_all(b"still alive").unwrap();
    let mut back = [0; 11];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"still alive");
}

/// Save and restore in the middle of streams: the guest does not notice, though every socket of the host is
/// another one.
#[test]
#[ignore = "needs the image set"]
fn a_restored_device_carries_connections_on() {
    let mut guest = Linux::boot();
    assert_eq!(guest.ask(&format!("echo {ECHO} 1000000 50000 1")), "ok");
    guest.tell(&format!("hold {MANUAL}"));
    let mut old = guest.manual.recv_timeout(PATIENCE).unwrap();
    // What one side had not read is lost with the old socket, so both sides come to rest first.
    old.set_read_timeout(Some(PATIENCE)).unwrap();
    old.read_exact(&mut [0; 4]).unwrap();
    let sent = guest.service.with_device(|d| d.counters().bytes_sent);
    old.write_all(b"before ").unwrap();
    let end = Instant::now() + PATIENCE;
    while guest.service.with_device(|d| d.counters().bytes_sent) < sent + 7 {
        assert!(Instant::now() < end, "the device does not read");
        thread::sleep(Duration::from_millis(5));
    }

    let mut carried = guest.restore_device();
    assert_eq!(old.read(&mut [0]).unwrap_or(0), 0, "the old socket is closed");
    let mut new = carried.remove(&MANUAL).expect("the connection");
    new.write_all(b"after").unwrap();
    drop(new);
    assert_eq!(guest.answer(), "end 12");
    assert_eq!(guest.ask(&format!("echo {ECHO} 3000000 50000 2")), "ok");
    let (_, mut stream) = guest.service.connect(GUEST_ECHO);
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    drop(stream);
    guest.wait_until_idle();
}

/// Not a limit, since it depends on the machine; the figures are printed.
#[test]
#[ignore = "needs the image set"]
fn throughput() {
    let mut guest = Linux::boot();
    for chunk in [2 << 10, 4 << 10, 64 << 10] {
        let len = if chunk < 64 << 10 { 16 << 20 } else { 64 << 20 };
        let start = Instant::now();
        let answer = guest.ask(&format!("send {SINK} {len} {chunk}"));
        assert!(answer.starts_with("ok "), "{answer}");
        println!("guest to host, {chunk} bytes a write: {:.1} MB/s", rate(len, start.elapsed()));

        let (_, mut stream) = guest.service.connect(GUEST_SINK);
        let buf = vec![0x5a; chunk];
        let start = Instant::now();
        for _ in 0..len / chunk {
            stream.write_all(&buf).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_le_bytes(answer), len as u64);
        println!("host to guest, {chunk} bytes a write: {:.1} MB/s", rate(len, start.elapsed()));
    }
    // One byte there and back.
    let (_, mut stream) = guest.service.connect(GUEST_ECHO);
    let rounds = 500;
    let start = Instant::now();
    for _ in 0..rounds {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    println!("round trip: {:.0} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds));
    drop(stream);
    guest.wait_until_idle();
}
