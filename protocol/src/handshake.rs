//! How the two sides find each other on a byte stream, and agree on a version.
//!
//! A carrier may still hold bytes of an earlier session: a virtio-serial port stays the same device
//! when the host end is closed and opened again, and the guest does not always see the gap. So a
//! session begins with a preamble that both sides search for:
//!
//! ```text
//!  ├ 8 bytes ┼ 16 bytes ┼ u16 LE ┼──────────────────┼ 16 bytes ┤
//!  │ MAGIC   │ nonce    │ length │ hello (postcard) │ nonce    │
//! ```
//!
//! The nonce at the end tells a whole preamble from one that was cut off and filled up with the bytes
//! of the next attempt.
//!
//! 1. The **host** sends [`HostPreamble::bytes`] with a fresh random nonce, and discards everything
//!    until the magic **followed by its own nonce** comes back, so an answer to an earlier host is
//!    never taken for its own.
//! 2. The **guest** searches for the magic at start, after the carrier reported an end, and after any
//!    protocol error. It answers with the nonce that it was given.
//! 3. A guest that did not see the gap may be in the middle of a frame and swallow the preamble as
//!    its payload. The host therefore sends [`HostPreamble::retry_bytes`] when no answer came in
//!    time: zero bytes, more than any frame is long, then the preamble. Zero bytes are no frame
//!    ([`crate::frame`]), so the guest falls back to its search.
//!
//! [`Scanner`] is the search; it keeps no more than one preamble of bytes.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::limits::{MAX_CONTROL, MIN_VERSION, VERSION};

/// Marks the start of a session. Not valid UTF-8, so no text can hold it.
pub const MAGIC: [u8; 8] = *b"\xffhayfork";

/// Longest encoded hello, in bytes.
pub const MAX_HELLO: usize = 1024;

const NONCE: usize = 16;
/// Everything before the hello.
const PREFIX: usize = MAGIC.len() + NONCE + 2;

/// What the host says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostHello {
    /// Newest version that the host speaks.
    pub version: u16,
    /// Oldest version that the host speaks.
    pub min_version: u16,
    /// The host's wall clock, nanoseconds since 1970-01-01 UTC. The guest steps its own to it.
    pub wall_clock_ns: u64,
    /// Fresh randomness of the host, which the guest's kernel mixes into its pool and credits.
    pub entropy: [u8; 32],
}

impl HostHello {
    /// A hello of this crate's version.
    pub const fn new(wall_clock_ns: u64, entropy: [u8; 32]) -> Self {
        Self { version: VERSION, min_version: MIN_VERSION, wall_clock_ns, entropy }
    }
}

/// What the guest answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestHello {
    /// The version that both sides use from here on; 0 if there is none.
    pub version: u16,
    /// Version of the agent, for diagnosis.
    pub agent: String,
    /// Nanoseconds since the guest's kernel started.
    pub uptime_ns: u64,
    /// Languages for which this image has a driver.
    pub languages: Vec<String>,
    /// Memory that the guest's kernel manages, in bytes.
    pub memory_bytes: u64,
}

/// Why a session could not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The sides have no version in common.
    #[error(
        "the guest agent ({agent}) speaks no protocol version from {MIN_VERSION} to {VERSION}; \
         rebuild or reinstall the images so that they match this program"
    )]
    Version {
        /// Version of the agent.
        agent: String,
    },
}

/// Which version a guest takes for what a host offers; 0 if none.
pub const fn choose_version(host: &HostHello) -> u16 {
    let highest = if host.version < VERSION { host.version } else { VERSION };
    if highest >= MIN_VERSION && highest >= host.min_version { highest } else { 0 }
}

