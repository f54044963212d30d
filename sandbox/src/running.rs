//! A running execution or command, as its caller sees it: a stream of [`RunEvent`]s that ends with
//! [`RunEvent::Finished`] or [`RunEvent::Failed`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hayfork_protocol::frame::Channel;
use hayfork_protocol::message::{BundleKind, Control, Event, Exception, Finished, Part, Status};

use crate::connection::stream::{Item, Link, Stream};
use crate::error::Error;
use crate::process::ThisProcess;
use crate::sandbox::Sandbox;

/// What happens while code or a command runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RunEvent {
    /// It runs now.
    Started {
        /// Process id inside the guest.
        pid: u32,
    },
    /// Bytes of standard output, cut anywhere (see [`text::Utf8Decoder`](crate::text::Utf8Decoder)).
    Stdout(Bytes),
    /// Bytes of standard error, cut anywhere.
    Stderr(Bytes),
    /// A value shown in one or several representations.
    Bundle {
        /// What it is.
        kind: BundleKind,
        /// MIME type and content of each representation.
        parts: Vec<(String, Bytes)>,
    },
    /// The code ended with an uncaught exception.
    Exception(Exception),
    /// At this place, output beyond the limit was left out.
    Omitted {
        /// Whether of standard error, not of standard output.
        stderr: bool,
        /// How much, in bytes.
        bytes: u64,
    },
    /// The end, as the guest reports it. Nothing follows.
    Finished(Outcome),
    /// The end without an outcome. Nothing follows.
    Failed(Error),
}

/// How an execution or command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By itself, by timeout, out of memory or killed.
    pub status: Status,
    /// 0 to 255; 128 + n after signal n.
    pub exit_code: i32,
    /// Whether the context lost its variables, so that the next execution begins in a fresh one.
    pub state_reset: bool,
    /// How long it took.
    pub timings: RunTimings,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimings {
    /// From the call until the guest began with it: waiting for its turn and travelling.
    pub queued: Duration,
    /// Starting an interpreter for it, as the guest measured; zero if one was there.
    pub spawn: Duration,
    /// From the start of the code to its end, as the guest measured.
    pub run: Duration,
    /// From the call until its end was reported here.
    pub total: Duration,
}

/// Everything that an execution or command gave, gathered.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Standard output; where some was left out, the parts before and behind stand side by side.
    pub stdout: Vec<u8>,
    /// Standard error, in the same way.
    pub stderr: Vec<u8>,
    /// Results and displayed values, in order.
    pub bundles: Vec<(BundleKind, Vec<(String, Bytes)>)>,
    /// The uncaught exception that ended the code.
    pub exception: Option<Exception>,
    /// Bytes of standard output left out.
    pub stdout_omitted: u64,
    /// Bytes of standard error left out.
    pub stderr_omitted: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// A running execution or command. Dropping it before its end cancels: the guest kills what it started.
#[derive(Debug)]
pub struct Running {
    stream: Option<Stream>,
    /// What was wrong before anything was sent; told first.
    refused: Option<Error>,
    /// For handles, also after the end.
    link: Option<Arc<ThisProcess<Arc<Link>>>>,
    bundle: Option<PartialBundle>,
    called: Instant,
    started: Option<Duration>,
    /// A sandbox lives while something runs in it.
    _sandbox: Sandbox,
}

/// A bundle whose parts have not all arrived.
#[derive(Debug)]
struct PartialBundle {
    kind: BundleKind,
    parts: VecDeque<Part>,
    /// Parts that are complete.
    done: Vec<(String, Bytes)>,
    /// The beginning of the next one.
    current: BytesMut,
}

impl PartialBundle {
    fn new(kind: BundleKind, parts: Vec<Part>) -> Self {
        Self { kind, parts: parts.into(), done: Vec::new(), current: BytesMut::new() }
    }

    /// Takes bytes of the parts. Allocates only for what has arrived: the announced sizes are the guest's.
    fn push(&mut self, mut bytes: Bytes) {
        while let Some(part) = self.parts.front() {
            let missing = part.bytes as usize - self.current.len();
            let piece = bytes.split_to(missing.min(bytes.len()));
            if self.current.is_empty() && piece.len() == missing {
                self.finish_part(piece);
            } else {
                self.current.extend_from_slice(&piece);
                if piece.len() < missing {
                    return;
                }
                let whole = self.current.split().freeze();
                self.finish_part(whole);
            }
        }
    }

