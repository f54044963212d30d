//! One output stream of an execution or command: read as it comes, bounded as the host asked.
//!
//! ```text
//!  pipe ──► head: to the host at once, as its credit allows (no credit: nothing is read, user code waits)
//!       └─► once the head is spent: Keep::Head drops the rest, Keep::HeadAndTail keeps the last bytes in a ring
//!  at the end: Omitted{bytes} if anything was left out, then the ring
//! ```
//! Reading never stops for good before the end: user code that prints too much must not hang.

use std::time::Instant;

use hayfork_protocol::message::{Keep, OutputLimit};
use hayfork_protocol::{Channel, Event};

use super::idle::Ring;
use crate::io::{Got, Outlet, Source};

/// Longest tail, in bytes. A larger bound gives the difference to the head, so that the host still gets as many bytes as it
/// asked for while the agent stays small.
const MAX_TAIL: u64 = 1024 * 1024;

/// Applies an [`OutputLimit`].
#[derive(Debug)]
pub struct Limiter {
    head_left: u64,
    tail: Option<Ring>,
    dropped: u64,
    told: bool,
}

impl Limiter {
    /// A fresh bound.
    pub fn new(limit: OutputLimit) -> Self {
        let tail = match limit.keep {
            Keep::Head => 0,
            Keep::HeadAndTail => (limit.bytes / 2).min(MAX_TAIL),
        };
        let capacity = usize::try_from(tail).unwrap_or(0);
        Self {
            head_left: limit.bytes - tail,
            tail: (capacity > 0).then(|| Ring::new(capacity)),
            dropped: 0,
            told: false,
        }
    }

    /// How much to read at most, given the host's credit and the buffer's size.
    fn allowance(&self, room: usize, buffer: usize) -> usize {
        if self.head_left == 0 {
            return buffer;
        }
        buffer.min(room).min(usize::try_from(self.head_left).unwrap_or(usize::MAX))
    }

    /// Deals with bytes that were read under [`Limiter::allowance`].
    fn take(&mut self, bytes: &[u8], channel: Channel, outlet: &mut Outlet<'_>) {
        if self.head_left > 0 {
            self.head_left -= bytes.len() as u64;
            outlet.data(channel, bytes);
        } else if let Some(tail) = &mut self.tail {
            self.dropped += tail.push(bytes) as u64;
        } else {
            self.dropped += bytes.len() as u64;
        }
    }

    /// Sends what was held back; true when all of it is sent.
    fn finish(&mut self, channel: Channel, outlet: &mut Outlet<'_>) -> bool {
        if self.dropped > 0 && !self.told {
            self.told = true;
            outlet.event(&Event::Omitted { stderr: channel == Channel::Stderr, bytes: self.dropped });
        }
        let Some(tail) = &mut self.tail else { return true };
        while !tail.is_empty() {
            let room = outlet.room(channel);
            if room == 0 {
                return false;
            }
            let piece = tail.pop(room);
            outlet.data(channel, &piece);
        }
        true
    }
}

/// One stream: its pipe and its bound.
#[derive(Debug)]
pub struct Output {
    source: Source,
    channel: Channel,
    limiter: Limiter,
    /// Bytes that still count, once the end is known.
    left: Option<usize>,
}

/// How far [`Output::pump`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    /// The pipe is empty for now.
    Empty,
    /// The pipe is empty and no writer has it open.
    End,
    /// Credit, or a place in the queue, is missing.
    Held,
    /// There is more to read; it is somebody else's turn.
    More,
}

impl Output {
    /// A stream that reads `source` and says it on `channel`.
    pub fn new(source: Source, channel: Channel, limit: OutputLimit) -> Self {
        Self { source, channel, limiter: Limiter::new(limit), left: None }
    }

    /// An event said that there is something to read.
    pub fn wake(&mut self) {
        self.source.wake();
    }

    /// The host said something, and may wait for an answer.
    pub fn expect(&mut self) {
        self.source.expect();
    }

    /// When there is something to do without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.source.deadline()
    }

    /// Reads at most one buffer.
    pub fn pump(&mut self, outlet: &mut Outlet<'_>, buffer: &mut [u8]) -> Pumped {
        match self.left {
            Some(0) => return Pumped::Empty,
            Some(_) => self.source.wake(), // the end waits for nothing
            None if self.source.is_paused() => return Pumped::Empty,
            None => {}
        }
        let allowance = self.limiter.allowance(outlet.room(self.channel), buffer.len());
        let allowance = allowance.min(self.left.unwrap_or(usize::MAX));
        if allowance == 0 {
            return if self.source.is_readable() { Pumped::Held } else { Pumped::Empty };
        }
        match self.source.read(&mut buffer[..allowance]) {
            Got::Bytes(n) => {
                self.limiter.take(&buffer[..n], self.channel, outlet);
                self.left = self.left.map(|left| left.saturating_sub(n));
                Pumped::More
            }
            Got::Nothing => Pumped::Empty,
            Got::End => Pumped::End,
        }
    }

    /// The code has ended: what is in the pipe now still counts, what background work adds later does not. Without this
    /// line, work that prints without pause would keep its execution from ending.
    pub fn end(&mut self) {
        self.source.wake();
        self.left = Some(self.source.waiting());
    }

    /// Reads until the pipe is empty: `Empty` and `End` mean that it is, `Held` that the host must take some first.
    pub fn drain(&mut self, outlet: &mut Outlet<'_>, buffer: &mut [u8]) -> Pumped {
        loop {
            match self.pump(outlet, buffer) {
                Pumped::More => {}
                other => return other,
            }
        }
    }

    /// After the last byte was read: sends what was held back; true when all of it is sent.
    pub fn finish(&mut self, outlet: &mut Outlet<'_>) -> bool {
        self.limiter.finish(self.channel, outlet)
    }

    /// The pipe, for what comes after the end.
    pub fn into_source(self) -> Source {
        self.source
    }
}

#[cfg(test)]
mod tests;
