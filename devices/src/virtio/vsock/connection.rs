//! The life of one stream.
//!
//! A connection has two ends that come and go on their own.
//!
//! **The guest's end** is where its driver stands, and decides what may be sent to it:
//!
//! | state        | meaning                                              | leaves by                        |
//! |--------------|------------------------------------------------------|----------------------------------|
//! | `Requesting` | the host wants in; request sent or due               | response → `Open`; reset → `Gone`; deadline → `Resetting` |
//! | `Open`       | data flows, each direction until it is shut down     | both directions ended by us → `Closing`, by the guest → `Resetting`; reset → `Gone`; broken rule → `Resetting` |
//! | `Closing`    | told the guest that both directions ended            | reset → `Gone`; deadline or a full shutdown of the guest → `Resetting` |
//! | `Resetting`  | a reset is due; whatever comes in is stale           | reset sent → `Gone`              |
//! | `Gone`       | the guest may use the port pair for something new    |                                  |
//!
//! A guest that connects starts in `Open` with a response due, a host that connects in `Requesting`
//! with a request due. What is due is kept as a few flags, not as a list of packets, so a guest that
//! takes no packets cannot make us hold any.
//!
//! **The host's end** is the socket, until it is given back with a reason. Bytes of the guest are
//! written to it at once; what it does not take waits in a buffer, whose room is the guest's credit.
//! The buffer outlives the guest's end: what a guest sent before it closed reaches the host, however
//! slowly the host reads, and holds up neither the guest's reset nor its port pair. Only a broken
//! rule throws it away.
//!
//! **Half close.** The host's end of stream becomes a shutdown "will not send", a failed write or a
//! hangup "will not receive"; the guest's "will not send" ends the writing side of the socket behind
//! the last byte, its "will not receive" the reading side. When both directions have ended by halves,
//! the whole ends.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::credit::{ReceiveWindow, SendWindow};
use super::event::{CloseReason, Interest, Readiness};
use super::host::HostSocket;
use super::packet::{Header, Op, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};

/// The pair of ports that names a connection to the guest; the addresses are always the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortPair {
    /// Port in the guest.
    pub guest: u32,
    /// Port on the host.
    pub host: u32,
}

/// Where the guest's end stands; see the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestEnd {
    /// The host asked for a connection, and the guest has not answered.
    Requesting,
    /// Data flows.
    Open,
    /// The guest was told that all is over, and has not answered.
    Closing,
    /// A reset is due.
    Resetting,
    /// The guest knows nothing of this connection.
    Gone,
}

impl GuestEnd {
    /// What an end becomes that is cut off: a guest that knows of it must be told.
    fn aborted(self, due: Due) -> Self {
        match self {
            Self::Gone => Self::Gone,
            Self::Requesting if due.request => Self::Gone,
            _ => Self::Resetting,
        }
    }
}

/// Packets that are due to the guest, besides data, shutdown and reset, which follow from the rest of
/// the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Due {
    pub(super) request: bool,
    pub(super) response: bool,
    pub(super) credit_update: bool,
    pub(super) credit_request: bool,
}

/// The part of a connection that a snapshot keeps: all but the socket and what is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Core {
    pub(super) ports: PortPair,
    pub(super) guest: GuestEnd,
    pub(super) due: Due,
    /// Shutdown flags that the guest sent.
    pub(super) guest_flags: u32,
    /// Shutdown flags that the guest was sent.
    pub(super) host_flags: u32,
    pub(super) receive: ReceiveWindow,
    pub(super) send: SendWindow,
    /// Bytes of the guest that the host socket has not taken.
    pub(super) buffer: VecDeque<u8>,
    /// The host will send no more.
    pub(super) host_eof: bool,
    /// The host will take no more.
    pub(super) host_deaf: bool,
}