    fn finish_part(&mut self, content: Bytes) {
        if let Some(part) = self.parts.pop_front() {
            self.done.push((part.mime, content));
        }
    }

    fn is_whole(&self) -> bool {
        self.parts.is_empty()
    }
}

impl Running {
    pub(crate) fn new(stream: Result<Stream, Error>, sandbox: Sandbox) -> Self {
        let (stream, refused) = match stream {
            Ok(stream) => (Some(stream), None),
            Err(error) => (None, Some(error)),
        };
        let link = stream.as_ref().map(|stream| Arc::new(ThisProcess::new(Arc::clone(stream.link()))));
        Self { stream, refused, link, bundle: None, called: Instant::now(), started: None, _sandbox: sandbox }
    }

    /// Waits for the next event; `None` after `Finished` or `Failed`. While nobody calls this, the program is stopped
    /// by back-pressure when it has printed some hundred kilobytes, and nothing else in the sandbox is. Dropping the
    /// future loses nothing.
    pub async fn next(&mut self) -> Option<RunEvent> {
        if let Some(error) = self.refused.take() {
            return Some(RunEvent::Failed(error));
        }
        loop {
            let item = match self.stream.as_mut()?.next().await {
                Ok(item) => item,
                Err(error) => return Some(self.end(RunEvent::Failed(error))),
            };
            let event = match item {
                Item::Data(Channel::Stdout, bytes) => RunEvent::Stdout(bytes),
                Item::Data(Channel::Stderr, bytes) => RunEvent::Stderr(bytes),
                Item::Data(_, bytes) => {
                    if let Some(bundle) = &mut self.bundle {
                        bundle.push(bytes);
                    }
                    match self.whole_bundle() {
                        Some(event) => event,
                        None => continue,
                    }
                }
                Item::Event(Event::Bundle { kind, parts }) => {
                    let mut bundle = PartialBundle::new(kind, parts);
                    bundle.push(Bytes::new()); // parts without content are complete
                    self.bundle = Some(bundle);
                    match self.whole_bundle() {
                        Some(event) => event,
                        None => continue,
                    }
                }
                Item::Event(Event::Started { pid }) => {
                    self.started = Some(self.called.elapsed());
                    RunEvent::Started { pid }
                }
                Item::Event(Event::Exception(exception)) => RunEvent::Exception(exception),
                Item::Event(Event::Omitted { stderr, bytes }) => RunEvent::Omitted { stderr, bytes },
                Item::Event(Event::Finished(finished)) => {
                    let outcome = self.outcome(&finished);
                    self.end(RunEvent::Finished(outcome))
                }
                Item::Event(Event::Failed(failure)) => self.end(RunEvent::Failed(failure.into())),
                Item::Eof => continue,
                // The ledger lets no other event through, and the close comes after the end.
                Item::Event(_) | Item::Closed => self.end(RunEvent::Failed(Error::Cancelled)),
            };
            return Some(event);
        }
    }

    fn whole_bundle(&mut self) -> Option<RunEvent> {
        let bundle = self.bundle.take_if(|bundle| bundle.is_whole())?;
        Some(RunEvent::Bundle { kind: bundle.kind, parts: bundle.done })
    }

    fn end(&mut self, event: RunEvent) -> RunEvent {
        if let Some(mut stream) = self.stream.take() {
            stream.ended();
        }
        event
    }

    fn outcome(&self, finished: &Finished) -> Outcome {
        let total = self.called.elapsed();
        // The guest's figures are its own word: no part is longer than the whole.
        let spawn = Duration::from_micros(finished.spawn_us).min(total);
        let run = Duration::from_micros(finished.run_us).min(total);
        Outcome {
            status: finished.status,
            exit_code: finished.exit_code,
            state_reset: finished.state_reset,
            timings: RunTimings {
                queued: self.started.unwrap_or(total).saturating_sub(spawn),
                spawn,
                run,
                total,
            },
        }
    }

    /// A handle for interrupt, kill, signals and standard input.
    pub fn handle(&self) -> RunHandle {
        RunHandle { link: self.link.clone() }
    }

