//! A serial port: the 16550A of vm-superio behind a lock, for a guest's earliest output.
//!
//! Eight registers of one byte each, at whatever ports or addresses the machine puts them. Each byte that the
//! guest sends goes to a [`ConsoleSink`] at once, so nothing is ever on its way out; received bytes wait in
//! a buffer of 64.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vm_superio::Trigger;
use vm_superio::serial::{NoEvents, Serial};

use crate::interrupt::InterruptLine;
use crate::sink::{ConsoleSink, Discard};

#[cfg(test)]
mod tests;

/// Number of registers.
pub const REGISTERS: u64 = 8;

/// Bytes that the port holds for the guest at most.
pub const INPUT_MAX: usize = 64;

/// Version of [`SerialState`]. Another version is not read.
pub const STATE_VERSION: u32 = 1;

/// Interrupts that can be pending: transmitter empty, data received.
const PENDING: u8 = 0b110;

/// What a snapshot keeps of a serial port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialState {
    /// [`STATE_VERSION`] when it was saved.
    pub version: u32,
    /// Divisor latch, lower byte.
    pub baud_divisor_low: u8,
    /// Divisor latch, upper byte.
    pub baud_divisor_high: u8,
    /// IER.
    pub interrupt_enable: u8,
    /// IIR.
    pub interrupt_identification: u8,
    /// LCR.
    pub line_control: u8,
    /// LSR.
    pub line_status: u8,
    /// MCR.
    pub modem_control: u8,
    /// MSR.
    pub modem_status: u8,
    /// SCR.
    pub scratch: u8,
    /// Bytes that the guest has not read yet.
    pub input: Vec<u8>,
}

/// Why a saved state cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SerialStateError {
    /// Saved by another version of this code.
    #[error("serial state: saved by version {0}")]
    Version(u32),
    /// More input than the port can hold.
    #[error("serial state: {0} bytes of input, of which the port holds 64")]
    Input(usize),
}

/// The line, as vm-superio wants it.
struct Pulse {
    line: Box<dyn InterruptLine>,
    muted: AtomicBool,
}

impl Trigger for Pulse {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        if !self.muted.load(Ordering::Relaxed) {
            self.line.raise();
        }
        Ok(())
    }
}

/// Lets the port and its restored successor share the line.
#[derive(Clone)]
struct SharedPulse(Arc<Pulse>);

impl Trigger for SharedPulse {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.trigger()
    }
}

/// The sink, as vm-superio wants it.
struct Output(Box<dyn ConsoleSink>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A serial port, callable from several threads.
pub struct SerialPort {
    serial: Mutex<Serial<SharedPulse, NoEvents, Output>>,
}

impl SerialPort {
    /// A port as after reset, whose output goes to `sink`.
    pub fn new(sink: Box<dyn ConsoleSink>, line: Box<dyn InterruptLine>) -> Self {
        let pulse = SharedPulse(Arc::new(Pulse { line, muted: AtomicBool::new(false) }));
        Self { serial: Mutex::new(Serial::new(pulse, Output(sink))) }
    }

    /// A vCPU reads from register `offset`. Registers are one byte wide; of a longer access only the first
    /// byte means something, the others are all ones as on a bus that nobody drives.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let (Some(register), Some(byte)) = (register(offset), data.first_mut()) {
            *byte = self.lock().read(register);
        }
    }

    /// A vCPU writes to register `offset`; of a longer access only the first byte counts.
    pub fn write(&self, offset: u64, data: &[u8]) {
        if let (Some(register), Some(byte)) = (register(offset), data.first()) {
            // Neither the line nor the sink can fail.
            let _ = self.lock().write(register, *byte);
        }
    }

    /// Gives the guest bytes to read; gives how many it has room for. In loop-back mode it takes none.
    pub fn push_input(&self, bytes: &[u8]) -> usize {
        // An error says that there is no room.
        self.lock().enqueue_raw_bytes(bytes).unwrap_or(0)
    }

    /// The port's state.
    pub fn save(&self) -> SerialState {
        let state = self.lock().state();
        SerialState {
            version: STATE_VERSION,
            baud_divisor_low: state.baud_divisor_low,
            baud_divisor_high: state.baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            input: state.in_buffer,
        }
    }

    /// Puts the port into a saved state, without a pulse of its line: [`Self::resume`] makes that.
    ///
    /// # Errors
    /// [`SerialStateError`]; the port is as before then.
    pub fn restore(&self, state: &SerialState) -> Result<(), SerialStateError> {
        if state.version != STATE_VERSION {
            return Err(SerialStateError::Version(state.version));
        }
        let too_much = SerialStateError::Input(state.input.len());
        if state.input.len() > INPUT_MAX {
            return Err(too_much);
        }
        let state = vm_superio::serial::SerialState {
            baud_divisor_low: state.baud_divisor_low,
            baud_divisor_high: state.baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.input.clone(),
        };
        let mut serial = self.lock();
        let pulse = serial.interrupt_evt().clone();
        let sink = std::mem::replace(&mut serial.writer_mut().0, Box::new(Discard));
        pulse.0.muted.store(true, Ordering::Relaxed);
        let restored = Serial::from_state(&state, pulse.clone(), NoEvents, Output(sink));
        pulse.0.muted.store(false, Ordering::Relaxed);
        *serial = restored.map_err(|_| too_much)?;
        Ok(())
    }

    /// Pulses the line again if the guest has not seen why it was pulsed: a pulse on its way is in nobody's
    /// state. (A port whose "transmitter empty" was lost in a snapshot stays silent for ever.)
    pub fn resume(&self) {
        let serial = self.lock();
        let state = serial.state();
        if state.interrupt_enable != 0 && state.interrupt_identification & PENDING != 0 {
            let Ok(()) = serial.interrupt_evt().trigger();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Serial<SharedPulse, NoEvents, Output>> {
        self.serial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn register(offset: u64) -> Option<u8> {
    u8::try_from(offset).ok().filter(|register| u64::from(*register) < REGISTERS)
}
