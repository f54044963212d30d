//! One execution, from its control line to its last byte.
//!
//! ```text
//!             done line, or the driver's death          pipes empty              host took all
//!  Running ────────────────────────────────────► Draining ────────────► Closing ──────────────► over
//!     │ timeout, reset: the ladder of `stop`, which leads to one of the same two ends
//! ```
//! *Draining* counts what is in the pipes at the moment of the end and reads exactly that, so there is neither a wait for
//! more nor a loss.

use std::time::{Duration, Instant};

use hayfork_protocol::message::{Execute, Finished, Status};
use hayfork_protocol::{Channel, Event, StreamId};
use rustix::process::WaitStatus;

use super::driver::{Driver, exit_code};
use super::folder::Folder;
use super::output::{Output, Pumped};
use super::place::Place;
use super::results::{Progress, Results};
use super::stop::{Ladder, Reason};
use crate::cgroup::OomCount;
use crate::error::{During, Result};
use crate::io::{Outlet, Sink};
use crate::poller::{Part, Token};
use crate::world::World;

/// An interrupt is held back this long after the start: before its driver has picked the execution up, it would ignore the
/// signal as an idle one does.
const INTERRUPT_FROM: Duration = Duration::from_millis(30);

/// How the code came to its end.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The driver said so, with this exit code.
    Done(u8),
    /// The driver's process ended.
    Died { status: WaitStatus, out_of_memory: bool },
}

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not over.
    Open,
    /// There is more to do at once.
    Busy,
    /// Over and reported.
    Over,
}

/// A running execution.
#[derive(Debug)]
pub struct Execution {
    /// The host's stream; `None` when the host is gone.
    pub stream: Option<StreamId>,
    /// The host does not want to hear of it any more.
    muted: bool,
    /// 128 random bits in hexadecimal, by which the driver names it.
    pub token: String,
    out: Output,
    err: Output,
    results: Results,
    stdin: Option<Sink>,
    /// Waits for the driver to open its standard input.
    watch: Option<i32>,
    started: Instant,
    /// In ticks since boot.
    started_tick: u64,
    deadline: Option<Instant>,
    interrupt_at: Option<Instant>,
    ladder: Option<Ladder>,
    end: Option<(End, Instant)>,
    spawn: Duration,
    /// The context's interpreter was lost before this execution, unnoticed by the host.
    pub lost_before: bool,
    /// Its number.
    id: u64,
    // Last, so that the FIFOs are closed when it is removed.
    folder: Folder,
}

impl Execution {
    /// Hands the code to an idle driver, in a place that was made for it.
    ///
    /// # Errors
    /// Whatever the kernel refused; the driver has not got the code then.
    pub fn begin(
        world: &mut World,
        driver: &Driver,
        place: Place,
        request: &Execute,
        stream: Option<StreamId>,
        spawn: Duration,
    ) -> Result<Self> {
        let token = token()?;
        let Place { id, folder, out, err, results } = place;
        folder.fill(&request.code, &request.env)?;
        let stdin = request.stdin.then(|| folder.stdin()).transpose()?;
        let watch = stdin.as_ref().map(|_| watch_opening(world, &folder)).transpose()?;
        let has = u8::from(request.stdin) | u8::from(!request.env.is_empty()) << 1;
        let last = u8::from(request.last);
        let line = format!("exec {id} {token} {has} {last} <cell {id}>\n");
        rustix::io::write(&driver.folder.control, line.as_bytes()).during("write the control line")?;
        let started = Instant::now();
        Ok(Self {
            stream,
            muted: false,
            out: Output::new(out, Channel::Stdout, request.stdout),
            err: Output::new(err, Channel::Stderr, request.stderr),
            results: Results::new(results, token.clone()),
            stdin: stdin.map(|fd| Sink::new(fd, true)),
            watch,
            token,
            started,
            started_tick: crate::procfs::tick_of(crate::clock::uptime_ns()),
            deadline: request.timeout_ms.map(|ms| started + Duration::from_millis(ms)),
            interrupt_at: None,
            ladder: None,
            end: None,
            spawn,
            lost_before: false,
            id,
            folder,
        })
    }

