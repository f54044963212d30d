//! The few ports of a PC that a kernel without firmware still looks for.
//!
//! | port | answer |
//! |---|---|
//! | 0x3f8 to 0x3ff | the serial port |
//! | 0x61 | the timer's gate: reads 0x20, "counted down" |
//! | 0x64 | the keyboard controller: reads 0, "ready", and takes the command 0xfe, which resets the machine |

use std::sync::Arc;

use hayfork_devices::serial::SerialPort;
use hayfork_devices::virtio::transport::mmio::MmioRegisters;

use crate::memory::layout;
use crate::vcpu::{Bus, BusError, Flow, Mmio, PortIo, StopCause};

/// Where the keyboard controller's status is read and its commands are written.
const KEYBOARD_COMMAND: u32 = 0x64;
/// The command that pulses the processor's reset line.
const RESET: u8 = 0xfe;
/// System control port B.
const TIMER_GATE: u32 = 0x61;
const COUNTED_DOWN: u8 = 0x20;

/// Puts all of them on the bus.
pub(super) fn add(bus: &mut Bus, serial: &Arc<SerialPort>) -> Result<(), BusError> {
    let serial = Arc::new(Serial(Arc::clone(serial)));
    let first = u32::from(layout::SERIAL_PORT);
    bus.add_ports(first..first + 8, serial)?;
    bus.add_ports(TIMER_GATE..TIMER_GATE + 1, Arc::new(TimerGate))?;
    bus.add_ports(KEYBOARD_COMMAND..KEYBOARD_COMMAND + 1, Arc::new(KeyboardController))
}

/// The serial port's registers on the bus.
struct Serial(Arc<SerialPort>);

impl PortIo for Serial {
    fn read(&self, offset: u16, data: &mut [u8]) -> Flow {
        self.0.read(offset.into(), data);
        Flow::Continue(())
    }

    fn write(&self, offset: u16, data: &[u8]) -> Flow {
        self.0.write(offset.into(), data);
        Flow::Continue(())
    }
}

/// The keyboard controller, as far as a reset needs it.
pub(super) struct KeyboardController;

impl PortIo for KeyboardController {
    fn read(&self, _offset: u16, data: &mut [u8]) -> Flow {
        data.fill(0);
        Flow::Continue(())
    }

    fn write(&self, _offset: u16, data: &[u8]) -> Flow {
        if data.first() == Some(&RESET) { Flow::Break(StopCause::Reset) } else { Flow::Continue(()) }
    }
}

/// System control port B without a timer behind it.
pub(super) struct TimerGate;

impl PortIo for TimerGate {
    fn read(&self, _offset: u16, data: &mut [u8]) -> Flow {
        data.fill(COUNTED_DOWN);
        Flow::Continue(())
    }

    fn write(&self, _offset: u16, _data: &[u8]) -> Flow {
        Flow::Continue(())
    }
}

/// A virtio device's registers on the bus of virtual CPUs.
pub(super) struct Registers(pub(super) Arc<dyn MmioRegisters>);

impl Mmio for Registers {
    fn read(&self, offset: u64, data: &mut [u8]) -> Flow {
        self.0.read(offset, data);
        Flow::Continue(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Flow {
        self.0.write(offset, data);
        Flow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reset_command_stops_the_machine_and_nothing_else_does() {
        let keyboard = KeyboardController;
        for command in 0..=u8::MAX {
            let flow = keyboard.write(0, &[command]);
            assert_eq!(flow == Flow::Break(StopCause::Reset), command == 0xfe);
        }
        assert!(keyboard.write(0, &[]).is_continue());
        let mut data = [0xff; 2];
        assert!(keyboard.read(0, &mut data).is_continue());
        assert_eq!(data, [0, 0]);
    }
}
