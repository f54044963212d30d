//! Unix stream sockets as host ends.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};

use super::{Connector, HostSocket};

/// A non-blocking Unix stream socket.
///
/// Writes never raise SIGPIPE: the process that embeds the device may have set it to kill.
#[derive(Debug)]
pub struct UnixSocket(UnixStream);

impl UnixSocket {
    /// Takes over `stream` and makes it non-blocking.
    ///
    /// # Errors
    /// If the kernel refuses that.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        #[cfg(target_vendor = "apple")]
        rustix::net::sockopt::set_socket_nosigpipe(&stream, true)?;
        Ok(Self(stream))
    }

    /// Two connected sockets: one for the device, one (blocking) for whoever talks to the guest.
    ///
    /// # Errors
    /// If the kernel gives no descriptors.
    pub fn pair() -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::new(ours)?, theirs))
    }

    /// The stream itself.
    pub fn into_inner(self) -> UnixStream {
        self.0
    }
}

#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: SendFlags = SendFlags::empty();

impl Read for UnixSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for UnixSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, buf, SEND_FLAGS)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl HostSocket for UnixSocket {
    fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for UnixSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A new stream socket that no child process inherits.
#[cfg(not(target_vendor = "apple"))]
fn stream_socket() -> io::Result<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

/// A new stream socket that no child process inherits (but for one started by another thread
/// between the two calls: this system has no single call for it).
#[cfg(target_vendor = "apple")]
fn stream_socket() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(socket)
}

/// Connects guest ports to listening Unix sockets by an explicit list; refuses all others.
#[derive(Debug, Default)]
pub struct UnixConnector {
    ports: BTreeMap<u32, PathBuf>,
}

impl UnixConnector {
    /// Refuses everything until ports are added.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the guest connect to `port`: it will reach whoever listens on the socket at `path`.
    pub fn allow(&mut self, port: u32, path: impl Into<PathBuf>) -> &mut Self {
        self.ports.insert(port, path.into());
        self
    }
}

impl Connector<UnixSocket> for UnixConnector {
    /// Does not wait when the listener's backlog is full: then the connection is refused.
    fn connect(&mut self, port: u32) -> io::Result<UnixSocket> {
        let Some(path) = self.ports.get(&port) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let socket = UnixSocket::new(UnixStream::from(stream_socket()?))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_path())?)?;
        Ok(socket)
    }
}
