//! The wire format: a 12-byte header and a payload.
//!
//! ```text
//!  0        4      5         6          8            12
//!  ├────────┼──────┼─────────┼──────────┼────────────┼──────────────
//!  │ length │ kind │ channel │ reserved │ stream id  │ payload …
//!  │ u32 LE │ u8   │ u8      │ 0, u16   │ u32 LE     │ length bytes
//! ```
//!
//! No kind has the number 0, so that a run of zero bytes can never pass for a frame: the host pads
//! with them to push a peer out of a half-received frame (see [`crate::handshake`]).

use crate::limits::{MAX_CONTROL, MAX_DATA};

/// Size of the header, in bytes.
pub const HEADER: usize = 12;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Host: begins a stream; the payload is a [`crate::Request`].
    Open = 1,
    /// A [`crate::Control`] (from the host) or an [`crate::Event`] (from the guest) on a stream.
    Message = 2,
    /// Raw bytes of a channel, covered by credit.
    Data = 3,
    /// No more bytes will follow on this channel.
    Eof = 4,
    /// Grants the sender of a channel more bytes; the payload is a `u32` LE.
    Credit = 5,
    /// Guest: the stream is over and its id is dead.
    Close = 6,
    /// Host: abandons the stream; the guest stops the work behind it and answers with `Close`.
    Reset = 7,
    /// Asks for a `Pong` with the same payload (at most 64 bytes).
    Ping = 8,
    /// Answers a `Ping`.
    Pong = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Open,
            2 => Self::Message,
            3 => Self::Data,
            4 => Self::Eof,
            5 => Self::Credit,
            6 => Self::Close,
            7 => Self::Reset,
            8 => Self::Ping,
            9 => Self::Pong,
            _ => return None,
        })
    }

    /// Largest payload that a frame of this kind may have, in bytes.
    pub const fn max_payload(self) -> usize {
        match self {
            Self::Open | Self::Message => MAX_CONTROL,
            Self::Data => MAX_DATA,
            Self::Credit => 4,
            Self::Ping | Self::Pong => 64,
            Self::Eof | Self::Close | Self::Reset => 0,
        }
    }
}

/// Which byte sequence of a stream a data, end or credit frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Channel {
    /// Host to guest: standard input.
    Stdin = 1,
    /// Guest to host: standard output.
    Stdout = 2,
    /// Guest to host: standard error.
    Stderr = 3,
    /// Either way: the content of a file.
    File = 4,
    /// Guest to host: the parts of the bundle that the last [`crate::Event::Bundle`] announced.
    Bundle = 5,
}

impl Channel {
    /// Number of channels; [`Channel::index`] is below it.
    pub const COUNT: usize = 5;

    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Stdin,
            2 => Self::Stdout,
            3 => Self::Stderr,
            4 => Self::File,
            5 => Self::Bundle,
            _ => return None,
        })
    }

    /// A dense index from 0.
    pub const fn index(self) -> usize {
        self as usize - 1
    }
}

/// One decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// The channel, for `Data`, `Eof` and `Credit`.
    pub channel: Option<Channel>,
    /// The stream; 0 for `Ping` and `Pong`.
    pub stream: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

/// What can be wrong with received bytes. None can be repaired: the session is over and both sides
/// go back to the handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The kind byte is not one of [`Kind`].
    #[error("frame of unknown kind {0}")]
    UnknownKind(u8),
    /// The channel byte does not fit the kind.
    #[error("{kind:?} frame with channel byte {channel}")]
    BadChannel {
        /// The frame's kind.
        kind: Kind,
        /// The byte that was received.
        channel: u8,
    },
    /// A reserved field is not zero.
    #[error("reserved header field is {0:#06x}, not zero")]
    Reserved(u16),
    /// The stream id does not fit the kind.
    #[error("{kind:?} frame with stream id {stream}")]
    BadStream {
        /// The frame's kind.
        kind: Kind,
        /// The id that was received.
        stream: u32,
    },
    /// The payload is longer than its kind allows.
    #[error("{kind:?} frame of {length} bytes, at most {limit} are allowed")]
    TooLong {
        /// The frame's kind.
        kind: Kind,
        /// The length that the header announced, in bytes.
        length: u32,
        /// The longest allowed, in bytes.
        limit: usize,
    },
    /// A credit frame has not exactly four bytes.
    #[error("credit frame of {0} bytes, not 4")]
    BadCredit(usize),
}

