//! How often a pipe is read that user code prints into.
//!
//! Each line of most programs is a write of its own. An agent that wakes up for every one of them takes the CPU from the
//! program each time, and sends a frame for each, which costs several times what the program's own work does; under a
//! translator, milliseconds. So a pipe that brought little twice in a row is left alone for a moment, with nothing to wake the
//! agent, while lines gather in it:
//!
//! ```text
//!               little, soon after the last                 moment over, more came
//!  listening ───────────────────────────────► resting ◄───────────────────────────┐
//!      ▲        (the event loop is told            │ moment over: read            │
//!      │         not to wake for it)               ▼                              │
//!      └────────────────────────────────────── nothing there      something there ┘
//! ```
//! The first output after a silence goes out at once, and none waits longer than [`LONGEST`]. The end of an execution waits for
//! nothing, since it reads what is in the pipes. Programs that print much are not held up: a moment in which much gathered
//! is followed by a shorter one, and a read that filled its buffer by none. Input from the host counts as a silence, so that a
//! program that answers each line of it is heard at once.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::poller::Watch;

/// The longest moment. Nobody sees it, and a program that prints a line every few microseconds gathers hundreds in it.
pub(super) const LONGEST: Duration = Duration::from_millis(8);

/// The shortest moment that is worth a timer.
const SHORTEST: Duration = Duration::from_micros(100);

/// A read of at least that many bytes was worth waking up for: a quarter of what a pipe holds.
const MUCH: usize = 16 * 1024;

/// Reads that lie no further apart belong to one burst. Longer than a moment, since a busy machine is late.
const BURST: Duration = Duration::from_millis(32);

/// When to read next.
#[derive(Debug)]
pub(super) struct Pace {
    watch: Watch,
    /// Length of the last moment; zero if the last read was not followed by one.
    pause: Duration,
    last_read: Option<Instant>,
    until: Option<Instant>,
    /// The event loop does not wake for this descriptor.
    muted: bool,
}

impl Pace {
    /// For a descriptor that the event loop wakes for.
    pub(super) fn new(watch: Watch) -> Self {
        Self { watch, pause: Duration::ZERO, last_read: None, until: None, muted: false }
    }

    /// When it may be read again, if not now.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// It is to be read now, whatever was planned.
    pub(super) fn hurry(&mut self) {
        self.until = None;
    }

    /// A read brought `n` bytes of at most `wanted`.
    pub(super) fn brought(&mut self, fd: impl AsFd, n: usize, wanted: usize, now: Instant) {
        let in_burst = self.last_read.replace(now).is_some_and(|last| now.duration_since(last) <= BURST);
        self.pause = match (n, self.pause) {
            (MUCH.., pause) => pause / 8,
            (_, Duration::ZERO) if in_burst => LONGEST,
            (_, pause) if in_burst => (pause * 2).clamp(SHORTEST, LONGEST),
            _ => Duration::ZERO,
        };
        let emptied = n < wanted;
        if emptied && self.pause >= SHORTEST && (self.muted || self.watch.mute(&fd)) {
            self.muted = true;
            self.until = Some(now + self.pause);
        }
    }

    /// What comes next is the first output after a silence.
    pub(super) fn restart(&mut self, fd: impl AsFd) {
        self.ran_dry(fd);
        self.pause = Duration::ZERO;
        self.last_read = None;
    }

    /// A read brought nothing: from here on an event tells.
    pub(super) fn ran_dry(&mut self, fd: impl AsFd) {
        self.until = None;
        if std::mem::take(&mut self.muted) {
            self.pause = Duration::ZERO;
            self.watch.listen(fd);
        }
    }
}

#[cfg(test)]
mod tests;
