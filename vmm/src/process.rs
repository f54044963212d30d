//! Child processes that die with this one: by their pidfd, reading their output, waiting, killing, collecting their status.

pub mod spawn;
mod unsafe_setup;

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use crate::backend::ProcessStatus;
pub use unsafe_setup::block_signals;

/// Most bytes taken from a pipe at once. Small: several hundred of these may exist.
const CHUNK: usize = 4096;
/// Most chunks read after the end: two full pipes of 64 KiB, which is what Linux makes, and some.
const LAST_CHUNKS: usize = 40;

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A child process. Dropping it before its status was collected kills it and collects it.
pub struct Process {
    pid: Pid,
    handle: Arc<OwnedFd>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    collected: bool,
    /// The process that started it; in a fork of that, this is somebody else's child.
    owner: u32,
}

/// What kills a [`Process`] from another thread.
#[derive(Clone)]
pub struct Killer(Arc<OwnedFd>);

impl Killer {
    /// Sends SIGKILL. A process that has ended already is fine: the handle can mean no other.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

impl Process {
    /// Starts `command`. Only [`spawn`] calls this, in its thread.
    pub(crate) fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pid = Pid::from_child(&child);
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(error.into());
            }
        };
        Ok(Self {
            pid,
            handle: Arc::new(handle),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            collected: false,
            owner: std::process::id(),
        })
    }

    /// The process id; somebody else's after the status was collected.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until it has ended, at most until `deadline`; `None` if it has not. What it has written is not read before.
    pub fn wait_for_end(&mut self, deadline: Instant) -> Option<ProcessStatus> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Fails only for times that are as good as none.
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&*self.handle, PollFlags::IN)], timeout.as_ref()) {
                Ok(1..) => return Some(self.collect()),
                _ if left.is_zero() => return None,
                _ => {}
            }
        }
    }

    /// What kills it from another thread.
    pub fn killer(&self) -> Killer {
        Killer(Arc::clone(&self.handle))
    }

    /// Gives everything the process writes to `sink`, until it has ended and its output is read to the last byte; then
    /// collects its status. `None` if the deadline came first.
    ///
    /// Descendants that inherited the pipes and outlive the process are not waited for.
    pub fn pump(
        &mut self,
        deadline: Option<Instant>,
        mut sink: impl FnMut(Output, &[u8]),
    ) -> Option<ProcessStatus> {
        loop {
            let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => Timespec::try_from(left).ok(),
                None => None,
            };
            let ready = self.wait(timeout.as_ref());
            if ready.stdout {
                read_once(&mut self.stdout, |bytes| sink(Output::Stdout, bytes));
            }
            if ready.stderr {
                read_once(&mut self.stderr, |bytes| sink(Output::Stderr, bytes));
            }
            if ready.ended {
                // What it wrote last is in the pipes now, and no more comes from it.
                // Bounded, since a descendant may hold the pipes and write for ever.
                for _ in 0..LAST_CHUNKS {
                    if self.stdout.as_ref().is_some_and(is_readable) {
                        read_once(&mut self.stdout, |bytes| sink(Output::Stdout, bytes));
                    } else if self.stderr.as_ref().is_some_and(is_readable) {
                        read_once(&mut self.stderr, |bytes| sink(Output::Stderr, bytes));
                    } else {
                        break;
                    }
                }
                return Some(self.collect());
            }
        }
    }

    /// Waits for output or the end.
    fn wait(&self, timeout: Option<&Timespec>) -> Ready {
        let mut fds = Vec::with_capacity(3);
        fds.push(PollFd::new(&*self.handle, PollFlags::IN));
        let stdout = self.stdout.as_ref().map(|pipe| add(&mut fds, pipe.as_fd()));
        let stderr = self.stderr.as_ref().map(|pipe| add(&mut fds, pipe.as_fd()));
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            // Signals are blocked in our threads; ENOMEM passes.
            Err(_) => return Ready::default(),
        }
        let is_ready = |at: usize| !fds[at].revents().is_empty();
        Ready {
            ended: is_ready(0),
            stdout: stdout.is_some_and(is_ready),
            stderr: stderr.is_some_and(is_ready),
        }
    }

    /// Takes the status of the process, which has ended.
    fn collect(&mut self) -> ProcessStatus {
        self.collected = true;
        loop {
            match waitid(WaitId::PidFd(self.handle.as_fd()), WaitIdOptions::EXITED) {
                Err(Errno::INTR) => {}
                // ECHILD: other code in this program waits for any child, or ignores SIGCHLD.
                Err(_) | Ok(None) => return ProcessStatus::Unknown,
                Ok(Some(status)) => {
                    return match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => ProcessStatus::Code(code),
                        (None, Some(signal)) => ProcessStatus::Signal(signal),
                        (None, None) => ProcessStatus::Unknown,
                    };
                }
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.collected && self.owner == std::process::id() {
            self.killer().kill();
            self.collect();
        }
    }
}

/// What [`Process::wait`] found.
#[derive(Default)]
struct Ready {
    ended: bool,
    stdout: bool,
    stderr: bool,
}

fn add<'fd>(fds: &mut Vec<PollFd<'fd>>, fd: BorrowedFd<'fd>) -> usize {
    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    fds.len() - 1
}

/// Whether a read would return at once.
fn is_readable(pipe: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}

/// Reads what is there, at most [`CHUNK`] bytes; at the end of the stream the pipe is closed and forgotten.
fn read_once<P: Read>(pipe: &mut Option<P>, mut sink: impl FnMut(&[u8])) {
    let Some(stream) = pipe else { return };
    let mut buffer = [0; CHUNK];
    match stream.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(count) => sink(&buffer[..count]),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(_) => *pipe = None,
    }
}

/// Runs `command` to its end and returns its status and the beginning of its two outputs; `None` if it did not end in
/// time, after killing it.
///
/// # Errors
/// It could not be started.
pub fn run(
    command: Command,
    timeout: Duration,
    most: usize,
) -> io::Result<Option<(ProcessStatus, String, String)>> {
    let mut process = spawn::spawn(command, &[])?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = process.pump(Some(Instant::now() + timeout), |output, bytes| {
        let kept: &mut Vec<u8> = if output == Output::Stdout { &mut stdout } else { &mut stderr };
        let room = most.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    });
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(status.map(|status| (status, text(stdout), text(stderr))))
}