const fn takes_channel(kind: Kind) -> bool {
    matches!(kind, Kind::Data | Kind::Eof | Kind::Credit)
}

/// Appends one frame to `out`.
///
/// The caller keeps to [`Kind::max_payload`]; [`crate::Mux`] does.
pub fn encode(out: &mut Vec<u8>, kind: Kind, channel: Option<Channel>, stream: u32, payload: &[u8]) {
    debug_assert!(payload.len() <= kind.max_payload());
    debug_assert_eq!(takes_channel(kind), channel.is_some());
    #[allow(clippy::cast_possible_truncation)] // bounded by max_payload
    let length = payload.len() as u32;
    out.reserve(HEADER + payload.len());
    out.extend_from_slice(&length.to_le_bytes());
    out.push(kind as u8);
    out.push(channel.map_or(0, |c| c as u8));
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&stream.to_le_bytes());
    out.extend_from_slice(payload);
}

struct Header {
    kind: Kind,
    channel: Option<Channel>,
    stream: u32,
    length: usize,
}

fn parse_header(bytes: [u8; HEADER]) -> Result<Header, FrameError> {
    let [l0, l1, l2, l3, kind, channel, r0, r1, s0, s1, s2, s3] = bytes;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let stream = u32::from_le_bytes([s0, s1, s2, s3]);
    let kind = Kind::from_byte(kind).ok_or(FrameError::UnknownKind(kind))?;
    let reserved = u16::from_le_bytes([r0, r1]);
    if reserved != 0 {
        return Err(FrameError::Reserved(reserved));
    }
    let channel = match (takes_channel(kind), channel) {
        (false, 0) => None,
        (true, byte) => Some(Channel::from_byte(byte).ok_or(FrameError::BadChannel { kind, channel: byte })?),
        (false, byte) => return Err(FrameError::BadChannel { kind, channel: byte }),
    };
    if matches!(kind, Kind::Ping | Kind::Pong) != (stream == 0) {
        return Err(FrameError::BadStream { kind, stream });
    }
    let limit = kind.max_payload();
    let length_usize = usize::try_from(length).unwrap_or(usize::MAX);
    if length_usize > limit {
        return Err(FrameError::TooLong { kind, length, limit });
    }
    if kind == Kind::Credit && length != 4 {
        return Err(FrameError::BadCredit(length_usize));
    }
    Ok(Header { kind, channel, stream, length: length_usize })
}

/// Puts frames together from pieces of any size.
///
/// It holds at most one incomplete frame, and allocates for a payload only as its bytes arrive.
#[derive(Debug, Default)]
pub struct Decoder {
    header: [u8; HEADER],
    header_filled: usize,
    payload: Vec<u8>,
}

impl Decoder {
    /// A decoder at a frame boundary.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes off the front of `input` and returns the next complete frame, or `None` when all
    /// of `input` is taken and the frame is not complete yet.
    ///
    /// # Errors
    /// [`FrameError`] as soon as the header shows that the bytes are no frame. `input` then still
    /// begins after the header; the decoder must not be used further.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if self.header_filled < HEADER {
            let take = (HEADER - self.header_filled).min(input.len());
            let (head, rest) = input.split_at(take);
            self.header[self.header_filled..self.header_filled + take].copy_from_slice(head);
            self.header_filled += take;
            *input = rest;
            if self.header_filled < HEADER {
                return Ok(None);
            }
        }
        // Parsed again for each piece of a long payload: a dozen comparisons against 64 KiB of copying.
        let header = parse_header(self.header)?;
        let take = (header.length - self.payload.len()).min(input.len());
        let (body, rest) = input.split_at(take);
        self.payload.extend_from_slice(body);
        *input = rest;
        if self.payload.len() < header.length {
            return Ok(None);
        }
        self.header_filled = 0;
        Ok(Some(Frame {
            kind: header.kind,
            channel: header.channel,
            stream: header.stream,
            payload: std::mem::take(&mut self.payload),
        }))
    }

    /// Whether the decoder stands between two frames.
    pub fn at_boundary(&self) -> bool {
        self.header_filled == 0
    }
}

#[cfg(test)]
mod tests;
