//! The part of a connection that a snapshot keeps.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::virtio::vsock::credit::{ReceiveWindow, SendWindow};

/// The pair of ports that names a connection to the guest; the addresses are always the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortPair {
    /// Port in the guest.
    pub guest: u32,
    /// Port on the host.
    pub host: u32,
}

/// Where the guest's end stands; see the documentation of `connection`.
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
    pub(super) fn aborted(self, due: Due) -> Self {
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
pub(in super::super) struct Due {
    pub(in super::super) request: bool,
    pub(in super::super) response: bool,
    pub(in super::super) credit_update: bool,
    pub(in super::super) credit_request: bool,
}

/// The part of a connection that a snapshot keeps: all but the socket and what is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Core {
    pub(in super::super) ports: PortPair,
    pub(in super::super) guest: GuestEnd,
    pub(in super::super) due: Due,
    /// Shutdown flags that the guest sent.
    pub(in super::super) guest_flags: u32,
    /// Shutdown flags that the guest was sent.
    pub(in super::super) host_flags: u32,
    pub(in super::super) receive: ReceiveWindow,
    pub(in super::super) send: SendWindow,
    /// Bytes of the guest that the host socket has not taken.
    pub(in super::super) buffer: VecDeque<u8>,
    /// The host will send no more.
    pub(in super::super) host_eof: bool,
    /// The host will take no more.
    pub(in super::super) host_deaf: bool,
}

impl Core {
    /// A connection at its beginning, with `buf_alloc` bytes of buffer.
    pub(super) fn new(ports: PortPair, guest: GuestEnd, due: Due, buf_alloc: u32) -> Self {
        Self {
            ports,
            guest,
            due,
            guest_flags: 0,
            host_flags: 0,
            receive: ReceiveWindow::new(buf_alloc),
            send: SendWindow::default(),
            buffer: VecDeque::new(),
            host_eof: false,
            host_deaf: false,
        }
    }
}