    /// An event came for one of its descriptors.
    pub fn wake(&mut self, part: Part) {
        match part {
            Part::Stdout => self.out.wake(),
            Part::Stderr => self.err.wake(),
            Part::Results => self.results.wake(),
            Part::Stdin => {
                if let (Some(stdin), None) = (&mut self.stdin, self.watch) {
                    stdin.wake();
                }
            }
            _ => {}
        }
    }

    /// The driver opened its standard input: what waits can be written now.
    pub fn opened(&mut self, watch: i32, world: &World, context: u32) {
        if self.watch != Some(watch) {
            return;
        }
        self.watch = None;
        let Some(stdin) = &mut self.stdin else { return };
        if let Some(fd) = stdin.fd()
            && let Err(error) = world.poller.add_for_both(fd, Token::Context(context, Part::Stdin))
        {
            crate::warning!("{error}");
        }
        stdin.wake();
    }

    /// The host sent standard input.
    pub fn push_stdin(&mut self, bytes: Vec<u8>, outlet: &mut Outlet<'_>) {
        match &mut self.stdin {
            Some(stdin) => {
                stdin.push(bytes);
                self.out.expect();
                self.err.expect();
            }
            None => outlet.consumed(Channel::Stdin, bytes.len()),
        }
    }

    /// The host ended standard input.
    pub fn finish_stdin(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            stdin.finish();
        }
    }

    /// As Ctrl-C.
    pub fn interrupt(&mut self, driver: &Driver, now: Instant) {
        if self.end.is_some() {
            return;
        }
        let from = self.started + INTERRUPT_FROM;
        if now < from {
            self.interrupt_at = Some(from);
        } else {
            self.send_interrupt(driver);
        }
    }

    fn send_interrupt(&self, driver: &Driver) {
        self.folder.mark_interrupted();
        driver.target().interrupt();
    }

    /// Sends a signal to the driver's group.
    pub fn signal(&self, driver: &Driver, signal: i32) {
        if self.end.is_none() {
            driver.target().signal(signal);
        }
    }

    /// Stops it rung by rung, or at once.
    pub fn stop(&mut self, reason: Reason, driver: &Driver, now: Instant) {
        if reason == Reason::Cancelled {
            self.muted = true;
        }
        if self.end.is_some() {
            return;
        }
        match reason {
            Reason::Killed | Reason::OutOfMemory => self.ladder = Some(Ladder::kill(reason, driver.target())),
            Reason::Timeout | Reason::Cancelled if self.ladder.is_none() => {
                self.folder.mark_interrupted();
                self.ladder = Some(Ladder::begin(reason, driver.target(), now));
            }
            _ => {}
        }
    }

    /// When [`Execution::on_time`] or [`Execution::pump`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        if self.end.is_some() {
            return None; // and no output is paused any more
        }
        let own = if self.ladder.is_some() { None } else { self.deadline };
        let ladder = self.ladder.as_ref().and_then(Ladder::deadline);
        [own, self.interrupt_at, ladder, self.out.deadline(), self.err.deadline()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn on_time(&mut self, driver: &Driver, now: Instant) {
        if self.end.is_some() {
            return;
        }
        if self.interrupt_at.is_some_and(|at| at <= now) {
            self.interrupt_at = None;
            self.send_interrupt(driver);
        }
        match &mut self.ladder {
            Some(ladder) => ladder.climb(driver.target(), now),
            None if self.deadline.is_some_and(|deadline| deadline <= now) => {
                self.stop(Reason::Timeout, driver, now);
            }
            None => {}
        }
    }

    /// The driver said that the code is over.
    pub fn done(&mut self, code: u8, driver: &Driver) {
        if self.end.is_some() {
            return;
        }
        // Interrupted code that ended by itself keeps its interpreter, but what it started goes.
        if self.ladder.is_some() {
            kill_younger(driver, self.started_tick);
        }
        self.over(End::Done(code));
    }

    /// The driver's process ended.
    pub fn died(&mut self, status: WaitStatus, oom: Option<OomCount>) {
        if self.end.is_some() {
            return;
        }
        // The group is the driver's alone and dies as a whole, so there was no kill before.
        let out_of_memory = oom.is_some_and(|count| count != OomCount::default());
        self.over(End::Died { status, out_of_memory });
    }

    fn over(&mut self, end: End) {
        self.end = Some((end, Instant::now()));
        self.stdin = None;
        self.out.end();
        self.err.end();
        self.results.end();
    }

    /// Moves bytes, and reports the end when everything is said.
    pub fn pump(&mut self, outlet: &mut Outlet<'_>, buffer: &mut [u8]) -> State {
        let mut nowhere = Outlet::nowhere();
        if let Some(stdin) = &mut self.stdin {
            outlet.consumed(Channel::Stdin, stdin.pump());
        }
        let say = if self.muted { &mut nowhere } else { &mut *outlet };
        if self.end.is_none() {
            let pumped = [self.out.pump(say, buffer), self.err.pump(say, buffer)];
            let more = self.results.pump(say, buffer) == Progress::More || pumped.contains(&Pumped::More);
            return if more { State::Busy } else { State::Open };
        }
        if [self.out.drain(say, buffer), self.err.drain(say, buffer)].contains(&Pumped::Held) {
            return State::Open;
        }
        loop {
            match self.results.pump(say, buffer) {
                Progress::More => {}
                Progress::Held => return State::Open,
                Progress::Empty => break,
            }
        }
        if self.results.is_within_bundle() {
            say.eof(Channel::Bundle);
        }
        if !(self.out.finish(say) && self.err.finish(say)) {
            return State::Open;
        }
        self.report(outlet);
        State::Over
    }

    fn report(&mut self, outlet: &mut Outlet<'_>) {
        if self.muted {
            outlet.failed(
                hayfork_protocol::message::FailureCode::Cancelled,
                "the host abandoned the execution",
            );
        } else if let Some(finished) = self.finished() {
            outlet.event(&Event::Finished(finished));
        }
        outlet.close();
    }

    fn finished(&self) -> Option<Finished> {
        let (end, at) = self.end?;
        let (code, died, oom) = match end {
            End::Done(code) => (i32::from(code), false, false),
            End::Died { status, out_of_memory } => (exit_code(status), true, out_of_memory),
        };
        let status = match self.ladder.as_ref().map(|ladder| ladder.reason) {
            _ if oom => Status::OutOfMemory,
            Some(Reason::OutOfMemory) => Status::OutOfMemory,
            Some(Reason::Timeout) => Status::Timeout,
            Some(Reason::Killed | Reason::Cancelled) => Status::Killed,
            None => Status::Exited,
        };
        Some(Finished {
            status,
            exit_code: code,
            state_reset: died || self.lost_before,
            spawn_us: micros(self.spawn),
            run_us: micros(at - self.started),
        })
    }

    /// Where it took place. Children that were left behind may still write to its output pipes.
    pub fn into_place(self) -> Place {
        let Self { id, out, err, results, folder, .. } = self;
        Place { id, out: out.into_source(), err: err.into_source(), results: results.into_source(), folder }
    }
}