/// One stream. `S` is the host socket.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) core: Core,
    socket: Option<S>,
    /// Why the socket goes, once that is known; the first reason holds.
    reason: Option<CloseReason>,
    /// The socket said readable, and not `WouldBlock` since.
    readable: bool,
    /// The socket hung up.
    hangup: bool,
    /// The writing side of the socket was shut down.
    finished_writing: bool,
    /// A request for credit was sent, and no credit came.
    asked_for_credit: bool,
    /// When the guest must have answered; the muxer's.
    pub(super) deadline: Option<Instant>,
    /// How many bytes a read should ask for, see `Muxer::produce`.
    pub(super) burst: usize,
    /// In the muxer's list of connections that have packets to send.
    pub(super) queued: bool,
    /// In the muxer's list of connections whose interest may have changed.
    pub(super) dirty: bool,
    /// The interest that the embedder was told last.
    pub(super) reported: Interest,
}

/// What a packet of the guest did, beyond the state of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// The guest accepted a connection of the host.
    Connected,
    /// The guest broke a rule, and is owed a reset.
    Violation,
}

/// The next packet of a connection to its guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Nothing to say.
    Nothing,
    /// A packet without payload.
    Control(Op, u32),
    /// This many bytes were read from the host socket.
    Data(usize),
}

impl<S: HostSocket> Connection<S> {
    /// A connection that the guest asked for by `request`, with `buf_alloc` bytes of buffer.
    pub(super) fn accepted(ports: PortPair, request: &Header, buf_alloc: u32, socket: S) -> Self {
        let mut connection = Self::new(ports, GuestEnd::Open, buf_alloc, socket);
        connection.core.due.response = true;
        // A counter in a request can only be wrong in a way that hurts the guest.
        let _ = connection.core.send.update(request.buf_alloc, 0);
        connection
    }

    /// A connection that the host asks for.
    pub(super) fn requested(ports: PortPair, buf_alloc: u32, socket: S) -> Self {
        let mut connection = Self::new(ports, GuestEnd::Requesting, buf_alloc, socket);
        connection.core.due.request = true;
        connection
    }

    fn new(ports: PortPair, guest: GuestEnd, buf_alloc: u32, socket: S) -> Self {
        let core = Core {
            ports,
            guest,
            due: Due::default(),
            guest_flags: 0,
            host_flags: 0,
            receive: ReceiveWindow::new(buf_alloc),
            send: SendWindow::default(),
            buffer: VecDeque::new(),
            host_eof: false,
            host_deaf: false,
        };
        Self::from_core(core, Some(socket))
    }

    /// A connection out of a snapshot. Without a socket it is reset as soon as the guest takes packets.
    pub(super) fn restored(mut core: Core, socket: Option<S>) -> Self {
        if socket.is_none() {
            core.receive.forward(core.receive.in_flight());
            core.buffer.clear();
            core.guest = core.guest.aborted(core.due);
        }
        let flushing = matches!(core.guest, GuestEnd::Resetting | GuestEnd::Gone);
        let mut connection = Self::from_core(core, socket);
        connection.reason = flushing.then_some(CloseReason::GuestClosed);
        connection.settle();
        connection
    }

    fn from_core(core: Core, socket: Option<S>) -> Self {
        Self {
            core,
            reason: None,
            // A new socket may have bytes already; a read will tell.
            readable: socket.is_some(),
            socket,
            hangup: false,
            finished_writing: false,
            asked_for_credit: false,
            deadline: None,
            burst: 0,
            queued: false,
            dirty: false,
            reported: Interest::default(),
        }
    }

    /// The host socket, while there is one.
    pub(super) fn socket(&self) -> Option<&S> {
        self.socket.as_ref()
    }

    /// Whether both ends are over.
    pub(super) fn is_over(&self) -> bool {
        self.core.guest == GuestEnd::Gone && self.socket.is_none()
    }

    /// Takes a packet of the guest. `payload` holds at least `header.len` bytes, `scratch` lends space
    /// for copying.
    pub(super) fn receive(&mut self, header: &Header, payload: &mut dyn Read, scratch: &mut [u8]) -> Effect {
        match self.core.guest {
            GuestEnd::Gone | GuestEnd::Resetting | GuestEnd::Closing => {
                self.receive_late(header);
                Effect::None
            }
            GuestEnd::Requesting => self.receive_answer(header),
            GuestEnd::Open => self.receive_open(header, payload, scratch),
        }
    }

