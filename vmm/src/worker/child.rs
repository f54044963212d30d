//! Worker processes as their owner has them, and the one that waits for its machine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::packet::{self, PacketError, Received, Take};
use super::wire::{Answer, Confinement, Hello, Request, safe};
use crate::after_fork::Released;
use crate::backend::{BackendError, ExitKind, ExitReport, ProcessStatus};
use crate::process::{Output, Process, spawn};
use crate::threads;

/// How long a worker may take to become ready: some milliseconds on an idle host.
const START_TIME: Duration = Duration::from_secs(20);
/// How long the kernel may take to end one that was killed.
pub(super) const KILL_TIME: Duration = Duration::from_secs(30);
/// Bytes of its error output that are kept.
const MOST_OUTPUT: usize = 8 << 10;

/// A worker process. Dropping it kills it, and waits until it is gone.
pub(super) struct Child {
    _released: Released,
    control: OwnedFd,
    process: Process,
}

impl std::fmt::Debug for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Child").field("pid", &self.process.id()).finish_non_exhaustive()
    }
}

impl Child {
    /// Starts one and waits until it is confined.
    ///
    /// # Errors
    /// It cannot be started, or is none of this version.
    fn start(binary: &Path) -> Result<(Self, Hello), BackendError> {
        let failed = |source| BackendError::Spawn { what: "starting a worker process", source };
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| failed(errno.into()))?;
        let released = Released::new(&control);
        let mut command = Command::new(binary);
        command.arg(std::process::id().to_string()).env_clear();
        let process = spawn::spawn_with_input(command, theirs).map_err(failed)?;
        let mut child = Self { _released: released, control, process };
        let unusable = |detail| BackendError::WorkerUnusable { path: binary.to_path_buf(), detail };
        match packet::receive::<Hello>(child.control.as_fd(), Take::Until(Some(Instant::now() + START_TIME)))
        {
            Ok((hello, _)) if hello.version == env!("CARGO_PKG_VERSION") => Ok((child, hello)),
            Ok((hello, _)) => {
                let (theirs, ours) = (safe(&hello.version), env!("CARGO_PKG_VERSION"));
                Err(unusable(format!("it is of version {theirs}, and this is {ours}")))
            }
            Err(PacketError::Closed) => {
                let (status, output) = child.autopsy();
                let output = output.trim_end();
                let colon = if output.is_empty() { "" } else { ": " };
                Err(unusable(format!("it ended with {status}{colon}{output}")))
            }
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Whether it waits still.
    fn is_there(&self) -> bool {
        let mut control = [PollFd::new(&self.control, PollFlags::IN)];
        matches!(poll(&mut control, Some(&Timespec::default())), Ok(0))
    }

    /// One request, and its answer until `deadline`.
    pub(super) fn ask(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Received<Answer>, PacketError> {
        packet::send(self.control(), request, descriptors, Some(deadline))?;
        let (answer, descriptors) = packet::receive(self.control(), Take::Until(Some(deadline)))?;
        if descriptors.is_empty() || matches!(answer, Answer::Captured(_)) {
            Ok((answer, descriptors))
        } else {
            Err(PacketError::Malformed("it has descriptors that nobody wants"))
        }
    }

    /// Kills it and waits until it is gone. `None` if the kernel does not end it.
    pub(super) fn kill(&mut self) -> Option<ProcessStatus> {
        self.process.killer().kill();
        self.process.wait_for_end(Instant::now() + KILL_TIME)
    }

    /// How one that has closed its sockets has ended, and what it said. Killed first if it has not.
    pub(super) fn autopsy(&mut self) -> (ProcessStatus, String) {
        let mut output = Vec::new();
        let mut keep = |from, bytes: &[u8]| {
            let room = MOST_OUTPUT.saturating_sub(output.len());
            if from == Output::Stderr {
                output.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
        };
        let mut status = self.process.pump(Some(Instant::now() + Duration::from_secs(2)), &mut keep);
        if status.is_none() {
            self.process.killer().kill();
            status = self.process.pump(Some(Instant::now() + KILL_TIME), &mut keep);
        }
        (status.unwrap_or(ProcessStatus::Unknown), safe(&String::from_utf8_lossy(&output)))
    }

    /// The report of a machine whose worker has gone without one.
    pub(super) fn death(&mut self, console_tail: String) -> ExitReport {
        let (status, stderr_tail) = self.autopsy();
        ExitReport { kind: ExitKind::Crashed, status, console_tail, stderr_tail }
    }
}

/// The program, and a worker made ahead: to start one and to confine it takes longer than to make a machine in it.
#[derive(Debug)]
pub(super) struct Shelf {
    binary: PathBuf,
    pub(super) confinement: Confinement,
    spare: Mutex<Option<Child>>,
    filling: AtomicBool,
    owner: u32,
}

impl Shelf {
    /// Tries the program; the first worker is the first spare one.
    pub(super) fn new(binary: PathBuf) -> Result<Self, BackendError> {
        let (child, hello) = Child::start(&binary)?;
        Ok(Self {
            binary,
            confinement: hello.confinement,
            spare: Mutex::new(Some(child)),
            filling: AtomicBool::new(false),
            owner: std::process::id(),
        })
    }

    /// Whether this is the process that made it.
    pub(super) fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// A worker without a machine. The next one is being made meanwhile.
    pub(super) fn take(self: &Arc<Self>) -> Result<Child, BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
        let child = match spare.filter(Child::is_there) {
            Some(child) => child,
            None => Child::start(&self.binary)?.0,
        };
        if !self.filling.swap(true, Ordering::SeqCst) {
            let shelf = Arc::clone(self);
            let started: io::Result<_> =
                threads::spawn(Builder::new().name("hayfork-workers".into()), move || shelf.fill());
            if started.is_err() {
                self.filling.store(false, Ordering::SeqCst);
            }
        }
        Ok(child)
    }

    fn fill(&self) {
        match Child::start(&self.binary) {
            Ok((child, _)) => {
                // Another one cannot be there: only who fills puts one in. It is dropped outside of the lock all the same.
                let before = self.spare.lock().unwrap_or_else(PoisonError::into_inner).replace(child);
                drop(before);
            }
            // Who needs it will meet the same.
            Err(error) => tracing::debug!(%error, "no worker is made ahead"),
        }
        self.filling.store(false, Ordering::SeqCst);
    }
}