/// A duration in whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// 128 random bits as 32 hexadecimal digits.
fn token() -> Result<String> {
    let mut bytes = [0; 16];
    // So few bytes come whole once the generator is seeded.
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .during("get random bytes")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// Asks to be told when something in the folder is opened.
fn watch_opening(world: &World, folder: &Folder) -> Result<i32> {
    use std::os::fd::{AsFd, AsRawFd};
    let path = format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd());
    rustix::fs::inotify::add_watch(&world.opened, path, rustix::fs::inotify::WatchFlags::OPEN)
        .during("watch the execution's folder")
}

/// Ends the processes of the driver's cgroup that were started in or after `tick`, and their children as they appear.
fn kill_younger(driver: &Driver, tick: u64) {
    let Some(cgroup) = &driver.cgroup else { return };
    for _ in 0..16 {
        let younger: Vec<_> = cgroup
            .processes()
            .into_iter()
            .filter(|pid| *pid != driver.pid)
            .filter(|pid| crate::procfs::start_tick(*pid).is_some_and(|start| start >= tick))
            .collect();
        if younger.is_empty() {
            return;
        }
        for pid in younger {
            // One that is gone already is fine.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    crate::warning!("processes of an interrupted execution multiply faster than they are killed");
    cgroup.kill();
}
