use super::*;
use proptest::prelude::*;

/// Two sides joined by a perfect carrier.
struct Pair {
    host: Mux,
    guest: Mux,
}

impl Pair {
    fn new() -> Self {
        Self { host: Mux::new(Role::Host), guest: Mux::new(Role::Guest) }
    }

    fn opened() -> (Self, StreamId) {
        let mut pair = Self::new();
        let id = pair.host.open(&Request::Stats).unwrap();
        assert_eq!(pair.deliver_to_guest(), [Incoming::Open(id, Request::Stats)]);
        (pair, id)
    }

    fn deliver_to_guest(&mut self) -> Vec<Incoming> {
        carry(&mut self.host, &mut self.guest).unwrap()
    }

    fn deliver_to_host(&mut self) -> Vec<Incoming> {
        carry(&mut self.guest, &mut self.host).unwrap()
    }
}

fn carry(from: &mut Mux, to: &mut Mux) -> Result<Vec<Incoming>, MuxError> {
    let bytes = from.output().to_vec();
    from.advance(bytes.len());
    feed(to, &bytes)
}

fn feed(to: &mut Mux, bytes: &[u8]) -> Result<Vec<Incoming>, MuxError> {
    let mut input = bytes;
    let mut got = Vec::new();
    while let Some(incoming) = to.receive(&mut input)? {
        got.push(incoming);
    }
    Ok(got)
}

fn raw(kind: Kind, channel: Option<Channel>, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, kind, channel, stream, payload);
    bytes
}

#[test]
fn a_stream_lives_from_open_to_close() {
    let (mut pair, id) = Pair::opened();
    pair.host.control(id, &Control::Interrupt).unwrap();
    assert_eq!(pair.host.data(id, Channel::Stdin, b"in"), 2);
    pair.host.eof(id, Channel::Stdin);
    pair.host.eof(id, Channel::Stdin);
    assert_eq!(
        pair.deliver_to_guest(),
        [
            Incoming::Control(id, Control::Interrupt),
            Incoming::Data(id, Channel::Stdin, b"in".to_vec()),
            Incoming::Eof(id, Channel::Stdin),
        ]
    );
    let done = Event::Done { bytes: 4 };
    pair.guest.event(id, &done).unwrap();
    pair.guest.close(id);
    assert_eq!(pair.deliver_to_host(), [Incoming::Event(id, done), Incoming::Closed(id)]);
    assert_eq!(pair.host.control(id, &Control::Kill), Err(SendError::Gone));
    assert_eq!(pair.host.streams().count() + pair.guest.streams().count(), 0);
}

#[test]
fn credit_stops_a_sender_and_consumption_lets_it_go_on() {
    let (mut pair, id) = Pair::opened();
    let flood = vec![7; WINDOW as usize + 1];
    assert_eq!(pair.guest.data(id, Channel::Stdout, &flood), WINDOW as usize);
    assert_eq!(pair.guest.sendable(id, Channel::Stdout), 0);
    assert_eq!(pair.guest.sendable(id, Channel::Stderr), WINDOW as usize, "other channels go on");
    let got: usize = pair
        .deliver_to_host()
        .iter()
        .map(|i| if let Incoming::Data(_, _, b) = i { b.len() } else { 0 })
        .sum();
    assert_eq!(got, WINDOW as usize);

    pair.host.consumed(id, Channel::Stdout, WINDOW as usize / 2 - 1);
    assert!(pair.host.output().is_empty(), "small grants are gathered");
    pair.host.consumed(id, Channel::Stdout, 1);
    assert_eq!(pair.deliver_to_guest(), [Incoming::Writable(id, Channel::Stdout)]);
    assert_eq!(pair.guest.sendable(id, Channel::Stdout), WINDOW as usize / 2);
}

#[test]
fn more_than_granted_ends_the_session() {
    let (mut pair, id) = Pair::opened();
    let full = raw(Kind::Data, Some(Channel::Stdout), id.0, &vec![0; MAX_DATA]);
    for _ in 0..WINDOW as usize / MAX_DATA {
        feed(&mut pair.host, &full).unwrap();
    }
    let one = raw(Kind::Data, Some(Channel::Stdout), id.0, &[0]);
    let overrun = MuxError::Overrun { stream: id.0, channel: Channel::Stdout, sent: 1, granted: 0 };
    assert_eq!(feed(&mut pair.host, &one), Err(overrun));
}

#[test]
fn claims_of_consumption_never_grant_more_than_was_received() {
    let (mut pair, id) = Pair::opened();
    pair.guest.data(id, Channel::Stdout, &[0; 10]);
    pair.deliver_to_host();
    pair.host.consumed(id, Channel::Stdout, usize::MAX);
    pair.host.consumed(id, Channel::Stdout, usize::MAX);
    assert!(pair.deliver_to_guest().is_empty());
}

