//! What a snapshot keeps of a vsock device.
//!
//! Plain values without a format of their own: whoever stores them brings one (they implement
//! serde's traits), with a checksum. Numbers are checked on the way back all the same.
//!
//! # What becomes of connections
//! Sockets of the host cannot be stored, so each connection that is restored needs a new one, or ends:
//!
//! - [`VsockDevice::restore`] asks the embedder for a socket for each connection that was open, or
//!   that the guest had left with bytes still to deliver. With a new socket the stream goes on to the
//!   byte: counters, credit and undelivered bytes are in the state. Bytes that the host had written
//!   and the device had not read yet are not: the embedder brings its peer to rest first.
//! - Without a socket, and if it was not open yet or about to end, the guest gets a reset for it, and
//!   undelivered bytes are lost.
//! - To end all at once, also those that only the guest knows of, call
//!   [`VsockDevice::reset_transport`] after the restore.
//!
//! Host ports that were used before are not used again, since the counter for them is kept.
//!
//! Positions of the queues are not in here; they belong to the transport.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::connection::{Core, Due, GuestEnd, PortPair};
use super::credit::{ReceiveWindow, SendWindow};
use super::device::{VsockDevice, VsockError};
use super::event::Token;
use crate::bounded::at_most;

use super::host::{Connector, HostSocket};
use super::muxer::Reset;
use super::packet::SHUTDOWN_BOTH;
use super::{VsockConfig, connection};

pub use connection::{GuestEnd as ConnectionPhase, PortPair as ConnectionPorts};

/// Version of the structures in this file. Another version is not read.
pub const STATE_VERSION: u32 = 1;

/// Connections, and resets, that are read at most: any device's limit is below that, and is looked at when it takes them.
const MOST: usize = 1 << 16;

/// A vsock device at rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockState {
    /// [`STATE_VERSION`] when it was saved.
    pub version: u32,
    /// The guest's address.
    pub guest_cid: u64,
    /// Features that the driver accepted.
    pub acked_features: u64,
    /// A reset of the transport has not been told yet.
    pub event_due: bool,
    /// Host port that the next connection of the host takes.
    pub next_host_port: u32,
    /// Connections, oldest first.
    #[serde(deserialize_with = "at_most::<MOST, _, _>")]
    pub connections: Vec<ConnectionState>,
    /// Resets owed for packets without a connection.
    #[serde(deserialize_with = "at_most::<MOST, _, _>")]
    pub resets: Vec<ResetState>,
}

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionState {
    /// Its ports.
    pub ports: PortPair,
    /// Where the guest's end stands.
    pub guest: GuestEnd,
    /// Shutdown flags that the guest sent.
    pub guest_flags: u32,
    /// Shutdown flags that the guest was sent.
    pub host_flags: u32,
    /// The host's end of stream was reached.
    pub host_eof: bool,
    /// The host takes no more.
    pub host_deaf: bool,
    /// Undelivered bytes of the guest.
    pub buffer: Vec<u8>,
    due: Due,
    receive: ReceiveWindow,
    send: SendWindow,
}

/// A reset owed to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetState {
    /// Address that the guest had sent to.
    pub src_cid: u64,
    /// Port that the guest had sent to.
    pub src_port: u32,
    /// Port that the guest had sent from.
    pub dst_port: u32,
    /// Socket type of its packet.
    pub type_: u16,
}

impl ConnectionState {
    fn save(core: &Core) -> Self {
        Self {
            ports: core.ports,
            guest: core.guest,
            guest_flags: core.guest_flags,
            host_flags: core.host_flags,
            host_eof: core.host_eof,
            host_deaf: core.host_deaf,
            buffer: core.buffer.iter().copied().collect(),
            due: core.due,
            receive: core.receive,
            send: core.send,
        }
    }

    /// Whether a new socket can carry this connection on.
    pub fn can_carry(&self) -> bool {
        match self.guest {
            GuestEnd::Open => !(self.host_eof && self.host_deaf),
            GuestEnd::Resetting | GuestEnd::Gone => !self.buffer.is_empty(),
            GuestEnd::Requesting | GuestEnd::Closing => false,
        }
    }

