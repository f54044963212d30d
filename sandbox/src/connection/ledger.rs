//! What the guest may still send on one stream.
//!
//! The protocol's mux checks frames and credit; this checks meaning: which events belong to the request, in which order,
//! and how much of each there may be. An answer is a text that says what was wrong; the connection ends with it.

use hayfork_protocol::frame::Channel;
use hayfork_protocol::limits::{MAX_BUNDLE, MAX_BUNDLE_PARTS, MAX_FILE};
use hayfork_protocol::message::{Event, Request};

use super::stream::weight;

/// The weight of a whole listing ([`weight`]), in bytes: about 150,000 entries of 150 bytes.
pub(crate) const MAX_LISTING: usize = 32 * 1024 * 1024;

/// What background work may have printed between two looks at it, per stream, in bytes.
pub(crate) const MAX_IDLE_OUTPUT: u64 = 16 * 1024 * 1024;

/// Longest MIME type, in bytes.
const MAX_MIME: usize = 255;

/// `Omitted` events of one stream: one for each output in the middle, and one at its end.
const MAX_OMITTED: u32 = 4;

#[derive(Debug)]
enum Kind {
    /// `Execute` and `Command`.
    Run {
        language: bool,
        started: bool,
        exception: bool,
    },
    Write,
    Read {
        described: bool,
    },
    List {
        weight: usize,
    },
    Stat,
    Stats,
    Idle,
    /// `Watch`: changes without end once it has begun.
    Watch {
        begun: bool,
    },
    Simple,
}

/// The book of one stream.
#[derive(Debug)]
pub(crate) struct Ledger {
    kind: Kind,
    stdout: u64,
    stderr: u64,
    file: u64,
    /// Bytes that the last bundle still lacks.
    bundle: u64,
    omitted: u32,
    over: bool,
}

/// What an event is for its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// More follows.
    Within,
    /// The code or program runs now; more follows.
    Start,
    /// The last one.
    Last,
}

impl Ledger {
    /// The book for that request.
    pub(crate) fn new(request: &Request) -> Self {
        let mut ledger =
            Self { kind: Kind::Simple, stdout: 0, stderr: 0, file: 0, bundle: 0, omitted: 0, over: false };
        match request {
            Request::Execute(execute) => {
                ledger.kind = Kind::Run { language: true, started: false, exception: false };
                (ledger.stdout, ledger.stderr) = (execute.stdout.bytes, execute.stderr.bytes);
            }
            Request::Command(command) => {
                ledger.kind = Kind::Run { language: false, started: false, exception: false };
                (ledger.stdout, ledger.stderr) = (command.stdout.bytes, command.stderr.bytes);
            }
            Request::WriteFile { .. } => ledger.kind = Kind::Write,
            Request::ReadFile { .. } => {
                ledger.kind = Kind::Read { described: false };
                ledger.file = MAX_FILE;
            }
            Request::List { .. } => ledger.kind = Kind::List { weight: 0 },
            Request::Stat { .. } => ledger.kind = Kind::Stat,
            Request::Stats => ledger.kind = Kind::Stats,
            Request::IdleOutput { .. } => {
                ledger.kind = Kind::Idle;
                (ledger.stdout, ledger.stderr) = (MAX_IDLE_OUTPUT, MAX_IDLE_OUTPUT);
            }
            Request::Watch { .. } => ledger.kind = Kind::Watch { begun: false },
            Request::MakeDir { .. }
            | Request::Remove { .. }
            | Request::Rename { .. }
            | Request::CloseContext { .. }
            | Request::Shutdown
            | Request::Renew(_)
            | Request::SetClock { .. } => {}
        }
        ledger
    }

