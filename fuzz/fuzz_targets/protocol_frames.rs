//! The frame decoder against any bytes in any pieces: cutting must not change what is decoded, and
//! what is decoded must encode to the same bytes again.
#![no_main]

use hayfork_protocol::frame::{self, Decoder, Frame, FrameError};
use libfuzzer_sys::fuzz_target;

fn decode(bytes: &[u8], step: usize) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for mut piece in bytes.chunks(step) {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let whole = decode(bytes, bytes.len().max(1));
    assert_eq!(whole, decode(bytes, usize::from(step).max(1)));
    let mut encoded = Vec::new();
    for frame in &whole.0 {
        frame::encode(&mut encoded, frame.kind, frame.channel, frame.stream, &frame.payload);
    }
    assert!(bytes.starts_with(&encoded));
});
