//! Streams with ids and credit over frames: a state machine without I/O, the same for both sides.
//!
//! The **host** opens streams, each with a [`Request`] and an id one higher than the last. Either
//! side sends messages and data on it. The **guest** closes it; ids are never used again, so frames
//! that were under way when a stream died are recognised and dropped. [`Mux::reset`] asks the guest
//! to abandon a stream; the host forgets it only when the close arrives.
//!
//! **Credit.** On each channel of each stream the sender may have [`limits::WINDOW`] bytes under way
//! that the receiver has not consumed. The receiver reports consumption with [`Mux::consumed`], and
//! the grant goes back when half a window has gathered. So one slow reader holds back its own stream
//! and no other, and what a peer can make this side buffer is bounded. A peer that sends more than
//! it was granted ends the session.
//!
//! **Output.** Encoded frames gather in [`Mux::output`] until the carrier takes them
//! ([`Mux::advance`]). Data is refused while more than [`limits::MAX_OUTPUT`] bytes wait, so the
//! queue holds at most that, one frame, and control frames, whose number the streams bound.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::frame::{self, Channel, Decoder, Frame, FrameError, Kind};
use crate::limits::{MAX_CONTROL, MAX_DATA, MAX_OUTPUT, MAX_STREAMS, WINDOW};
use crate::message::{Control, Event, Request};

/// Names a stream within one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// Which side of the stream this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Opens streams.
    Host,
    /// Closes them.
    Guest,
}

/// What arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// Guest only: the host opened a stream.
    Open(StreamId, Request),
    /// Guest only: the host says something on a running stream.
    Control(StreamId, Control),
    /// Host only: the guest reports something.
    Event(StreamId, Event),
    /// Bytes of a channel. Report them with [`Mux::consumed`] once they are dealt with.
    Data(StreamId, Channel, Vec<u8>),
    /// The channel is complete.
    Eof(StreamId, Channel),
    /// The peer granted credit: more may be sent on this channel.
    Writable(StreamId, Channel),
    /// Guest only: the host abandoned the stream. Stop the work, then [`Mux::close`] it.
    Reset(StreamId),
    /// Host only: the stream is over.
    Closed(StreamId),
    /// The answer to a [`Mux::ping`].
    Pong(Vec<u8>),
}

/// What ends a session: the peer broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MuxError {
    /// The bytes are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message does not decode.
    #[error("the payload of a {0:?} frame does not decode")]
    Undecodable(Kind),
    /// Only the other side may send such a frame.
    #[error("a {0:?} frame from the side that may not send one")]
    WrongSide(Kind),
    /// A stream id was not the next one.
    #[error("stream {got} was opened, {expected} would be next")]
    StreamOrder {
        /// The id that was received.
        got: u32,
        /// The id that was due.
        expected: u32,
    },
    /// A frame for a stream that was never opened.
    #[error("a frame for stream {0}, which was never opened")]
    UnknownStream(u32),
    /// Too many open streams.
    #[error("more than {MAX_STREAMS} streams at once")]
    TooManyStreams,
    /// More data than was granted.
    #[error("{sent} bytes on channel {channel:?} of stream {stream}, {granted} were granted")]
    Overrun {
        /// The stream.
        stream: u32,
        /// The channel.
        channel: Channel,
        /// Size of the frame, in bytes.
        sent: usize,
        /// What the sender had left, in bytes.
        granted: u32,
    },
    /// Data after the end of a channel.
    #[error("data on channel {channel:?} of stream {stream} after its end")]
    AfterEof {
        /// The stream.
        stream: u32,
        /// The channel.
        channel: Channel,
    },
    /// Credit beyond what a window can hold.
    #[error("more credit on stream {0} than a window holds")]
    CreditOverflow(u32),
}

/// Why a call cannot be carried out here. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The stream is over.
    #[error("the stream is over")]
    Gone,
    /// The encoded message is too long.
    #[error("the message takes {0} bytes, at most {MAX_CONTROL} are possible")]
    TooLong(usize),
    /// The host has as many streams open as it may.
    #[error("{MAX_STREAMS} streams are open, which is the most at once")]
    TooManyStreams,
}

