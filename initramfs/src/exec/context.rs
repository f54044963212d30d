//! One context: a driver process, the executions that wait for it, and its life.
//!
//! ```text
//!            first execution        `ready`          control line
//!  (no driver) ─────────► starting ────────► idle ◄───────────────► running
//!      ▲                     │ fails: the      │                       │
//!      └─────────────────────┴── execution ────┴───────────────────────┘  the process ends
//! ```
//! Executions run one after the other in order of arrival. A driver that dies takes its context's variables with it: the
//! execution that ran says so, or, if none ran, the next one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hayfork_protocol::message::{Control, Execute, FailureCode, Finished, Language, Status};
use hayfork_protocol::{Event, Mux, StreamId};
use rustix::process::{Pid, WaitStatus};

use super::driver::{Driver, PATIENCE, exit_code};
use super::events::{DriverEvent, Lines};
use super::execution::{Execution, State, micros};
use super::leftovers::Leftovers;
use super::place::Place;
use super::stop::Reason;
use crate::error::Result;
use crate::io::{Got, Outlet, Source};
use crate::poller::Part;
use crate::world::World;

/// An execution that waits for its turn.
#[derive(Debug)]
struct Waiting {
    stream: Option<StreamId>,
    request: Execute,
    /// Standard input that came already; bounded by the protocol's window, since it is only reported as consumed when it is
    /// written.
    stdin: Vec<Vec<u8>>,
    stdin_ended: bool,
}

/// A request for the idle output that is being answered.
#[derive(Debug)]
struct IdleRequest {
    stream: StreamId,
    sent: u64,
}

/// A context.
#[derive(Debug)]
pub struct Context {
    key: u32,
    language: Language,
    /// Name of the folder for what outlives drivers.
    state: String,
    driver: Option<Driver>,
    lines: Lines,
    running: Option<Execution>,
    waiting: VecDeque<Waiting>,
    leftovers: Leftovers,
    idle_requests: VecDeque<IdleRequest>,
    /// The interpreter ended while nothing ran.
    lost: bool,
    /// The driver has to renew its random numbers before the next execution.
    renew_due: bool,
    /// Why the driver's program could not be started.
    start_error: Option<String>,
    /// The folder of a driver that ended, while its last execution still has one in it.
    old_folder: Option<super::folder::DriverFolder>,
    /// Where the next execution takes place, if there was time to make that.
    next: Option<Place>,
    next_id: u64,
    /// It takes no more work and goes away.
    closing: bool,
    /// Who wants to know when it is gone.
    closing_for: Option<StreamId>,
}

impl Context {
    /// A context without a driver.
    pub fn new(key: u32, language: Language, world: &mut World) -> Self {
        Self {
            key,
            language,
            state: format!("{}-{}", language.name(), world.number()),
            driver: None,
            lines: Lines::default(),
            running: None,
            waiting: VecDeque::new(),
            leftovers: Leftovers::default(),
            idle_requests: VecDeque::new(),
            lost: false,
            renew_due: false,
            start_error: None,
            old_folder: None,
            next: None,
            next_id: 1,
            closing: false,
            closing_for: None,
        }
    }

    /// Its language.
    pub fn language(&self) -> Language {
        self.language
    }

    /// Whether it is being closed.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether it is closed and can be forgotten.
    pub fn is_closed(&self) -> bool {
        self.closing && self.driver.is_none() && self.running.is_none()
    }

