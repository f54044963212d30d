//! Streams of random bytes through random chains, credit and timing: they must arrive to the byte.
//!
//! [`Model`] is a correct guest that keeps its own account of credit, and checks the device's.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

use proptest::prelude::*;

use super::super::host::HostSocket;
use super::super::packet::{Header, Op, SHUTDOWN_BOTH, SHUTDOWN_SEND};
use super::super::testing::{Guest, MockSocket, from_guest, pair};
use super::super::{Event, Readiness, Token};
use super::{Device, device_with};

/// Byte number `at` of the stream with this number.
fn byte(stream: u32, at: usize) -> u8 {
    let x = (at as u64 ^ u64::from(stream) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56) as u8
}

fn bytes(stream: u32, from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| byte(stream, at)).collect()
}

/// The guest's view of one connection, by the book.
#[derive(Debug)]
struct Stream {
    host_port: u32,
    buf_alloc: u32,
    /// Received, and taken by the program in the guest.
    received: usize,
    taken: usize,
    sent: usize,
    peer_buf_alloc: u32,
    peer_fwd_cnt: u32,
    open: bool,
    ended_sending: bool,
    closed: bool,
    reset: bool,
    host_ended: bool,
}

/// The host program's view.
#[derive(Debug)]
struct Far {
    socket: Option<MockSocket>,
    token: Option<Token>,
    sent: usize,
    received: usize,
    saw_end: bool,
    ended_sending: bool,
}

struct Model {
    guest: Guest,
    device: Device,
    streams: HashMap<u32, Stream>,
    fars: HashMap<u32, Far>,
    replies: VecDeque<Header>,
    tokens: HashMap<Token, u32>,
    next_port: u32,
}

impl Model {
    fn new(event_idx: bool) -> Self {
        let mut device = device_with(|c| c.resets_max = 64);
        device.connector_mut().capacity = 3000;
        Self {
            guest: Guest::new(event_idx),
            device,
            streams: HashMap::new(),
            fars: HashMap::new(),
            replies: VecDeque::new(),
            tokens: HashMap::new(),
            next_port: 1,
        }
    }

    fn header(&self, port: u32, op: Op) -> Header {
        let stream = &self.streams[&port];
        Header {
            buf_alloc: stream.buf_alloc,
            fwd_cnt: stream.taken as u32,
            ..from_guest(port, stream.host_port, op)
        }
    }

    fn send(&mut self, header: &Header, payload: &[u8], cuts: &[u32]) {
        while self.guest.send(header, payload, cuts).is_none() {
            self.settle();
        }
    }

    fn open(&mut self, buf_alloc: u32) {
        let live = self.streams.values().filter(|s| !s.reset).count();
        if live >= 8 || self.device.connections() >= 8 {
            return;
        }
        let port = self.next_port;
        self.next_port += 1;
        self.streams.insert(
            port,
            Stream {
                host_port: 52,
                buf_alloc,
                received: 0,
                taken: 0,
                sent: 0,
                peer_buf_alloc: 0,
                peer_fwd_cnt: 0,
                open: false,
                ended_sending: false,
                closed: false,
                reset: false,
                host_ended: false,
            },
        );
        let header = self.header(port, Op::Request);
        self.send(&header, &[], &[]);
        self.settle();
    }

    fn guest_sends(&mut self, port: u32, len: usize, cuts: &[u32]) {
        let stream = &self.streams[&port];
        if !stream.open || stream.ended_sending || stream.closed || stream.reset {
            return;
        }
        let under_way = (stream.sent as u32).wrapping_sub(stream.peer_fwd_cnt);
        let free = stream.peer_buf_alloc.saturating_sub(under_way) as usize;
        let len = len.min(free);
        let payload = bytes(port, stream.sent, len);
        let header = Header { len: len as u32, ..self.header(port, Op::Data) };
        self.streams.get_mut(&port).unwrap().sent += len;
        self.send(&header, &payload, cuts);
    }

    fn guest_takes(&mut self, port: u32, len: usize) {
        let stream = self.streams.get_mut(&port).unwrap();
        let n = len.min(stream.received - stream.taken);
        stream.taken += n;
        if n > 0 && stream.open && !stream.closed && !stream.reset {
            let header = self.header(port, Op::CreditUpdate);
            self.send(&header, &[], &[]);
        }
    }

    fn guest_ends(&mut self, port: u32, flags: u32) {
        let stream = self.streams.get_mut(&port).unwrap();
        if !stream.open || stream.closed || stream.reset {
            return;
        }
        stream.ended_sending = true;
        stream.closed |= flags == SHUTDOWN_BOTH;
        let header = Header { flags, ..self.header(port, Op::Shutdown) };
        self.send(&header, &[], &[]);
    }

