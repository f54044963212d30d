//! Tests of snapshot files without machines; those with machines are in `sandbox/tests/machines/`.

mod corruption;
mod crash;
mod round_trip;

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use super::*;

/// A memory of that length with bytes at some pages.
fn memory(length: u64, pages: &[(u64, u8)]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(length).unwrap();
    for &(page, byte) in pages {
        file.write_all_at(&[byte; 4096], page * 4096).unwrap();
    }
    file
}

fn identity() -> Identity {
    Identity::new("test").with("kernel", "00ff").with("processor", "a processor")
}

/// One of everything.
struct Sample {
    identity: Identity,
    about: Vec<u8>,
    state: Vec<u8>,
    memory: File,
    length: u64,
    working_set: Vec<Range<u64>>,
}

impl Sample {
    fn new() -> Self {
        let length = 100 * 4096;
        Self {
            identity: identity(),
            about: b"what was saved with it".to_vec(),
            state: (0..1000u32).map(|n| u8::try_from(n % 250).unwrap()).collect(),
            memory: memory(length, &[(0, 1), (1, 2), (3, 3), (50, 4), (98, 5)]),
            length,
            working_set: vec![0x1000..0x3000, 0x10_000..0x11_000],
        }
    }

    fn save(&self, path: &Path) -> Result<(), SnapshotError> {
        let contents = Contents {
            identity: &self.identity,
            about: &self.about,
            kind: StateKind::Qemu,
            state: &self.state,
            memory: Memory {
                length: self.length,
                pieces: vec![
                    (0..self.length / 2, self.memory.as_fd()),
                    (self.length / 2..self.length, self.memory.as_fd()),
                ],
            },
            working_set: &self.working_set,
        };
        write(path, &contents)
    }

    /// A file of one, written once.
    fn bytes() -> &'static [u8] {
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        BYTES.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("sample");
            Self::new().save(&path).unwrap();
            std::fs::read(path).unwrap()
        })
    }
}

/// Reads everything that there is, as a backend would.
fn read_all<S: Source>(file: SnapshotFile<S>) -> Result<(), SnapshotError> {
    let file = file.admit(&identity(), StateKind::Qemu)?;
    file.state()?;
    file.working_set()?;
    file.memory("test")?;
    Ok(())
}
