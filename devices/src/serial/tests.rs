//! The serial port as Linux's 8250 driver and as a careless guest use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{INPUT_MAX, SerialPort, SerialState, SerialStateError};
use crate::sink::Tail;

const DATA: u64 = 0;
const IER: u64 = 1;
const IIR: u64 = 2;
const LCR: u64 = 3;
const MCR: u64 = 4;
const LSR: u64 = 5;
const SCR: u64 = 7;

fn port() -> (SerialPort, Tail, Arc<AtomicU32>) {
    let (tail, pulses) = (Tail::new(1000), Arc::new(AtomicU32::new(0)));
    let line = pulses.clone();
    let line = move || {
        line.fetch_add(1, Ordering::SeqCst);
    };
    (SerialPort::new(Box::new(tail.clone()), Box::new(line)), tail, pulses)
}

fn read(port: &SerialPort, register: u64) -> u8 {
    let mut byte = [0];
    port.read(register, &mut byte);
    byte[0]
}

#[test]
fn output_arrives_and_the_transmitter_is_always_empty() {
    let (port, tail, pulses) = port();
    for byte in b"Linux version\n" {
        assert_eq!(read(&port, LSR) & 0x20, 0x20);
        port.write(DATA, &[*byte]);
    }
    assert_eq!(tail.bytes(), b"Linux version\n");
    assert_eq!(pulses.load(Ordering::SeqCst), 0, "interrupts were not enabled");
}

#[test]
fn interrupts_are_those_of_a_uart() {
    let (port, _, pulses) = port();
    port.write(IER, &[0b11]);
    assert_eq!(pulses.swap(0, Ordering::SeqCst), 1, "the transmitter is empty");
    assert_eq!(read(&port, IIR) & 0xf, 2);
    assert_eq!(read(&port, IIR) & 0xf, 1, "none");
    assert_eq!(port.push_input(b"ab"), 2);
    assert_eq!(pulses.swap(0, Ordering::SeqCst), 1);
    assert_eq!(read(&port, IIR) & 0xf, 4);
    assert_eq!((read(&port, LSR) & 1, read(&port, DATA)), (1, b'a'));
    assert_eq!((read(&port, LSR) & 1, read(&port, DATA)), (1, b'b'));
    assert_eq!(read(&port, LSR) & 1, 0);
}

#[test]
fn input_is_bounded() {
    let (port, _, _) = port();
    assert_eq!(port.push_input(&[7; 1000]), INPUT_MAX);
    assert_eq!(port.push_input(&[7; 1000]), 0);
    read(&port, DATA);
    assert_eq!(port.push_input(&[7; 1000]), 1);
    // A loop-back fills the same buffer.
    port.write(MCR, &[0x10]);
    for _ in 0..1000 {
        port.write(DATA, &[1]);
    }
    assert_eq!(port.save().input.len(), INPUT_MAX);
}

#[test]
fn accesses_of_any_size_anywhere_do_no_harm() {
    let (port, tail, _) = port();
    for offset in (0..20).chain([255, 256, 1 << 32, u64::MAX]) {
        for len in 0..9 {
            port.write(offset, &vec![b'x'; len]);
            let mut data = vec![0; len];
            port.read(offset, &mut data);
            if offset >= 8 {
                assert!(data.iter().all(|byte| *byte == 0xff));
            }
        }
    }
    port.write(LCR, &[0]);
    port.write(MCR, &[0]);
    let before = tail.bytes().len();
    port.write(DATA, b"wide");
    assert_eq!(tail.bytes()[before..], *b"w");
    port.write(SCR, &[0x5a]);
    let mut two = [0; 2];
    port.read(SCR, &mut two);
    assert_eq!(two, [0x5a, 0xff]);
}

/// With an interrupt that the guest has not seen yet; the restored port repeats it, and not too early.
#[test]
fn a_port_survives_a_snapshot_in_the_middle_of_sending() {
    let (old, _, _) = port();
    old.write(IER, &[0b11]);
    old.write(DATA, b"x");
    old.push_input(b"pending");
    let text = serde_json::to_string(&old.save()).unwrap();
    let state: SerialState = serde_json::from_str(&text).unwrap();
    let (new, tail, pulses) = port();
    new.restore(&state).unwrap();
    assert_eq!(pulses.load(Ordering::SeqCst), 0);
    assert_eq!(new.save(), state);
    new.resume();
    assert_eq!(pulses.load(Ordering::SeqCst), 1);
    assert_ne!(read(&new, IIR) & 2, 0);
    assert_eq!(read(&new, DATA), b'p');
    new.write(DATA, b"y");
    assert_eq!((tail.bytes(), pulses.load(Ordering::SeqCst)), (b"y".to_vec(), 2));
}

#[test]
fn a_state_that_cannot_be_changes_nothing() {
    let (port, tail, _) = port();
    let good = port.save();
    let mut bad = good.clone();
    bad.input = vec![0; 65];
    assert_eq!(port.restore(&bad), Err(SerialStateError::Input(65)));
    bad = good.clone();
    bad.version = 9;
    assert_eq!(port.restore(&bad), Err(SerialStateError::Version(9)));
    assert_eq!(port.save(), good);
    port.write(DATA, b"z");
    assert_eq!(tail.bytes(), b"z");
}