#[derive(Debug, Clone, Copy)]
struct ChannelState {
    /// Bytes that this side may still send.
    credit: u32,
    sent_eof: bool,
    /// Bytes that the peer may still send.
    granted: u32,
    /// Bytes consumed here and not granted anew yet.
    consumed: u32,
    got_eof: bool,
}

impl Default for ChannelState {
    fn default() -> Self {
        Self { credit: WINDOW, sent_eof: false, granted: WINDOW, consumed: 0, got_eof: false }
    }
}

#[derive(Debug, Default)]
struct Stream {
    channels: [ChannelState; Channel::COUNT],
    reset: bool,
}

/// One session's streams. See the module's description.
#[derive(Debug)]
pub struct Mux {
    role: Role,
    decoder: Decoder,
    streams: BTreeMap<u32, Stream>,
    next: u32,
    output: Vec<u8>,
    /// How much of `output` the carrier has taken.
    taken: usize,
}

impl Mux {
    /// A session without streams, to begin right behind the handshake.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            decoder: Decoder::new(),
            streams: BTreeMap::new(),
            next: 1,
            output: Vec::new(),
            taken: 0,
        }
    }

    /// Takes bytes off the front of `input` and returns what they mean, one thing at a time; `None`
    /// when all of `input` is taken.
    ///
    /// # Errors
    /// [`MuxError`] if the peer broke the protocol. The session is over then: go back to the
    /// handshake with what is left of `input`.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Incoming>, MuxError> {
        while let Some(frame) = self.decoder.next(input)? {
            if let Some(incoming) = self.accept(frame)? {
                return Ok(Some(incoming));
            }
        }
        Ok(None)
    }

    fn accept(&mut self, frame: Frame) -> Result<Option<Incoming>, MuxError> {
        let id = StreamId(frame.stream);
        match frame.kind {
            Kind::Ping => {
                // Answered only while the carrier keeps up, so that pings cannot fill the output.
                if self.waiting() < MAX_OUTPUT {
                    frame::encode(&mut self.output, Kind::Pong, None, 0, &frame.payload);
                }
                return Ok(None);
            }
            Kind::Pong => return Ok(Some(Incoming::Pong(frame.payload))),
            Kind::Open => return self.accept_open(&frame).map(Some),
            Kind::Reset if self.role == Role::Host => return Err(MuxError::WrongSide(frame.kind)),
            Kind::Close if self.role == Role::Guest => return Err(MuxError::WrongSide(frame.kind)),
            _ => {}
        }
        if frame.stream >= self.next {
            return Err(MuxError::UnknownStream(frame.stream));
        }
        let Some(stream) = self.streams.get_mut(&frame.stream) else {
            return Ok(None); // sent before the peer knew that the stream is over
        };
        match (frame.kind, frame.channel) {
            (Kind::Message, _) => {
                let undecodable = |_| MuxError::Undecodable(Kind::Message);
                Ok(Some(match self.role {
                    Role::Guest => {
                        Incoming::Control(id, postcard::from_bytes(&frame.payload).map_err(undecodable)?)
                    }
                    Role::Host => {
                        Incoming::Event(id, postcard::from_bytes(&frame.payload).map_err(undecodable)?)
                    }
                }))
            }
            (Kind::Data, Some(channel)) => {
                let state = &mut stream.channels[channel.index()];
                if state.got_eof {
                    return Err(MuxError::AfterEof { stream: frame.stream, channel });
                }
                let length = u32::try_from(frame.payload.len()).unwrap_or(u32::MAX);
                state.granted = state.granted.checked_sub(length).ok_or(MuxError::Overrun {
                    stream: frame.stream,
                    channel,
                    sent: frame.payload.len(),
                    granted: state.granted,
                })?;
                Ok((length > 0).then_some(Incoming::Data(id, channel, frame.payload)))
            }
            (Kind::Eof, Some(channel)) => {
                let state = &mut stream.channels[channel.index()];
                if std::mem::replace(&mut state.got_eof, true) {
                    return Err(MuxError::AfterEof { stream: frame.stream, channel });
                }
                Ok(Some(Incoming::Eof(id, channel)))
            }
            (Kind::Credit, Some(channel)) => {
                let state = &mut stream.channels[channel.index()];
                let grant = frame.payload.as_slice().try_into().map_or(u32::MAX, u32::from_le_bytes);
                state.credit = state
                    .credit
                    .checked_add(grant)
                    .filter(|credit| *credit <= WINDOW)
                    .ok_or(MuxError::CreditOverflow(frame.stream))?;
                Ok(Some(Incoming::Writable(id, channel)))
            }
            (Kind::Reset, _) => {
                let first = !std::mem::replace(&mut stream.reset, true);
                Ok(first.then_some(Incoming::Reset(id)))
            }
            (Kind::Close, _) => {
                self.streams.remove(&frame.stream);
                Ok(Some(Incoming::Closed(id)))
            }
            // The frame decoder lets no other combination through.
            (kind, _) => Err(MuxError::WrongSide(kind)),
        }
    }

    fn accept_open(&mut self, frame: &Frame) -> Result<Incoming, MuxError> {
        if self.role == Role::Host {
            return Err(MuxError::WrongSide(Kind::Open));
        }
        if frame.stream != self.next {
            return Err(MuxError::StreamOrder { got: frame.stream, expected: self.next });
        }
        if self.streams.len() >= MAX_STREAMS {
            return Err(MuxError::TooManyStreams);
        }
        let request = postcard::from_bytes(&frame.payload).map_err(|_| MuxError::Undecodable(Kind::Open))?;
        self.next = self.next.wrapping_add(1).max(1);
        self.streams.insert(frame.stream, Stream::default());
        Ok(Incoming::Open(StreamId(frame.stream), request))
    }

    /// Host: begins a stream.
    ///
    /// # Errors
    /// [`SendError::TooLong`] if the request does not fit a frame, [`SendError::TooManyStreams`].
    pub fn open(&mut self, request: &Request) -> Result<StreamId, SendError> {
        debug_assert_eq!(self.role, Role::Host);
        if self.streams.len() >= MAX_STREAMS {
            return Err(SendError::TooManyStreams);
        }
        let id = self.next;
        self.encode_message(Kind::Open, id, request)?;
        self.next = self.next.wrapping_add(1).max(1);
        self.streams.insert(id, Stream::default());
        Ok(StreamId(id))
    }

    /// Host: says something on a running stream.
    ///
    /// # Errors
    /// [`SendError::Gone`] if the stream is over.
    pub fn control(&mut self, stream: StreamId, control: &Control) -> Result<(), SendError> {
        debug_assert_eq!(self.role, Role::Host);
        self.known(stream)?;
        self.encode_message(Kind::Message, stream.0, control)
    }

    /// Guest: reports something.
    ///
    /// # Errors
    /// [`SendError::Gone`] if the stream is over, [`SendError::TooLong`] if the event does not fit a
    /// frame.
    pub fn event(&mut self, stream: StreamId, event: &Event) -> Result<(), SendError> {
        debug_assert_eq!(self.role, Role::Guest);
        self.known(stream)?;
        self.encode_message(Kind::Message, stream.0, event)
    }

    /// How many bytes [`Mux::data`] would take now on this channel: limited by the peer's credit and
    /// by what waits for the carrier. 0 for a stream that is over.
    pub fn sendable(&self, stream: StreamId, channel: Channel) -> usize {
        let Some(state) = self.streams.get(&stream.0).map(|s| s.channels[channel.index()]) else {
            return 0;
        };
        if state.sent_eof || self.waiting() >= MAX_OUTPUT { 0 } else { state.credit as usize }
    }

    /// Sends the first bytes of `bytes` and returns how many: as [`Mux::sendable`] says.
    pub fn data(&mut self, stream: StreamId, channel: Channel, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let take = self.sendable(stream, channel).min(MAX_DATA).min(bytes.len() - sent);
            if take == 0 {
                break;
            }
            frame::encode(&mut self.output, Kind::Data, Some(channel), stream.0, &bytes[sent..sent + take]);
            if let Some(s) = self.streams.get_mut(&stream.0) {
                #[allow(clippy::cast_possible_truncation)] // at most MAX_DATA
                let taken = take as u32;
                s.channels[channel.index()].credit -= taken;
            }
            sent += take;
        }
        sent
    }

    /// Says that no more bytes will follow on this channel. Said again, or on a dead stream, it does
    /// nothing.
    pub fn eof(&mut self, stream: StreamId, channel: Channel) {
        if let Some(s) = self.streams.get_mut(&stream.0)
            && !std::mem::replace(&mut s.channels[channel.index()].sent_eof, true)
        {
            frame::encode(&mut self.output, Kind::Eof, Some(channel), stream.0, &[]);
        }
    }

    /// Reports received bytes as dealt with, so that the peer may send as many again.
    pub fn consumed(&mut self, stream: StreamId, channel: Channel, bytes: usize) {
        let Some(s) = self.streams.get_mut(&stream.0) else { return };
        let state = &mut s.channels[channel.index()];
        let under_way = WINDOW - state.granted - state.consumed;
        state.consumed += u32::try_from(bytes).unwrap_or(u32::MAX).min(under_way);
        if state.consumed >= WINDOW / 2 && !state.got_eof {
            let grant = std::mem::take(&mut state.consumed);
            state.granted += grant;
            frame::encode(&mut self.output, Kind::Credit, Some(channel), stream.0, &grant.to_le_bytes());
        }
    }

    /// Host: abandons a stream. It stays known until the guest closes it.
    pub fn reset(&mut self, stream: StreamId) {
        debug_assert_eq!(self.role, Role::Host);
        if let Some(s) = self.streams.get_mut(&stream.0)
            && !std::mem::replace(&mut s.reset, true)
        {
            frame::encode(&mut self.output, Kind::Reset, None, stream.0, &[]);
        }
    }

    /// Guest: ends a stream.
    pub fn close(&mut self, stream: StreamId) {
        debug_assert_eq!(self.role, Role::Guest);
        if self.streams.remove(&stream.0).is_some() {
            frame::encode(&mut self.output, Kind::Close, None, stream.0, &[]);
        }
    }

    /// Asks the peer for a sign of life. At most 64 bytes of payload are sent.
    pub fn ping(&mut self, payload: &[u8]) {
        let payload = &payload[..payload.len().min(Kind::Ping.max_payload())];
        frame::encode(&mut self.output, Kind::Ping, None, 0, payload);
    }

    /// Bytes for the carrier.
    pub fn output(&self) -> &[u8] {
        &self.output[self.taken..]
    }

    /// Reports that the carrier took the first `bytes` of [`Mux::output`].
    pub fn advance(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.output.len());
        if self.taken == self.output.len() {
            self.output.clear();
            self.output.shrink_to(MAX_DATA);
            self.taken = 0;
        } else if self.taken >= MAX_DATA {
            self.output.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Streams that are open.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.keys().map(|id| StreamId(*id))
    }

    fn waiting(&self) -> usize {
        self.output.len() - self.taken
    }

    fn known(&self, stream: StreamId) -> Result<(), SendError> {
        if self.streams.contains_key(&stream.0) { Ok(()) } else { Err(SendError::Gone) }
    }

    fn encode_message<T: Serialize>(
        &mut self,
        kind: Kind,
        stream: u32,
        message: &T,
    ) -> Result<(), SendError> {
        // postcard fails only on types that it cannot represent; the messages are not among them.
        let payload = postcard::to_allocvec(message).map_err(|_| SendError::TooLong(usize::MAX))?;
        if payload.len() > MAX_CONTROL {
            return Err(SendError::TooLong(payload.len()));
        }
        frame::encode(&mut self.output, kind, None, stream, &payload);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