    /// Packets after the end: the guest may have sent them before it knew.
    fn receive_late(&mut self, header: &Header) {
        match header.op() {
            Some(Op::Reset) => self.core.guest = GuestEnd::Gone,
            Some(Op::Shutdown) if self.core.guest == GuestEnd::Closing => {
                self.core.guest_flags |= header.flags & SHUTDOWN_BOTH;
                if self.core.guest_flags == SHUTDOWN_BOTH {
                    self.core.guest = GuestEnd::Resetting;
                }
            }
            _ => {}
        }
    }

    fn receive_answer(&mut self, header: &Header) -> Effect {
        match header.op() {
            Some(Op::Response) if !self.core.due.request => {
                if self.take_credit(header).is_err() {
                    return self.violate();
                }
                self.core.guest = GuestEnd::Open;
                Effect::Connected
            }
            Some(Op::Reset) => {
                self.end_guest(GuestEnd::Gone, CloseReason::Refused);
                Effect::None
            }
            _ => self.violate(),
        }
    }

    fn receive_open(&mut self, header: &Header, payload: &mut dyn Read, scratch: &mut [u8]) -> Effect {
        let op = header.op();
        if op == Some(Op::Reset) {
            self.end_guest(GuestEnd::Gone, CloseReason::GuestReset);
            return Effect::None;
        }
        if self.take_credit(header).is_err() {
            return self.violate();
        }
        match op {
            Some(Op::Data) => return self.receive_data(header.len, payload, scratch),
            Some(Op::Shutdown) => self.receive_shutdown(header.flags & SHUTDOWN_BOTH),
            Some(Op::CreditUpdate) => {}
            Some(Op::CreditRequest) => self.core.due.credit_update = true,
            Some(Op::Request | Op::Response | Op::Reset) | None => return self.violate(),
        }
        Effect::None
    }

    fn take_credit(&mut self, header: &Header) -> Result<(), super::credit::CreditError> {
        self.core.send.update(header.buf_alloc, header.fwd_cnt)?;
        if self.core.send.free() > 0 {
            self.asked_for_credit = false;
        }
        Ok(())
    }

    fn receive_shutdown(&mut self, flags: u32) {
        self.core.guest_flags |= flags;
        if self.core.guest_flags & SHUTDOWN_RECEIVE != 0 && !self.core.host_eof {
            self.core.host_eof = true;
            if let Some(socket) = &mut self.socket {
                let _ = socket.shutdown(Shutdown::Read);
            }
        }
        if self.core.guest_flags == SHUTDOWN_BOTH {
            self.end_guest(GuestEnd::Resetting, CloseReason::GuestClosed);
        } else {
            self.settle();
        }
    }

    fn receive_data(&mut self, len: u32, payload: &mut dyn Read, scratch: &mut [u8]) -> Effect {
        if self.core.guest_flags & SHUTDOWN_SEND != 0 || self.core.receive.receive(len).is_err() {
            return self.violate();
        }
        let mut left = len as usize;
        while left > 0 {
            let size = left.min(scratch.len());
            let piece = &mut scratch[..size];
            if payload.read_exact(piece).is_err() {
                return self.violate();
            }
            left -= piece.len();
            self.deliver(piece);
        }
        self.settle();
        Effect::None
    }

    /// Writes bytes of the guest to the host socket, or buffers them; the window has room for them.
    fn deliver(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.core.buffer.is_empty() {
            match self.write(bytes) {
                Written::Some(n) => bytes = &bytes[n..],
                Written::NotNow => break,
                Written::Never => return self.core.receive.forward(length(bytes)),
            }
        }
        self.core.buffer.extend(bytes);
    }

    /// Writes what is buffered, as far as the host socket takes it.
    fn flush(&mut self) {
        while !self.core.buffer.is_empty() {
            // The front slice; the rest is the next round.
            let buffer = std::mem::take(&mut self.core.buffer);
            let written = self.write(buffer.as_slices().0);
            self.core.buffer = buffer;
            match written {
                Written::Some(n) => drop(self.core.buffer.drain(..n)),
                Written::NotNow => break,
                Written::Never => self.drop_buffer(),
            }
        }
        if self.core.buffer.is_empty() {
            // An idle connection holds no memory.
            self.core.buffer = VecDeque::new();
        }
    }

