//! The conversation with the host: handshake, frames, and starting over.
//!
//! ```text
//!            host's preamble               host gone, new host, or a frame that is none
//!  Searching ───────────────► Talking(Mux) ───────────────────────────────────────────► Searching
//! ```
//! [`Session::next`] hands out one event at a time, so that what belongs to an old session is dealt with before anything of
//! a new one is even decoded. A preamble that arrives while talking is no frame, so it ends the session; the search then
//! begins with the bytes of that header, and the new session starts without a retry by the host.
//!
//! A retry that crosses with the answer looks like this from here: preamble, answer, zeros that end the session, the same
//! preamble again. The session then begins anew, but is not answered a second time.

use std::time::Instant;

use hayfork_protocol::frame::HEADER;
use hayfork_protocol::handshake::{GuestPreamble, MAGIC, choose_version};
use hayfork_protocol::{GuestHello, HostHello, Incoming, Mux, Role};

use crate::carrier::{Carrier, Input, Presence};
use crate::error::Result;
use crate::io::is_full;
use crate::poller::{Poller, Ready};

/// Bytes read from the carrier at a time.
const CHUNK: usize = 64 * 1024;

/// What the host did.
#[derive(Debug)]
pub enum SessionEvent {
    /// A handshake succeeded; all streams begin anew.
    Began(HostHello),
    /// The session is over and nothing can be said on its streams any more.
    Ended,
    /// Something on the session's streams.
    Incoming(Incoming),
}

#[derive(Debug)]
enum Phase {
    Searching(GuestPreamble),
    Talking(Mux),
}

/// The agent's end of the conversation.
#[derive(Debug)]
pub struct Session {
    carrier: Carrier,
    phase: Phase,
    inbox: Vec<u8>,
    /// The part of `inbox` that is not decoded yet.
    unread: std::ops::Range<usize>,
    readable: bool,
    /// The carrier said that its stream ends, or may.
    ending: bool,
    writable: bool,
    /// A handshake's answer that the carrier has not taken yet; comes before the mux's output.
    answer: Vec<u8>,
    /// Nonce of the last handshake whose answer the carrier took whole.
    answered: Option<[u8; 16]>,
    /// Nonce of the handshake that `answer` belongs to.
    nonce: [u8; 16],
    /// What the mux has said so far, in bytes, can wait for what it says next until then.
    held: Option<(usize, Instant)>,
    /// The carrier reported a change that has to be told first.
    ended: bool,
    present: bool,
}

impl Session {
    /// A conversation that waits for a host.
    pub fn new(carrier: Carrier) -> Self {
        Self {
            carrier,
            phase: Phase::Searching(GuestPreamble::new()),
            inbox: vec![0; CHUNK],
            unread: 0..0,
            readable: true,
            ending: false,
            writable: true,
            answer: Vec::new(),
            answered: None,
            nonce: [0; 16],
            held: None,
            ended: false,
            present: false,
        }
    }

    /// The streams, while there is a session.
    pub fn mux(&mut self) -> Option<&mut Mux> {
        match &mut self.phase {
            Phase::Talking(mux) => Some(mux),
            Phase::Searching(_) => None,
        }
    }

    /// Whether a host holds the other end, as far as the carrier knows.
    pub fn host_present(&self) -> bool {
        self.present
    }

    /// Takes note of an event on the carrier's descriptors.
    ///
    /// # Errors
    /// The carrier failed for good.
    pub fn ready(&mut self, ready: Ready, poller: &Poller) -> Result<()> {
        self.readable |= ready.readable;
        self.ending |= ready.ending;
        self.writable |= ready.writable;
        let presence = self.carrier.ready(ready, poller)?;
        self.heed(presence);
        Ok(())
    }

