//! The pieces that executions, commands and file transfers have in common: reading pipes, writing stdin, and saying things
//! on a stream that may be gone.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use hayfork_protocol::message::{Failure, FailureCode};
use hayfork_protocol::{Channel, Event, Mux, StreamId};
use rustix::io::Errno;

use crate::poller::Watch;
use pace::Pace;

mod pace;

/// Bytes that may wait for the carrier before operations stop adding data. Far below the protocol's own bound, so that a
/// slow host costs little memory.
const MAX_WAITING: usize = 128 * 1024;

/// Size of the buffer that all reading goes through, in bytes.
pub const SCRATCH: usize = 64 * 1024;

/// Whether so much waits for the carrier that operations have to wait too.
pub fn is_full(mux: &Mux) -> bool {
    mux.output().len() >= MAX_WAITING
}

/// One operation's way to the host. Without a session, or when the operation was cancelled, everything goes nowhere.
#[derive(Debug)]
pub struct Outlet<'a> {
    to: Option<(&'a mut Mux, StreamId)>,
}

impl<'a> Outlet<'a> {
    /// An outlet on `stream` of `mux`, if there are both.
    pub fn new(mux: Option<&'a mut Mux>, stream: Option<StreamId>) -> Self {
        Self { to: mux.zip(stream) }
    }

    /// An outlet to nowhere.
    pub fn nowhere() -> Self {
        Self { to: None }
    }

    /// How many bytes [`Outlet::data`] takes now.
    pub fn room(&self, channel: Channel) -> usize {
        match &self.to {
            Some((mux, _)) if is_full(mux) => 0,
            Some((mux, stream)) => mux.sendable(*stream, channel).min(SCRATCH),
            None => SCRATCH,
        }
    }

    /// Whether nothing waits for the carrier, of any operation.
    pub fn is_empty(&self) -> bool {
        self.to.as_ref().is_none_or(|(mux, _)| mux.output().is_empty())
    }

    /// Sends bytes, at most [`Outlet::room`].
    pub fn data(&mut self, channel: Channel, bytes: &[u8]) {
        if let Some((mux, stream)) = &mut self.to {
            let sent = mux.data(*stream, channel, bytes);
            debug_assert_eq!(sent, bytes.len());
        }
    }

    /// Reports an event.
    pub fn event(&mut self, event: &Event) {
        if let Some((mux, stream)) = &mut self.to
            && let Err(error) = mux.event(*stream, event)
        {
            crate::warning!("report on stream {}: {error}", stream.0);
        }
    }

    /// Reports a failure.
    pub fn failed(&mut self, code: FailureCode, message: impl Into<String>) {
        self.event(&Event::Failed(Failure { code, message: message.into() }));
    }

    /// Ends a channel.
    pub fn eof(&mut self, channel: Channel) {
        if let Some((mux, stream)) = &mut self.to {
            mux.eof(*stream, channel);
        }
    }

    /// Reports received bytes as dealt with.
    pub fn consumed(&mut self, channel: Channel, bytes: usize) {
        if let Some((mux, stream)) = &mut self.to {
            mux.consumed(*stream, channel, bytes);
        }
    }

    /// Ends the stream.
    pub fn close(&mut self) {
        if let Some((mux, stream)) = self.to.take() {
            mux.close(stream);
        }
    }
}

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// That many bytes.
    Bytes(usize),
    /// Nothing now; an event will tell.
    Nothing,
    /// No writer has it open, or an error, which comes to the same.
    End,
}

/// The reading end of a pipe, FIFO or socket, with the memory that edge-triggered epoll asks for.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    readable: bool,
    pace: Option<Pace>,
}

