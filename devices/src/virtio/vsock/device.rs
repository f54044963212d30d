//! The device itself: feature bits, configuration space, queues, and the calls of its embedder.
//!
//! The queues belong to the transport and are handed in with each call, as is guest memory. Queue 0
//! carries packets to the guest ("rx"), queue 1 packets of the guest ("tx"), queue 2 events.
//!
//! A chain of the tx queue is always used with length 0, whatever was in it. A chain of the rx queue
//! is used with the length of its packet; one without room for a header and a byte of data holds no
//! packet and is used with length 0. What breaks the queue itself (a ring index or a chain head
//! out of range, a ring outside memory) is an error, upon which the transport should set
//! DEVICE_NEEDS_RESET and stop calling.

use std::io::Write;
use std::time::Instant;

use thiserror::Error;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{DescriptorChain, Writer};
use vm_memory::GuestMemory;
use vm_memory::bitmap::WithBitmapSlice;

use super::VsockConfig;
use super::event::{CloseReason, Event, Readiness, Token};
use super::host::{Connector, HostSocket};
use super::muxer::{Counters, Muxer};
use super::packet::{HEADER_LEN, Header};
use crate::virtio::device::{FeatureError, Progress, VirtioDevice, check_features, read_space};
use crate::virtio::queue::{ActiveQueue, ActiveQueues, QueueError};

/// The only event: all connections are gone, and the address may have changed (virtio 1.2, 5.10.6.7).
const EVENT_TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();

/// Most receive buffers that one read from a host socket fills.
const GATHER_MAX: usize = 32;

