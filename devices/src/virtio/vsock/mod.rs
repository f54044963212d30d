//! The virtio socket device (virtio 1.2, 5.10): byte streams between the guest and the host.
//!
//! # Parts
//! - [`packet`]: the 44-byte header, read from and written to descriptor chains of any shape;
//! - [`credit`]: flow control arithmetic in both directions;
//! - `connection`: the life of one stream, from request to reset (the state machine is spelled
//!   out there);
//! - `muxer`: all streams of a guest: table, limits, fairness, resets that are owed;
//! - [`device`]: queues, feature bits, configuration space, and the calls of the embedder;
//! - [`state`]: what a snapshot keeps;
//! - [`host`]: what a host end of a stream must be able to do, and Unix sockets that can do it;
//! - [`event`]: what the device tells its embedder.
//!
//! # How an embedder drives it
//! Behind a transport by [`crate::virtio::VirtioDevice`] and its `with_device`, or by hand:
//!
//! 1. The guest kicked the transmit queue: [`VsockDevice::process_tx`]. It kicked the receive
//!    queue: [`VsockDevice::process_rx`]. Or both by [`VsockDevice::process`].
//! 2. A host socket became ready: [`VsockDevice::host_ready`], then `process`.
//! 3. After each of these: take [`Event`]s until there are none and change the poll set as they say;
//!    interrupt the guest where a [`crate::virtio::Progress`] says so.
//! 4. At [`VsockDevice::next_deadline`]: [`VsockDevice::expire`], then `process`.
//!
//! # Bounds
//! All memory that a guest can make the device hold is bounded by [`VsockConfig`]: number of
//! connections, buffer of each and of all together, resets that are owed. When the owed resets reach
//! their bound the device stops taking packets until the guest takes its replies (virtio 1.2,
//! 5.10.6.1.1 allows just that). Each `process_*` call handles a bounded number of chains.

pub mod credit;
pub mod device;
pub mod event;
pub mod host;
pub mod packet;
pub mod state;

mod connection;
mod muxer;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use device::{VsockDevice, VsockError};
pub use event::{CloseReason, Event, Interest, Readiness, Token};
pub use host::{Connector, HostSocket};
pub use state::VsockState;

/// The host's address (virtio 1.2, 5.10.4).
pub const HOST_CID: u64 = 2;

/// Largest payload of one packet that the device builds, and the size of its scratch buffer, in
/// bytes. Packets from the guest may be longer; the guest's credit limits those.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// Limits and addresses of one device.
#[derive(Debug, Clone)]
pub struct VsockConfig {
    /// The guest's address: 3 to `0xffff_fffe` (smaller ones and the last are reserved).
    pub guest_cid: u64,
    /// Most connections at once, in whatever state.
    pub connections_max: usize,
    /// Bytes from the guest that a connection buffers, and announces as credit, while there is
    /// plenty left of [`VsockConfig::buffer_total`].
    pub buffer_max: u32,
    /// The same when there is not. `connections_max * buffer_min` must fit into `buffer_total`, so
    /// that buffers never limit the number of connections.
    pub buffer_min: u32,
    /// Bytes that all connections together may buffer.
    pub buffer_total: usize,
    /// Resets owed to the guest for packets that belong to no connection; at this number the device
    /// stops reading packets until the guest has taken some.
    pub resets_max: usize,
    /// How long a guest may take to answer a connection request of the host.
    pub connect_timeout: Duration,
    /// How long a guest may take to answer the end of a connection; then it is reset.
    pub close_timeout: Duration,
}

impl VsockConfig {
    /// Defaults for the guest with address `guest_cid`: at most 1024 connections, 16 KiB to 256 KiB
    /// of buffer each, 32 MiB in all.
    pub fn new(guest_cid: u64) -> Self {
        Self {
            guest_cid,
            connections_max: 1024,
            buffer_max: 256 * 1024,
            buffer_min: 16 * 1024,
            buffer_total: 32 * 1024 * 1024,
            resets_max: 256,
            connect_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(4),
        }
    }

    /// Checks the relations between the limits.
    ///
    /// # Errors
    /// [`VsockError::Config`] names the first field that is out of range.
    pub fn validate(&self) -> Result<(), VsockError> {
        let bad = |what| Err(VsockError::Config(what));
        if self.guest_cid < 3 || self.guest_cid >= u64::from(u32::MAX) {
            return bad("guest_cid must be 3 to 0xfffffffe");
        }
        if self.connections_max == 0 || self.resets_max == 0 {
            return bad("connections_max and resets_max must be at least 1");
        }
        if self.buffer_min == 0 || self.buffer_min > self.buffer_max {
            return bad("buffer_min must be at least 1 and at most buffer_max");
        }
        if self.buffer_max > credit::WINDOW_MAX {
            return bad("buffer_max must be at most 1 GiB");
        }
        let needed = self.connections_max.checked_mul(self.buffer_min as usize);
        if needed.is_none_or(|bytes| bytes > self.buffer_total) {
            return bad("connections_max * buffer_min must fit into buffer_total");
        }
        Ok(())
    }
}