impl Source {
    /// Takes a non-blocking descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, readable: true, pace: None }
    }

    /// Takes a non-blocking descriptor that user code prints into: lines that follow each other closely are read together,
    /// see [`pace`].
    pub fn paced(fd: OwnedFd, watch: Watch) -> Self {
        Self { pace: Some(Pace::new(watch)), ..Self::new(fd) }
    }

    /// The descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// An event said that reading may bring something, or it must not wait any longer.
    pub fn wake(&mut self) {
        self.readable = true;
        if let Some(pace) = &mut self.pace {
            pace.hurry();
        }
    }

    /// The host waits for what comes next, so that no pause may hold it up.
    pub fn expect(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.restart(&self.fd);
        }
    }

    /// Reading brought nothing; an event will tell.
    pub fn rest(&mut self) {
        self.readable = false;
        if let Some(pace) = &mut self.pace {
            pace.ran_dry(&self.fd);
        }
    }

    /// Whether reading may bring something without a new event.
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether it is not to be read for a moment.
    pub fn is_paused(&mut self) -> bool {
        let Some(pace) = &mut self.pace else { return false };
        let paused = pace.until().is_some_and(|until| Instant::now() < until);
        if !paused {
            pace.hurry();
        }
        paused
    }

    /// When a pause ends. None is over that [`Source::read`] or [`Source::is_paused`] was called after.
    pub fn deadline(&self) -> Option<Instant> {
        self.pace.as_ref().and_then(Pace::until)
    }

    /// Bytes in the pipe now.
    pub fn waiting(&self) -> usize {
        rustix::io::ioctl_fionread(&self.fd).map_or(0, |n| usize::try_from(n).unwrap_or(0))
    }

    /// Reads what is there, unless it is paused.
    pub fn read(&mut self, buffer: &mut [u8]) -> Got {
        if !self.readable || self.is_paused() {
            return Got::Nothing;
        }
        match rustix::io::read(&self.fd, &mut *buffer) {
            Ok(n @ 1..) => {
                if let Some(pace) = &mut self.pace {
                    pace.brought(&self.fd, n, buffer.len(), Instant::now());
                }
                Got::Bytes(n)
            }
            Err(Errno::INTR) => Got::Nothing,
            Err(Errno::AGAIN) => {
                self.rest();
                Got::Nothing
            }
            Ok(0) | Err(_) => {
                self.rest();
                Got::End
            }
        }
    }
}

/// Bytes on their way into a descriptor, in order, and the end behind them.
///
/// What waits here is bounded by the credit of its channel: bytes are reported as consumed only when the kernel took them.
#[derive(Debug)]
pub struct Sink {
    fd: Option<OwnedFd>,
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that are written.
    written: usize,
    end: bool,
    writable: bool,
    /// Nothing may be done with the descriptor yet, not even closing it.
    asleep: bool,
}

impl Sink {
    /// Takes a non-blocking descriptor. An `asleep` one is left alone until the first [`Sink::wake`].
    pub fn new(fd: OwnedFd, asleep: bool) -> Self {
        Self { fd: Some(fd), waiting: VecDeque::new(), written: 0, end: false, writable: true, asleep }
    }

    /// The descriptor, while somebody may read from it.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: Vec<u8>) {
        self.waiting.push_back(bytes);
    }

    /// Nothing follows.
    pub fn finish(&mut self) {
        self.end = true;
    }

    /// An event said that writing may succeed.
    pub fn wake(&mut self) {
        self.writable = true;
        self.asleep = false;
    }

    /// Whether nobody reads any more.
    pub fn is_closed(&self) -> bool {
        self.fd.is_none()
    }

    /// Writes what the kernel takes and returns how many bytes were dealt with. After the last byte, or when nobody reads
    /// any more, the descriptor is closed; bytes for a closed one count as dealt with.
    pub fn pump(&mut self) -> usize {
        let mut dealt_with = 0;
        if self.asleep {
            return 0;
        }
        while let Some(piece) = self.waiting.front() {
            let rest = &piece[self.written..];
            let Some(fd) = &self.fd else {
                dealt_with += rest.len();
                self.next_piece();
                continue;
            };
            if !self.writable {
                return dealt_with;
            }
            match rustix::io::write(fd, rest) {
                Ok(n) => {
                    dealt_with += n;
                    self.written += n;
                    if self.written == piece.len() {
                        self.next_piece();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.writable = false,
                Err(_) => self.fd = None,
            }
        }
        if self.end {
            self.fd = None;
        }
        dealt_with
    }

    fn next_piece(&mut self) {
        self.waiting.pop_front();
        self.written = 0;
    }
}

#[cfg(test)]
mod tests;