/// Errors of the device. None of them is caused by what is in a packet.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VsockError {
    /// A limit or address in the configuration is out of range.
    #[error("vsock configuration: {0}")]
    Config(&'static str),
    /// The host wants more connections than are allowed.
    #[error("no more than {max} vsock connections at once; close some, or raise connections_max")]
    TooManyConnections {
        /// The limit.
        max: usize,
    },
    /// A saved state cannot be restored.
    #[error("vsock state: {0}")]
    State(&'static str),
}

/// A virtio socket device. `S` is the host end of its streams, `C` decides where the guest may connect.
#[derive(Debug)]
pub struct VsockDevice<S, C> {
    acked_features: u64,
    event_due: bool,
    pub(super) muxer: Muxer<S>,
    connector: C,
    headers: Vec<Header>,
    rooms: Vec<usize>,
}

impl<S: HostSocket, C: Connector<S>> VsockDevice<S, C> {
    /// Virtio device type.
    pub const DEVICE_TYPE: u32 = VIRTIO_ID_VSOCK;
    /// Largest sizes of the rx, tx and event queues, in chains.
    pub const QUEUE_SIZES: [u16; 3] = [256, 256, 16];
    /// Feature bits on offer. Stream sockets need none (virtio 1.2, 5.10.3).
    pub const FEATURES: u64 = 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX;

    /// A device with no connections.
    ///
    /// # Errors
    /// [`VsockError::Config`] if `config` contradicts itself.
    pub fn new(config: VsockConfig, connector: C) -> Result<Self, VsockError> {
        config.validate()?;
        Ok(Self {
            acked_features: 0,
            event_due: false,
            muxer: Muxer::new(config),
            connector,
            headers: Vec::with_capacity(GATHER_MAX),
            rooms: Vec::with_capacity(GATHER_MAX),
        })
    }

    /// The configuration that the device was made with.
    pub fn config(&self) -> &VsockConfig {
        self.muxer.config()
    }

    /// The connector.
    pub fn connector_mut(&mut self) -> &mut C {
        &mut self.connector
    }

    /// Takes the features that the driver accepted. The transport sets EVENT_IDX on the queues.
    ///
    /// # Errors
    /// If there are others than offered, or VERSION_1 is missing: the transport should refuse
    /// FEATURES_OK.
    pub fn accept_features(&mut self, features: u64) -> Result<(), FeatureError> {
        check_features(features, Self::FEATURES)?;
        self.acked_features = features;
        Ok(())
    }

    /// The features that the driver accepted.
    pub fn acked_features(&self) -> u64 {
        self.acked_features
    }

    /// Reads the configuration space: 8 bytes, the guest's address in little-endian order. Bytes
    /// behind it are 0. The space is read-only.
    pub fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_space(&self.config().guest_cid.to_le_bytes(), offset, data);
    }

    /// Resets the device for a new driver: all connections end by [`CloseReason::DeviceReset`].
    pub fn reset(&mut self) {
        self.acked_features = 0;
        self.event_due = false;
        self.muxer.clear(CloseReason::DeviceReset);
    }

    /// Ends all connections on both sides, and tells the driver by an event as soon as it can take
    /// one: process the event queue next. Linux gives `ECONNRESET` to the programs.
    pub fn reset_transport(&mut self) {
        self.event_due = true;
        self.muxer.clear(CloseReason::DeviceReset);
    }

    /// Whether there are packets for the guest, so that a call of [`Self::process_rx`] is worth while.
    pub fn has_rx_work(&self) -> bool {
        self.muxer.has_packets()
    }

    /// Connections in the table, those included that are ending.
    pub fn connections(&self) -> usize {
        self.muxer.len()
    }

    /// Bytes of the guest that wait for host sockets to take them.
    pub fn buffered(&self) -> usize {
        self.muxer.buffered()
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.muxer.counters
    }

    /// The host socket of a connection, for its descriptor.
    pub fn socket(&self, token: Token) -> Option<&S> {
        self.muxer.socket(token)
    }

    /// Opens a connection to `guest_port`. [`Event::Connected`] tells that the guest accepted,
    /// [`Event::Closed`] that it did not. Bytes may be written to the other end of `socket` at once;
    /// they are read when the guest has accepted. Call [`Self::process_rx`] next.
    ///
    /// # Errors
    /// [`VsockError::TooManyConnections`].
    pub fn connect(&mut self, guest_port: u32, socket: S) -> Result<Token, VsockError> {
        self.muxer.connect(guest_port, socket)
    }

    /// Ends a connection from the host's side; what is buffered in it is lost. (Closing the other end
    /// of the socket loses nothing.) Call [`Self::process_rx`] next.
    pub fn close(&mut self, token: Token) {
        self.muxer.close(token);
    }

    /// A host socket became ready. Call [`Self::process_rx`] next.
    pub fn host_ready(&mut self, token: Token, readiness: Readiness) {
        self.muxer.ready(token, readiness);
    }

    /// The next thing that the embedder should know; call until there is none.
    pub fn next_event(&mut self) -> Option<Event<S>> {
        self.muxer.next_event()
    }

    /// When [`Self::expire`] should be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.muxer.next_deadline()
    }

    /// Ends connections whose guest did not answer until `now`. Call [`Self::process_rx`] next.
    pub fn expire(&mut self, now: Instant) {
        self.muxer.expire(now);
    }

    /// Handles both data queues. The two results are those of the rx and the tx queue; if one says
    /// [`Progress::again`], call this again.
    ///
    /// # Errors
    /// As [`Self::process_tx`].
    pub fn process<M: GuestMemory>(
        &mut self,
        rx: &mut ActiveQueue,
        tx: &mut ActiveQueue,
        mem: &M,
    ) -> Result<(Progress, Progress), QueueError> {
        let mut tx_progress = self.process_tx(tx, mem)?;
        let was_blocked = self.muxer.blocked();
        let rx_progress = self.process_rx(rx, mem)?;
        tx_progress.again |= was_blocked && !self.muxer.blocked();
        Ok((rx_progress, tx_progress))
    }

    /// Handles packets of the guest: at most as many as the queue is long.
    ///
    /// Stops early when the guest does not take its replies (then it goes on after the next
    /// [`Self::process_rx`]) or the embedder does not read events (then [`Progress::again`] is set).
    ///
    /// # Errors
    /// If the driver broke the queue.
    pub fn process_tx<M: GuestMemory>(
        &mut self,
        queue: &mut ActiveQueue,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        let mut progress = Progress::default();
        let mut used = false;
        let mut budget = queue.size();
        loop {
            if self.muxer.blocked() {
                progress.again = self.muxer.blocked_by_events();
                break;
            }
            let Some(chain) = queue.next_or_listen(mem, &mut budget)? else {
                progress.again = budget == 0;
                break;
            };
            let head = chain.head_index();
            self.receive(chain, mem);
            queue.add_used(mem, head, 0)?;
            used = true;
        }
        progress.interrupt = used && queue.needs_interrupt(mem)?;
        Ok(progress)
    }

    fn receive<M: GuestMemory>(&mut self, chain: DescriptorChain<&M>, mem: &M) {
        // A descriptor outside memory makes the whole chain unreadable.
        let packet = chain.reader(mem).ok().and_then(|mut reader| {
            let header = Header::read_from(&mut reader).ok()?;
            Some((header, reader))
        });
        let Some((header, mut reader)) = packet else {
            self.muxer.counters.malformed += 1;
            return;
        };
        let available = reader.available_bytes();
        self.muxer.receive(&header, &mut reader, available, &mut self.connector);
    }

    /// Sends packets to the guest: at most as many as the queue is long.
    ///
    /// # Errors
    /// As [`Self::process_tx`].
    pub fn process_rx<M: GuestMemory>(
        &mut self,
        queue: &mut ActiveQueue,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        let mut progress = Progress::default();
        let mut used = false;
        let mut budget = usize::from(queue.size());
        let mut buffers = Vec::with_capacity(GATHER_MAX);
        queue.disable_notification(mem)?;
        while self.muxer.has_packets() {
            if budget == 0 {
                progress.again = true;
                break;
            }
            let most = budget.min(GATHER_MAX);
            let unfit = self.gather(queue, mem, most, &mut buffers)?;
            used |= unfit > 0;
            budget -= unfit;
            if buffers.is_empty() {
                if unfit > 0 {
                    continue;
                }
                // The guest offers no buffers: hear of the next one.
                if queue.enable_notification(mem)? {
                    // A driver may move its index to and fro.
                    budget -= 1;
                    queue.disable_notification(mem)?;
                    continue;
                }
                break;
            }
            let sent = self.send(queue, mem, &mut buffers)?;
            used |= sent > 0;
            budget -= sent;
        }
        progress.interrupt = used && queue.needs_interrupt(mem)?;
        Ok(progress)
    }

    /// Takes receive buffers, at most `most`, for the next packets; uses up those that are unfit, and
    /// gives their number.
    fn gather<'m, M: GuestMemory>(
        &mut self,
        queue: &mut ActiveQueue,
        mem: &'m M,
        most: usize,
        buffers: &mut Vec<Buffer<'m, M>>,
    ) -> Result<usize, QueueError> {
        buffers.clear();
        self.rooms.clear();
        let wanted = self.muxer.wanted_room();
        let (mut room, mut unfit) = (0, 0);
        while buffers.len() + unfit < most && (buffers.is_empty() || room < wanted) {
            let Some(chain) = queue.next_chain(mem)? else {
                break;
            };
            let head = chain.head_index();
            match chain.writer(mem) {
                Ok(writer) if writer.available_bytes() > HEADER_LEN => {
                    let payload = writer.available_bytes() - HEADER_LEN;
                    room += payload;
                    self.rooms.push(payload);
                    buffers.push((head, writer));
                }
                _ if buffers.is_empty() => {
                    self.muxer.counters.malformed += 1;
                    unfit += 1;
                    queue.add_used(mem, head, 0)?;
                }
                // Used when its turn comes, so that going back stays possible.
                _ => {
                    queue.put_back();
                    break;
                }
            }
        }
        Ok(unfit)
    }

    /// Fills gathered buffers and puts the others back; gives the number of filled ones.
    fn send<M: GuestMemory>(
        &mut self,
        queue: &mut ActiveQueue,
        mem: &M,
        buffers: &mut [Buffer<'_, M>],
    ) -> Result<usize, QueueError> {
        let mut payload = self.muxer.produce(&self.rooms, &mut self.headers);
        let sent = self.headers.len();
        for (header, (head, writer)) in self.headers.iter().zip(buffers.iter_mut()) {
            let (part, rest) = payload.split_at(header.len as usize);
            payload = rest;
            // Cannot fail: the room was measured, and the writer holds on to its memory.
            let written = header.write_to(writer).and_then(|()| writer.write_all(part));
            debug_assert!(written.is_ok());
            let length = u32::try_from(writer.bytes_written()).unwrap_or(u32::MAX);
            queue.add_used(mem, *head, length)?;
        }
        for _ in sent..buffers.len() {
            queue.put_back();
        }
        Ok(sent)
    }

    /// Handles the event queue: tells the driver about a reset of the transport, if one is due.
    ///
    /// # Errors
    /// As [`Self::process_tx`].
    pub fn process_event<M: GuestMemory>(
        &mut self,
        queue: &mut ActiveQueue,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        let mut progress = Progress::default();
        if !self.event_due {
            return Ok(progress);
        }
        let mut budget = queue.size();
        let mut used = false;
        while self.event_due && budget > 0 {
            let Some(chain) = queue.next_chain(mem)? else {
                if queue.enable_notification(mem)? {
                    budget -= 1;
                    continue;
                }
                break;
            };
            budget -= 1;
            let head = chain.head_index();
            let mut length = 0;
            if let Ok(mut writer) = chain.writer(mem)
                && writer.available_bytes() >= EVENT_TRANSPORT_RESET.len()
                && writer.write_all(&EVENT_TRANSPORT_RESET).is_ok()
            {
                length = 4;
                self.event_due = false;
            }
            queue.add_used(mem, head, length)?;
            used = true;
        }
        progress.interrupt = used && queue.needs_interrupt(mem)?;
        Ok(progress)
    }

    pub(super) fn event_due(&self) -> bool {
        self.event_due
    }

    pub(super) fn set_restored(&mut self, acked_features: u64, event_due: bool) {
        self.acked_features = acked_features;
        self.event_due = event_due;
    }

    /// Checks the device's tables against each other and its limits.
    #[cfg(any(test, feature = "testing"))]
    pub fn assert_consistent(&self) {
        self.muxer.assert_consistent();
    }

    /// The interest that was reported last for a connection.
    #[cfg(any(test, feature = "testing"))]
    pub fn reported_interest(&self, token: Token) -> super::Interest {
        self.muxer.reported(token)
    }
}

