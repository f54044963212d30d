//! Changes in a watched folder, as they travel on the `File` channel of a `Watch`.
//!
//! They are data, not messages, so that credit bounds what waits for a host that does not take them: a folder can change
//! faster than anybody looks. Each [`Record`] is encoded with postcard behind its length (two bytes, little-endian); a data
//! frame may end anywhere.

use serde::{Deserialize, Serialize};

use crate::limits::MAX_PATH;

/// Longest path in a record, in bytes: a path of the kernel whose every byte was replaced because it is not UTF-8.
pub const MAX_CHANGE_PATH: usize = 3 * MAX_PATH;

/// Longest encoded record with its length, in bytes: two paths and what is around them.
pub const MAX_RECORD: usize = 2 * MAX_CHANGE_PATH + 16;

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChangeKind {
    /// It appeared: it was made, linked, or moved in from elsewhere.
    Created,
    /// Its content changed.
    Written,
    /// It is gone: removed, or moved elsewhere.
    Removed,
    /// It has another name within what is watched. Without a new name it is the watched folder itself, which is no longer
    /// where it was.
    Renamed,
    /// Its permissions, owner or times changed.
    Attributes,
    /// Changes were lost here, since there were more than anybody took, or more folders than can be watched.
    Overflow,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// Relative to the watched folder; empty for that itself, and for an overflow. What is not UTF-8 in it is replaced.
    pub path: String,
    /// The new path of something renamed.
    pub to: Option<String>,
    /// Whether it is a folder.
    pub directory: bool,
}

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A change.
    Change(Change),
    /// The answer to a [`crate::Control::Flush`]: whatever happened before it was asked for stands before this.
    Flushed,
}

/// Why bytes are no records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A length that no record has.
    #[error("a change of {0} bytes")]
    Length(usize),
    /// The content does not decode.
    #[error("a change that does not decode")]
    Undecodable,
}

/// Appends a record to `out`.
///
/// # Errors
/// [`RecordError::Length`] if its paths are too long; nothing is appended then.
pub fn encode(record: &Record, out: &mut Vec<u8>) -> Result<(), RecordError> {
    let content = postcard::to_allocvec(record).map_err(|_| RecordError::Undecodable)?;
    let length = u16::try_from(content.len()).map_err(|_| RecordError::Length(content.len()))?;
    if content.len() + 2 > MAX_RECORD {
        return Err(RecordError::Length(content.len()));
    }
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&content);
    Ok(())
}

/// Takes records out of bytes that are cut anywhere.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// How much of the buffer is taken.
    taken: usize,
}

impl Decoder {
    /// Adds bytes. Call [`Decoder::next`] until it gives none before adding more, so that no more than these and a part of
    /// one record wait.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole record.
    ///
    /// # Errors
    /// [`RecordError`]; nothing that follows makes sense then.
    #[allow(clippy::should_implement_trait)] // it can fail
    pub fn next(&mut self) -> Result<Option<Record>, RecordError> {
        let rest = &self.buffer[self.taken..];
        let Some((length, content)) = rest.split_first_chunk::<2>() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*length));
        if length == 0 || length + 2 > MAX_RECORD {
            return Err(RecordError::Length(length));
        }
        let Some(content) = content.get(..length) else { return Ok(None) };
        let Ok((record, [])) = postcard::take_from_bytes(content) else {
            return Err(RecordError::Undecodable);
        };
        self.taken += 2 + length;
        Ok(Some(record))
    }

    /// Whether a part of a record waits.
    pub fn is_empty(&self) -> bool {
        self.taken == self.buffer.len()
    }
}

#[cfg(test)]
mod tests;