#[test]
fn a_peer_that_breaks_the_rules_is_told_apart() {
    let guest = || Pair::opened().0.guest;
    let host = || Pair::opened().0.host;
    let request = postcard::to_allocvec(&Request::Stats).unwrap();
    let cases = [
        (host(), raw(Kind::Open, None, 2, &request), MuxError::WrongSide(Kind::Open)),
        (host(), raw(Kind::Reset, None, 1, &[]), MuxError::WrongSide(Kind::Reset)),
        (guest(), raw(Kind::Close, None, 1, &[]), MuxError::WrongSide(Kind::Close)),
        (guest(), raw(Kind::Open, None, 1, &request), MuxError::StreamOrder { got: 1, expected: 2 }),
        (guest(), raw(Kind::Open, None, 9, &request), MuxError::StreamOrder { got: 9, expected: 2 }),
        (guest(), raw(Kind::Open, None, 2, &[0xff; 5]), MuxError::Undecodable(Kind::Open)),
        (guest(), raw(Kind::Message, None, 1, &[0xff; 5]), MuxError::Undecodable(Kind::Message)),
        (guest(), raw(Kind::Message, None, 5, &[0]), MuxError::UnknownStream(5)),
        (host(), raw(Kind::Credit, Some(Channel::Stdin), 1, &[1, 0, 0, 0]), MuxError::CreditOverflow(1)),
        (
            guest(),
            [raw(Kind::Eof, Some(Channel::Stdin), 1, &[]), raw(Kind::Data, Some(Channel::Stdin), 1, b"x")]
                .concat(),
            MuxError::AfterEof { stream: 1, channel: Channel::Stdin },
        ),
    ];
    for (mut side, bytes, error) in cases {
        assert_eq!(feed(&mut side, &bytes), Err(error));
    }
}

#[test]
fn frames_for_a_dead_stream_are_dropped() {
    let (mut pair, id) = Pair::opened();
    pair.guest.close(id);
    pair.host.data(id, Channel::Stdin, b"too late");
    pair.host.reset(id);
    assert!(pair.deliver_to_guest().is_empty());
    assert_eq!(pair.deliver_to_host(), [Incoming::Closed(id)]);
}

#[test]
fn a_reset_is_reported_once_and_the_close_confirms_it() {
    let (mut pair, id) = Pair::opened();
    pair.host.reset(id);
    pair.host.reset(id);
    assert_eq!(pair.deliver_to_guest(), [Incoming::Reset(id)]);
    pair.guest.close(id);
    assert_eq!(pair.deliver_to_host(), [Incoming::Closed(id)]);
}

#[test]
fn a_stuck_carrier_bounds_what_waits() {
    let (mut pair, _) = Pair::opened();
    let ids: Vec<_> = (0..20).map(|_| pair.host.open(&Request::Stats).unwrap()).collect();
    pair.deliver_to_guest();
    for id in &ids {
        pair.guest.data(*id, Channel::Stdout, &vec![0; WINDOW as usize]);
    }
    assert!(pair.guest.output().len() <= MAX_OUTPUT + MAX_DATA + frame::HEADER);
    let ping = raw(Kind::Ping, None, 0, &[0; 64]);
    let before = pair.guest.output().len();
    feed(&mut pair.guest, &ping).unwrap();
    assert_eq!(pair.guest.output().len(), before, "pings are not answered into a full queue");
    pair.guest.advance(usize::MAX);
    assert_eq!(pair.guest.sendable(ids[19], Channel::Stdout), WINDOW as usize);
}

#[test]
fn pings_are_answered() {
    let mut pair = Pair::new();
    pair.host.ping(b"are you there");
    assert!(pair.deliver_to_guest().is_empty());
    assert_eq!(pair.deliver_to_host(), [Incoming::Pong(b"are you there".to_vec())]);
}

#[test]
fn too_many_streams_are_refused_on_both_sides() {
    let mut pair = Pair::new();
    for _ in 0..MAX_STREAMS {
        pair.host.open(&Request::Stats).unwrap();
    }
    assert_eq!(pair.host.open(&Request::Stats), Err(SendError::TooManyStreams));
    pair.deliver_to_guest();
    let request = postcard::to_allocvec(&Request::Stats).unwrap();
    let bytes = raw(Kind::Open, None, u32::try_from(MAX_STREAMS).unwrap() + 1, &request);
    assert_eq!(feed(&mut pair.guest, &bytes), Err(MuxError::TooManyStreams));
}

proptest! {
    /// Whatever the sizes and the moments of consumption, each byte arrives once and in order.
    #[test]
    fn bytes_arrive_in_order(pieces in proptest::collection::vec((0usize..200_000, any::<bool>()), 1..40), cut in 1usize..5000) {
        let (mut pair, id) = Pair::opened();
        let mut sent = Vec::new();
        let mut received: Vec<u8> = Vec::new();
        let mut unconsumed = 0;
        for (size, consume) in pieces {
            let bytes: Vec<u8> = (0..size).map(|i| u8::try_from((sent.len() + i) % 251).unwrap()).collect();
            let n = pair.guest.data(id, Channel::Stdout, &bytes);
            sent.extend_from_slice(&bytes[..n]);
            let wire = pair.guest.output().to_vec();
            pair.guest.advance(wire.len());
            for piece in wire.chunks(cut) {
                for incoming in feed(&mut pair.host, piece).unwrap() {
                    if let Incoming::Data(_, _, b) = incoming {
                        unconsumed += b.len();
                        received.extend(b);
                    }
                }
            }
            if consume {
                pair.host.consumed(id, Channel::Stdout, unconsumed);
                unconsumed = 0;
                pair.deliver_to_guest();
            }
        }
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn any_bytes_are_refused_or_understood_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        for role in [Role::Host, Role::Guest] {
            let mut mux = Mux::new(role);
            let _ = feed(&mut mux, &bytes);
        }
    }
}
