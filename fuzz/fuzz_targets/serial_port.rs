//! The serial port against accesses of any kind, input, and states saved and restored in between.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::Arbitrary;
use hayfork_devices::serial::{INPUT_MAX, SerialPort, SerialState};
use hayfork_devices::sink::Tail;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Action {
    Write { register: u8, value: u8 },
    WriteAny { offset: u64, bytes: Vec<u8> },
    Read { register: u8 },
    ReadAny { offset: u64, len: u8 },
    Input { len: u8 },
    Restore,
    RestoreAny { version: bool, registers: [u8; 9], input: u8 },
    Resume,
}

fn port(tail: &Tail) -> (SerialPort, Arc<AtomicU64>) {
    let pulses = Arc::new(AtomicU64::new(0));
    let line = pulses.clone();
    let line = move || {
        line.fetch_add(1, Ordering::Relaxed);
    };
    (SerialPort::new(Box::new(tail.clone()), Box::new(line)), pulses)
}

fuzz_target!(|actions: Vec<Action>| {
    let tail = Tail::new(100);
    let (mut serial, _) = port(&tail);
    for action in actions.iter().take(500) {
        match action {
            Action::Write { register, value } => serial.write(u64::from(register % 8), &[*value]),
            Action::WriteAny { offset, bytes } => serial.write(*offset, bytes),
            Action::Read { register } => serial.read(u64::from(register % 8), &mut [0]),
            Action::ReadAny { offset, len } => serial.read(*offset, &mut vec![0; usize::from(*len)]),
            Action::Input { len } => {
                let len = usize::from(*len);
                assert!(serial.push_input(&vec![7; len]) <= len);
            }
            Action::Restore => {
                let state = serial.save();
                let pulses;
                (serial, pulses) = port(&tail);
                serial.restore(&state).expect("a saved state can be restored");
                assert_eq!(serial.save(), state);
                assert_eq!(pulses.load(Ordering::Relaxed), 0, "too early");
            }
            Action::RestoreAny { version, registers, input } => {
                let before = serial.save();
                let state = SerialState {
                    version: u32::from(*version),
                    baud_divisor_low: registers[0],
                    baud_divisor_high: registers[1],
                    interrupt_enable: registers[2],
                    interrupt_identification: registers[3],
                    line_control: registers[4],
                    line_status: registers[5],
                    modem_control: registers[6],
                    modem_status: registers[7],
                    scratch: registers[8],
                    input: vec![1; usize::from(*input)],
                };
                if serial.restore(&state).is_err() {
                    assert_eq!(serial.save(), before);
                }
            }
            Action::Resume => serial.resume(),
        }
        assert!(serial.save().input.len() <= INPUT_MAX);
    }
});
