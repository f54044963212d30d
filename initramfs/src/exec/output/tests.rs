use super::*;
use hayfork_protocol::{Incoming, Mux, Request, Role, StreamId};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::OwnedFd;

/// A guest's mux with one open stream, and the host that reads it.
struct Bench {
    host: Mux,
    guest: Mux,
    stream: StreamId,
    write: Option<OwnedFd>,
    output: Output,
    got: Vec<u8>,
    omitted: Vec<u64>,
}

impl Bench {
    fn new(bytes: u64, keep: Keep) -> Self {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let (mut host, mut guest) = (Mux::new(Role::Host), Mux::new(Role::Guest));
        let stream = host.open(&Request::Stats).unwrap();
        let wire = host.output().to_vec();
        guest.receive(&mut &wire[..]).unwrap();
        host.advance(wire.len());
        let output = Output::new(Source::new(read), Channel::Stderr, OutputLimit { bytes, keep });
        Self { host, guest, stream, write: Some(write), output, got: Vec::new(), omitted: Vec::new() }
    }

    /// Writes as user code would, reading in between.
    fn print(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = rustix::io::write(self.write.as_ref().unwrap(), bytes).unwrap_or(0);
            bytes = &bytes[n..];
            self.output.wake();
            self.pump();
        }
    }

    fn pump(&mut self) -> Pumped {
        let mut buffer = vec![0; 4096];
        let pumped =
            self.output.drain(&mut Outlet::new(Some(&mut self.guest), Some(self.stream)), &mut buffer);
        self.carry(true);
        pumped
    }

    fn finish(&mut self) {
        self.write = None;
        self.output.wake();
        while self.pump() == Pumped::Held {}
        while !self.output.finish(&mut Outlet::new(Some(&mut self.guest), Some(self.stream))) {
            self.carry(true);
        }
        self.carry(true);
    }

    fn carry(&mut self, consume: bool) {
        let wire = self.guest.output().to_vec();
        self.guest.advance(wire.len());
        let mut input = &wire[..];
        while let Some(incoming) = self.host.receive(&mut input).unwrap() {
            match incoming {
                Incoming::Data(stream, channel, bytes) => {
                    if consume {
                        self.host.consumed(stream, channel, bytes.len());
                    }
                    self.got.extend(bytes);
                }
                Incoming::Event(_, Event::Omitted { stderr: true, bytes }) => {
                    self.omitted.push(bytes);
                    self.got.extend(b"|");
                }
                other => panic!("{other:?}"),
            }
        }
        let wire = self.host.output().to_vec();
        self.host.advance(wire.len());
        let mut input = &wire[..];
        while self.guest.receive(&mut input).unwrap().is_some() {}
    }
}

fn text(n: usize) -> Vec<u8> {
    (0..n).map(|i| b'a' + u8::try_from(i % 26).unwrap()).collect()
}

#[test]
fn what_fits_arrives_whole() {
    for keep in [Keep::Head, Keep::HeadAndTail] {
        for n in [0, 1, 999, 1000] {
            let mut bench = Bench::new(1000, keep);
            bench.print(&text(n));
            bench.finish();
            assert_eq!(bench.got, text(n), "{keep:?} {n}");
            assert!(bench.omitted.is_empty());
        }
    }
}

#[test]
fn a_head_is_kept_and_the_rest_counted() {
    let mut bench = Bench::new(1000, Keep::Head);
    bench.print(&text(5000));
    assert_eq!(bench.got, text(1000), "the head comes while the code runs");
    bench.finish();
    assert_eq!(bench.omitted, [4000]);
}

#[test]
fn head_and_tail_are_kept_with_the_gap_between_them() {
    let mut bench = Bench::new(1000, Keep::HeadAndTail);
    let all = text(1_000_001);
    bench.print(&all);
    bench.finish();
    assert_eq!(bench.omitted, [999_001]);
    let want = [&all[..500], b"|", &all[1_000_001 - 500..]].concat();
    assert_eq!(bench.got, want);
}

#[test]
fn a_bound_of_zero_keeps_nothing_and_hangs_nobody() {
    for keep in [Keep::Head, Keep::HeadAndTail] {
        let mut bench = Bench::new(0, keep);
        bench.print(&text(300_000));
        bench.finish();
        assert_eq!(bench.omitted, [300_000]);
        assert_eq!(bench.got, b"|");
    }
}

#[test]
fn without_credit_nothing_is_read() {
    let mut bench = Bench::new(u64::MAX, Keep::Head);
    let mut buffer = vec![0; 65536];
    let mut sent = 0;
    loop {
        let n = rustix::io::write(bench.write.as_ref().unwrap(), &text(60_000)).unwrap_or(0);
        sent += n;
        bench.output.wake();
        let pumped =
            bench.output.drain(&mut Outlet::new(Some(&mut bench.guest), Some(bench.stream)), &mut buffer);
        bench.carry(false);
        if n == 0 {
            assert_eq!(pumped, Pumped::Held);
            break;
        }
    }
    // One window with the host, the rest in the pipe: user code waits.
    assert_eq!(bench.got.len(), hayfork_protocol::limits::WINDOW as usize);
    assert!(sent <= bench.got.len() + 70_000, "{sent}");
}

#[test]
fn a_cancelled_stream_is_read_to_nowhere() {
    let mut bench = Bench::new(10, Keep::HeadAndTail);
    rustix::io::write(bench.write.as_ref().unwrap(), &text(5000)).unwrap();
    bench.write = None;
    let mut buffer = vec![0; 4096];
    assert_eq!(bench.output.drain(&mut Outlet::nowhere(), &mut buffer), Pumped::End);
    assert!(bench.output.finish(&mut Outlet::nowhere()));
}
