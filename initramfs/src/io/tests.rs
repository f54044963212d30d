use super::*;
use rustix::pipe::{PipeFlags, pipe_with};

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap()
}

#[test]
fn a_source_remembers_that_it_is_empty_until_it_is_woken() {
    let (read, write) = pipe();
    let mut source = Source::new(read);
    let mut buffer = [0; 8];
    assert_eq!(source.read(&mut buffer), Got::Nothing);
    assert!(!source.is_readable());
    rustix::io::write(&write, b"abc").unwrap();
    assert_eq!(source.read(&mut buffer), Got::Nothing, "no event yet");
    source.wake();
    assert_eq!(source.read(&mut buffer), Got::Bytes(3));
    drop(write);
    assert_eq!(source.read(&mut buffer), Got::End);
}

#[test]
fn a_sink_writes_everything_in_order_and_then_closes() {
    let (read, write) = pipe();
    let mut sink = Sink::new(write, false);
    let text: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    for piece in text.chunks(30_000) {
        sink.push(piece.to_vec());
    }
    sink.finish();
    let mut got = Vec::new();
    let mut dealt_with = 0;
    let mut buffer = [0; 4096];
    loop {
        dealt_with += sink.pump();
        match rustix::io::read(&read, &mut buffer) {
            Ok(0) => break,
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(errno) => panic!("{errno}"),
        }
        sink.wake();
    }
    assert_eq!(got, text);
    assert_eq!(dealt_with, text.len());
}

#[test]
fn a_sink_drops_what_nobody_reads() {
    let (read, write) = pipe();
    drop(read);
    let mut sink = Sink::new(write, false);
    sink.push(b"lost".to_vec());
    assert_eq!(sink.pump(), 4);
    assert!(sink.is_closed());
    sink.push(b"too".to_vec());
    assert_eq!(sink.pump(), 3);
}

#[test]
fn a_sink_waits_until_it_is_woken() {
    let (_read, write) = pipe();
    let mut sink = Sink::new(write, true);
    sink.push(b"later".to_vec());
    sink.finish();
    assert_eq!(sink.pump(), 0);
    assert!(!sink.is_closed());
    sink.wake();
    assert_eq!(sink.pump(), 5);
    assert!(sink.is_closed());
}

#[test]
fn an_outlet_to_nowhere_takes_everything() {
    let mut outlet = Outlet::nowhere();
    assert_eq!(outlet.room(Channel::Stdout), SCRATCH);
    outlet.data(Channel::Stdout, b"x");
    outlet.event(&Event::Done { bytes: 0 });
    outlet.close();
}
