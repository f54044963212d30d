//! Messages between agent and watcher, over a socket pair that keeps their bounds (`SOCK_SEQPACKET`).
//!
//! Each names its watch by the number of its stream. The watcher handles what user code made, so the agent decodes its
//! messages like those of a stranger.

use std::os::fd::AsFd;

use hayfork_protocol::change::MAX_RECORD;
use hayfork_protocol::message::Failure;
use rustix::io::Errno;
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Most bytes of records in one batch.
pub const MAX_BATCH: usize = 32 * 1024;

/// Longest message, in bytes: a batch, or the longest path, and what is around them.
pub const MAX_MESSAGE: usize = MAX_BATCH + 64;

const _: () = assert!(MAX_RECORD <= MAX_BATCH && hayfork_protocol::limits::MAX_PATH < MAX_BATCH);

/// What the agent wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Begins a watch.
    Begin {
        /// Its number.
        id: u32,
        /// The folder.
        path: String,
        /// Whether those below it are watched too.
        recursive: bool,
    },
    /// There is room for one batch.
    More {
        /// Its number.
        id: u32,
    },
    /// Say `Flushed` behind what has happened.
    Flush {
        /// Its number.
        id: u32,
    },
    /// Ends a watch. Nothing is answered.
    End {
        /// Its number.
        id: u32,
    },
}

/// What the watcher says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The folder is watched from here on.
    Watching {
        /// Its number.
        id: u32,
    },
    /// The answer to one `More`: encoded records.
    Batch {
        /// Its number.
        id: u32,
        /// At most [`MAX_BATCH`].
        records: Vec<u8>,
    },
    /// It is over: there is nothing left to watch, or it could not begin.
    Over {
        /// Its number.
        id: u32,
        /// Why it could not.
        failure: Option<Failure>,
    },
}

/// Encodes a message.
///
/// # Errors
/// `EMSGSIZE` for one that is too long.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, Errno> {
    let bytes = postcard::to_allocvec(message).map_err(|_| Errno::INVAL)?;
    if bytes.len() > MAX_MESSAGE { Err(Errno::MSGSIZE) } else { Ok(bytes) }
}

/// Sends an encoded message.
///
/// # Errors
/// `EAGAIN` on a non-blocking end that is full; `EPIPE` when the other end is closed.
pub fn send(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    loop {
        match rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives a message into `buffer`, which holds at least [`MAX_MESSAGE`] bytes; `None` when the other end is closed.
///
/// # Errors
/// `EAGAIN` on a non-blocking end with nothing to read; `EBADMSG` for something that is no message.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd, buffer: &mut [u8]) -> Result<Option<T>, Errno> {
    let n = loop {
        match rustix::io::read(&socket, &mut *buffer) {
            Ok(0) | Err(Errno::CONNRESET) => return Ok(None),
            Ok(n) => break n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    };
    postcard::from_bytes(&buffer[..n]).map(Some).map_err(|_| Errno::BADMSG)
}
