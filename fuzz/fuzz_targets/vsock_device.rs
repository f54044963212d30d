//! The vsock device between a hostile guest and a careless host: packets, chains and rings of any shape,
//! host sockets in any state, saving and restoring in between. Nothing may panic or spin, the device's tables
//! must agree with each other, and what it holds stays within its limits.
#![no_main]

use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use hayfork_devices::virtio::testing::Segment;
use hayfork_devices::virtio::vsock::host::HostSocket;
use hayfork_devices::virtio::vsock::packet::Header;
use hayfork_devices::virtio::vsock::testing::{GUEST_CID, Guest, MockConnector, MockSocket, pair};
use hayfork_devices::virtio::vsock::{Event, HOST_CID, Readiness, Token, VsockConfig, VsockDevice};
use libfuzzer_sys::fuzz_target;

type Device = VsockDevice<MockSocket, MockConnector>;

const CONNECTIONS_MAX: usize = 6;
const BUFFER_TOTAL: usize = 16 * 1024;

#[derive(Debug, Arbitrary)]
enum Action {
    /// A packet that is mostly right: known ports, a real operation, credit that may be true.
    Packet {
        port: u8,
        op: u8,
        flags: u8,
        len: u16,
        missing: u8,
        credit: Credit,
        cuts: Vec<u8>,
    },
    /// A packet with any header.
    Header {
        fields: (u64, u64, u32, u32, u32),
        rest: (u16, u16, u32, u32, u32),
        payload: u16,
    },
    /// Bytes that may be no packet.
    Bytes {
        bytes: Vec<u8>,
        cuts: Vec<u8>,
    },
    /// A chain in guest memory, or out of it, for the queue with this number.
    Chain {
        queue: u8,
        segments: Vec<(u32, u32, bool)>,
    },
    /// A descriptor of any content, and whether its chain is offered.
    Descriptor {
        queue: u8,
        index: u16,
        addr: u64,
        len: u32,
        flags: u16,
        next: u16,
        offer: bool,
    },
    /// The index of an available ring.
    AvailIdx {
        queue: u8,
        ahead: u16,
    },
    /// Good receive buffers.
    Offer {
        len: u16,
        count: u8,
        cuts: Vec<u8>,
    },
    /// The host program does something with one of its sockets.
    HostWrite {
        socket: u8,
        len: u16,
    },
    HostRead {
        socket: u8,
    },
    HostShutdown {
        socket: u8,
        how: u8,
    },
    HostDrop {
        socket: u8,
    },
    /// A poll reports something, true or not.
    Ready {
        token: u8,
        readable: bool,
        writable: bool,
        hangup: bool,
    },
    Connect {
        port: u8,
        capacity: u16,
    },
    Close {
        token: u8,
    },
    Expire {
        seconds: u8,
    },
    ReadEvents,
    ResetTransport,
    Restore {
        carry: bool,
    },
    DriverReset {
        event_idx: bool,
    },
}

#[derive(Debug, Arbitrary)]
enum Credit {
    /// Plenty of room, nothing taken.
    Plain,
    /// Little room, and a little taken.
    Some(u16, u16),
    Any(u32, u32),
}

struct World {
    guest: Guest,
    device: Device,
    hosts: VecDeque<MockSocket>,
    /// Tokens that were in use at some time.
    tokens: u64,
}

fn config() -> VsockConfig {
    let mut config = VsockConfig::new(GUEST_CID);
    config.connections_max = CONNECTIONS_MAX;
    config.buffer_max = 8 * 1024;
    config.buffer_min = 1024;
    config.buffer_total = BUFFER_TOTAL;
    config.resets_max = 4;
    config
}

impl World {
    fn new() -> Self {
        let connector = MockConnector { capacity: 2000, ..MockConnector::default() };
        Self {
            guest: Guest::new(false),
            device: Device::new(config(), connector).expect("good limits"),
            hosts: VecDeque::new(),
            tokens: 0,
        }
    }

    /// The driver starts anew, as after a broken queue.
    fn driver_reset(&mut self, event_idx: bool) {
        self.device.reset();
        self.guest = Guest::new(event_idx);
    }