    /// When [`Session::on_time`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let held = self.held.filter(|_| self.answer.is_empty()).map(|(_, until)| until);
        [self.carrier.deadline(), held].into_iter().flatten().min()
    }

    /// What was said so far is sent with what is said next, but no later than `until`: each message wakes the host, and its
    /// acknowledgement the guest.
    pub fn hold(&mut self, until: Instant) {
        if let (Phase::Talking(mux), None) = (&self.phase, self.held) {
            self.held = Some((mux.output().len(), until));
        }
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Instant) {
        let presence = self.carrier.on_time(now);
        self.heed(presence);
    }

    fn heed(&mut self, presence: Presence) {
        match presence {
            Presence::Unchanged => {}
            Presence::Gone => {
                self.present = false;
                self.end();
                self.answer.clear();
            }
            Presence::Replaced => {
                self.present = true;
                self.readable = true;
                self.ending = false;
                self.writable = true;
                self.end();
                self.answer.clear();
            }
        }
    }

    /// Drops everything of the current session. An answer that waits for the carrier stays: the host that it is for may only
    /// have repeated itself.
    fn end(&mut self) {
        self.ended |= matches!(self.phase, Phase::Talking(_));
        self.phase = Phase::Searching(GuestPreamble::new());
        self.unread = 0..0;
        self.held = None;
    }

    /// The next thing that the host did, or `None` when nothing more is there or `budget` bytes were read.
    pub fn next(&mut self, budget: &mut usize) -> Option<SessionEvent> {
        loop {
            if std::mem::take(&mut self.ended) {
                return Some(SessionEvent::Ended);
            }
            if self.unread.is_empty() && !self.refill(budget) {
                // The end of the stream may just have been found.
                if self.ended {
                    continue;
                }
                return None;
            }
            let start = self.unread.start;
            let mut input = &self.inbox[self.unread.clone()];
            let event = match &mut self.phase {
                Phase::Searching(preamble) => preamble.receive(&mut input).map(Err),
                Phase::Talking(mux) => match mux.receive(&mut input) {
                    Ok(incoming) => incoming.map(Ok),
                    Err(error) => {
                        let rest = self.unread.end - input.len();
                        let again = rest.saturating_sub(HEADER).max(start)..self.unread.end;
                        if !self.inbox[again.clone()].starts_with(&MAGIC) {
                            crate::warning!("the host broke the protocol: {error}");
                        }
                        self.end();
                        self.unread = again;
                        continue;
                    }
                },
            };
            self.unread.start = self.unread.end - input.len();
            match event {
                Some(Ok(incoming)) => return Some(SessionEvent::Incoming(incoming)),
                Some(Err((nonce, hello))) => {
                    self.present = true;
                    let answer = guest_hello(&hello);
                    // A host that repeated its preamble because the answer took long gets one answer, not two: the second would
                    // be no frame to it.
                    let said =
                        self.answered == Some(nonce) || (self.nonce == nonce && !self.answer.is_empty());
                    if !said {
                        self.answer = GuestPreamble::answer(&nonce, &answer);
                        self.nonce = nonce;
                    }
                    let agreed = answer.version != 0;
                    if agreed {
                        self.phase = Phase::Talking(Mux::new(Role::Guest));
                        // Before anything that follows is even looked at: it may be a repetition that ends this session.
                        self.flush();
                        return Some(SessionEvent::Began(hello));
                    }
                    crate::warning!(
                        "the host speaks versions {} to {}, none of ours",
                        hello.min_version,
                        hello.version
                    );
                }
                None => {}
            }
        }
    }

    /// Reads from the carrier; false if nothing came.
    fn refill(&mut self, budget: &mut usize) -> bool {
        if !self.readable || *budget == 0 {
            return false;
        }
        let want = CHUNK.min(*budget);
        match self.carrier.read(&mut self.inbox[..want]) {
            Input::Bytes(n) => {
                *budget -= n;
                self.unread = 0..n;
                // What comes from here on is told of by an event. The end may have been, together with these bytes.
                let emptied = n < want && self.carrier.is_emptied_by_short_reads();
                self.readable = !emptied || self.ending;
                true
            }
            Input::Nothing => {
                self.readable = false;
                false
            }
            Input::Closed => {
                self.readable = false;
                if self.carrier.ends_with_host() {
                    self.present = false;
                    self.carrier.hang_up();
                    self.end();
                    self.answer.clear();
                }
                false
            }
        }
    }

    /// Whether [`Session::next`] may have more without a new event.
    pub fn may_have_more(&self) -> bool {
        self.readable || self.ended || !self.unread.is_empty()
    }

    /// Gives the carrier what it takes. True if that made room for operations that found none.
    pub fn flush(&mut self) -> bool {
        while self.writable && !self.answer.is_empty() {
            match self.carrier.write(&self.answer) {
                Some(n) => {
                    self.answer.drain(..n);
                    if self.answer.is_empty() {
                        self.answered = Some(self.nonce);
                    }
                }
                None => self.writable = false,
            }
        }
        if !self.answer.is_empty() {
            return false;
        }
        let Phase::Talking(mux) = &mut self.phase else { return false };
        if self.held.is_some_and(|(said, until)| mux.output().len() == said && Instant::now() < until) {
            return false;
        }
        self.held = None;
        let was_full = is_full(mux);
        while self.writable && !mux.output().is_empty() {
            match self.carrier.write(mux.output()) {
                Some(n) => mux.advance(n),
                None => self.writable = false,
            }
        }
        was_full && !is_full(mux)
    }

    /// Whether everything said so far is with the carrier.
    pub fn is_flushed(&self) -> bool {
        let waiting = match &self.phase {
            Phase::Talking(mux) => mux.output().len(),
            Phase::Searching(_) => 0,
        };
        waiting == 0 && self.answer.is_empty()
    }
}

fn guest_hello(host: &HostHello) -> GuestHello {
    GuestHello {
        version: choose_version(host),
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ns: crate::clock::uptime_ns(),
        languages: crate::languages::available().iter().map(|l| l.name().to_owned()).collect(),
        memory_bytes: crate::boot::budget::Budget::of_this_machine().map_or(0, |budget| budget.total),
    }
}