impl<S: HostSocket, C: Connector<S>> VsockDevice<S, C> {
    /// Number of the queue of packets to the guest.
    pub const RX_QUEUE: u16 = 0;
    /// Number of the queue of packets from the guest.
    pub const TX_QUEUE: u16 = 1;
    /// Number of the event queue.
    pub const EVENT_QUEUE: u16 = 2;

    /// Handles both data queues, as far as the driver has set them up; see [`Self::process`].
    ///
    /// # Errors
    /// If the driver broke a queue.
    pub fn process_data<M: GuestMemory>(
        &mut self,
        queues: &mut ActiveQueues,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        match queues.pair_mut(Self::RX_QUEUE, Self::TX_QUEUE) {
            (Some(rx), Some(tx)) => self.process(rx, tx, mem).map(|(rx, tx)| rx | tx),
            (Some(rx), None) => self.process_rx(rx, mem),
            (None, Some(tx)) => self.process_tx(tx, mem),
            (None, None) => Ok(Progress::default()),
        }
    }
}

impl<M, S, C> VirtioDevice<M> for VsockDevice<S, C>
where
    M: GuestMemory,
    S: HostSocket + Send,
    C: Connector<S> + Send,
{
    fn device_type(&self) -> u32 {
        Self::DEVICE_TYPE
    }

    fn queue_sizes(&self) -> &[u16] {
        &Self::QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        Self::FEATURES
    }

    fn accept_features(&mut self, features: u64) -> Result<(), FeatureError> {
        Self::accept_features(self, features)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        Self::read_config(self, offset, data);
    }

    fn reset(&mut self) {
        Self::reset(self);
    }

    /// One data queue is never handled alone: packets of the guest cause packets to it, and room for those
    /// lets more of the others in.
    fn process_queue(
        &mut self,
        index: u16,
        queues: &mut ActiveQueues,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        match index {
            Self::RX_QUEUE | Self::TX_QUEUE => self.process_data(queues, mem),
            Self::EVENT_QUEUE => match queues.get_mut(Self::EVENT_QUEUE) {
                Some(queue) => self.process_event(queue, mem),
                None => Ok(Progress::default()),
            },
            _ => Ok(Progress::default()),
        }
    }
}

/// A receive buffer of the guest: head of its chain, and the chain.
type Buffer<'m, M> = (u16, Writer<'m, <<M as GuestMemory>::Bitmap as WithBitmapSlice<'m>>::S>);