    fn run(&mut self) {
        // A call that says "again" must have done something, so this ends; the bound is what the queues and
        // buffers can hold, with room to spare.
        for round in 0.. {
            assert!(round < 200, "the device spins");
            let (rx_queue, tx_queue) = (&mut self.guest.rx_queue, &mut self.guest.tx_queue);
            match self.device.process(rx_queue, tx_queue, &self.guest.mem) {
                Err(_) => return self.driver_reset(false),
                Ok((rx, tx)) if rx.again || tx.again => self.read_events(),
                Ok(_) => break,
            }
        }
        if self.device.process_event(&mut self.guest.event_queue, &self.guest.mem).is_err() {
            self.driver_reset(false);
        }
        while self.guest.tx.next_used_raw().is_some_and(|(_, len)| {
            assert_eq!(len, 0);
            true
        }) {}
        while self.guest.rx.next_used_raw().is_some() {}
        while self.guest.event.next_used_raw().is_some_and(|(_, len)| {
            assert!(len == 0 || len == 4);
            true
        }) {}
        let counters = self.device.counters();
        assert!(counters.packets_sent >= counters.resets_sent);
    }

    fn read_events(&mut self) {
        while let Some(event) = self.device.next_event() {
            match event {
                Event::Opened { token, .. } | Event::Connected { token } => self.see(token),
                Event::Interest { token, .. } => {
                    self.see(token);
                    assert!(self.device.socket(token).is_some());
                }
                Event::Closed { token, .. } => assert!(self.device.socket(token).is_none()),
            }
        }
        self.hosts.extend(self.device.connector_mut().accepted.drain(..).map(|(_, socket)| socket));
        while self.hosts.len() > 16 {
            self.hosts.pop_front();
        }
    }

    fn see(&mut self, token: Token) {
        self.tokens = self.tokens.max(token.0 + 1);
    }

    fn token(&self, n: u8) -> Token {
        // Mostly the newest ones.
        Token(self.tokens.saturating_sub(u64::from(n % 8)))
    }

    fn host(&mut self, n: u8) -> Option<&mut MockSocket> {
        let n = usize::from(n) % self.hosts.len().max(1);
        self.hosts.get_mut(n)
    }