    fn drop_buffer(&mut self) {
        self.core.receive.forward(self.core.receive.in_flight());
        self.core.buffer.clear();
    }

    /// Writes to the host socket and counts what it took.
    fn write(&mut self, bytes: &[u8]) -> Written {
        let Some(socket) = self.socket.as_mut().filter(|_| !self.core.host_deaf) else {
            return Written::Never;
        };
        loop {
            match socket.write(bytes) {
                Ok(n) if (1..=bytes.len()).contains(&n) => {
                    self.core.receive.forward(length(&bytes[..n]));
                    return Written::Some(n);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Written::NotNow,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.core.host_deaf = true;
                    return Written::Never;
                }
            }
        }
    }

    /// The host socket became ready for something.
    pub(super) fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        if readiness.hangup {
            // Bytes may still wait to be read; the read that finds the end draws the conclusion.
            self.hangup = true;
            self.readable = true;
        }
        if readiness.writable || readiness.hangup {
            self.flush();
        }
        self.settle();
    }

    /// What the socket should be polled for.
    pub(super) fn interest(&self) -> Interest {
        if self.socket.is_none() {
            return Interest::default();
        }
        Interest {
            read: self.may_read() && !self.readable && self.core.send.free() > 0,
            write: !self.core.buffer.is_empty(),
            hangup: !self.hangup,
        }
    }

    fn may_read(&self) -> bool {
        self.core.guest == GuestEnd::Open && !self.core.host_eof && self.socket.is_some()
    }

    /// Shutdown flags that the guest should know of.
    fn wanted_flags(&self) -> u32 {
        let mut flags = 0;
        if self.core.host_eof {
            flags |= SHUTDOWN_SEND;
        }
        let nothing_comes = self.core.guest_flags & SHUTDOWN_SEND != 0;
        if self.core.host_deaf || (self.core.host_eof && nothing_comes && self.core.buffer.is_empty()) {
            flags |= SHUTDOWN_RECEIVE;
        }
        flags
    }

    /// Whether a call of [`Connection::next_packet`] may give one.
    pub(super) fn has_packets(&self) -> bool {
        match self.core.guest {
            GuestEnd::Gone | GuestEnd::Closing => false,
            GuestEnd::Resetting => true,
            GuestEnd::Requesting => self.core.due.request,
            GuestEnd::Open => {
                let due = self.core.due;
                due.response
                    || due.credit_update
                    || due.credit_request
                    || self.core.receive.update_due()
                    || self.wanted_flags() != self.core.host_flags
                    || (self.may_read()
                        && self.readable
                        && (self.core.send.free() > 0 || !self.asked_for_credit))
            }
        }
    }

    /// Bytes of data that [`Connection::next_packet`] may read now.
    pub(super) fn data_room(&self) -> usize {
        if self.core.guest == GuestEnd::Open && !self.core.due.response && self.readable {
            self.core.send.free() as usize
        } else {
            0
        }
    }

    /// Takes the next packet; data is read into `space`.
    pub(super) fn next_packet(&mut self, space: &mut [u8]) -> Outgoing {
        match self.core.guest {
            GuestEnd::Gone | GuestEnd::Closing => return Outgoing::Nothing,
            GuestEnd::Resetting => {
                self.core.guest = GuestEnd::Gone;
                self.settle();
                return Outgoing::Control(Op::Reset, 0);
            }
            GuestEnd::Requesting => {
                return if std::mem::take(&mut self.core.due.request) {
                    Outgoing::Control(Op::Request, 0)
                } else {
                    Outgoing::Nothing
                };
            }
            GuestEnd::Open => {}
        }
        if std::mem::take(&mut self.core.due.response) {
            return Outgoing::Control(Op::Response, 0);
        }
        if self.may_read() && self.readable {
            if self.core.send.free() > 0 {
                let read = self.read(space);
                if read > 0 {
                    return Outgoing::Data(read);
                }
            } else if !std::mem::replace(&mut self.asked_for_credit, true) {
                self.core.due.credit_request = true;
            }
        }
        let flags = self.wanted_flags();
        if flags != self.core.host_flags {
            self.core.host_flags = flags;
            if flags == SHUTDOWN_BOTH {
                self.core.guest = GuestEnd::Closing;
            }
            return Outgoing::Control(Op::Shutdown, flags);
        }
        if std::mem::take(&mut self.core.due.credit_request) {
            return Outgoing::Control(Op::CreditRequest, 0);
        }
        if std::mem::take(&mut self.core.due.credit_update) || self.core.receive.update_due() {
            return Outgoing::Control(Op::CreditUpdate, 0);
        }
        Outgoing::Nothing
    }

    /// Reads from the host socket, within the guest's credit; 0 if there is nothing.
    fn read(&mut self, space: &mut [u8]) -> usize {
        let room = space.len().min(self.core.send.free() as usize);
        let Some(socket) = &mut self.socket else {
            return 0;
        };
        let result = loop {
            match socket.read(&mut space[..room]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        match result {
            Ok(n) if (1..=room).contains(&n) => {
                self.core.send.send(length(&space[..n]));
                return n;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            Ok(0) => self.core.host_eof = true,
            Ok(_) | Err(_) => {
                self.core.host_eof = true;
                self.hangup = true;
            }
        }
        self.settle();
        0
    }

    /// Draws the conclusions from a change: ends what has ended.
    fn settle(&mut self) {
        let core = &mut self.core;
        if self.hangup && core.host_eof && !core.host_deaf {
            core.host_deaf = true;
        }
        if core.host_deaf && !core.buffer.is_empty() {
            self.drop_buffer();
        }
        let drained = self.core.buffer.is_empty();
        match self.core.guest {
            GuestEnd::Gone | GuestEnd::Resetting | GuestEnd::Closing => {
                if drained {
                    self.close(CloseReason::Finished);
                }
            }
            GuestEnd::Requesting => {}
            GuestEnd::Open => {
                if self.wanted_flags() == SHUTDOWN_BOTH {
                    self.close(if self.core.host_deaf {
                        CloseReason::HostClosed
                    } else {
                        CloseReason::Finished
                    });
                } else if drained && self.core.guest_flags & SHUTDOWN_SEND != 0 && !self.finished_writing {
                    self.finished_writing = true;
                    if let Some(socket) = &mut self.socket {
                        let _ = socket.shutdown(Shutdown::Write);
                    }
                }
            }
        }
    }

    /// The guest's end is over; the host's is, when it has taken all.
    fn end_guest(&mut self, guest: GuestEnd, reason: CloseReason) {
        self.core.guest = guest;
        self.reason.get_or_insert(reason);
        self.settle();
    }

    /// The guest broke a rule: nothing of it is forwarded any more.
    fn violate(&mut self) -> Effect {
        self.abort(CloseReason::Violation);
        Effect::Violation
    }

    /// Ends both ends at once, by a reset for the guest.
    pub(super) fn abort(&mut self, reason: CloseReason) {
        self.drop_buffer();
        self.core.guest = self.core.guest.aborted(self.core.due);
        self.close(reason);
    }

    /// The embedder ends the host's end; the guest gets a shutdown and what was buffered is lost.
    pub(super) fn close_host(&mut self) {
        match self.core.guest {
            GuestEnd::Open => {
                self.core.host_eof = true;
                self.core.host_deaf = true;
                self.close(CloseReason::Closed);
                self.settle();
            }
            _ => self.abort(CloseReason::Closed),
        }
    }

    /// The driver has forgotten all connections: ends both ends without a word to the guest.
    pub(super) fn forget(&mut self, reason: CloseReason) {
        self.drop_buffer();
        self.core.guest = GuestEnd::Gone;
        self.close(reason);
    }

    fn close(&mut self, reason: CloseReason) {
        self.reason.get_or_insert(reason);
    }

    /// The socket, once the host's end is over, with the reason for it; once.
    pub(super) fn take_closed(&mut self) -> Option<(CloseReason, S)> {
        if self.reason.is_none() || !self.core.buffer.is_empty() {
            return None;
        }
        let reason = self.reason?;
        Some((reason, self.socket.take()?))
    }
}

/// Result of a write to the host socket.
enum Written {
    Some(usize),
    NotNow,
    Never,
}

/// The length of a slice that is known to be part of a packet or of a window.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
