//! Snapshot files whose digests are right and whose content is anything: what a reader is shown by whoever can compute a digest.

use super::format::{Header, Kind, SECTIONS, Section};
use super::{HEADER, Identity, StateKind};

/// The sections of a file, as bytes.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)] // As in the description of the format.
pub struct Parts {
    pub memory: Vec<u8>,
    pub identity: Vec<u8>,
    pub about: Vec<u8>,
    pub extents: Vec<u8>,
    pub working_set: Vec<u8>,
    pub state: Vec<u8>,
}

impl Parts {
    /// A file of them.
    pub fn forge(&self, kind: StateKind) -> Vec<u8> {
        let kinds =
            [Kind::Memory, Kind::Identity, Kind::About, Kind::Extents, Kind::WorkingSet, Kind::State(kind)];
        let parts =
            [&self.memory, &self.identity, &self.about, &self.extents, &self.working_set, &self.state];
        let mut offset = HEADER;
        let sections: [Section; SECTIONS] = std::array::from_fn(|index| {
            let length = parts[index].len() as u64;
            let digest = *blake3::hash(parts[index]).as_bytes();
            let section = Section { kind: kinds[index], offset, length, digest };
            offset += length;
            section
        });
        let mut file = Header { sections }.to_bytes();
        for part in parts {
            file.extend_from_slice(part);
        }
        file
    }
}

/// An identity as a file has it.
pub fn encode(identity: &Identity) -> Vec<u8> {
    postcard::to_allocvec(identity).unwrap_or_default()
}

/// Numbers as the extents and the working set have them.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
