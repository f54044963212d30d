//! Output that belongs to no execution: what threads and children of a context print while nothing runs.

use std::collections::VecDeque;

use hayfork_protocol::{Channel, Event};

use crate::io::Outlet;

/// The last bytes of a stream, up to a capacity.
#[derive(Debug)]
pub struct Ring {
    bytes: VecDeque<u8>,
    capacity: usize,
}

impl Ring {
    /// An empty ring that keeps at most `capacity` bytes. Memory is taken as needed.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: VecDeque::new(), capacity }
    }

    /// Adds bytes and returns how many older (or, if more than fit, how many of these) were dropped for them.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let skip = bytes.len().saturating_sub(self.capacity);
        let kept = &bytes[skip..];
        let over = (self.bytes.len() + kept.len()).saturating_sub(self.capacity);
        self.bytes.drain(..over);
        self.bytes.extend(kept);
        skip + over
    }

    /// Takes up to `n` of the oldest bytes.
    pub fn pop(&mut self, n: usize) -> Vec<u8> {
        let n = n.min(self.bytes.len());
        let piece = self.bytes.drain(..n).collect();
        if self.bytes.is_empty() {
            self.bytes = VecDeque::new();
        }
        piece
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Bytes kept of each idle stream of a context.
const KEPT: usize = 64 * 1024;

/// Both idle streams of a context.
#[derive(Debug)]
pub struct IdleOutput {
    streams: [IdleStream; 2],
}

/// One of them.
#[derive(Debug)]
struct IdleStream {
    kept: Ring,
    /// Bytes dropped since the host last took the output.
    dropped: u64,
}

impl Default for IdleOutput {
    fn default() -> Self {
        let stream = || IdleStream { kept: Ring::new(KEPT), dropped: 0 };
        Self { streams: [stream(), stream()] }
    }
}

impl IdleOutput {
    /// Adds what was read from a stream.
    pub fn push(&mut self, stderr: bool, bytes: &[u8]) {
        let stream = self.stream(stderr);
        stream.dropped += stream.kept.push(bytes) as u64;
    }

    fn stream(&mut self, stderr: bool) -> &mut IdleStream {
        &mut self.streams[usize::from(stderr)]
    }

    /// Sends and forgets as much as the host's credit allows, and adds it to `sent`; true when all of it is sent.
    pub fn send(&mut self, outlet: &mut Outlet<'_>, sent: &mut u64) -> bool {
        for (stderr, channel) in [(false, Channel::Stdout), (true, Channel::Stderr)] {
            let stream = self.stream(stderr);
            let dropped = std::mem::take(&mut stream.dropped);
            if dropped > 0 {
                outlet.event(&Event::Omitted { stderr, bytes: dropped });
            }
            while !stream.kept.is_empty() {
                let room = outlet.room(channel);
                if room == 0 {
                    return false;
                }
                let piece = stream.kept.pop(room);
                *sent += piece.len() as u64;
                outlet.data(channel, &piece);
            }
        }
        true
    }

    /// What a driver that failed to start printed on standard error, at most 2,000 bytes.
    pub fn take_last_words(&mut self) -> Vec<u8> {
        self.stream(true).kept.pop(2000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_bytes_and_counts_the_others() {
        let mut ring = Ring::new(5);
        assert_eq!(ring.push(b"abc"), 0);
        assert_eq!(ring.push(b"defg"), 2);
        assert_eq!(ring.pop(2), b"cd");
        assert_eq!(ring.push(b"0123456789"), 3 + 5);
        assert_eq!(ring.pop(100), b"56789");
        assert!(ring.is_empty());
        assert_eq!(ring.push(b""), 0);
    }
}
