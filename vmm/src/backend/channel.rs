//! The host's end of the agent channel.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// The ordered byte stream between host and agent. Blocking as handed out.
///
/// What carries the bytes inside the guest (a virtio-serial port, vsock) is the backend's choice; on the host it is a
/// descriptor that can be polled.
#[derive(Debug)]
#[non_exhaustive]
pub enum Channel {
    /// One end of a pair of connected sockets.
    Unix(UnixStream),
}

impl Channel {
    /// Another handle to the same stream, for a reader and a writer of their own.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Makes reads and writes return `WouldBlock` instead of waiting; an async runtime needs that.
    ///
    /// # Errors
    /// As `fcntl`.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(on),
        }
    }

    /// The socket beneath.
    pub fn into_unix(self) -> UnixStream {
        match self {
            Self::Unix(stream) => stream,
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Channel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
