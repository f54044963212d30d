//! The loop that owns a sandbox's byte stream.
//!
//! Each round does what can be done at once (mail of callers, data that has credit, writing), then waits for whichever
//! comes first: bytes, room to write, mail, a new request, the machine's exit, a deadline. The task ends with an
//! [`End`], which it tells every caller who waits: those whose operation had reached the guest, and those whose had not.
//! Then it hands the machine to the reaper. If the task itself is dropped, because the engine's runtime ends, its
//! `Drop` does the same.
//!
//! Executions and other operations have queues of their own, and executions leave some of the protocol's streams free,
//! so that files and stdin work however many executions wait. Requests are opened in the order of the calls.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hayfork_protocol::frame::Channel;
use hayfork_protocol::limits::{MAX_OUTPUT, MAX_STREAMS};
use hayfork_protocol::message::{Control, Event, Request};
use hayfork_protocol::mux::{Incoming, Mux, SendError, StreamId};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::ledger::{Ledger, Place};
use super::lifecycle::{End, Lifecycle};
use super::stream::{IdleTimeout, Item, Link, Mailbox, Sent};
use super::watchdog::Patience;
use crate::error::Error;
use crate::reaper::Vm;

/// Requests that may wait in each queue.
pub(crate) const QUEUE: usize = 1024;
/// Streams that executions and commands leave free for everything else.
const RESERVED: usize = 64;
/// Bytes read at once.
const READ: usize = 64 * 1024;
/// Reads in one round, so that callers' mail is seen while the guest sends without pause.
const READS: usize = 16;
/// How long the machine may take to report its exit after the byte stream has ended.
const EXIT_WAIT: Duration = Duration::from_secs(2);

/// A request on its way to the guest.
#[derive(Debug)]
pub(crate) struct New {
    pub(crate) request: Request,
    pub(crate) link: Arc<Link>,
}

/// A stream that is open towards the guest.
#[derive(Debug)]
struct Open {
    link: Arc<Link>,
    ledger: Ledger,
    /// The context, for an execution.
    context: Option<u32>,
    timeout: Option<Duration>,
    /// When the guest must have done what it owes.
    deadline: Option<Instant>,
    is_run: bool,
    /// It only looks on, and keeps no sandbox from being idle.
    is_watch: bool,
    reset: bool,
}

/// What a connection is made of.
pub(crate) struct Parts {
    pub(crate) stream: UnixStream,
    pub(crate) mux: Mux,
    /// Bytes that came behind the handshake.
    pub(crate) received: Vec<u8>,
    pub(crate) exit: AsyncFd<OwnedFd>,
    pub(crate) vm: Vm,
    pub(crate) runs: mpsc::Receiver<New>,
    pub(crate) operations: mpsc::Receiver<New>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) patience: Patience,
}

/// The task's state.
pub(crate) struct Connection {
    parts: Parts,
    open: HashMap<StreamId, Open>,
    running: usize,
    /// The executions of each context, in order; the first is the one that the guest works on.
    contexts: HashMap<u32, VecDeque<StreamId>>,
    /// Streams whose callers have data to send.
    sending: HashSet<StreamId>,
    idle_timeout: Option<Duration>,
    idle_since: Instant,
    buffer: Vec<u8>,
    ended: bool,
}

