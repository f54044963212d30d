//! Both sides of the stream multiplexer against any bytes: no panic, and what they hold stays bounded
//! by the credit that was granted.
#![no_main]

use hayfork_protocol::limits::{MAX_STREAMS, WINDOW};
use hayfork_protocol::{Channel, Incoming, Mux, Request, Role};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, u8, bool, &[u8])| {
    let (host, streams, consume, bytes) = input;
    let mut mux = Mux::new(if host { Role::Host } else { Role::Guest });
    if host {
        for _ in 0..streams {
            if mux.open(&Request::Stats).is_err() {
                break;
            }
        }
        mux.advance(usize::MAX);
    }
    let mut unconsumed = std::collections::BTreeMap::new();
    let mut rest = bytes;
    while let Ok(Some(incoming)) = mux.receive(&mut rest) {
        if let Incoming::Data(stream, channel, data) = incoming {
            let held = unconsumed.entry((stream, channel)).or_insert(0usize);
            *held += data.len();
            assert!(*held <= WINDOW as usize, "more than one window was let through");
            if consume {
                mux.consumed(stream, channel, std::mem::take(held));
            }
        }
    }
    assert!(mux.streams().count() <= MAX_STREAMS);
    let ids: Vec<_> = mux.streams().collect();
    for id in ids {
        assert!(mux.sendable(id, Channel::Stdin) <= WINDOW as usize);
        mux.data(id, Channel::Stdin, &[0; 100]);
        if host { mux.reset(id) } else { mux.close(id) }
    }
});