/// Encodes a preamble with a hello.
fn preamble<T: Serialize>(nonce: &[u8; NONCE], hello: &T) -> Vec<u8> {
    // postcard fails only on types that it cannot represent; the hellos are not among them.
    let body = postcard::to_allocvec(hello).unwrap_or_default();
    let mut out = Vec::with_capacity(PREFIX + body.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(nonce);
    #[allow(clippy::cast_possible_truncation)] // hellos are far below MAX_HELLO
    out.extend_from_slice(&(body.len() as u16).to_le_bytes());
    out.extend_from_slice(&body);
    out.extend_from_slice(nonce);
    out
}

/// The host's side of the search.
#[derive(Debug)]
pub struct HostPreamble {
    nonce: [u8; NONCE],
    encoded: Vec<u8>,
    scanner: Scanner,
}

impl HostPreamble {
    /// Begins a handshake. `nonce` must be fresh and random.
    pub fn new(nonce: [u8; NONCE], hello: &HostHello) -> Self {
        Self { nonce, encoded: preamble(&nonce, hello), scanner: Scanner::default() }
    }

    /// What to send first.
    pub fn bytes(&self) -> &[u8] {
        &self.encoded
    }

    /// What to send when no answer came in time: pushes the guest out of a frame that it only half
    /// received, then repeats the preamble.
    pub fn retry_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; MAX_CONTROL + crate::frame::HEADER];
        out.extend_from_slice(&self.encoded);
        out
    }

    /// Takes received bytes off the front of `input`. Returns the guest's answer once it is whole;
    /// `input` then begins with the first frame.
    ///
    /// # Errors
    /// [`HandshakeError::Version`] if the guest found no common version.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<GuestHello>, HandshakeError> {
        while let Some((nonce, hello)) = self.scanner.next::<GuestHello>(input) {
            if nonce != self.nonce {
                continue; // an answer to an earlier host
            }
            if hello.version < MIN_VERSION || hello.version > VERSION {
                return Err(HandshakeError::Version { agent: hello.agent });
            }
            return Ok(Some(hello));
        }
        Ok(None)
    }
}

/// The guest's side of the search.
#[derive(Debug, Default)]
pub struct GuestPreamble {
    scanner: Scanner,
}

impl GuestPreamble {
    /// Begins a search.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes received bytes off the front of `input`. Returns the nonce and the host's hello once
    /// they are whole; `input` then begins with the first frame.
    pub fn receive(&mut self, input: &mut &[u8]) -> Option<([u8; NONCE], HostHello)> {
        self.scanner.next(input)
    }

    /// Encodes the answer to a hello with that nonce.
    pub fn answer(nonce: &[u8; NONCE], hello: &GuestHello) -> Vec<u8> {
        preamble(nonce, hello)
    }
}

/// Searches a byte stream for preambles and drops everything else.
#[derive(Debug, Default)]
struct Scanner {
    held: Vec<u8>,
}

impl Scanner {
    fn next<T: DeserializeOwned>(&mut self, input: &mut &[u8]) -> Option<([u8; NONCE], T)> {
        loop {
            if let Some(found) = self.take::<T>() {
                return Some(found);
            }
            if input.is_empty() {
                return None;
            }
            self.feed(input);
        }
    }

    /// Bytes still missing for the next decision, at least 1.
    fn missing(&self) -> usize {
        let have = self.held.len();
        if have < PREFIX {
            return if have < MAGIC.len() { 1 } else { PREFIX - have };
        }
        // A length beyond the limit is refused by `take` before more is read.
        (PREFIX + self.hello_length() + NONCE).saturating_sub(have).max(1)
    }

    fn hello_length(&self) -> usize {
        usize::from(u16::from_le_bytes([self.held[PREFIX - 2], self.held[PREFIX - 1]]))
    }

    fn feed(&mut self, input: &mut &[u8]) {
        if self.held.is_empty() {
            // Skip quickly to the first byte that can begin a preamble.
            let start = input.iter().position(|b| *b == MAGIC[0]).unwrap_or(input.len());
            *input = &input[start..];
        }
        let take = self.missing().min(input.len());
        self.held.extend_from_slice(&input[..take]);
        *input = &input[take..];
        self.realign();
    }

    /// Drops bytes from the front until what is held can begin a preamble.
    fn realign(&mut self) {
        let fits = |held: &[u8]| {
            let n = held.len().min(MAGIC.len());
            held[..n] == MAGIC[..n]
        };
        let start = (0..self.held.len()).find(|i| fits(&self.held[*i..]));
        self.held.drain(..start.unwrap_or(self.held.len()));
    }

    fn take<T: DeserializeOwned>(&mut self) -> Option<([u8; NONCE], T)> {
        loop {
            if self.held.len() < PREFIX {
                return None;
            }
            let length = self.hello_length();
            if length <= MAX_HELLO {
                let end = PREFIX + length + NONCE;
                if self.held.len() < end {
                    return None;
                }
                let mut nonce = [0; NONCE];
                nonce.copy_from_slice(&self.held[MAGIC.len()..MAGIC.len() + NONCE]);
                let whole = self.held[PREFIX + length..end] == nonce;
                if let (true, Ok(hello)) = (whole, postcard::from_bytes(&self.held[PREFIX..PREFIX + length]))
                {
                    self.held.drain(..end);
                    return Some((nonce, hello));
                }
            }
            // The magic by chance, or cut off by a new session: look on behind its first byte.
            self.held.drain(..1);
            self.realign();
        }
    }
}

#[cfg(test)]
mod tests;
