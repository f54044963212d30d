//! Messages over a pair of `SOCK_SEQPACKET` sockets, with descriptors (unix(7), `SCM_RIGHTS`).
//!
//! ```text
//!  packet:  0 │ message                                   and descriptors
//!           1 │ bytes of the message, u64 little endian    and, before those, sealed memory that holds it
//! ```
//! A message is what postcard makes of it, to the last byte. Long ones do not fit into a socket's buffer, so they go through
//! memory; that is copied before it is looked at, so that the other side cannot change it meanwhile.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a message that goes inside of its packet; a socket's buffer holds three such packets.
pub const MOST_INLINE: usize = 64 << 10;
/// Bytes of a message at most: the largest console as text, thrice its bytes, and room.
pub const MOST: usize = 56 << 20;
/// Descriptors with a message at most.
pub const MOST_DESCRIPTORS: usize = 8;

const INLINE: u8 = 0;
const IN_MEMORY: u8 = 1;

/// Why there is no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The other side has closed its socket, or has ended.
    #[error("the other side is gone")]
    Closed,
    /// Nothing came in time, or could not be sent in time.
    #[error("the other side does not answer")]
    TimedOut,
    /// What came is no message.
    #[error("the other side sent what is no message: {0}")]
    Malformed(&'static str),
    /// What came with a message did not fit into this process. That is no fault of the other side, and the next message is as good
    /// as any.
    #[error("this process cannot take the descriptors that came with a message: {0}")]
    NoDescriptors(#[source] io::Error),
    /// A system call failed.
    #[error("a message could not be sent or received: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for PacketError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            errno => Self::Io(errno.into()),
        }
    }
}

/// Reads a message from its bytes: all of them.
///
/// # Errors
/// [`PacketError::Malformed`]
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, PacketError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(PacketError::Malformed("there are bytes behind it")),
        Err(_) => Err(PacketError::Malformed("it does not have the form of one")),
    }
}

/// Writes a message as bytes.
///
/// # Errors
/// It is too long.
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, PacketError> {
    let bytes = postcard::to_allocvec(message).map_err(|error| io::Error::other(error.to_string()))?;
    if bytes.len() > MOST {
        return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
    }
    Ok(bytes)
}

/// Sends a message with descriptors, at most [`MOST_DESCRIPTORS`].
///
/// # Errors
/// The other side is gone or takes nothing until `deadline`, or there is no memory.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> Result<(), PacketError> {
    let bytes = encode(message)?;
    if bytes.len() <= MOST_INLINE {
        return send_packet(socket, &[&[INLINE], &bytes], descriptors, deadline);
    }
    let memory = memory_of(&bytes, true)?;
    let mut all = vec![memory.as_fd()];
    all.extend_from_slice(descriptors);
    send_packet(socket, &[&[IN_MEMORY], &(bytes.len() as u64).to_le_bytes()], &all, deadline)
}

/// Memory with these bytes.
pub(super) fn memory_of(bytes: &[u8], sealed: bool) -> Result<OwnedFd, PacketError> {
    let memory =
        File::from(memfd_create("hayfork-message", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    memory.write_all_at(bytes, 0)?;
    if sealed {
        let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&memory, all)?;
    }
    Ok(memory.into())
}

pub(super) fn send_packet(
    socket: BorrowedFd<'_>,
    parts: &[&[u8]],
    descriptors: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> Result<(), PacketError> {
    debug_assert!(descriptors.len() <= MOST_DESCRIPTORS + 1, "messages have few descriptors");
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS + 1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    loop {
        match sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, deadline)?,
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A message, with its descriptors.
pub(super) type Received<M> = (M, Vec<OwnedFd>);

/// Whether a message is taken off its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// It is, and waited for until then.
    Until(Option<Instant>),
    /// It stays there, and is not waited for.
    Peek,
}

/// Receives a message.
///
/// # Errors
/// [`PacketError`]; [`PacketError::TimedOut`] also for a [peek](Take::Peek) when there is none.
pub(super) fn receive<M: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    take: Take,
) -> Result<Received<M>, PacketError> {
    let (bytes, descriptors) = receive_bytes(socket, take)?;
    Ok((decode(&bytes)?, descriptors))
}

pub(super) fn receive_bytes(
    socket: BorrowedFd<'_>,
    take: Take,
) -> Result<(Vec<u8>, Vec<OwnedFd>), PacketError> {
    let mut buffer = vec![0; MOST_INLINE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS + 1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    if take == Take::Peek {
        flags |= RecvFlags::PEEK;
    }
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match take {
                Take::Peek => return Err(PacketError::TimedOut),
                Take::Until(deadline) => wait(socket, PollFlags::IN, deadline)?,
            },
            Err(errno) => return Err(errno.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    // Empty packets are never sent, so this is the end.
    if received.bytes == 0 {
        return Err(PacketError::Closed);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(PacketError::Malformed("it is too long"));
    }
    // The kernel leaves out what there is no room for: in the buffer, which holds a few more than a message has (with its
    // memory), or in this process's table.
    let left_out = received.flags.contains(ReturnFlags::CTRUNC);
    if descriptors.len() > MOST_DESCRIPTORS + usize::from(!left_out) {
        return Err(PacketError::Malformed("it has too many descriptors"));
    }
    if left_out {
        return Err(PacketError::NoDescriptors(Errno::MFILE.into()));
    }
    buffer.truncate(received.bytes);
    match buffer[0] {
        INLINE => {
            buffer.remove(0);
            Ok((buffer, descriptors))
        }
        IN_MEMORY if !descriptors.is_empty() => {
            let memory = descriptors.remove(0);
            let len = <[u8; 8]>::try_from(&buffer[1..])
                .map_err(|_| PacketError::Malformed("its length is not one"))?;
            Ok((read_memory(memory, u64::from_le_bytes(len))?, descriptors))
        }
        _ => Err(PacketError::Malformed("it begins as none")),
    }
}

/// Copies a message out of sealed memory.
fn read_memory(memory: OwnedFd, len: u64) -> Result<Vec<u8>, PacketError> {
    // Only such memory has seals, and reading it never waits for anybody.
    let sealed =
        fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(SealFlags::WRITE | SealFlags::SHRINK));
    if !sealed {
        return Err(PacketError::Malformed("its memory is not sealed"));
    }
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if len > MOST {
        return Err(PacketError::Malformed("it is too long"));
    }
    let memory = File::from(memory);
    // Before there is room for it.
    if memory.metadata()?.len() < len as u64 {
        return Err(PacketError::Malformed("its memory is too short"));
    }
    let mut bytes = vec![0; len];
    memory.read_exact_at(&mut bytes, 0).map_err(|_| PacketError::Malformed("its memory is too short"))?;
    Ok(bytes)
}

fn wait(socket: BorrowedFd<'_>, what: PollFlags, deadline: Option<Instant>) -> Result<(), PacketError> {
    let timeout = match deadline {
        None => None,
        Some(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(PacketError::TimedOut);
            }
            // Fails only for times that are as good as none.
            Timespec::try_from(left).ok()
        }
    };
    match poll(&mut [PollFd::new(&socket, what)], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests;