    /// Gathers everything until the end. Dropping the future cancels.
    ///
    /// # Errors
    /// What [`RunEvent::Failed`] would say; what was printed before is lost.
    pub async fn collect(mut self) -> Result<Execution, Error> {
        let (mut stdout, mut stderr, mut bundles, mut exception) = (Vec::new(), Vec::new(), Vec::new(), None);
        let (mut stdout_omitted, mut stderr_omitted) = (0_u64, 0_u64);
        while let Some(event) = self.next().await {
            match event {
                RunEvent::Started { .. } => {}
                RunEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                RunEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                RunEvent::Bundle { kind, parts } => bundles.push((kind, parts)),
                RunEvent::Exception(it) => exception = Some(it),
                RunEvent::Omitted { stderr: false, bytes } => {
                    stdout_omitted = stdout_omitted.saturating_add(bytes);
                }
                RunEvent::Omitted { stderr: true, bytes } => {
                    stderr_omitted = stderr_omitted.saturating_add(bytes);
                }
                RunEvent::Failed(error) => return Err(error),
                RunEvent::Finished(outcome) => {
                    return Ok(Execution {
                        stdout,
                        stderr,
                        bundles,
                        exception,
                        stdout_omitted,
                        stderr_omitted,
                        outcome,
                    });
                }
            }
        }
        // Somebody took the last event before.
        Err(Error::Cancelled)
    }
}

/// Steers a [`Running`] from elsewhere. Does not keep it alive; after its end, or if it never began, nothing happens.
#[derive(Clone, Debug)]
pub struct RunHandle {
    link: Option<Arc<ThisProcess<Arc<Link>>>>,
}

impl RunHandle {
    fn link(&self) -> Option<&Arc<Link>> {
        self.link.as_ref()?.get().ok()
    }

    /// As Ctrl-C: the code may catch it, and its state survives.
    pub fn interrupt(&self) {
        self.control(Control::Interrupt);
    }

    /// Ends it and everything that it started, at once; it finishes with status `Killed`.
    pub fn kill(&self) {
        self.control(Control::Kill);
    }

    /// Sends a signal to the process group.
    pub fn signal(&self, number: i32) {
        self.control(Control::Signal(number));
    }

    fn control(&self, control: Control) {
        if let Some(link) = self.link() {
            link.control(control);
        }
    }

    /// Writes to standard input; waits while the program does not read. Bytes of one call stay in order; those of
    /// concurrent calls may come between them.
    ///
    /// # Errors
    /// [`Error::StdinClosed`] if no stdin stream was asked for, after its end, or after the program's.
    pub async fn write_stdin(&self, bytes: Bytes) -> Result<(), Error> {
        let Some(link) = &self.link else { return Err(Error::StdinClosed("the program was never started")) };
        link.get()?.send(bytes).await
    }

    /// Ends standard input, after what was written before.
    pub fn close_stdin(&self) {
        if let Some(link) = self.link() {
            link.finish_sending();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(mime: &str, bytes: u32) -> Part {
        Part { mime: mime.into(), bytes }
    }

    #[test]
    fn a_bundle_is_put_together_from_pieces_of_any_size() {
        let content = b"one, two, three";
        for size in 1..=content.len() {
            let parts =
                vec![part("empty", 0), part("a", 3), part("also empty", 0), part("b", 12), part("end", 0)];
            let mut bundle = PartialBundle::new(BundleKind::Display, parts);
            bundle.push(Bytes::new());
            for piece in content.chunks(size) {
                assert!(!bundle.is_whole());
                bundle.push(Bytes::copy_from_slice(piece));
            }
            assert!(bundle.is_whole());
            let got: Vec<(&str, &[u8])> =
                bundle.done.iter().map(|(mime, b)| (mime.as_str(), &b[..])).collect();
            let expected: [(&str, &[u8]); 5] =
                [("empty", b""), ("a", b"one"), ("also empty", b""), ("b", b", two, three"), ("end", b"")];
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_bundle_without_parts_is_whole_at_once() {
        let mut bundle = PartialBundle::new(BundleKind::Result, vec![]);
        bundle.push(Bytes::new());
        assert!(bundle.is_whole());
    }
}
