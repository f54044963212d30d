//! Changes of a watched folder from a guest that was taken over: any bytes, cut anywhere. No panic, no more held than one
//! record and what was just pushed, and what decodes encodes to something that decodes to the same.
#![no_main]

use hayfork_protocol::change::{Decoder, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let mut decoder = Decoder::default();
    for piece in bytes.chunks(usize::from(step) + 1) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(record)) => {
                    let mut again = Vec::new();
                    encode(&record, &mut again).expect("what fits one way fits the other");
                    let mut other = Decoder::default();
                    other.push(&again);
                    assert_eq!(other.next(), Ok(Some(record)));
                    assert!(other.is_empty());
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
