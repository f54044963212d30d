//! One command: a program with its arguments, in a process group, session and cgroup of its own.
//!
//! ```text
//!            exec succeeded           the program ended        pipes empty, host took all
//!  Starting ────────────────► Running ─────────────────► Ending ─────────────────────────► Leftover ──► gone
//!     │ exec failed: Failed{CannotStart}                                                       pipes closed
//! ```
//! The end is that of the program itself. What it left running goes on; its output is read and dropped, so that it neither
//! blocks nor dies of a broken pipe, until it closes the pipes. At a timeout, a kill or a reset everything in the cgroup
//! ends.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hayfork_protocol::message::{Command as Request, Control, FailureCode, Finished, Status, User};
use hayfork_protocol::{Channel, Event, Mux, StreamId};
use rustix::fs::{Mode, OFlags, openat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitStatus};

use crate::cgroup::Cgroup;
use crate::error::{During, Result};
use crate::exec::driver::exit_code;
use crate::exec::execution::micros;
use crate::exec::output::{Output, Pumped};
use crate::exec::stop::{Ladder, Reason, Target};
use crate::io::{Got, Outlet, Sink, Source};
use crate::poller::{Part, Token};
use crate::spawn::{Plan, Rights, Start, environment, spawn};
use crate::world::World;

/// Signals that are held for a program that does not run yet; what comes beyond that is dropped.
const MAX_HELD_SIGNALS: usize = 16;

/// What Ctrl-C sends.
const SIGINT: i32 = 2;

/// A command that was started.
#[derive(Debug)]
pub struct Command {
    /// The host's stream; `None` when the host is gone.
    pub stream: Option<StreamId>,
    muted: bool,
    program: String,
    pid: Pid,
    cgroup: Option<Cgroup>,
    report: Option<Source>,
    /// Signals that came before the program ran, and so before there was a group to send them to.
    held_signals: Vec<i32>,
    failed: bool,
    stdin: Option<Sink>,
    out: Option<Output>,
    err: Option<Output>,
    leftover: Vec<Source>,
    begun: Instant,
    started: Instant,
    deadline: Option<Instant>,
    ladder: Option<Ladder>,
    ended: Option<(WaitStatus, Instant, bool)>,
}

/// A program could not be started.
#[derive(Debug, Clone)]
pub struct CannotStart {
    /// The kind.
    pub code: FailureCode,
    /// What happened.
    pub message: String,
}

impl Command {
    /// Starts a program. Whether it runs is reported on the stream.
    ///
    /// # Errors
    /// It could not even be forked.
    pub fn start(
        world: &mut World,
        key: u32,
        stream: StreamId,
        request: &Request,
    ) -> std::result::Result<Self, CannotStart> {
        Self::try_start(world, key, stream, request).map_err(|error| CannotStart {
            code: FailureCode::CannotStart,
            message: format!("start {:?}: {error}", request.argv.first().map_or("", String::as_str)),
        })
    }

