//! Where a guest's terminal output goes.
//!
//! A guest can print as fast as it likes and for ever; so a sink takes bytes at once or drops them, and what
//! it keeps is bounded. [`Tail`] is such a sink: it keeps the last bytes, for the report on a guest that
//! died.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Takes what a guest prints, through its console or its serial port.
///
/// Any `FnMut(&[u8])` is one.
pub trait ConsoleSink: Send {
    /// Takes bytes, or drops them. Must not wait: it is called under a device's lock, on a vCPU's thread
    /// even.
    fn write(&mut self, bytes: &[u8]);
}

impl<F: FnMut(&[u8]) + Send> ConsoleSink for F {
    fn write(&mut self, bytes: &[u8]) {
        self(bytes);
    }
}

/// Drops everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl ConsoleSink for Discard {
    fn write(&mut self, _bytes: &[u8]) {}
}

/// Keeps the last bytes. Clones share them, so that one can be a device's sink and another be read.
#[derive(Debug, Clone)]
pub struct Tail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    limit: usize,
}

impl Tail {
    /// Keeps at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { kept: Arc::default(), limit }
    }

    /// What was kept, oldest first.
    pub fn bytes(&self) -> Vec<u8> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

impl ConsoleSink for Tail {
    fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.limit)..];
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let surplus = (kept.len() + bytes.len()).saturating_sub(self.limit);
        kept.drain(..surplus);
        kept.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::{ConsoleSink, Tail};

    #[test]
    fn a_tail_keeps_the_last_bytes_whatever_the_pieces() {
        for piece in 1..20 {
            let mut tail = Tail::new(10);
            let all: Vec<u8> = (0..100).collect();
            for part in all.chunks(piece) {
                tail.clone().write(part);
                assert!(tail.bytes().len() <= 10);
            }
            assert_eq!(tail.bytes(), all[90..], "{piece}");
            tail.write(&[]);
            assert_eq!(tail.bytes().len(), 10);
        }
    }

    #[test]
    fn a_tail_of_nothing_keeps_nothing() {
        let mut tail = Tail::new(0);
        tail.write(b"abc");
        assert_eq!(tail.bytes(), b"");
    }
}