    fn host_sends(&mut self, port: u32, len: usize) {
        let Some(far) = self.fars.get_mut(&port) else {
            return;
        };
        if far.ended_sending {
            return;
        }
        if let Some(socket) = &mut far.socket {
            let payload = bytes(port + 1000, far.sent, len);
            match socket.write(&payload) {
                Ok(n) => far.sent += n,
                Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe)),
            }
        }
    }

    fn host_takes(&mut self, port: u32, len: usize) {
        let Some(far) = self.fars.get_mut(&port) else {
            return;
        };
        if let Some(socket) = &mut far.socket {
            let mut buf = vec![0; len.max(1)];
            match socket.read(&mut buf) {
                Ok(0) => far.saw_end = true,
                Ok(n) => {
                    assert!(!far.saw_end);
                    assert!(buf[..n] == bytes(port, far.received, n), "stream {port}");
                    far.received += n;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    fn host_ends(&mut self, port: u32) {
        if let Some(far) = self.fars.get_mut(&port)
            && let Some(socket) = &mut far.socket
        {
            far.ended_sending = true;
            socket.shutdown(Shutdown::Write).unwrap();
        }
    }

    /// Lets everybody react until nothing moves.
    fn settle(&mut self) {
        loop {
            self.guest.run(&mut self.device).unwrap();
            self.device.assert_consistent();
            self.guest.reap();
            self.take_events();
            let mut moved = false;
            while let Some((header, payload)) = self.guest.receive() {
                moved = true;
                self.take_packet(&header, &payload);
            }
            while let Some(header) = self.replies.pop_front() {
                moved = true;
                if self.guest.send(&header, &[], &[]).is_none() {
                    self.replies.push_front(header);
                    break;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.device.next_event() {
            match event {
                Event::Opened { token, guest_port, .. } => {
                    let (_, socket) = self.device.connector_mut().accepted.pop_front().unwrap();
                    self.tokens.insert(token, guest_port);
                    self.fars.insert(
                        guest_port,
                        Far {
                            socket: Some(socket),
                            token: Some(token),
                            sent: 0,
                            received: 0,
                            saw_end: false,
                            ended_sending: false,
                        },
                    );
                }
                Event::Closed { token, socket, .. } => {
                    drop(socket);
                    if let Some(far) = self.tokens.get(&token).and_then(|p| self.fars.get_mut(p)) {
                        far.token = None;
                    }
                }
                Event::Connected { .. } | Event::Interest { .. } => {}
            }
        }
    }

    /// Level-triggered polling, as the interests ask for it.
    fn poll(&mut self) {
        let ready: Vec<(Token, Readiness)> = self
            .fars
            .values()
            .filter_map(|far| {
                let (socket, token) = (far.socket.as_ref()?, far.token?);
                let interest = self.device.reported_interest(token);
                let readiness = Readiness {
                    readable: interest.read,
                    writable: interest.write,
                    hangup: interest.hangup && socket.hung_up(),
                };
                (readiness != Readiness::default()).then_some((token, readiness))
            })
            .collect();
        for (token, readiness) in ready {
            self.device.host_ready(token, readiness);
        }
        self.settle();
    }

    fn take_packet(&mut self, header: &Header, payload: &[u8]) {
        let port = header.dst_port;
        let stream = self.streams.get_mut(&port).expect("a known port");
        if header.op() == Some(Op::Reset) {
            stream.reset = true;
            return;
        }
        assert!(!stream.reset, "{header:?} after a reset");
        stream.peer_buf_alloc = header.buf_alloc;
        stream.peer_fwd_cnt = header.fwd_cnt;
        assert!(header.fwd_cnt as usize <= stream.sent);
        match header.op().unwrap() {
            Op::Response => stream.open = true,
            Op::Data => {
                assert!(stream.open && !stream.host_ended);
                assert!(payload == bytes(port + 1000, stream.received, payload.len()));
                stream.received += payload.len();
                let held = stream.received - stream.taken;
                assert!(held <= stream.buf_alloc as usize, "more than the credit");
            }
            Op::Shutdown => {
                stream.host_ended |= header.flags & SHUTDOWN_SEND != 0;
                if header.flags == SHUTDOWN_BOTH && !stream.closed {
                    stream.closed = true;
                    let reset = self.header(port, Op::Reset);
                    self.replies.push_back(reset);
                    self.streams.get_mut(&port).unwrap().reset = true;
                }
            }
            Op::CreditRequest => {
                let update = self.header(port, Op::CreditUpdate);
                self.replies.push_back(update);
            }
            Op::CreditUpdate => {}
            op => panic!("unexpected {op:?}"),
        }
    }

    /// Ends all streams and checks that every byte arrived.
    fn finish(mut self) {
        self.guest.offer_all(1000);
        let ports: Vec<u32> = self.streams.keys().copied().collect();
        for _ in 0..10_000 {
            let mut done = true;
            for &port in &ports {
                self.host_takes(port, 10_000);
                self.guest_takes(port, 10_000);
                let far = &self.fars[&port];
                let stream = &self.streams[&port];
                done &= far.received == stream.sent
                    && (stream.received == far.sent || stream.closed || stream.reset);
            }
            self.poll();
            self.guest.offer_all(1000);
            if done {
                break;
            }
        }
        for &port in &ports {
            let (far, stream) = (&self.fars[&port], &self.streams[&port]);
            assert_eq!(far.received, stream.sent, "guest to host, {port}: {stream:?} {far:?}");
            if !stream.closed && !stream.reset {
                assert_eq!(stream.received, far.sent, "host to guest, {port}");
            }
            if stream.ended_sending || stream.closed {
                let mut far = self.fars.remove(&port).unwrap();
                if let Some(socket) = &mut far.socket {
                    assert!(socket.read_available().1, "the end arrived, {port}");
                }
                self.fars.insert(port, far);
            }
        }
        // All hosts hang up: nothing is left behind.
        self.fars.values_mut().for_each(|far| far.socket = None);
        let tokens: Vec<Token> = self.fars.values().filter_map(|far| far.token).collect();
        for token in tokens {
            self.device.host_ready(token, Readiness::READABLE | Readiness::HANGUP);
        }
        self.settle();
        assert_eq!(self.device.connections(), 0);
        assert_eq!(self.device.counters().violations, 0);
        assert_eq!(self.device.counters().malformed, 0);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Open(u32),
    GuestSends(u8, usize, Vec<u32>),
    GuestTakes(u8, usize),
    GuestEnds(u8, bool),
    HostSends(u8, usize),
    HostTakes(u8, usize),
    HostEnds(u8),
    Offer(u32, Vec<u32>),
    Settle,
    Poll,
}

fn cuts() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![0u32..50, 40u32..48, 0u32..3000], 0..6)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (1u32..20_000).prop_map(Step::Open),
        6 => (any::<u8>(), 0usize..9000, cuts()).prop_map(|(s, n, c)| Step::GuestSends(s, n, c)),
        4 => (any::<u8>(), 0usize..9000).prop_map(|(s, n)| Step::GuestTakes(s, n)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(s, both)| Step::GuestEnds(s, both)),
        6 => (any::<u8>(), 1usize..5000).prop_map(|(s, n)| Step::HostSends(s, n)),
        4 => (any::<u8>(), 1usize..5000).prop_map(|(s, n)| Step::HostTakes(s, n)),
        1 => any::<u8>().prop_map(Step::HostEnds),
        5 => (45u32..5000, cuts()).prop_map(|(n, c)| Step::Offer(n, c)),
        3 => Just(Step::Settle),
        4 => Just(Step::Poll),
    ]
}

fn run(steps: Vec<Step>, event_idx: bool) {
    let mut model = Model::new(event_idx);
    model.open(5000);
    for step in steps {
        let pick = |n: u8| u32::from(n) % (model.next_port - 1) + 1;
        match step {
            Step::Open(buf_alloc) => model.open(buf_alloc),
            Step::GuestSends(s, n, cuts) => model.guest_sends(pick(s), n, &cuts),
            Step::GuestTakes(s, n) => model.guest_takes(pick(s), n),
            Step::GuestEnds(s, true) => model.guest_ends(pick(s), SHUTDOWN_BOTH),
            Step::GuestEnds(s, false) => model.guest_ends(pick(s), SHUTDOWN_SEND),
            Step::HostSends(s, n) => model.host_sends(pick(s), n),
            Step::HostTakes(s, n) => model.host_takes(pick(s), n),
            Step::HostEnds(s) => model.host_ends(pick(s)),
            Step::Offer(n, cuts) => drop(model.guest.offer(n, &cuts)),
            Step::Settle => model.settle(),
            Step::Poll => model.poll(),
        }
        model.settle();
    }
    model.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn streams_arrive_to_the_byte(
        steps in prop::collection::vec(step(), 1..150),
        event_idx: bool,
    ) {
        run(steps, event_idx);
    }

    /// One long transfer each way through small, oddly cut buffers.
    #[test]
    fn a_long_transfer_through_odd_buffers(
        tx_cuts in cuts(),
        rx_cuts in cuts(),
        rx_len in 45u32..6000,
        capacity in 500usize..20_000,
    ) {
        let mut model = Model::new(false);
        model.device.connector_mut().capacity = capacity;
        model.guest.offer(4096, &[]);
        model.open(7000);
        for _ in 0..20 {
            model.guest_sends(1, 8000, &tx_cuts);
            model.host_sends(1, 8000);
            for _ in 0..4 {
                model.guest.offer(rx_len, &rx_cuts);
            }
            model.poll();
            model.host_takes(1, 8000);
            model.guest_takes(1, 8000);
        }
        model.finish();
    }
}

/// The peer's own idea of a socket pair: what the mock promises is what the model relies on.
#[test]
fn the_mock_socket_is_a_stream() {
    let (mut a, mut b) = pair(4);
    assert_eq!(a.write(b"abcdef").unwrap(), 4);
    assert_eq!(a.write(b"ef").unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut two = [0; 2];
    b.read_exact(&mut two).unwrap();
    assert_eq!(&two, b"ab");
    a.shutdown(Shutdown::Write).unwrap();
    assert_eq!(b.read_available(), (b"cd".to_vec(), true));
    assert_eq!(b.read(&mut two).unwrap(), 0);
    assert!(!b.hung_up());
    drop(a);
    assert!(b.hung_up());
    assert_eq!(b.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}
