//! The host ends of streams, as the device sees them.
//!
//! The device reads and writes, and never waits: a socket that is not ready says `WouldBlock`, and
//! the embedder, who polls, calls [`super::VsockDevice::host_ready`] when that has changed. Who may
//! connect to what is decided by the [`Connector`].

mod unix;

use std::io::{self, Read, Write};
use std::net::Shutdown;

pub use unix::{UnixConnector, UnixSocket};

/// One host end of a stream.
///
/// `read` and `write` must not block: `ErrorKind::WouldBlock` says "not now". `read` of 0 bytes is
/// the end of the stream. A failed `write` means that the other end takes no more; it must not
/// raise a signal.
pub trait HostSocket: Read + Write {
    /// Ends one or both directions, as `shutdown(2)` does.
    ///
    /// # Errors
    /// The device ignores them: a socket that is gone already needs no ending.
    fn shutdown(&mut self, how: Shutdown) -> io::Result<()>;
}

impl<T: HostSocket + ?Sized> HostSocket for Box<T> {
    fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        (**self).shutdown(how)
    }
}

/// Decides what happens when the guest connects to a port of the host.
///
/// Any `FnMut(u32) -> io::Result<S>` is one.
pub trait Connector<S> {
    /// Gives a socket for a guest that connects to `port`. Must not block.
    ///
    /// # Errors
    /// Whatever the error is, the guest sees a refused connection; the connector is the place to
    /// log it.
    fn connect(&mut self, port: u32) -> io::Result<S>;
}

impl<S, F: FnMut(u32) -> io::Result<S>> Connector<S> for F {
    fn connect(&mut self, port: u32) -> io::Result<S> {
        self(port)
    }
}

/// Refuses every connection of the guest.
#[derive(Debug, Clone, Copy, Default)]
pub struct RefuseAll;

impl<S> Connector<S> for RefuseAll {
    fn connect(&mut self, _port: u32) -> io::Result<S> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}