    /// Whether this is its driver's process.
    pub fn owns(&self, pid: Pid) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.pid == pid)
    }

    /// Memory that it uses, in bytes.
    pub fn memory(&self) -> u64 {
        self.driver
            .as_ref()
            .and_then(|driver| driver.cgroup.as_ref())
            .map_or(0, crate::cgroup::Cgroup::held_memory)
    }

    /// Queues an execution.
    pub fn execute(&mut self, stream: StreamId, request: Execute) {
        self.waiting.push_back(Waiting {
            stream: Some(stream),
            request,
            stdin: Vec::new(),
            stdin_ended: false,
        });
    }

    /// Answers with what was printed while nothing ran.
    pub fn take_idle_output(&mut self, stream: StreamId) {
        self.idle_requests.push_back(IdleRequest { stream, sent: 0 });
    }

    /// The driver, if there is one, has to renew its random numbers: at once if it is idle, else before its next execution.
    /// True if it is worth waiting for.
    ///
    /// # Errors
    /// The driver could not be told.
    pub fn renew(&mut self) -> Result<bool> {
        self.renew_due = self.driver.is_some();
        self.tell_to_renew()?;
        Ok(self.is_renewing())
    }

    /// Whether its driver was told to renew and has not said that it has.
    pub fn is_renewing(&self) -> bool {
        self.driver.as_ref().is_some_and(Driver::is_renewing)
    }

    /// Tells the driver if that is due. While code runs nothing may stand on the control line: a runtime that reads ahead
    /// would lose it.
    fn tell_to_renew(&mut self) -> Result<()> {
        if let Some(driver) = &mut self.driver
            && self.renew_due
            && self.running.is_none()
            && driver.is_ready()
        {
            self.renew_due = !driver.renew()?;
        }
        Ok(())
    }

    /// The execution on that stream, if it runs.
    fn running_on(&mut self, stream: StreamId) -> Option<(&mut Execution, &Driver)> {
        let driver = self.driver.as_ref()?;
        self.running
            .as_mut()
            .filter(|execution| execution.stream == Some(stream))
            .map(|execution| (execution, driver))
    }

    /// Takes the execution on that stream out of the queue.
    fn unqueue(&mut self, stream: StreamId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.stream != Some(stream));
        self.waiting.len() < before
    }

    /// Whether that stream is one of its.
    pub fn has_stream(&self, stream: StreamId) -> bool {
        let is = |other: Option<StreamId>| other == Some(stream);
        self.running.as_ref().is_some_and(|execution| is(execution.stream))
            || self.waiting.iter().any(|waiting| is(waiting.stream))
            || self.idle_requests.iter().any(|request| request.stream == stream)
            || is(self.closing_for)
    }

    /// The host says something to an execution.
    pub fn control(&mut self, stream: StreamId, control: Control, mux: Option<&mut Mux>) {
        let now = Instant::now();
        if let Some((execution, driver)) = self.running_on(stream) {
            match control {
                Control::Interrupt => execution.interrupt(driver, now),
                Control::Kill => execution.stop(Reason::Killed, driver, now),
                Control::Signal(signal) => execution.signal(driver, signal),
                Control::Flush => {}
            }
            return;
        }
        // One that has not begun has no code that could catch anything.
        let (status, exit_code) = match control {
            Control::Interrupt => (Status::Exited, 130),
            Control::Kill => (Status::Killed, 137),
            Control::Signal(_) | Control::Flush => return,
        };
        if self.unqueue(stream) {
            let mut outlet = Outlet::new(mux, Some(stream));
            outlet.event(&Event::Finished(never_ran(status, exit_code, false)));
            outlet.close();
        }
    }

    fn waiting_on(&mut self, stream: StreamId) -> Option<&mut Waiting> {
        self.waiting.iter_mut().find(|waiting| waiting.stream == Some(stream))
    }

    /// Standard input for an execution.
    pub fn stdin(&mut self, stream: StreamId, bytes: Vec<u8>, mux: Option<&mut Mux>) {
        if let Some((execution, _)) = self.running_on(stream) {
            execution.push_stdin(bytes, &mut Outlet::new(mux, Some(stream)));
        } else if let Some(waiting) = self.waiting_on(stream) {
            waiting.stdin.push(bytes);
        }
    }

    /// The end of an execution's standard input.
    pub fn finish_stdin(&mut self, stream: StreamId) {
        if let Some((execution, _)) = self.running_on(stream) {
            execution.finish_stdin();
        } else if let Some(waiting) = self.waiting_on(stream) {
            waiting.stdin_ended = true;
        }
    }

    /// The host abandons a stream.
    pub fn reset(&mut self, stream: StreamId, mux: Option<&mut Mux>) {
        let now = Instant::now();
        if let Some((execution, driver)) = self.running_on(stream) {
            execution.stop(Reason::Cancelled, driver, now);
            return;
        }
        self.unqueue(stream);
        self.idle_requests.retain(|request| request.stream != stream);
        let mut outlet = Outlet::new(mux, Some(stream));
        outlet.failed(FailureCode::Cancelled, "the host abandoned the execution");
        outlet.close();
    }

    /// The host is gone, and all streams with it. The context lives on.
    pub fn abandon(&mut self) {
        let now = Instant::now();
        self.waiting.clear();
        self.idle_requests.clear();
        if let (Some(execution), Some(driver)) = (&mut self.running, &self.driver) {
            execution.stop(Reason::Cancelled, driver, now);
            execution.stream = None;
        }
        self.closing_for = None;
    }

    /// Ends everything of it; the answer comes when the driver is gone.
    pub fn close(&mut self, stream: StreamId, mut mux: Option<&mut Mux>) {
        self.closing = true;
        self.closing_for = Some(stream);
        for waiting in std::mem::take(&mut self.waiting) {
            let mut outlet = Outlet::new(mux.as_deref_mut(), waiting.stream);
            outlet.event(&Event::Finished(never_ran(Status::Killed, 137, true)));
            outlet.close();
        }
        self.kill(Reason::Killed);
    }

    /// Ends the driver and everything that it started.
    pub fn kill(&mut self, reason: Reason) {
        let Some(driver) = &self.driver else { return };
        match &mut self.running {
            Some(execution) => execution.stop(reason, driver, Instant::now()),
            None => driver.target().kill(),
        }
        // An execution that is over but not wholly reported does not stop a driver that has to go.
        if self.closing {
            driver.target().kill();
        }
    }

    /// An event came for one of its descriptors.
    pub fn wake(&mut self, part: Part) {
        if let Some(driver) = &mut self.driver {
            driver.wake(part);
        }
        if let Some(execution) = &mut self.running {
            execution.wake(part);
        }
        self.leftovers.wake(part);
    }

    /// A driver opened something in a watched folder.
    pub fn opened(&mut self, watch: i32, world: &World) {
        if let Some(execution) = &mut self.running {
            execution.opened(watch, world, self.key);
        }
    }

    /// When [`Context::on_time`] or [`Context::pump`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let start =
            self.driver.as_ref().filter(|driver| !driver.is_ready()).map(|driver| driver.started + PATIENCE);
        let run = self.running.as_ref().and_then(Execution::deadline);
        let idle = self.driver.iter().flat_map(|driver| &driver.idle);
        let pauses = idle.filter_map(Source::deadline);
        [start, run, self.leftovers.deadline()].into_iter().flatten().chain(pauses).min()
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Instant) {
        let Some(driver) = &self.driver else { return };
        if let Some(execution) = &mut self.running {
            execution.on_time(driver, now);
        }
        if !driver.is_ready() && driver.started + PATIENCE <= now {
            crate::warning!("the {} driver was not ready in time", self.language.name());
            driver.target().kill();
        }
    }

    /// Moves everything that can move. True if there is more to do at once.
    pub fn pump(&mut self, world: &mut World, mut mux: Option<&mut Mux>, buffer: &mut [u8]) -> bool {
        let mut busy = self.listen(buffer);
        self.check_start();
        busy |= self.collect_idle(buffer);
        self.tidy(world);
        if let Some(execution) = &mut self.running {
            let mut outlet = Outlet::new(mux.as_deref_mut(), execution.stream);
            match execution.pump(&mut outlet, buffer) {
                State::Open => {}
                State::Busy => busy = true,
                State::Over => {
                    self.retire();
                    busy = true;
                }
            }
        }
        self.answer_idle_requests(mux.as_deref_mut());
        self.advance(world, mux.as_deref_mut());
        if self.is_closed() {
            let mut outlet = Outlet::new(mux, self.closing_for.take());
            outlet.event(&Event::Done { bytes: 0 });
            outlet.close();
        }
        busy
    }

    /// Does what nobody waits for: sees to it that there is a place for the next execution.
    fn tidy(&mut self, world: &World) {
        let is_idle = self.running.is_none() && self.waiting.is_empty() && !self.closing;
        let Some(driver) = self.driver.as_ref().filter(|driver| driver.is_ready() && is_idle) else { return };
        if self.next.is_some() {
            return;
        }
        self.next = self.leftovers.reuse(|| number(&mut self.next_id));
        if self.next.is_none() && !self.leftovers.has_last() {
            // If there is no room for it, the execution will say so.
            self.next = Place::make(world, driver, self.key, number(&mut self.next_id)).ok();
        }
    }

    /// Keeps the reason why a program could not be started; its process ends now, which is where the failure is reported.
    fn check_start(&mut self) {
        if let Some(error) = self.driver.as_mut().and_then(|driver| driver.check_start().err()) {
            self.start_error = Some(error.to_string());
        }
    }

    /// Reads the driver's lines.
    fn listen(&mut self, buffer: &mut [u8]) -> bool {
        let Some(driver) = &mut self.driver else { return false };
        let token = self.running.as_ref().map(|execution| execution.token.as_str());
        let Got::Bytes(n) = driver.events.read(buffer) else { return false };
        for event in self.lines.push(&buffer[..n], token) {
            match event {
                DriverEvent::Ready if !driver.is_ready() => {
                    driver.ready_after = Some(driver.started.elapsed());
                }
                DriverEvent::Ready => {}
                DriverEvent::Renewed => driver.renewed(),
                DriverEvent::Done(code) => {
                    if let Some(execution) = &mut self.running {
                        execution.done(code, driver);
                    }
                }
            }
        }
        true
    }

    /// Reads what no execution claims.
    fn collect_idle(&mut self, buffer: &mut [u8]) -> bool {
        self.leftovers.collect(self.driver.as_mut().map(|driver| &mut driver.idle), buffer)
    }

    /// An execution is over: what it left behind is kept, or goes to the background.
    fn retire(&mut self) {
        let Some(execution) = self.running.take() else { return };
        self.leftovers.take(execution.into_place());
        if let Some(drivers) = self.old_folder.take() {
            self.leftovers.part_with_last(); // which lay in the driver's
            drop(drivers);
        }
    }

    /// Starts a driver, or the next execution, if it is time.
    fn advance(&mut self, world: &mut World, mux: Option<&mut Mux>) {
        if self.running.is_some() || self.closing {
            return;
        }
        if let Err(error) = self.tell_to_renew() {
            crate::warning!("{error}");
        }
        if self.waiting.is_empty() {
            return;
        }
        let Some(driver) = &mut self.driver else {
            match Driver::start(world, self.key, &self.state, self.language) {
                Ok(driver) => {
                    self.lines = Lines::default();
                    self.driver = Some(driver);
                }
                Err(error) => self.fail_first(FailureCode::CannotStart, &error.to_string(), mux),
            }
            return;
        };
        if !driver.is_ready() {
            return;
        }
        let Some(Waiting { stream, request, stdin, stdin_ended }) = self.waiting.pop_front() else { return };
        // Told once, to the execution that caused the start.
        let spawn = driver.ready_after.replace(Duration::ZERO).unwrap_or_default();
        let next = self.next.take().or_else(|| self.leftovers.reuse(|| number(&mut self.next_id)));
        let place = match next {
            Some(place) => Ok(place),
            None => Place::make(world, driver, self.key, number(&mut self.next_id)),
        };
        let begun = place.and_then(|place| Execution::begin(world, driver, place, &request, stream, spawn));
        match begun {
            Ok(mut execution) => {
                execution.lost_before = std::mem::take(&mut self.lost);
                let mut outlet = Outlet::new(mux, stream);
                // Nobody's message waits for this one's next.
                world.begun |= outlet.is_empty();
                outlet.event(&Event::Started { pid: driver.inner_pid });
                for bytes in stdin {
                    execution.push_stdin(bytes, &mut outlet);
                }
                if stdin_ended {
                    execution.finish_stdin();
                }
                self.running = Some(execution);
            }
            Err(error) => {
                let mut outlet = Outlet::new(mux, stream);
                outlet.failed(failure_code(error.errno), error.to_string());
                outlet.close();
            }
        }
    }

    fn fail_first(&mut self, code: FailureCode, message: &str, mux: Option<&mut Mux>) {
        if let Some(first) = self.waiting.pop_front() {
            let mut outlet = Outlet::new(mux, first.stream);
            outlet.failed(code, message);
            outlet.close();
        } else {
            crate::warning!("{message}");
        }
    }

    /// Its driver's process ended.
    pub fn child_ended(
        &mut self,
        status: WaitStatus,
        world: &mut World,
        mux: Option<&mut Mux>,
        buffer: &mut [u8],
    ) {
        // A `done` that was written before the end counts. A pipe holds no more than the buffer, so one read takes all that
        // the driver wrote; children may go on writing, so this must not wait for an empty pipe.
        self.listen(buffer);
        self.collect_idle(buffer);
        self.check_start();
        let Some(driver) = self.driver.take() else { return };
        // They lie in the driver's folder.
        self.next = None;
        self.leftovers.part_with_last();
        self.renew_due = false; // a new one begins with new random numbers
        let oom = driver.cgroup.as_ref().map(crate::cgroup::Cgroup::oom_count);
        if let Some(cgroup) = driver.cgroup {
            world.graveyard.bury(cgroup);
        }
        match &mut self.running {
            Some(execution) => {
                execution.died(status, oom);
                self.old_folder = Some(driver.folder);
            }
            None if driver.ready_after.is_none() => {
                let why = self.start_error.take().unwrap_or_else(|| {
                    let last = self.leftovers.idle.take_last_words();
                    format!(
                        "exit code {} before it was ready; {}",
                        exit_code(status),
                        String::from_utf8_lossy(&last)
                    )
                });
                let message = format!("the {} interpreter could not be started: {why}", self.language.name());
                self.fail_first(FailureCode::CannotStart, &message, mux);
            }
            None => self.lost = true,
        }
    }

    /// Sends idle output as the host's credit allows.
    fn answer_idle_requests(&mut self, mut mux: Option<&mut Mux>) {
        while let Some(request) = self.idle_requests.front_mut() {
            let mut outlet = Outlet::new(mux.as_deref_mut(), Some(request.stream));
            if !self.leftovers.idle.send(&mut outlet, &mut request.sent) {
                return;
            }
            outlet.event(&Event::Done { bytes: request.sent });
            outlet.close();
            self.idle_requests.pop_front();
        }
    }
}

/// The next number.
fn number(next: &mut u64) -> u64 {
    let number = *next;
    *next += 1;
    number
}

/// The end of an execution that never began.
fn never_ran(status: Status, exit_code: i32, state_reset: bool) -> Finished {
    Finished { status, exit_code, state_reset, spawn_us: micros(Duration::ZERO), run_us: 0 }
}

/// What an errno of the agent's own work means to the host.
pub fn failure_code(errno: rustix::io::Errno) -> FailureCode {
    use rustix::io::Errno;
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::NOMEM => FailureCode::NoSpace,
        Errno::AGAIN => FailureCode::CannotStart,
        _ => FailureCode::Io,
    }
}