    /// `port` names one of four guest ports, and either the one port that guests connect to here or one of
    /// the first eight that the device takes for connections of the host.
    fn header(port: u8, op: u8, flags: u8, credit: &Credit) -> Header {
        let dst_port = if port & 0x80 == 0 { 52 } else { (1 << 30) + u32::from(port >> 2 & 7) };
        let (buf_alloc, fwd_cnt) = match credit {
            Credit::Plain => (64 * 1024, 0),
            Credit::Some(buf_alloc, fwd_cnt) => (u32::from(*buf_alloc), u32::from(*fwd_cnt)),
            Credit::Any(buf_alloc, fwd_cnt) => (*buf_alloc, *fwd_cnt),
        };
        Header {
            src_cid: GUEST_CID,
            dst_cid: HOST_CID,
            src_port: u32::from(port % 4),
            dst_port,
            len: 0,
            type_: 1,
            op: u16::from(op % 9),
            flags: u32::from(flags % 5),
            buf_alloc,
            fwd_cnt,
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Packet { port, op, flags, len, missing, credit, cuts } => {
                let payload = vec![0xaa; usize::from(*len)];
                let mut header = Self::header(*port, *op, *flags, credit);
                header.len = u32::from(*len) + u32::from(*missing >> 6);
                self.guest.send(&header, &payload, &wide(cuts));
            }
            Action::Header { fields, rest, payload } => {
                let header = Header {
                    src_cid: fields.0,
                    dst_cid: fields.1,
                    src_port: fields.2,
                    dst_port: fields.3,
                    len: fields.4,
                    type_: rest.0,
                    op: rest.1,
                    flags: rest.2,
                    buf_alloc: rest.3,
                    fwd_cnt: rest.4,
                };
                self.guest.send(&header, &vec![0xbb; usize::from(*payload)], &[]);
            }
            Action::Bytes { bytes, cuts } => drop(self.guest.send_bytes(bytes, &wide(cuts))),
            Action::Chain { queue, segments } => {
                let segments: Vec<Segment> = segments
                    .iter()
                    .map(|&(addr, len, writable)| Segment { addr: u64::from(addr), len, writable })
                    .collect();
                self.queue(*queue).add(&segments);
            }
            Action::Descriptor { queue, index, addr, len, flags, next, offer } => {
                let queue = self.queue(*queue);
                queue.write_descriptor(index % 16, *addr, *len, *flags, *next);
                if *offer {
                    queue.offer(index % 16);
                }
            }
            Action::AvailIdx { queue, ahead } => {
                let device_at = match queue % 3 {
                    0 => &self.guest.rx_queue,
                    1 => &self.guest.tx_queue,
                    _ => &self.guest.event_queue,
                };
                let idx = device_at.next_avail().wrapping_add(*ahead);
                self.queue(*queue).set_avail_idx(idx);
            }
            Action::Offer { len, count, cuts } => {
                for _ in 0..*count % 32 {
                    self.guest.offer(u32::from(*len).max(1), &wide(cuts));
                }
            }
            Action::HostWrite { socket, len } => {
                if let Some(socket) = self.host(*socket) {
                    let _ = socket.write(&vec![0xcc; usize::from(*len)]);
                }
            }
            Action::HostRead { socket } => drop(self.host(*socket).map(MockSocket::read_available)),
            Action::HostShutdown { socket, how } => {
                let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][usize::from(how % 3)];
                if let Some(socket) = self.host(*socket) {
                    let _ = socket.shutdown(how);
                }
            }
            Action::HostDrop { socket } => {
                let n = usize::from(*socket) % self.hosts.len().max(1);
                self.hosts.remove(n);
            }
            Action::Ready { token, readable, writable, hangup } => {
                let readiness = Readiness { readable: *readable, writable: *writable, hangup: *hangup };
                self.device.host_ready(self.token(*token), readiness);
            }
            Action::Connect { port, capacity } => {
                let (ours, theirs) = pair(usize::from(*capacity));
                if let Ok(token) = self.device.connect(u32::from(port % 4), ours) {
                    self.see(token);
                    self.hosts.push_back(theirs);
                }
            }
            Action::Close { token } => self.device.close(self.token(*token)),
            Action::Expire { seconds } => {
                self.device.expire(Instant::now() + Duration::from_secs(u64::from(*seconds)));
            }
            Action::ReadEvents => self.read_events(),
            Action::ResetTransport => self.device.reset_transport(),
            Action::Restore { carry } => self.restore(*carry),
            Action::DriverReset { event_idx } => self.driver_reset(*event_idx),
        }
    }

    fn queue(&mut self, n: u8) -> &mut hayfork_devices::virtio::testing::DriverQueue {
        match n % 3 {
            0 => &mut self.guest.rx,
            1 => &mut self.guest.tx,
            _ => &mut self.guest.event,
        }
    }

    fn restore(&mut self, carry: bool) {
        self.read_events();
        let state = self.device.save();
        let connector = std::mem::take(self.device.connector_mut());
        let mut theirs = Vec::new();
        let (device, carried) = Device::restore(config(), connector, state, |connection| {
            assert!(connection.can_carry());
            let (ours, far) = pair(1000);
            theirs.push(far);
            carry.then_some(ours)
        })
        .expect("a saved state can be restored");
        assert!(carry || carried.is_empty());
        self.device = device;
        self.hosts.extend(theirs);
    }
}

fn wide(cuts: &[u8]) -> Vec<u32> {
    cuts.iter().take(40).map(|cut| u32::from(*cut)).collect()
}

fuzz_target!(|actions: Vec<Action>| {
    let mut world = World::new();
    for action in actions.iter().take(200) {
        world.act(action);
        world.run();
        world.device.assert_consistent();
        assert!(world.device.connections() <= CONNECTIONS_MAX);
        assert!(world.device.buffered() <= BUFFER_TOTAL);
    }
    // Whatever happened, a reset leaves nothing behind.
    world.driver_reset(false);
    world.read_events();
    world.device.assert_consistent();
    assert_eq!((world.device.connections(), world.device.buffered()), (0, 0));
    assert!(!world.device.has_rx_work());
});
