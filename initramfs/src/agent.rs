//! The agent: one loop that moves everything on, in one thread.
//!
//! ```text
//!  wait for events, or the next deadline, or not at all if there is more to do
//!   └─ take note of them: which descriptors may be read or written, which children ended
//!  what the host says ──► begin, feed, stop operations
//!  what is due ──► timeouts and their ladders
//!  pump: every operation moves what it can, a buffer at a time, so that none starves another
//!  flush: give the carrier what it takes
//! ```
//! Operations that lack credit, or wait for a slow carrier, simply do nothing in their turn; a grant, or room, is an event
//! that brings the next turn.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hayfork_protocol::message::{Control, Failure, FailureCode, Language, Stats};
use hayfork_protocol::{Channel, Event, HostHello, Incoming, Mux, Request, StreamId};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};

use crate::carrier::Carrier;
use crate::command::Command;
use crate::error::Result;
use crate::exec::context::Context;
use crate::exec::stop::Reason;
use crate::files::pool::Pool;
use crate::files::watch::keeper::Watches;
use crate::io::Outlet;
use crate::poller::{Ready, Token};
use crate::renew::Renewals;
use crate::session::{Session, SessionEvent};
use crate::sys::signals;
use crate::world::{World, with_scratch};

/// Bytes read from the host in one turn of the loop.
const READ_BUDGET: usize = 256 * 1024;

/// Contexts at once.
const MAX_CONTEXTS: usize = 64;

/// Commands that ended but left something running that holds their output. The oldest one's pipes are closed for a new one.
const MAX_LEFTOVERS: usize = 64;

/// Pause between attempts to remove cgroups that still hold a dying process.
const SWEEP: Duration = Duration::from_millis(50);

/// An execution that is over so soon, or says something, is announced in the same message.
const SHORT: Duration = Duration::from_millis(4);

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The host asked for it.
    Shutdown,
    /// No host for longer than the guest may linger.
    Abandoned,
    /// A signal to process 1 asked for it.
    Signal,
}

/// All operations and what they need.
#[derive(Debug)]
pub struct Agent {
    world: World,
    session: Session,
    signals: OwnedFd,
    /// Held because closing it ends the watch.
    _pressure: Option<OwnedFd>,
    contexts: BTreeMap<u32, Context>,
    commands: BTreeMap<u32, Command>,
    pool: Pool,
    watches: Watches,
    renewals: Renewals,
    linger: Option<Duration>,
    alone_since: Option<Instant>,
    sweep_at: Option<Instant>,
    end: Option<End>,
    /// Processes whose memory counts as the agent's, beside this one and the workers.
    kin: Vec<Pid>,
}

