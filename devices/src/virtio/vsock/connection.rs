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

mod core;
mod incoming;
mod outgoing;
mod socket;

use std::net::Shutdown;
use std::time::Instant;

use super::event::{CloseReason, Interest};
use super::host::HostSocket;
use super::packet::{Header, SHUTDOWN_BOTH, SHUTDOWN_SEND};

pub(super) use self::core::{Core, Due};
pub use self::core::{GuestEnd, PortPair};
pub(super) use incoming::Effect;
pub(super) use outgoing::Outgoing;

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

impl<S: HostSocket> Connection<S> {
    /// A connection that the guest asked for by `request`, with `buf_alloc` bytes of buffer.
    pub(super) fn accepted(ports: PortPair, request: &Header, buf_alloc: u32, socket: S) -> Self {
        let due = Due { response: true, ..Due::default() };
        let mut core = Core::new(ports, GuestEnd::Open, due, buf_alloc);
        // A counter in a request can only be wrong in a way that hurts the guest.
        let _ = core.send.update(request.buf_alloc, 0);
        Self::from_core(core, Some(socket))
    }

    /// A connection that the host asks for.
    pub(super) fn requested(ports: PortPair, buf_alloc: u32, socket: S) -> Self {
        let due = Due { request: true, ..Due::default() };
        Self::from_core(Core::new(ports, GuestEnd::Requesting, due, buf_alloc), Some(socket))
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
