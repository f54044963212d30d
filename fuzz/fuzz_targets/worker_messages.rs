//! What owners and workers say to each other, in the hands of a worker that a guest has taken over: packets of any bytes, with and
//! without memory; and messages of every kind, damaged.
#![no_main]

use arbitrary::Arbitrary;
use hayfork_vmm::worker::testing;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Input {
    Bytes(Vec<u8>),
    Damaged { which: u8, changes: Vec<(u16, u8)>, cut: Option<u16>, more: Vec<u8> },
    Packet { bytes: Vec<u8>, memory: Option<Vec<u8>>, sealed: bool },
}

fuzz_target!(|input: Input| {
    match input {
        Input::Bytes(bytes) => {
            testing::examine(&bytes);
        }
        Input::Damaged { which, changes, cut, more } => {
            let samples = testing::samples().expect("there is memory");
            let mut bytes = samples[usize::from(which) % samples.len()].clone();
            assert!(testing::examine(&bytes));
            for (at, value) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            if let Some(cut) = cut {
                bytes.truncate(usize::from(cut));
            }
            bytes.extend(more);
            testing::examine(&bytes);
        }
        Input::Packet { bytes, memory, sealed } => {
            if bytes.len() <= 100_000
                && let Ok(message) = testing::receive(&bytes, memory.as_deref(), sealed)
            {
                // Memory that its owner can change still is no message.
                assert!(bytes[0] == 0 || sealed);
                testing::examine(&message);
            }
        }
    }
});
