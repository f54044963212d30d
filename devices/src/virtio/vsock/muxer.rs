//! All streams of one guest: who gets a packet, who sends the next one, and how much there may be.
//!
//! - **Table.** Connections by [`Token`], and by port pair while the guest knows them. A connection
//!   that the guest has left may still be writing its last bytes to the host; it counts against the
//!   limit, and its port pair is free.
//! - **Buffers.** Each connection is granted a buffer when it is made: the full size while every slot
//!   that is left could still get the minimum, else the minimum. Memory is used when bytes wait.
//! - **Fairness.** Connections with something to send stand in a ring, each once. The first one
//!   sends one control packet, or up to 64 KiB of data, and goes to the end.
//! - **Resets** for packets that belong to no connection have a queue of their own, sent first.
//! - **Bounds.** When that queue or the list of unread events is full, the muxer is `blocked` and the
//!   device must not hand it packets. Everything else that is owed to the guest is a flag of a
//!   connection.

mod sending;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::Read;
use std::time::{Duration, Instant};

use super::connection::{Connection, Core, Effect, GuestEnd, PortPair};
use super::event::{CloseReason, Event, Readiness, Token};
use super::host::{Connector, HostSocket};
use super::packet::{Header, Op, TYPE_STREAM};
use super::{HOST_CID, MAX_PAYLOAD, VsockConfig, VsockError};

/// Unread events at which the device stops taking packets.
const EVENTS_MAX: usize = 1024;

/// First host port for connections of the host: above what programs listen on.
const FIRST_HOST_PORT: u32 = 1 << 30;

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Packets from the guest.
    pub packets_received: u64,
    /// Payload bytes from the guest that belonged to a connection.
    pub bytes_received: u64,
    /// Packets to the guest.
    pub packets_sent: u64,
    /// Payload bytes to the guest.
    pub bytes_sent: u64,
    /// Packets to the guest that were resets.
    pub resets_sent: u64,
    /// Chains that held no packet, or no room for one.
    pub malformed: u64,
    /// Packets with another sender than the guest; they are dropped.
    pub misaddressed: u64,
    /// Connections ended because the guest broke a rule.
    pub violations: u64,
}

/// A reset owed for a packet that belongs to no connection: that packet's addresses, turned round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) src_cid: u64,
    pub(super) src_port: u32,
    pub(super) dst_port: u32,
    pub(super) type_: u16,
}

#[derive(Debug)]
pub(super) struct Muxer<S> {
    config: VsockConfig,
    connections: HashMap<Token, Connection<S>>,
    by_ports: HashMap<PortPair, Token>,
    ring: VecDeque<Token>,
    resets: VecDeque<Reset>,
    events: VecDeque<Event<S>>,
    dirty: VecDeque<Token>,
    deadlines: BTreeSet<(Instant, Token)>,
    /// Bytes of buffer granted to connections.
    granted: usize,
    next_token: u64,
    next_host_port: u32,
    scratch: Vec<u8>,
    pub(super) counters: Counters,
}

impl<S: HostSocket> Muxer<S> {
    pub(super) fn new(config: VsockConfig) -> Self {
        Self {
            config,
            connections: HashMap::new(),
            by_ports: HashMap::new(),
            ring: VecDeque::new(),
            resets: VecDeque::new(),
            events: VecDeque::new(),
            dirty: VecDeque::new(),
            deadlines: BTreeSet::new(),
            granted: 0,
            next_token: 0,
            next_host_port: FIRST_HOST_PORT,
            scratch: vec![0; MAX_PAYLOAD],
            counters: Counters::default(),
        }
    }

    pub(super) fn config(&self) -> &VsockConfig {
        &self.config
    }

    /// Whether packets of the guest must wait until it takes some, or the embedder reads its events.
    pub(super) fn blocked(&self) -> bool {
        self.resets.len() >= self.config.resets_max || self.blocked_by_events()
    }

    /// Whether the embedder has to read its events first.
    pub(super) fn blocked_by_events(&self) -> bool {
        self.events.len() >= EVENTS_MAX
    }

