//! The byte stream to the host, whatever carries it.
//!
//! A carrier is non-blocking in both directions and can lose its host at any time; a new host may come over the same
//! descriptor (a virtio-serial port) or another one (vsock, the second port). [`Carrier::ready`] tells of both.

mod line;
mod virtio_serial;
mod vsock;

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::cmdline::CarrierKind;
use crate::error::Result;
use crate::poller::{Poller, Ready, Token};
use line::Line;

/// What reading brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// That many bytes.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The host is gone.
    Closed,
}

/// A change of the host's presence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// As before.
    Unchanged,
    /// The host went away.
    Gone,
    /// A new host came, in place of the old one if there was one.
    Replaced,
}

/// A way to the host.
#[derive(Debug)]
pub enum Carrier {
    /// Virtio-serial ports.
    VirtioSerial(virtio_serial::Ports),
    /// A vsock listener and its connection.
    Vsock(vsock::Listener),
    /// A connected stream socket, for tests on a development machine.
    Socket(Line),
}

impl Carrier {
    /// Opens the carrier that the command line names, and registers it.
    ///
    /// # Errors
    /// There is no such device, or the kernel refused.
    pub fn open(kind: &CarrierKind, poller: &Poller) -> Result<Self> {
        match kind {
            CarrierKind::VirtioSerial(name) => {
                virtio_serial::Ports::open(name, poller).map(Self::VirtioSerial)
            }
            CarrierKind::Vsock(port) => vsock::Listener::open(*port, poller).map(Self::Vsock),
        }
    }

    /// Takes over a connected, non-blocking stream socket.
    ///
    /// # Errors
    /// It could not be registered.
    pub fn from_socket(socket: OwnedFd, poller: &Poller) -> Result<Self> {
        Line::new(socket, Token::Carrier, poller).map(Self::Socket)
    }

    /// Looks at an event of [`Token::Carrier`] or [`Token::Listener`].
    ///
    /// # Errors
    /// The listener failed.
    pub fn ready(&mut self, ready: Ready, poller: &Poller) -> Result<Presence> {
        match self {
            Self::VirtioSerial(ports) => Ok(ports.ready(ready, poller)),
            Self::Vsock(listener) => listener.ready(ready, poller),
            Self::Socket(_) => Ok(Presence::Unchanged),
        }
    }

    /// When [`Carrier::on_time`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::VirtioSerial(ports) => ports.deadline(),
            Self::Vsock(_) | Self::Socket(_) => None,
        }
    }

    /// Looks at what needs a second look.
    pub fn on_time(&mut self, now: Instant) -> Presence {
        match self {
            Self::VirtioSerial(ports) => ports.on_time(now),
            Self::Vsock(_) | Self::Socket(_) => Presence::Unchanged,
        }
    }

    /// Whether an end of the stream means that its host is gone. A port gives one too, but also while it merely has nothing
    /// to say about its host yet.
    pub fn ends_with_host(&self) -> bool {
        !matches!(self, Self::VirtioSerial(_))
    }

    /// Whether a read that brought less than was asked for has brought all that was there. A port gives one buffer of its
    /// host's at a time.
    pub fn is_emptied_by_short_reads(&self) -> bool {
        !matches!(self, Self::VirtioSerial(_))
    }

    fn line(&mut self) -> Option<&mut Line> {
        match self {
            Self::VirtioSerial(ports) => Some(ports.line()),
            Self::Vsock(listener) => listener.line(),
            Self::Socket(line) => Some(line),
        }
    }

    /// Reads what is there.
    pub fn read(&mut self, buffer: &mut [u8]) -> Input {
        self.line().map_or(Input::Nothing, |line| line.read(buffer))
    }

    /// Writes what fits, and returns how many bytes that were; `None` if nothing fits now. Bytes for a
    /// host that is gone count as not fitting: the session they belong to ends with the event that says so.
    pub fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        self.line()?.write(bytes)
    }

    /// Lets go of a connection that ended. A port stays: it waits for the next host.
    pub fn hang_up(&mut self) {
        if let Self::Vsock(listener) = self {
            listener.hang_up();
        }
    }
}