    fn check(&self, config: &VsockConfig) -> Result<(), VsockError> {
        let good = self.receive.is_consistent()
            && self.send.is_consistent()
            && (config.buffer_min..=config.buffer_max).contains(&self.receive.buf_alloc())
            && self.buffer.len() == self.receive.in_flight() as usize
            && (self.guest_flags | self.host_flags) & !SHUTDOWN_BOTH == 0;
        if good { Ok(()) } else { Err(VsockError::State("a connection contradicts itself or the limits")) }
    }

    fn into_core(self) -> Core {
        Core {
            ports: self.ports,
            guest: self.guest,
            due: self.due,
            guest_flags: self.guest_flags,
            host_flags: self.host_flags,
            receive: self.receive,
            send: self.send,
            buffer: VecDeque::from(self.buffer),
            host_eof: self.host_eof,
            host_deaf: self.host_deaf,
        }
    }
}

impl<S: HostSocket, C: Connector<S>> VsockDevice<S, C> {
    /// The device's state. The device itself goes on as before.
    pub fn save(&self) -> VsockState {
        let (cores, resets, next_host_port) = self.muxer.save();
        VsockState {
            version: STATE_VERSION,
            guest_cid: self.config().guest_cid,
            acked_features: self.acked_features(),
            event_due: self.event_due(),
            next_host_port,
            connections: cores.into_iter().map(ConnectionState::save).collect(),
            resets: resets
                .iter()
                .map(|reset| ResetState {
                    src_cid: reset.src_cid,
                    src_port: reset.src_port,
                    dst_port: reset.dst_port,
                    type_: reset.type_,
                })
                .collect(),
        }
    }

    /// A device that goes on where `state` was saved. `config` may differ in everything but the guest's
    /// address. `attach` gives the socket for a connection that can be carried on, or `None`; the
    /// tokens of those carried on are returned. See the module documentation.
    ///
    /// # Errors
    /// [`VsockError::State`] if the state is of another version or guest, contradicts itself, or does
    /// not fit into the limits of `config`.
    pub fn restore(
        config: VsockConfig,
        connector: C,
        state: VsockState,
        mut attach: impl FnMut(&ConnectionState) -> Option<S>,
    ) -> Result<(Self, Vec<(ConnectionPorts, Token)>), VsockError> {
        if state.version != STATE_VERSION {
            return Err(VsockError::State("saved by another version"));
        }
        if state.guest_cid != config.guest_cid {
            return Err(VsockError::State("saved with another guest address"));
        }
        if state.acked_features & !Self::FEATURES != 0 {
            return Err(VsockError::State("unknown features"));
        }
        check_limits(&config, &state)?;
        let mut device = Self::new(config, connector)?;
        device.set_restored(state.acked_features, state.event_due);
        let resets = state.resets.into_iter().map(|reset| Reset {
            src_cid: reset.src_cid,
            src_port: reset.src_port,
            dst_port: reset.dst_port,
            type_: reset.type_,
        });
        device.muxer.restore(resets, state.next_host_port);
        let mut carried = Vec::new();
        for connection in state.connections {
            let socket = connection.can_carry().then(|| attach(&connection)).flatten();
            let ports = connection.ports;
            let token = device.muxer.restore_connection(connection.into_core(), socket);
            carried.extend(token.map(|token| (ports, token)));
        }
        Ok((device, carried))
    }
}

fn check_limits(config: &VsockConfig, state: &VsockState) -> Result<(), VsockError> {
    if state.connections.len() > config.connections_max || state.resets.len() > config.resets_max {
        return Err(VsockError::State("more connections or resets than allowed"));
    }
    let mut known = BTreeSet::new();
    let mut granted = 0;
    for connection in &state.connections {
        connection.check(config)?;
        granted += connection.receive.buf_alloc() as usize;
        if connection.guest != GuestEnd::Gone && !known.insert(connection.ports) {
            return Err(VsockError::State("two connections with the same ports"));
        }
    }
    if granted > config.buffer_total {
        return Err(VsockError::State("more buffer than allowed"));
    }
    Ok(())
}