    /// Enters an event.
    #[allow(clippy::match_same_arms)] // by request, not by result
    pub(crate) fn event(&mut self, event: &Event) -> Result<Place, String> {
        if self.over {
            return Err(format!("{} after the end of an operation", name(event)));
        }
        let unexpected = || Err(format!("{} in answer to a request that has no such event", name(event)));
        let place = match (event, &mut self.kind) {
            (Event::Failed(_), _) => Place::Last,
            (Event::Started { .. }, Kind::Run { started, .. }) => {
                if std::mem::replace(started, true) {
                    return Err("an execution that starts twice".into());
                }
                Place::Start
            }
            (Event::Bundle { parts, .. }, Kind::Run { language: true, .. }) => {
                let bytes: u64 = parts.iter().map(|part| u64::from(part.bytes)).sum();
                if self.bundle > 0 {
                    return Err("a bundle before the last one was complete".into());
                }
                if parts.len() > MAX_BUNDLE_PARTS || parts.iter().any(|part| part.mime.len() > MAX_MIME) {
                    return Err("a bundle with too many parts or too long types".into());
                }
                if bytes > u64::from(MAX_BUNDLE) {
                    return Err(format!("a bundle of {bytes} bytes"));
                }
                self.bundle = bytes;
                Place::Within
            }
            (Event::Exception(_), Kind::Run { language: true, exception, .. }) => {
                if std::mem::replace(exception, true) {
                    return Err("a second exception".into());
                }
                Place::Within
            }
            (Event::Omitted { .. }, Kind::Run { .. } | Kind::Idle) => {
                self.omitted += 1;
                if self.omitted > MAX_OMITTED {
                    return Err("output left out at too many places".into());
                }
                Place::Within
            }
            (Event::Finished(finished), Kind::Run { .. }) => {
                if !(0..=255).contains(&finished.exit_code) {
                    return Err(format!("exit code {}", finished.exit_code));
                }
                Place::Last
            }
            (Event::File(_), Kind::Read { described }) => {
                if std::mem::replace(described, true) {
                    return Err("a second description of a file".into());
                }
                Place::Within
            }
            (Event::File(_), Kind::Stat) | (Event::Stats(_), Kind::Stats) => Place::Last,
            (Event::Entries(_), Kind::List { weight: total }) => {
                *total += weight(event);
                if *total > MAX_LISTING {
                    return Err("a listing without end".into());
                }
                Place::Within
            }
            (Event::Watching, Kind::Watch { begun }) => {
                if std::mem::replace(begun, true) {
                    return Err("a watch that begins twice".into());
                }
                // Credit bounds what waits.
                self.file = u64::MAX;
                Place::Within
            }
            (Event::Done { .. }, Kind::Watch { begun: true }) => Place::Last,
            (
                Event::Done { .. },
                Kind::Write | Kind::Read { .. } | Kind::List { .. } | Kind::Idle | Kind::Simple,
            ) => Place::Last,
            _ => return unexpected(),
        };
        self.over = place == Place::Last;
        Ok(place)
    }

    /// Enters data.
    pub(crate) fn data(&mut self, channel: Channel, bytes: usize) -> Result<(), String> {
        let left = match channel {
            Channel::Stdout => &mut self.stdout,
            Channel::Stderr => &mut self.stderr,
            Channel::File => &mut self.file,
            Channel::Bundle => &mut self.bundle,
            Channel::Stdin => return Err("data on the channel for input".into()),
        };
        if self.over {
            return Err("data after the end of an operation".into());
        }
        match left.checked_sub(bytes as u64) {
            Some(rest) => *left = rest,
            None => {
                return Err(format!("{bytes} bytes on {channel:?} where at most {left} more were asked for"));
            }
        }
        Ok(())
    }

    /// Whether the last event was entered.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

/// An event's name, without its content, which the guest chose.
fn name(event: &Event) -> &'static str {
    match event {
        Event::Started { .. } => "a start",
        Event::Bundle { .. } => "a bundle",
        Event::Exception(_) => "an exception",
        Event::Omitted { .. } => "a gap in the output",
        Event::Finished(_) => "an end of execution",
        Event::File(_) => "a file's description",
        Event::Entries(_) => "a listing",
        Event::Done { .. } => "an end of operation",
        Event::Stats(_) => "figures",
        Event::Failed(_) => "a failure",
        Event::Watching => "the begin of a watch",
    }
}
