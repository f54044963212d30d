//! One driver process: its start, its folder, its cgroup, its end.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hayfork_protocol::message::Language;
use rustix::process::{Pid, WaitStatus};

use super::folder::{DriverFolder, user_folder};
use super::stop::Target;
use crate::cgroup::Cgroup;
use crate::error::{During, OsError, Result};
use crate::io::Source;
use crate::poller::{Part, Token};
use crate::spawn::{Plan, Rights, Start, spawn};
use crate::world::World;

/// How long an interpreter may take until it is ready: only there so that a broken one ends some day. How long a host waits
/// is its own affair, and a translated guest on a busy machine takes a hundred times as long as usual.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Lines to renew that may wait in the FIFO, so that there is always room for that of an execution, and a driver gets all of
/// them in one read.
const MAX_RENEWING: u8 = 8;

/// A driver that was started.
#[derive(Debug)]
pub struct Driver {
    /// Its process, in the agent's numbering.
    pub pid: Pid,
    /// Its process, as user code sees it.
    pub inner_pid: u32,
    /// Everything that it started; `None` only in tests.
    pub cgroup: Option<Cgroup>,
    /// FIFOs. The writing ends that the driver began with are closed.
    pub folder: DriverFolder,
    /// The reading ends, with their state.
    pub events: Source,
    /// Idle standard output and error.
    pub idle: [Source; 2],
    /// Tells whether the program runs; `None` once it does.
    report: Option<Source>,
    /// When it was started.
    pub started: Instant,
    /// Lines that told it to renew and that it has not answered.
    renewing: u8,
    /// How long it took to be ready; `None` until it is.
    pub ready_after: Option<Duration>,
}

impl Driver {
    /// Starts a driver for the context with that key.
    ///
    /// # Errors
    /// Whatever the kernel refused. A program that is not there is reported later, by [`Driver::check_start`].
    pub fn start(world: &mut World, context: u32, state: &str, language: Language) -> Result<Self> {
        let started = Instant::now();
        let launch = crate::languages::launch(language)
            .ok_or_else(|| OsError::new("find the language's driver", rustix::io::Errno::NOENT))?;
        let number = world.number();
        user_folder(world.states.fd.as_fd(), state, world.owner)?;
        let state = format!("{}/{state}", world.states.path);
        let folder =
            DriverFolder::make(world.drivers.fd.as_fd(), number.to_string(), world.owner, Some(&state))?;
        let cgroup = world.cgroup(format!("ctx-{number}"))?;
        if let Some(cgroup) = &cgroup {
            cgroup.die_as_a_whole()?;
        }
        let null = std::fs::File::open("/dev/null").during("open /dev/null")?;
        let path = format!("{}/{number}", world.drivers.path);
        let begun = spawn(&Plan {
            walls: world.walls.as_ref(),
            cgroup: cgroup.as_ref().map(Cgroup::folder),
            argv: &launch.argv(&path),
            env: &launch.env,
            cwd: &world.home,
            rights: Rights::User,
            stdio: [null.as_fd(), folder.idle_write[0].as_fd(), folder.idle_write[1].as_fd()],
        })?;
        let source = |fd: &std::os::fd::OwnedFd, part| -> Result<Source> {
            let fd = fd.try_clone().during("duplicate a FIFO's descriptor")?;
            let watch = world.poller.watch(&fd, Token::Context(context, part))?;
            Ok(if matches!(part, Part::IdleOut | Part::IdleErr) {
                Source::paced(fd, watch)
            } else {
                Source::new(fd)
            })
        };
        let report = source(&begun.report, Part::Start)?;
        Ok(Self {
            pid: begun.pid,
            inner_pid: crate::procfs::inner_pid(begun.pid),
            cgroup,
            events: source(&folder.events, Part::Events)?,
            idle: [source(&folder.idle[0], Part::IdleOut)?, source(&folder.idle[1], Part::IdleErr)?],
            folder,
            report: Some(report),
            started,
            renewing: 0,
            ready_after: None,
        })
    }

    /// Whom to signal.
    pub fn target(&self) -> Target<'_> {
        Target { group: self.pid, cgroup: self.cgroup.as_ref() }
    }

    /// An event came for one of its descriptors.
    pub fn wake(&mut self, part: Part) {
        match part {
            Part::Events => self.events.wake(),
            Part::IdleOut => self.idle[0].wake(),
            Part::IdleErr => self.idle[1].wake(),
            Part::Start => {
                if let Some(report) = &mut self.report {
                    report.wake();
                }
            }
            _ => {}
        }
    }

    /// Looks whether the program runs; an error if it could not be started.
    ///
    /// # Errors
    /// The step of the start that failed.
    pub fn check_start(&mut self) -> Result<()> {
        let Some(report) = &self.report else { return Ok(()) };
        match Start::read(report.fd()) {
            Start::Pending => Ok(()),
            Start::Running => {
                self.report = None;
                Ok(())
            }
            Start::Failed(error) => {
                self.report = None;
                Err(error)
            }
        }
    }

    /// Tells it to renew its random numbers. False if it has not answered enough earlier lines.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn renew(&mut self) -> Result<bool> {
        if self.renewing >= MAX_RENEWING {
            return Ok(false);
        }
        let line = crate::renew::line()?;
        rustix::io::write(&self.folder.control, line.as_bytes()).during("write the control line")?;
        self.renewing += 1;
        Ok(true)
    }

    /// It said that it has.
    pub fn renewed(&mut self) {
        self.renewing = self.renewing.saturating_sub(1);
    }

    /// Whether an answer is missing.
    pub fn is_renewing(&self) -> bool {
        self.renewing > 0
    }

    /// Whether it takes work.
    pub fn is_ready(&self) -> bool {
        self.ready_after.is_some()
    }
}

/// The exit status as POSIX shells give it: the code, or 128 + the signal.
pub fn exit_code(status: WaitStatus) -> i32 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 255,
    }
}