    fn try_start(world: &mut World, key: u32, stream: StreamId, request: &Request) -> Result<Self> {
        let begun = Instant::now();
        let env = environment(request.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let pipe = || pipe_with(PipeFlags::CLOEXEC).during("make a pipe");
        let ((out, out_child), (err, err_child)) = (pipe()?, pipe()?);
        let (stdin_child, stdin) = if request.stdin {
            let (read, write) = pipe()?;
            (read, Some(write))
        } else {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            (openat(rustix::fs::CWD, "/dev/null", flags, Mode::empty()).during("open /dev/null")?, None)
        };
        // Only the agent's ends: the program expects blocking ones.
        for fd in [Some(&out), Some(&err), stdin.as_ref()].into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true).during("make a pipe non-blocking")?;
        }
        let cgroup = world.cgroup(format!("cmd-{key}"))?;
        if let Some(cgroup) = &cgroup {
            cgroup.die_as_a_whole()?;
        }
        let cwd = match &request.cwd {
            Some(cwd) if cwd.starts_with('/') => cwd.clone(),
            Some(cwd) => format!("{}/{cwd}", world.home),
            None => world.home.clone(),
        };
        let started = spawn(&Plan {
            walls: world.walls.as_ref(),
            cgroup: cgroup.as_ref().map(Cgroup::folder),
            argv: &request.argv,
            env: &env,
            cwd: &cwd,
            rights: match request.user {
                User::Sandbox => Rights::User,
                User::Root => Rights::Root,
            },
            stdio: [stdin_child.as_fd(), out_child.as_fd(), err_child.as_fd()],
        });
        let started = match (started, cgroup) {
            (Ok(started), cgroup) => (started, cgroup),
            (Err(error), cgroup) => {
                world.graveyard.leave_all(cgroup);
                return Err(error);
            }
        };
        let (started, cgroup) = started;
        world.poller.add(&started.report, Token::Command(key, Part::Start))?;
        if let Some(stdin) = &stdin {
            world.poller.add_for_both(stdin, Token::Command(key, Part::Stdin))?;
        }
        let out_watch = world.poller.watch(&out, Token::Command(key, Part::Stdout))?;
        let err_watch = world.poller.watch(&err, Token::Command(key, Part::Stderr))?;
        let now = Instant::now();
        Ok(Self {
            stream: Some(stream),
            muted: false,
            program: request.argv.first().cloned().unwrap_or_default(),
            pid: started.pid,
            cgroup,
            report: Some(Source::new(started.report)),
            held_signals: Vec::new(),
            failed: false,
            stdin: stdin.map(|fd| Sink::new(fd, false)),
            out: Some(Output::new(Source::paced(out, out_watch), Channel::Stdout, request.stdout)),
            err: Some(Output::new(Source::paced(err, err_watch), Channel::Stderr, request.stderr)),
            leftover: Vec::new(),
            begun,
            started: now,
            deadline: request.timeout_ms.map(|ms| now + Duration::from_millis(ms)),
            ladder: None,
            ended: None,
        })
    }

    /// Whether this is its process.
    pub fn owns(&self, pid: Pid) -> bool {
        self.ended.is_none() && self.pid == pid
    }

    /// Memory that it uses, in bytes.
    pub fn memory(&self) -> u64 {
        self.cgroup.as_ref().map_or(0, Cgroup::held_memory)
    }

    fn target(&self) -> Target<'_> {
        Target { group: self.pid, cgroup: self.cgroup.as_ref() }
    }

    /// An event came for one of its descriptors.
    pub fn wake(&mut self, part: Part) {
        match part {
            Part::Start => {
                if let Some(report) = &mut self.report {
                    report.wake();
                }
            }
            Part::Stdin => {
                if let Some(stdin) = &mut self.stdin {
                    stdin.wake();
                }
            }
            _ => {
                for output in [&mut self.out, &mut self.err].into_iter().flatten() {
                    output.wake();
                }
                for source in &mut self.leftover {
                    source.wake();
                }
            }
        }
    }

    /// The host sent standard input.
    pub fn push_stdin(&mut self, bytes: Vec<u8>, mux: Option<&mut Mux>) {
        match &mut self.stdin {
            Some(stdin) => {
                stdin.push(bytes);
                for output in [&mut self.out, &mut self.err].into_iter().flatten() {
                    output.expect();
                }
            }
            None => Outlet::new(mux, self.stream).consumed(Channel::Stdin, bytes.len()),
        }
    }

    /// The host ended standard input.
    pub fn finish_stdin(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            stdin.finish();
        }
    }

    /// The host says something.
    pub fn control(&mut self, control: Control) {
        if self.ended.is_some() {
            return;
        }
        match control {
            Control::Interrupt => self.signal(SIGINT),
            Control::Signal(signal) => self.signal(signal),
            Control::Kill => self.stop(Reason::Killed),
            Control::Flush => {}
        }
    }

    fn signal(&mut self, signal: i32) {
        if self.report.is_none() {
            self.target().signal(signal);
        } else if self.held_signals.len() < MAX_HELD_SIGNALS {
            self.held_signals.push(signal);
        }
    }

    /// Stops it and everything that it started.
    pub fn stop(&mut self, reason: Reason) {
        self.muted |= reason == Reason::Cancelled;
        if self.ended.is_some() {
            return;
        }
        let now = Instant::now();
        match reason {
            Reason::Killed | Reason::OutOfMemory => self.ladder = Some(Ladder::kill(reason, self.target())),
            Reason::Timeout | Reason::Cancelled if self.ladder.is_none() => {
                self.ladder = Some(Ladder::begin(reason, self.target(), now));
            }
            _ => {}
        }
    }

    /// The host is gone, and the stream with it.
    pub fn abandon(&mut self) {
        self.stop(Reason::Cancelled);
        self.stream = None;
    }

    /// When [`Command::on_time`] or [`Command::pump`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        if self.ended.is_some() {
            return self.leftover.iter().filter_map(Source::deadline).min();
        }
        let limit = match &self.ladder {
            Some(ladder) => ladder.deadline(),
            None => self.deadline,
        };
        let outputs = [&self.out, &self.err].into_iter().flatten().filter_map(Output::deadline);
        limit.into_iter().chain(outputs).min()
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Instant) {
        if self.ended.is_some() {
            return;
        }
        let target = Target { group: self.pid, cgroup: self.cgroup.as_ref() };
        match &mut self.ladder {
            Some(ladder) => ladder.climb(target, now),
            None if self.deadline.is_some_and(|deadline| deadline <= now) => self.stop(Reason::Timeout),
            None => {}
        }
    }

    /// Its process ended.
    pub fn child_ended(&mut self, status: WaitStatus, world: &mut World) {
        self.stdin = None;
        let oom = self
            .cgroup
            .as_ref()
            .is_some_and(|cgroup| cgroup.oom_count() != crate::cgroup::OomCount::default());
        self.ended = Some((status, Instant::now(), oom));
        if let Some(cgroup) = self.cgroup.take() {
            // A program that ended by itself may leave something running on purpose.
            if self.ladder.is_some() || self.muted {
                world.graveyard.bury(cgroup);
            } else {
                world.graveyard.leave(cgroup);
            }
        }
        for output in [&mut self.out, &mut self.err].into_iter().flatten() {
            output.end();
        }
    }

    /// Moves everything that can move. True if there is more to do at once.
    pub fn pump(&mut self, mut mux: Option<&mut Mux>, buffer: &mut [u8]) -> bool {
        let stream = self.stream;
        self.check_start(Outlet::new(mux.as_deref_mut(), stream));
        let mut outlet = Outlet::new(mux, stream);
        if let Some(stdin) = &mut self.stdin {
            outlet.consumed(Channel::Stdin, stdin.pump());
        }
        let mut busy = false;
        self.leftover.retain_mut(|source| match source.read(buffer) {
            Got::Bytes(_) => {
                busy = true;
                true
            }
            Got::Nothing => true,
            Got::End => false,
        });
        let (Some(out), Some(err)) = (&mut self.out, &mut self.err) else { return busy };
        let mut nowhere = Outlet::nowhere();
        let say = if self.muted || self.failed { &mut nowhere } else { &mut outlet };
        if self.ended.is_none() {
            return [out.pump(say, buffer), err.pump(say, buffer)].contains(&Pumped::More);
        }
        let held = [out.drain(say, buffer), err.drain(say, buffer)].contains(&Pumped::Held);
        if held || self.report.is_some() || !(out.finish(say) && err.finish(say)) {
            return false;
        }
        self.report_end(&mut outlet);
        for output in [self.out.take(), self.err.take()].into_iter().flatten() {
            let mut source = output.into_source();
            source.wake();
            self.leftover.push(source);
        }
        true
    }

    /// Whether it is over, reported, and left nothing behind.
    pub fn is_gone(&self) -> bool {
        self.out.is_none() && self.leftover.is_empty()
    }

    /// Whether it is over and reported.
    pub fn is_over(&self) -> bool {
        self.out.is_none()
    }

    fn check_start(&mut self, mut outlet: Outlet<'_>) {
        let Some(report) = &self.report else { return };
        match Start::read(report.fd()) {
            Start::Pending => return,
            Start::Running => {
                self.started = Instant::now();
                if !self.muted {
                    outlet.event(&Event::Started { pid: crate::procfs::inner_pid(self.pid) });
                }
            }
            Start::Failed(error) => {
                use rustix::io::Errno;
                self.failed = true;
                let code = match error.errno {
                    Errno::NOENT | Errno::NOTDIR => FailureCode::NotFound,
                    Errno::ACCESS | Errno::PERM => FailureCode::PermissionDenied,
                    _ => FailureCode::CannotStart,
                };
                if !self.muted {
                    outlet.failed(code, format!("start {:?}: {error}", self.program));
                }
            }
        }
        self.report = None;
        for signal in std::mem::take(&mut self.held_signals) {
            self.target().signal(signal);
        }
    }

    fn report_end(&self, outlet: &mut Outlet<'_>) {
        if let (false, Some((status, at, oom))) = (self.failed, self.ended) {
            if self.muted {
                outlet.failed(FailureCode::Cancelled, "the host abandoned the command");
            } else {
                outlet.event(&Event::Finished(Finished {
                    status: match self.ladder.as_ref().map(|ladder| ladder.reason) {
                        _ if oom => Status::OutOfMemory,
                        Some(Reason::OutOfMemory) => Status::OutOfMemory,
                        Some(Reason::Timeout) => Status::Timeout,
                        Some(Reason::Killed | Reason::Cancelled) => Status::Killed,
                        None => Status::Exited,
                    },
                    exit_code: exit_code(status),
                    state_reset: false,
                    spawn_us: micros(self.started - self.begun),
                    run_us: micros(at.saturating_duration_since(self.started)),
                }));
            }
        }
        outlet.close();
    }
}
