//! Messages between agent and worker, over a socket pair that keeps their bounds (`SOCK_SEQPACKET`).
//!
//! One byte of tag, then the content. Both ends are this program, but the worker handles what user code made, so the agent
//! decodes its messages like those of a stranger.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use hayfork_protocol::{Event, Request};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

/// Longest data in one message, in bytes.
pub const MAX_DATA: usize = 32 * 1024;

/// Longest message, in bytes: an encoded [`Event::Entries`].
pub const MAX_MESSAGE: usize = 60 * 1024;

const REQUEST: u8 = 1;
const EVENT: u8 = 2;
const DATA: u8 = 3;
const END: u8 = 4;
const OVER: u8 = 5;

/// One message.
#[derive(Debug)]
pub enum Message<'a> {
    /// Agent: begins an operation.
    Request(Box<Request>),
    /// Worker: something for the host.
    Event(Box<Event>),
    /// Either: content of a file.
    Data(&'a [u8]),
    /// Either: the content is complete.
    End,
    /// Worker: the operation is over, its last event is sent.
    Over,
}

/// A connected pair: the agent's end, non-blocking, and the worker's, blocking.
///
/// # Errors
/// Whatever the kernel refused.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (agent, worker) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&agent, true)?;
    Ok((agent, worker))
}

fn send(socket: impl AsFd, tag: u8, content: &[u8]) -> Result<(), Errno> {
    let parts = [IoSlice::new(std::slice::from_ref(&tag)), IoSlice::new(content)];
    loop {
        let mut control = rustix::net::SendAncillaryBuffer::default();
        match rustix::net::sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Sends a message.
///
/// # Errors
/// `EAGAIN` on a non-blocking end that is full; `EPIPE` when the other end is closed.
pub fn write(socket: impl AsFd, message: &Message<'_>) -> Result<(), Errno> {
    let encoded = |result: Result<Vec<u8>, postcard::Error>| result.map_err(|_| Errno::INVAL);
    match message {
        Message::Request(request) => send(socket, REQUEST, &encoded(postcard::to_allocvec(request))?),
        Message::Event(event) => send(socket, EVENT, &encoded(postcard::to_allocvec(event))?),
        Message::Data(bytes) => send(socket, DATA, bytes),
        Message::End => send(socket, END, &[]),
        Message::Over => send(socket, OVER, &[]),
    }
}

/// Receives a message into `buffer`, which holds at least [`MAX_MESSAGE`] bytes; `None` when the other end is closed.
///
/// # Errors
/// `EAGAIN` on a non-blocking end with nothing to read; `EBADMSG` for something that is no message.
pub fn read(socket: impl AsFd, buffer: &mut [u8]) -> Result<Option<Message<'_>>, Errno> {
    let n = loop {
        match rustix::io::read(&socket, &mut *buffer) {
            Ok(n) => break n,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    };
    let Some((tag, content)) = buffer[..n].split_first() else { return Ok(None) };
    let bad = |_| Errno::BADMSG;
    Ok(Some(match *tag {
        REQUEST => Message::Request(Box::new(postcard::from_bytes(content).map_err(bad)?)),
        EVENT => Message::Event(Box::new(postcard::from_bytes(content).map_err(bad)?)),
        DATA if content.len() <= MAX_DATA => Message::Data(content),
        END => Message::End,
        OVER => Message::Over,
        _ => return Err(Errno::BADMSG),
    }))
}