    /// Whether [`Muxer::produce`] may give packets.
    pub(super) fn has_packets(&self) -> bool {
        !self.resets.is_empty() || !self.ring.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Bytes of the guest that wait for host sockets.
    pub(super) fn buffered(&self) -> usize {
        self.connections.values().map(|c| c.core.buffer.len()).sum()
    }

    pub(super) fn socket(&self, token: Token) -> Option<&S> {
        self.connections.get(&token)?.socket()
    }

    /// Takes a packet of the guest, whose chain holds `available` bytes behind the header.
    pub(super) fn receive(
        &mut self,
        header: &Header,
        payload: &mut dyn Read,
        available: usize,
        connector: &mut impl Connector<S>,
    ) {
        self.counters.packets_received += 1;
        if header.src_cid != self.config.guest_cid {
            self.counters.misaddressed += 1;
            return;
        }
        if header.dst_cid != HOST_CID || header.type_ != TYPE_STREAM {
            return self.owe_reset(header);
        }
        let ports = PortPair { guest: header.src_port, host: header.dst_port };
        if let Some(&token) = self.by_ports.get(&ports) {
            self.receive_known(token, header, payload, available);
        } else if header.op() == Some(Op::Request) {
            self.accept(ports, header, connector);
        } else {
            self.owe_reset(header);
        }
    }

    fn receive_known(&mut self, token: Token, header: &Header, payload: &mut dyn Read, available: usize) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let effect = if header.op() == Some(Op::Data) && header.len as usize > available {
            // The chain is shorter than the packet says.
            connection.abort(CloseReason::Violation);
            Effect::Violation
        } else {
            connection.receive(header, payload, &mut self.scratch)
        };
        match effect {
            Effect::None => {}
            Effect::Connected => self.events.push_back(Event::Connected { token }),
            Effect::Violation => self.counters.violations += 1,
        }
        if header.op() == Some(Op::Data) && effect == Effect::None {
            self.counters.bytes_received += u64::from(header.len);
        }
        self.update(token);
    }

    /// Answers a packet that belongs to no connection. A reset is never answered by a reset.
    fn owe_reset(&mut self, header: &Header) {
        if header.op() != Some(Op::Reset) {
            self.resets.push_back(Reset {
                src_cid: header.dst_cid,
                src_port: header.dst_port,
                dst_port: header.src_port,
                type_: header.type_,
            });
        }
    }

    fn accept(&mut self, ports: PortPair, request: &Header, connector: &mut impl Connector<S>) {
        let Some(buf_alloc) = self.grant() else {
            return self.owe_reset(request);
        };
        let Ok(socket) = connector.connect(ports.host) else {
            return self.owe_reset(request);
        };
        let connection = Connection::accepted(ports, request, buf_alloc, socket);
        let token = self.insert(connection);
        self.events.push_back(Event::Opened { token, guest_port: ports.guest, host_port: ports.host });
        self.update(token);
    }

    /// Opens a connection to a port of the guest.
    pub(super) fn connect(&mut self, guest_port: u32, socket: S) -> Result<Token, VsockError> {
        let Some(buf_alloc) = self.grant() else {
            return Err(VsockError::TooManyConnections { max: self.config.connections_max });
        };
        let ports = PortPair { guest: guest_port, host: self.free_host_port(guest_port) };
        let token = self.insert(Connection::requested(ports, buf_alloc, socket));
        self.arm(token, self.config.connect_timeout);
        self.update(token);
        Ok(token)
    }

    /// A host port that has no connection to `guest_port`; there are fewer connections than ports.
    fn free_host_port(&mut self, guest_port: u32) -> u32 {
        loop {
            let host = self.next_host_port;
            // The last port means "any" to programs; start again before it.
            self.next_host_port = if host >= u32::MAX - 1 { FIRST_HOST_PORT } else { host + 1 };
            let ports = PortPair { guest: guest_port, host };
            if !self.by_ports.contains_key(&ports) {
                return host;
            }
        }
    }

    /// Size of the buffer for one more connection; `None` if there may not be one more.
    fn grant(&self) -> Option<u32> {
        let slots = self.config.connections_max.checked_sub(self.connections.len())?;
        let others = slots.checked_sub(1)? * self.config.buffer_min as usize;
        let left = self.config.buffer_total.saturating_sub(self.granted);
        if left >= others + self.config.buffer_max as usize {
            Some(self.config.buffer_max)
        } else {
            Some(self.config.buffer_min)
        }
    }