impl Connection {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            parts,
            open: HashMap::new(),
            running: 0,
            contexts: HashMap::new(),
            sending: HashSet::new(),
            idle_timeout: None,
            idle_since: Instant::now(),
            buffer: vec![0; READ],
            ended: false,
        }
    }

    /// Runs until the connection ends.
    pub(crate) async fn run(mut self) {
        let end = self.serve().await;
        self.finish(&end);
    }

    async fn serve(&mut self) -> End {
        let early = std::mem::take(&mut self.parts.received);
        if let Err(end) = self.receive(&early) {
            return end;
        }
        drop(early);
        loop {
            if let Err(end) = self.work() {
                return end;
            }
            if let Err(end) = self.wait().await {
                return end;
            }
        }
    }

    /// Does everything that needs no waiting.
    fn work(&mut self) -> Result<(), End> {
        self.take_mail()?;
        self.check_deadlines()?;
        self.send_data();
        while !self.parts.mux.output().is_empty() {
            match self.parts.stream.try_write(self.parts.mux.output()) {
                Ok(taken) => {
                    self.parts.mux.advance(taken);
                    self.send_data();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The machine is going; reading sees the end, and the exit says why.
                Err(_) => {
                    let rest = self.parts.mux.output().len();
                    self.parts.mux.advance(rest);
                }
            }
        }
        Ok(())
    }

    async fn wait(&mut self) -> Result<(), End> {
        let is_idle = self.is_idle();
        let parts = &mut self.parts;
        let room = parts.mux.output().len() < MAX_OUTPUT;
        let open = self.open.len();
        let takes_run = room && self.running < MAX_STREAMS - RESERVED && open < MAX_STREAMS;
        let takes_operation = room && open < MAX_STREAMS;
        let has_output = !parts.mux.output().is_empty();
        let idle_until = self.idle_timeout.filter(|_| is_idle).map(|idle| self.idle_since + idle);
        let deadline = self.open.values().filter_map(|open| open.deadline).chain(idle_until).min();

        tokio::select! {
            ready = parts.exit.readable() => {
                drop(ready);
                Err(self.machine_gone().await)
            }
            () = parts.mailbox.arrival() => Ok(()),
            ready = parts.stream.readable() => {
                // An error is seen by the read.
                drop(ready);
                self.read().await
            }
            ready = parts.stream.writable(), if has_output => {
                drop(ready);
                Ok(())
            }
            Some(new) = parts.operations.recv(), if takes_operation => {
                self.begin(new);
                Ok(())
            }
            Some(new) = parts.runs.recv(), if takes_run => {
                self.begin(new);
                Ok(())
            }
            () = sleep_until(deadline) => Ok(()),
        }
    }

    /// Reads what is there.
    async fn read(&mut self) -> Result<(), End> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut result = Ok(());
        for _ in 0..READS {
            match self.parts.stream.try_read(&mut buffer) {
                Ok(0) => {
                    result = Err(self.channel_gone().await);
                    break;
                }
                Ok(count) => result = self.receive(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    result = Err(self.channel_gone().await);
                    break;
                }
            }
            if result.is_err() {
                break;
            }
        }
        self.buffer = buffer;
        result
    }

    fn receive(&mut self, mut input: &[u8]) -> Result<(), End> {
        loop {
            match self.parts.mux.receive(&mut input) {
                Ok(None) => return Ok(()),
                Ok(Some(incoming)) => self.dispatch(incoming)?,
                Err(error) => return Err(End::Protocol(error.to_string())),
            }
        }
    }

    fn dispatch(&mut self, incoming: Incoming) -> Result<(), End> {
        match incoming {
            Incoming::Event(id, event) => self.event(id, event),
            Incoming::Data(id, channel, bytes) => {
                let Some(open) = self.open.get_mut(&id) else { return Ok(()) };
                open.ledger.data(channel, bytes.len()).map_err(End::Protocol)?;
                deliver(open, Item::Data(channel, Bytes::from(bytes)))
            }
            Incoming::Eof(id, _) => {
                let Some(open) = self.open.get_mut(&id) else { return Ok(()) };
                deliver(open, Item::Eof)
            }
            Incoming::Closed(id) => self.closed(id),
            // Credit: what waits is sent at the end of the round, as are pongs to pings that are never sent.
            _ => Ok(()),
        }
    }

    fn event(&mut self, id: StreamId, event: Event) -> Result<(), End> {
        let Some(open) = self.open.get_mut(&id) else { return Ok(()) };
        match open.ledger.event(&event).map_err(End::Protocol)? {
            Place::Within => {}
            Place::Start => {
                if !open.reset {
                    open.deadline =
                        open.timeout.map(|timeout| Instant::now() + timeout + self.parts.patience.end);
                }
            }
            Place::Last => {
                open.link.end_sending("the program has ended");
                open.deadline = Some(Instant::now() + self.parts.patience.close);
                self.sending.remove(&id);
            }
        }
        deliver(open, Item::Event(event))
    }

    fn closed(&mut self, id: StreamId) -> Result<(), End> {
        let Some(open) = self.open.remove(&id) else { return Ok(()) };
        self.sending.remove(&id);
        self.running -= usize::from(open.is_run);
        if let Some(context) = open.context {
            self.leave_context(context, id);
        }
        if self.is_idle() && !open.is_watch {
            self.idle_since = Instant::now();
        }
        if !open.ledger.is_over() && !open.reset {
            let end = End::Protocol("a stream that was closed before its operation ended".into());
            open.link.break_off(end.for_running());
            return Err(end);
        }
        // A caller that waits for the end of an abandoned operation.
        let pushed = open.link.push(Item::Closed);
        debug_assert!(pushed.is_ok(), "a close has no weight");
        Ok(())
    }

    /// Opens a stream for a request, unless its caller has given it up already.
    fn begin(&mut self, new: New) {
        let New { request, link } = new;
        if link.is_abandoned() {
            link.break_off(Error::Cancelled);
            return;
        }
        let id = match self.parts.mux.open(&request) {
            Ok(id) => id,
            Err(SendError::TooLong(bytes)) => {
                link.break_off(Error::bad_option(format!(
                    "the request takes {bytes} bytes, more than can be sent at once: pass long arguments in a file"
                )));
                return;
            }
            Err(error) => {
                link.break_off(Error::Capacity(error.to_string()));
                return;
            }
        };
        let (context, timeout_ms, is_run) = match &request {
            Request::Execute(execute) => (Some(execute.context), execute.timeout_ms, true),
            Request::Command(command) => (None, command.timeout_ms, true),
            _ => (None, None, false),
        };
        let mut open = Open {
            link,
            ledger: Ledger::new(&request),
            context,
            timeout: timeout_ms.map(Duration::from_millis),
            deadline: None,
            is_run,
            is_watch: matches!(request, Request::Watch { .. }),
            reset: false,
        };
        let first = context.is_none_or(|context| {
            let queue = self.contexts.entry(context).or_default();
            queue.push_back(id);
            queue.len() == 1
        });
        if first {
            open.deadline = self.start_deadline(open.timeout);
        }
        if open.is_watch {
            self.idle_since = Instant::now();
        }
        self.running += usize::from(is_run);
        open.link.opened(id);
        self.open.insert(id, open);
    }

    /// Whether nothing is done here, but for watches.
    fn is_idle(&self) -> bool {
        self.open.values().all(|open| open.is_watch)
    }

    /// By when an execution that may begin now must have begun.
    fn start_deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        timeout.map(|timeout| Instant::now() + timeout + self.parts.patience.start)
    }

    /// The execution is over; the next one of its context may begin.
    fn leave_context(&mut self, context: u32, id: StreamId) {
        let Some(queue) = self.contexts.get_mut(&context) else { return };
        let was_first = queue.front() == Some(&id);
        queue.retain(|other| *other != id);
        let next = queue.front().copied();
        if next.is_none() {
            self.contexts.remove(&context);
        }
        let Some(next) = next.filter(|_| was_first) else { return };
        let deadline = self.open.get(&next).and_then(|open| self.start_deadline(open.timeout));
        if let Some(open) = self.open.get_mut(&next).filter(|open| open.deadline.is_none()) {
            open.deadline = deadline;
        }
    }

    fn take_mail(&mut self) -> Result<(), End> {
        let letters = self.parts.mailbox.take();
        if let Some(reason) = letters.close {
            return Err(End::Closed(reason));
        }
        if let Some(timeout) = letters.idle_timeout {
            self.idle_timeout = match timeout {
                IdleTimeout::Never => None,
                IdleTimeout::After(timeout) => Some(timeout),
            };
            self.idle_since = Instant::now();
        }
        if letters.interrupt {
            for (id, open) in &self.open {
                if open.is_run && !open.ledger.is_over() {
                    // An end that is under way makes it unnecessary.
                    let _ = self.parts.mux.control(*id, &Control::Interrupt);
                }
            }
        }
        for link in letters.links {
            self.fulfil(&link);
        }
        Ok(())
    }

    /// Does what a caller wishes for its stream.
    fn fulfil(&mut self, link: &Arc<Link>) {
        // Mail that comes before the stream is opened stays in the link and is sent again by the opening.
        let Some(id) = link.id() else { return };
        let Some(open) = self.open.get_mut(&id) else { return };
        let mux = &mut self.parts.mux;
        let wishes = link.wishes();
        for (index, bytes) in wishes.consumed.into_iter().enumerate() {
            if bytes > 0 {
                mux.consumed(id, CHANNELS[index], bytes);
            }
        }
        if !open.ledger.is_over() && !open.reset && !wishes.reset {
            if open.is_watch && !wishes.controls.is_empty() {
                self.idle_since = Instant::now();
            }
            for control in wishes.controls {
                // An end that is under way makes it unnecessary.
                let _ = mux.control(id, &control);
            }
            self.sending.insert(id);
        }
        if wishes.reset && !open.reset {
            open.reset = true;
            mux.reset(id);
            open.deadline = Some(Instant::now() + self.parts.patience.close);
            self.sending.remove(&id);
        }
    }

    /// Sends what callers have given, as far as credit and output allow.
    fn send_data(&mut self) {
        if self.sending.is_empty() {
            return;
        }
        let (open, mux) = (&self.open, &mut self.parts.mux);
        self.sending.retain(|id| {
            let Some(stream) = open.get(id) else { return false };
            let channel = if stream.is_run { Channel::Stdin } else { Channel::File };
            match stream.link.send_data(|bytes| mux.data(*id, channel, bytes)) {
                Sent::All => false,
                Sent::Part => true,
                Sent::Eof => {
                    mux.eof(*id, channel);
                    false
                }
            }
        });
    }

    fn check_deadlines(&mut self) -> Result<(), End> {
        let now = Instant::now();
        for open in self.open.values() {
            if open.deadline.is_some_and(|deadline| deadline <= now) {
                let what = if open.reset || open.ledger.is_over() {
                    "it did not close a stream that was over"
                } else {
                    "it did not end an execution whose time was over"
                };
                return Err(End::Unresponsive(what.to_owned()));
            }
        }
        let idle = self.is_idle() && self.parts.runs.is_empty() && self.parts.operations.is_empty();
        match self.idle_timeout {
            Some(timeout) if idle && self.idle_since + timeout <= now => {
                Err(End::Closed("it ran nothing for as long as its idle timeout"))
            }
            _ => Ok(()),
        }
    }

    /// The machine has exited: what it sent before counts, then its end.
    async fn machine_gone(&mut self) -> End {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Ok(count @ 1..) = self.parts.stream.try_read(&mut buffer) {
            if self.receive(&buffer[..count]).is_err() {
                break;
            }
        }
        self.buffer = buffer;
        if let Some(reason) = self.parts.mailbox.take().close {
            return End::Closed(reason);
        }
        End::Died(Arc::new(self.parts.vm.exit_error().await))
    }

    /// The byte stream has ended: the machine is dying, or the guest has let go of it.
    async fn channel_gone(&mut self) -> End {
        let exited = tokio::time::timeout(EXIT_WAIT, self.parts.exit.readable()).await.is_ok();
        if exited { self.machine_gone().await } else { End::Protocol("the agent's channel has ended".into()) }
    }

    /// Tells everybody, and hands the machine over to be killed.
    fn finish(&mut self, end: &End) {
        self.ended = true;
        tracing::debug!(?end, open = self.open.len(), "a sandbox's connection ends");
        let later = end.for_later();
        self.parts.lifecycle.end(later.clone());
        for (_, open) in self.open.drain() {
            open.link.break_off(end.for_running());
        }
        for queue in [&mut self.parts.runs, &mut self.parts.operations] {
            queue.close();
            while let Ok(new) = queue.try_recv() {
                new.link.break_off(later.clone());
            }
        }
        self.parts.vm.kill_soon();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(&End::Closed("the engine has ended"));
        }
    }
}

/// The channels by [`Channel::index`].
const CHANNELS: [Channel; Channel::COUNT] =
    [Channel::Stdin, Channel::Stdout, Channel::Stderr, Channel::File, Channel::Bundle];

fn deliver(open: &Open, item: Item) -> Result<(), End> {
    if open.reset && !matches!(item, Item::Closed) {
        return Ok(()); // nobody waits for it
    }
    open.link
        .push(item)
        .map_err(|waiting| End::Protocol(format!("{waiting} bytes of events that nobody has asked for yet")))
}

/// Sleeps until then; for ever if there is no such moment.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
