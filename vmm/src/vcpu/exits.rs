//! Who answers the guest's accesses.

use std::borrow::Cow;
use std::ops::ControlFlow;

/// Whether the machine goes on after an access.
pub type Flow = ControlFlow<StopCause>;

/// Why a handler stops the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopCause {
    /// The guest asked for a reset (0xfe to port 0x64 is one way).
    Reset,
    /// The guest switched itself off.
    PowerOff,
    /// The guest reported that it crashed.
    Crash,
    /// Anything else, in words.
    Other(Cow<'static, str>),
}

/// Answers the accesses of a guest that are not to memory.
///
/// Called on the threads of the virtual CPUs, by several at once, with no lock held by the caller. The guest's processor
/// stands still meanwhile, and so does whoever wants to pause or stop the machine: nothing here may wait for long.
///
/// Bytes of `data` are little-endian. A read that nobody answers should give ones, as an empty bus does.
pub trait Exits: Send + Sync + 'static {
    /// The guest reads 1 to 8 bytes at a guest-physical address.
    fn mmio_read(&self, addr: u64, data: &mut [u8]) -> Flow;

    /// The guest writes 1 to 8 bytes at a guest-physical address.
    fn mmio_write(&self, addr: u64, data: &[u8]) -> Flow;

    /// The guest reads 1, 2 or 4 bytes from a port.
    fn port_in(&self, port: u16, data: &mut [u8]) -> Flow {
        let _ = port;
        data.fill(0xff);
        Flow::Continue(())
    }

    /// The guest writes 1, 2 or 4 bytes to a port.
    fn port_out(&self, port: u16, data: &[u8]) -> Flow {
        let _ = (port, data);
        Flow::Continue(())
    }

    /// The guest reads a port several times, `size` bytes each (`rep ins`). What a handler that stops the machine leaves
    /// out keeps the bytes of an earlier access.
    fn port_in_string(&self, port: u16, size: usize, data: &mut [u8]) -> Flow {
        for element in data.chunks_exact_mut(size) {
            self.port_in(port, element)?;
        }
        Flow::Continue(())
    }

    /// The guest writes a port several times, `size` bytes each (`rep outs`). Worth a method of its own where bytes go
    /// to a buffer, as those of a console do.
    fn port_out_string(&self, port: u16, size: usize, data: &[u8]) -> Flow {
        for element in data.chunks_exact(size) {
            self.port_out(port, element)?;
        }
        Flow::Continue(())
    }
}