    fn insert(&mut self, connection: Connection<S>) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.granted += connection.core.receive.buf_alloc() as usize;
        if connection.core.guest != GuestEnd::Gone {
            self.by_ports.insert(connection.core.ports, token);
        }
        self.connections.insert(token, connection);
        token
    }

    /// Sets the deadline of a connection, in place of an older one.
    fn arm(&mut self, token: Token, timeout: Duration) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if let Some(old) = connection.deadline.take() {
            self.deadlines.remove(&(old, token));
        }
        if let Some(at) = Instant::now().checked_add(timeout) {
            connection.deadline = Some(at);
            self.deadlines.insert((at, token));
        }
    }

    /// Draws the muxer's conclusions from whatever happened to a connection.
    fn update(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if let Some((reason, socket)) = connection.take_closed() {
            self.events.push_back(Event::Closed { token, reason, socket });
        }
        if connection.core.guest == GuestEnd::Gone {
            let ports = connection.core.ports;
            if self.by_ports.get(&ports) == Some(&token) {
                self.by_ports.remove(&ports);
            }
        }
        // One that still stands in the ring is removed when its turn comes: else a guest that connects,
        // resets and takes no packets could make the ring grow.
        if connection.is_over() && !connection.queued {
            if let Some(at) = connection.deadline {
                self.deadlines.remove(&(at, token));
            }
            self.granted -= connection.core.receive.buf_alloc() as usize;
            self.connections.remove(&token);
            return;
        }
        if !connection.queued && connection.has_packets() {
            connection.queued = true;
            self.ring.push_back(token);
        }
        if !connection.dirty && connection.socket().is_some() && connection.interest() != connection.reported
        {
            connection.dirty = true;
            self.dirty.push_back(token);
        }
    }

    /// A host socket became ready.
    pub(super) fn ready(&mut self, token: Token, readiness: Readiness) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.ready(readiness);
            self.update(token);
        }
    }

    /// The embedder ends the host's end of a connection.
    pub(super) fn close(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.close_host();
            self.update(token);
        }
    }

    /// The next event for the embedder. Interests come last, each at most once per change.
    pub(super) fn next_event(&mut self) -> Option<Event<S>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        while let Some(token) = self.dirty.pop_front() {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.dirty = false;
                let interest = connection.interest();
                // One without a socket was reported by `Closed`.
                if interest != connection.reported && connection.socket().is_some() {
                    connection.reported = interest;
                    return Some(Event::Interest { token, interest });
                }
            }
        }
        None
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Ends what has not been answered in time.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(at, token)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.deadline = None;
                match connection.core.guest {
                    GuestEnd::Requesting => connection.abort(CloseReason::ConnectTimeout),
                    GuestEnd::Closing => connection.abort(CloseReason::Finished),
                    // Answered meanwhile.
                    GuestEnd::Open | GuestEnd::Resetting | GuestEnd::Gone => continue,
                }
                self.update(token);
            }
        }
    }

    /// The driver forgot everything: so do we. Ports already used are not used again.
    pub(super) fn clear(&mut self, reason: CloseReason) {
        self.resets.clear();
        self.ring.clear();
        self.deadlines.clear();
        let mut tokens: Vec<Token> = self.connections.keys().copied().collect();
        tokens.sort_unstable();
        for token in tokens {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.queued = false;
                connection.forget(reason);
            }
            self.update(token);
        }
    }

    /// For a snapshot: the connections in the order of their making, owed resets, the port counter.
    pub(super) fn save(&self) -> (Vec<&Core>, &VecDeque<Reset>, u32) {
        let mut live: Vec<_> = self.connections.iter().filter(|(_, c)| !c.is_over()).collect();
        live.sort_unstable_by_key(|(token, _)| **token);
        let cores = live.into_iter().map(|(_, c)| &c.core).collect();
        (cores, &self.resets, self.next_host_port)
    }

    /// Puts owed resets and the port counter of a snapshot into an empty muxer.
    pub(super) fn restore(&mut self, resets: impl Iterator<Item = Reset>, next_host_port: u32) {
        self.resets = resets.collect();
        self.next_host_port = next_host_port.max(FIRST_HOST_PORT);
    }

    /// Puts a connection of a snapshot into the table; `None` if it is over by that.
    pub(super) fn restore_connection(&mut self, core: Core, socket: Option<S>) -> Option<Token> {
        let carried = socket.is_some();
        let token = self.insert(Connection::restored(core, socket));
        self.update(token);
        carried.then_some(token)
    }

    /// Whether the tables agree with each other (for tests and fuzz targets).
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn assert_consistent(&self) {
        let granted: usize = self.connections.values().map(|c| c.core.receive.buf_alloc() as usize).sum();
        assert_eq!(self.granted, granted);
        assert!(granted <= self.config.buffer_total);
        assert!(self.connections.len() <= self.config.connections_max);
        assert!(self.resets.len() <= self.config.resets_max);
        assert!(self.ring.len() <= self.connections.len());
        assert!(self.deadlines.len() <= self.connections.len());
        for (ports, token) in &self.by_ports {
            assert_eq!(self.connections[token].core.ports, *ports);
        }
        for (token, connection) in &self.connections {
            let core = &connection.core;
            assert!(core.buffer.len() <= core.receive.buf_alloc() as usize);
            assert_eq!(core.buffer.len(), core.receive.in_flight() as usize);
            assert!(core.receive.is_consistent() && core.send.is_consistent());
            assert!(!connection.is_over() || connection.queued, "{token:?} is over and still there");
            assert_eq!(core.guest != GuestEnd::Gone, self.by_ports.get(&core.ports) == Some(token));
            assert!(
                connection.queued || !connection.has_packets(),
                "{token:?} would never be asked for its packets"
            );
            assert!(
                connection.dirty
                    || connection.socket().is_none()
                    || connection.interest() == connection.reported
            );
        }
    }
}

impl<S> Muxer<S> {
    /// The interest that the embedder was told last (for tests and fuzz targets).
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn reported(&self, token: Token) -> super::Interest {
        self.connections.get(&token).map_or_else(super::Interest::default, |c| c.reported)
    }
}