impl Agent {
    /// Puts the parts together.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn new(mut world: World, carrier: Carrier, linger: Option<Duration>, kin: Vec<Pid>) -> Result<Self> {
        let signals =
            signals::descriptor().map_err(|errno| crate::error::OsError::new("make a signalfd", errno))?;
        world.poller.add(&signals, Token::Signals)?;
        let pressure = world.cgroups.as_ref().and_then(crate::cgroup::Cgroups::pressure);
        if let Some(pressure) = &pressure {
            world.poller.add(pressure, Token::Pressure)?;
        }
        let pool = Pool::start(&mut world)?;
        Ok(Self {
            world,
            session: Session::new(carrier),
            signals,
            _pressure: pressure,
            contexts: BTreeMap::new(),
            commands: BTreeMap::new(),
            pool,
            watches: Watches::default(),
            renewals: Renewals::default(),
            linger,
            alone_since: Some(Instant::now()),
            sweep_at: None,
            end: None,
            kin,
        })
    }

    /// Runs until the guest is to end.
    ///
    /// # Errors
    /// The kernel refused what the loop cannot do without.
    pub fn run(&mut self) -> Result<End> {
        let mut busy = true;
        loop {
            busy |= self.session.may_have_more();
            let mut events = VecDeque::new();
            self.world.poller.wait(busy, self.deadline(), |ready| events.push_back(ready))?;
            for ready in events {
                self.note(ready)?;
            }
            self.session.on_time(Instant::now());
            self.hear();
            self.on_time(Instant::now());
            busy = self.pump();
            if std::mem::take(&mut self.world.begun) {
                self.session.hold(Instant::now() + SHORT);
            }
            busy |= self.session.flush();
            self.watch_host();
            if let Some(end) = self.end
                && (self.session.is_flushed() || end != End::Shutdown || !self.session.host_present())
            {
                return Ok(end);
            }
        }
    }

    /// Takes note of an event.
    fn note(&mut self, ready: Ready) -> Result<()> {
        match ready.token {
            Token::Carrier | Token::Listener => self.session.ready(ready, &self.world.poller)?,
            Token::Signals => self.take_signals(),
            Token::Opened => self.take_openings(),
            Token::Pressure => self.relieve(),
            Token::Context(key, part) => {
                if let Some(context) = self.contexts.get_mut(&key) {
                    context.wake(part);
                }
            }
            Token::Command(key, part) => {
                if let Some(command) = self.commands.get_mut(&key) {
                    command.wake(part);
                }
            }
            Token::Worker(key) => {
                self.pool.wake(key);
                self.watches.wake(key);
            }
        }
        Ok(())
    }

    fn take_signals(&mut self) {
        while let Some(signal) = signals::next(&self.signals) {
            if signal == signals::CHILD {
                self.reap();
            } else {
                self.end = Some(End::Signal);
            }
        }
    }

    /// Buries every child that ended. Several may share one signal.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.child_ended(pid, status),
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.world.sweep();
        self.sweep_at = (!self.world.graveyard.is_empty()).then(|| Instant::now() + SWEEP);
    }

    fn child_ended(&mut self, pid: Pid, status: WaitStatus) {
        if self.kin.contains(&pid) {
            // Without its first process the PID namespace is dead, and nothing can be started any more.
            crate::error!("the reaper ended: {status:?}");
            self.end = Some(End::Signal);
        }
        self.pool.child_ended(pid);
        let mux = self.session.mux();
        if let Some(context) = self.contexts.values_mut().find(|context| context.owns(pid)) {
            with_scratch(&mut self.world, |world, buffer| context.child_ended(status, world, mux, buffer));
        } else if let Some(command) = self.commands.values_mut().find(|command| command.owns(pid)) {
            command.child_ended(status, &mut self.world);
        }
    }

    fn take_openings(&mut self) {
        use rustix::fs::inotify::Reader;
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 1024];
        let mut watches = Vec::new();
        let mut reader = Reader::new(&self.world.opened, &mut buffer);
        while let Ok(event) = reader.next() {
            if event.file_name().is_some_and(|name| name == c"in") {
                watches.push(event.wd());
            }
        }
        for watch in watches {
            for context in self.contexts.values_mut() {
                context.opened(watch, &self.world);
            }
        }
    }

    /// All user code stands still for want of memory: the largest context or command has to go, as the kernel would
    /// decide in the end.
    fn relieve(&mut self) {
        let Some(cgroups) = &self.world.cgroups else { return };
        let (used, limit) = (cgroups.held_memory(), cgroups.memory_limit());
        if used < limit / 100 * 90 {
            return;
        }
        let context = self.contexts.values_mut().max_by_key(|context| context.memory());
        let command = self.commands.values_mut().max_by_key(|command| command.memory());
        let (most, more) =
            (context.as_ref().map_or(0, |c| c.memory()), command.as_ref().map_or(0, |c| c.memory()));
        crate::warning!("user code thrashes at {used} of {limit} bytes; ending the largest part of it");
        match (context, command) {
            (Some(context), _) if most >= more => context.kill(Reason::OutOfMemory),
            (_, Some(command)) => command.stop(Reason::OutOfMemory),
            _ => {}
        }
    }

    /// Does what the host says.
    fn hear(&mut self) {
        let mut budget = READ_BUDGET;
        while let Some(event) = self.session.next(&mut budget) {
            match event {
                // On a development machine, clock and entropy are not a test's to change.
                SessionEvent::Began(hello) if self.world.walls.is_some() => greet(&hello),
                SessionEvent::Ended => self.abandon(),
                SessionEvent::Incoming(Incoming::Open(stream, request)) => self.begin(stream, request),
                SessionEvent::Incoming(Incoming::Control(stream, control)) => self.control(stream, control),
                SessionEvent::Incoming(Incoming::Data(stream, channel, bytes)) => {
                    self.data(stream, channel, bytes);
                }
                SessionEvent::Incoming(Incoming::Eof(stream, channel)) => self.eof(stream, channel),
                SessionEvent::Incoming(Incoming::Reset(stream)) => self.reset(stream),
                // Credit, which the next pump uses, and what only hosts are told.
                SessionEvent::Began(_) | SessionEvent::Incoming(_) => {}
            }
        }
    }

    /// The host is gone: what ran for it is stopped, contexts stay.
    fn abandon(&mut self) {
        for context in self.contexts.values_mut() {
            context.abandon();
        }
        for command in self.commands.values_mut() {
            command.abandon();
        }
        self.pool.abandon();
        self.watches.abandon();
        self.renewals.abandon();
    }

    fn begin(&mut self, stream: StreamId, request: Request) {
        if let Err(failure) = request.validate() {
            return self.refuse(stream, &failure);
        }
        match request {
            Request::Execute(execute) => match self.context_for(execute.context, execute.language) {
                Ok(context) => context.execute(stream, execute),
                Err(failure) => self.refuse(stream, &failure),
            },
            Request::Command(command) => {
                let key = self.world.number();
                match Command::start(&mut self.world, key, stream, &command) {
                    Ok(command) => {
                        self.commands.insert(key, command);
                        self.limit_leftovers();
                    }
                    Err(error) => self.refuse(stream, &Failure { code: error.code, message: error.message }),
                }
            }
            Request::IdleOutput { context } => match self.contexts.get_mut(&context) {
                Some(context) => context.take_idle_output(stream),
                None => self.refuse(stream, &no_context(context)),
            },
            Request::CloseContext { context } => match self.contexts.get_mut(&context) {
                Some(found) if !found.is_closing() => found.close(stream, self.session.mux()),
                _ => self.refuse(stream, &no_context(context)),
            },
            Request::Stats => {
                let stats = self.stats();
                self.answer(stream, &Event::Stats(stats));
            }
            Request::Shutdown => {
                self.end = Some(End::Shutdown);
                self.answer(stream, &Event::Done { bytes: 0 });
            }
            Request::Renew(renew) => {
                let Self { renewals, world, contexts, .. } = self;
                if let Err(error) = renewals.begin(stream, &renew, world.walls.as_ref(), contexts) {
                    self.refuse(stream, &Failure { code: FailureCode::Io, message: error.to_string() });
                }
            }
            Request::SetClock { wall_clock_ns } => match crate::clock::set_wall_clock(wall_clock_ns) {
                Ok(()) => self.answer(stream, &Event::Done { bytes: 0 }),
                Err(errno) => self.refuse(
                    stream,
                    &Failure { code: FailureCode::Io, message: format!("set the wall clock: {errno}") },
                ),
            },
            Request::Watch { path, recursive } => {
                let begun = self.watches.begin(&mut self.world, &self.pool, stream, path, recursive);
                if let Err(failure) = begun {
                    self.refuse(stream, &failure);
                }
            }
            request => self.pool.begin(stream, request),
        }
    }

    /// The context with that number, made if there is none.
    fn context_for(&mut self, key: u32, language: Language) -> std::result::Result<&mut Context, Failure> {
        let bad = |message: String| Err(Failure { code: FailureCode::BadRequest, message });
        if let Some(context) = self.contexts.get(&key) {
            if context.is_closing() {
                return Err(no_context(key));
            }
            if context.language() != language {
                return bad(format!(
                    "context {key} is a {} context, not {}: use another one",
                    context.language().name(),
                    language.name()
                ));
            }
        } else {
            if crate::languages::launch(language).is_none() {
                let known: Vec<_> = crate::languages::available().iter().map(|l| l.name()).collect();
                return Err(Failure {
                    code: FailureCode::NoSuchLanguage,
                    message: format!("this image has no {}; it has {}", language.name(), known.join(", ")),
                });
            }
            if self.contexts.len() >= MAX_CONTEXTS {
                return bad(format!(
                    "{MAX_CONTEXTS} contexts are open, which is the most at once: close one"
                ));
            }
            self.contexts.insert(key, Context::new(key, language, &mut self.world));
        }
        self.contexts.get_mut(&key).ok_or_else(|| no_context(key))
    }

    fn refuse(&mut self, stream: StreamId, failure: &Failure) {
        self.answer(stream, &Event::Failed(failure.clone()));
    }

    fn answer(&mut self, stream: StreamId, event: &Event) {
        let mut outlet = Outlet::new(self.session.mux(), Some(stream));
        outlet.event(event);
        outlet.close();
    }

    fn context_of(&mut self, stream: StreamId) -> Option<&mut Context> {
        self.contexts.values_mut().find(|context| context.has_stream(stream))
    }

    fn command_of(&mut self, stream: StreamId) -> Option<&mut Command> {
        self.commands.values_mut().find(|command| command.stream == Some(stream))
    }

    fn control(&mut self, stream: StreamId, control: Control) {
        if let Some(context) = self.contexts.values_mut().find(|context| context.has_stream(stream)) {
            context.control(stream, control, self.session.mux());
        } else if let Some(command) = self.command_of(stream) {
            command.control(control);
        } else if self.watches.has_stream(stream) {
            self.watches.control(stream, control);
        }
    }

    fn data(&mut self, stream: StreamId, channel: Channel, bytes: Vec<u8>) {
        match channel {
            Channel::File if self.pool.has_stream(stream) => self.pool.push(stream, bytes),
            Channel::Stdin => {
                if let Some(context) = self.contexts.values_mut().find(|context| context.has_stream(stream)) {
                    context.stdin(stream, bytes, self.session.mux());
                } else if let Some(command) =
                    self.commands.values_mut().find(|command| command.stream == Some(stream))
                {
                    command.push_stdin(bytes, self.session.mux());
                }
            }
            // Nobody takes it: gone.
            _ => Outlet::new(self.session.mux(), Some(stream)).consumed(channel, bytes.len()),
        }
    }

    fn eof(&mut self, stream: StreamId, channel: Channel) {
        match channel {
            Channel::File => self.pool.finish(stream),
            Channel::Stdin => {
                if let Some(context) = self.context_of(stream) {
                    context.finish_stdin(stream);
                } else if let Some(command) = self.command_of(stream) {
                    command.finish_stdin();
                }
            }
            _ => {}
        }
    }

    fn reset(&mut self, stream: StreamId) {
        if let Some(context) = self.contexts.values_mut().find(|context| context.has_stream(stream)) {
            context.reset(stream, self.session.mux());
        } else if let Some(command) = self.command_of(stream) {
            command.stop(Reason::Cancelled);
        } else if self.pool.has_stream(stream) {
            self.pool.reset(stream, self.session.mux());
        } else if self.watches.has_stream(stream) {
            self.watches.reset(stream, self.session.mux());
        } else if !self.renewals.reset(stream, self.session.mux()) {
            Outlet::new(self.session.mux(), Some(stream)).close();
        }
    }

    /// Moves every operation on. True if there is more to do at once.
    fn pump(&mut self) -> bool {
        let Self { world, session, contexts, commands, pool, watches, renewals, .. } = self;
        let mut mux: Option<&mut Mux> = session.mux();
        let busy = with_scratch(world, |world, buffer| {
            let mut busy = false;
            for context in contexts.values_mut() {
                busy |= context.pump(world, mux.as_deref_mut(), buffer);
            }
            for command in commands.values_mut() {
                busy |= command.pump(mux.as_deref_mut(), buffer);
            }
            busy |= pool.pump(world, mux.as_deref_mut(), buffer);
            busy |= watches.pump(mux.as_deref_mut(), buffer);
            renewals.pump(contexts, mux);
            busy
        });
        contexts.retain(|_, context| !context.is_closed());
        commands.retain(|_, command| !command.is_gone());
        busy
    }

    fn limit_leftovers(&mut self) {
        let over: Vec<u32> =
            self.commands.iter().filter(|(_, command)| command.is_over()).map(|(key, _)| *key).collect();
        for key in over.iter().take(over.len().saturating_sub(MAX_LEFTOVERS)) {
            self.commands.remove(key);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let contexts = self.contexts.values().filter_map(Context::deadline);
        let commands = self.commands.values().filter_map(Command::deadline);
        let linger = self.alone_since.zip(self.linger).map(|(since, linger)| since + linger);
        let own = [self.sweep_at, self.session.deadline(), self.renewals.deadline()];
        contexts.chain(commands).chain(linger).chain(own.into_iter().flatten()).min()
    }

    fn on_time(&mut self, now: Instant) {
        for context in self.contexts.values_mut() {
            context.on_time(now);
        }
        for command in self.commands.values_mut() {
            command.on_time(now);
        }
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.world.sweep();
            self.sweep_at = (!self.world.graveyard.is_empty()).then_some(now + SWEEP);
        }
        let alone = self.alone_since.zip(self.linger).is_some_and(|(since, linger)| since + linger <= now);
        if alone && !self.session.host_present() {
            crate::error!("no host for {:?}: ending the guest", self.linger.unwrap_or_default());
            self.end = Some(End::Abandoned);
        }
    }

    /// Keeps the time since which there is no host.
    fn watch_host(&mut self) {
        if self.session.host_present() {
            self.alone_since = None;
        } else if self.alone_since.is_none() {
            self.alone_since = Some(Instant::now());
        }
    }

    fn stats(&self) -> Stats {
        let kin = std::iter::once(rustix::process::getpid()).chain(self.kin.iter().copied());
        let cgroups = self.world.cgroups.as_ref();
        Stats {
            agent_pss_bytes: kin
                .chain(self.pool.processes())
                .chain(self.watches.process())
                .filter_map(crate::procfs::pss)
                .sum(),
            user_memory_bytes: cgroups.map_or(0, crate::cgroup::Cgroups::memory),
            user_memory_limit_bytes: cgroups.map_or(0, crate::cgroup::Cgroups::memory_limit),
            user_processes: cgroups.map_or(0, crate::cgroup::Cgroups::processes),
            uptime_ns: crate::clock::uptime_ns(),
        }
    }
}

fn no_context(key: u32) -> Failure {
    Failure { code: FailureCode::NotFound, message: format!("there is no context {key}") }
}

/// What a new session brings: the time, and randomness that no other guest has.
fn greet(hello: &HostHello) {
    if let Err(errno) = crate::clock::set_wall_clock(hello.wall_clock_ns) {
        crate::warning!("set the wall clock: {errno}");
    }
    if let Err(errno) = crate::sys::entropy::add(&hello.entropy) {
        crate::warning!("add entropy: {errno}");
    }
}
