//! The reader of snapshot files against anything: bytes of no shape, files with damage, and files whose digests are right and
//! whose content is not, down to the monitor's state of a machine. A file that was changed is refused; none is more than an error.
#![no_main]

use std::path::Path;

use arbitrary::Arbitrary;
use hayfork_vmm::monitor::testing as monitor;
use hayfork_vmm::snapshot::testing::{Parts, encode, words};
use hayfork_vmm::snapshot::{Identity, SnapshotFile, StateKind};
use libfuzzer_sys::fuzz_target;

const RAM: u64 = 64 << 10;

#[derive(Debug, Arbitrary)]
enum Input {
    Bytes { bytes: Vec<u8>, header: bool },
    Damage { changes: Vec<(u16, u8)>, cut: Option<u16> },
    Forged(Forged),
}

#[derive(Debug, Arbitrary)]
struct Forged {
    pages: Vec<u8>,
    identity: Option<Vec<u8>>,
    about: Vec<u8>,
    extents: Option<Vec<u32>>,
    raw_extents: Option<Vec<u8>>,
    working_set: Vec<u32>,
    state: State,
}

#[derive(Debug, Arbitrary)]
enum State {
    Bytes(Vec<u8>),
    Changed(Vec<(u16, u8)>),
    Spliced { at: u16, bytes: Vec<u8> },
}

fn identity() -> Identity {
    Identity::new("fuzz").with("kernel", "1")
}

fn sample() -> Parts {
    Parts {
        memory: vec![1; 8192],
        identity: encode(&identity()),
        about: b"about".to_vec(),
        extents: words(&[RAM, 0, 4096, 8192, 12288]),
        working_set: words(&[0, 4096]),
        state: monitor::sample(RAM),
    }
}

/// Whether a backend would take it.
fn read(bytes: &[u8]) -> bool {
    let Ok(file) = SnapshotFile::of(bytes, Path::new("f")) else { return false };
    let Ok(file) = file.admit(&identity(), StateKind::Monitor) else { return false };
    monitor::examine(&file).is_ok()
}

fn change(bytes: &mut [u8], changes: &[(u16, u8)]) {
    for (at, value) in changes {
        let at = usize::from(*at) % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = *value;
        }
    }
}

fn pages(numbers: &[u32]) -> Vec<u8> {
    // Mostly small pages of this memory, some of any kind.
    let word =
        |number: u32| if number < 1 << 24 { u64::from(number % 20) * 4096 } else { u64::from(number) << 20 };
    words(&numbers.iter().map(|number| word(*number)).collect::<Vec<_>>())
}

fuzz_target!(|input: Input| {
    match input {
        Input::Bytes { mut bytes, header } => {
            if header && bytes.len() >= 12 {
                bytes[..12].copy_from_slice(b"HAYSNAP\n\x01\0\0\0");
            }
            assert!(!read(&bytes));
        }
        Input::Damage { changes, cut } => {
            let good = sample().forge(StateKind::Monitor);
            let mut bytes = good.clone();
            change(&mut bytes, &changes);
            bytes.truncate(cut.map_or(bytes.len(), usize::from));
            assert_eq!(read(&bytes), bytes == good);
        }
        Input::Forged(Forged {
            pages: memory,
            identity,
            about,
            extents,
            raw_extents,
            working_set,
            state,
        }) => {
            let good = sample();
            let state = match state {
                State::Bytes(bytes) => bytes,
                State::Changed(changes) => {
                    let mut bytes = good.state.clone();
                    change(&mut bytes, &changes);
                    bytes
                }
                State::Spliced { at, bytes } => {
                    let at = usize::from(at) % good.state.len();
                    [&good.state[..at], &bytes, &good.state[at..]].concat()
                }
            };
            let parts = Parts {
                memory: memory.iter().take(20).flat_map(|byte| [*byte; 4096]).collect(),
                identity: identity.unwrap_or(good.identity),
                about,
                extents: raw_extents.or(extents.map(|extents| pages(&extents))).unwrap_or(good.extents),
                working_set: pages(&working_set),
                state,
            };
            read(&parts.forge(StateKind::Monitor));
        }
    }
});
