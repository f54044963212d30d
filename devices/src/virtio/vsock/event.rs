//! What the device tells its embedder, and the other way round.

use std::ops::BitOr;

/// Names a connection towards the embedder. Never used again within the life of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What a host socket is ready for, as a poll reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readiness {
    /// There are bytes or the end of the stream to read.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// Both directions are over (`POLLHUP`, `EPOLLHUP`) or broken (`POLLERR`).
    pub hangup: bool,
}

impl Readiness {
    /// Ready for reading.
    pub const READABLE: Self = Self { readable: true, writable: false, hangup: false };
    /// Ready for writing.
    pub const WRITABLE: Self = Self { readable: false, writable: true, hangup: false };
    /// Hung up.
    pub const HANGUP: Self = Self { readable: false, writable: false, hangup: true };
}

impl BitOr for Readiness {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            readable: self.readable || other.readable,
            writable: self.writable || other.writable,
            hangup: self.hangup || other.hangup,
        }
    }
}

/// What the device wants to hear about a host socket.
///
/// Meant for level-triggered polling: the device remembers readiness until the socket says
/// `WouldBlock`, and drops the interest meanwhile. With all three false the socket must leave the
/// poll set, because a hangup is reported whether asked for or not, again and again.
///
/// Edge-triggered polling works too: register a socket once for everything and ignore interests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interest {
    /// Tell me when there is something to read.
    pub read: bool,
    /// Tell me when there is room to write.
    pub write: bool,
    /// Tell me when the peer hangs up.
    pub hangup: bool,
}

impl Interest {
    /// Whether the socket must not be polled at all.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The guest closed it in good order. Everything that it sent was written to the host socket.
    GuestClosed,
    /// The guest reset it. Everything that it had sent was written to the host socket.
    GuestReset,
    /// The guest does not listen on that port.
    Refused,
    /// The guest did not answer a connection request in time.
    ConnectTimeout,
    /// The host's end was closed, or could not be read or written any more.
    HostClosed,
    /// Both directions had ended.
    Finished,
    /// The guest broke the protocol; the stream is not to be trusted.
    Violation,
    /// The driver reset the device.
    DeviceReset,
    /// The embedder closed it by a call.
    Closed,
}

/// Something that the embedder should know or do.
#[derive(Debug)]
pub enum Event<S> {
    /// The guest connected to `host_port`, and the connector gave a socket for it.
    Opened {
        /// The new connection.
        token: Token,
        /// Port in the guest.
        guest_port: u32,
        /// Port on the host.
        host_port: u32,
    },
    /// The guest accepted a connection of the host.
    Connected {
        /// The connection that [`super::VsockDevice::connect`] returned.
        token: Token,
    },
    /// From now on, poll the socket of this connection for `interest`.
    Interest {
        /// The connection.
        token: Token,
        /// Replaces what was asked for before; nothing is asked for at first.
        interest: Interest,
    },
    /// The host end is over. Take the socket out of the poll set, then drop it.
    Closed {
        /// The connection.
        token: Token,
        /// Why.
        reason: CloseReason,
        /// The device's end of the host socket; dropping it closes it.
        socket: S,
    },
}
