//! A machine in a worker process, and a template, as their owner has them.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::Ready;
use super::child::{Child, KILL_TIME};
use super::packet::{self, PacketError, Take};
use super::wire::{self, Answer, End, Launch, Request, Restore, Saved, safe};
use crate::after_fork::Released;
use crate::backend::{
    BackendError, Channel, ExitKind, ExitReport, HostMemory, ImageDigests, Machine as BackendMachine, Place,
    ProcessStatus, Template as BackendTemplate,
};
use crate::machine::{Blueprint, Template};

/// How long a worker may take for what takes it microseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same where nobody wants to wait for a console on the way out.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take to make or to keep a machine, besides the time for its memory.
const LONG_PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of guest RAM that are copied in a second on a slow and busy host.
const COPIED: u64 = 128 << 20;

/// A guest in a worker process.
pub(crate) struct WorkerMachine {
    child: Mutex<Child>,
    pid: u32,
    /// For those made of this one.
    ready: Arc<Ready>,
    digests: Option<ImageDigests>,
    channel: Option<UnixStream>,
    _released: Released,
    /// Has one message at the end of the machine, and is closed by that of the worker.
    end: OwnedFd,
    report: OnceLock<ExitReport>,
    /// What the console said when it was last asked.
    console: Mutex<String>,
    ram: u64,
    /// The process that launched it.
    owner: u32,
}

/// Starts a new machine.
///
/// # Errors
/// No worker can be started, or it cannot make the machine.
pub(super) fn launch(
    ready: &Arc<Ready>,
    blueprint: &Blueprint,
    digests: Option<ImageDigests>,
) -> Result<WorkerMachine, BackendError> {
    let kernel = &blueprint.kernel;
    let request = Request::Launch(Launch {
        ram: blueprint.ram,
        vcpus: blueprint.vcpus,
        kernel: kernel.image.extents().to_vec(),
        kernel_entry: kernel.entry.0,
        kernel_end: kernel.end.0,
        initramfs: blueprint.initramfs.extents().to_vec(),
        initramfs_len: blueprint.initramfs_len,
        root: blueprint.root.is_some(),
        command_line: blueprint.command_line.clone(),
        console_bytes: blueprint.console_bytes as u64,
    });
    let mut descriptors = vec![kernel.image.memory(), blueprint.initramfs.memory()];
    descriptors.extend(blueprint.root.as_ref().map(AsFd::as_fd));
    WorkerMachine::start(ready, digests, &request, &descriptors, blueprint.ram)
}

impl WorkerMachine {
    fn start(
        ready: &Arc<Ready>,
        digests: Option<ImageDigests>,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        ram: u64,
    ) -> Result<Self, BackendError> {
        let mut child = ready.shelf.take()?;
        let pid = child.id();
        let ends = Ends::new()
            .map_err(|source| BackendError::Spawn { what: "making sockets to a worker process", source })?;
        let descriptors = [&[ends.agent.as_fd(), ends.their_end.as_fd()], descriptors].concat();
        match child.ask(request, &descriptors, Instant::now() + long_patience(ram)) {
            Ok((Answer::Started, _)) => {}
            Ok((Answer::Failed(failure), _)) => return Err(failure.into_error()),
            Ok(_) => return Err(lost("it answered something else")),
            Err(PacketError::Closed) => return Err(child.death(String::new()).into_error()),
            Err(PacketError::NoDescriptors(source)) => return Err(no_descriptors(source)),
            Err(error) => return Err(lost(&error.to_string())),
        }
        let Ends { channel, end, .. } = ends;
        Ok(Self {
            child: Mutex::new(child),
            pid,
            ready: Arc::clone(ready),
            digests,
            channel: Some(channel),
            _released: Released::new(&end),
            end,
            report: OnceLock::new(),
            console: Mutex::default(),
            ram,
            owner: std::process::id(),
        })
    }

    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// As [`BackendMachine::capture`], for whoever makes the machines.
    pub(crate) fn keep(&self) -> Result<Template, BackendError> {
        if let Some(report) = self.is_ours().then(|| self.try_exit()).flatten() {
            return Err(report.into_error());
        }
        match self.ask(&Request::Capture, long_patience(self.ram))? {
            (Answer::Captured(bytes), descriptors) => {
                let saved: Saved = packet::decode(&bytes).map_err(|error| lost(&error.to_string()))?;
                if saved.ram != self.ram {
                    return Err(lost("it gave another machine's state"));
                }
                saved.into_template(descriptors)
            }
            _ => Err(lost("it answered something else")),
        }
    }

    /// The worker. Who holds it may have panicked between two messages; then the next answer is wrong, and that is noticed.
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_console(&self) -> String {
        self.console.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the worker. One that does not answer as it should is killed, and its machine has ended.
    fn ask(&self, request: &Request, patience: Duration) -> Result<(Answer, Vec<OwnedFd>), BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        if let Some(report) = self.report.get() {
            return Err(report.clone().into_error());
        }
        let mut child = self.child();
        let error = match child.ask(request, &[], Instant::now() + patience) {
            Ok((Answer::Failed(failure), _)) => return Err(failure.into_error()),
            Ok((answer, descriptors)) => match answer.validate(self.ram) {
                Ok(()) => return Ok((answer, descriptors)),
                Err(error) => error.to_string(),
            },
            // Its answer is lost, and it has done nothing wrong.
            Err(PacketError::NoDescriptors(source)) => return Err(no_descriptors(source)),
            // It has ended; how, the other socket says or the kernel.
            Err(PacketError::Closed) => {
                drop(child);
                return Err(self.try_exit().map_or(BackendError::Killed, ExitReport::into_error));
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(pid = self.pid, error, "a worker is killed");
        child.kill();
        drop(child);
        let detail = format!("the worker process was killed: {error}");
        let report = ExitReport {
            kind: ExitKind::Crashed,
            status: ProcessStatus::None,
            console_tail: self.last_console(),
            stderr_tail: detail,
        };
        // Who came first knows it too.
        let _ = self.report.set(report);
        Err(lost(&error))
    }

    fn set_report(&self, report: ExitReport) -> ExitReport {
        self.report.get_or_init(|| report).clone()
    }

    fn keep_console(&self, answer: &Answer) {
        if let Answer::ConsoleTail(text) = answer {
            *self.console.lock().unwrap_or_else(PoisonError::into_inner) = safe(text);
        }
    }
}

/// Both ends of what owner and worker talk over beside requests. Made here: see [`wire`].
struct Ends {
    /// Children made by fork must not keep the worker's ends, which would then never be seen to be closed.
    _released: [Released; 2],
    channel: UnixStream,
    agent: UnixStream,
    end: OwnedFd,
    their_end: OwnedFd,
}

impl Ends {
    fn new() -> std::io::Result<Self> {
        let (channel, agent) = UnixStream::pair()?;
        let (end, their_end) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let released = [Released::new(&agent), Released::new(&their_end)];
        Ok(Self { _released: released, channel, agent, end, their_end })
    }
}

fn long_patience(ram: u64) -> Duration {
    LONG_PATIENCE + Duration::from_secs(ram / COPIED)
}

fn no_descriptors(source: std::io::Error) -> BackendError {
    BackendError::Spawn { what: "taking descriptors from a worker process", source }
}

fn lost(detail: &str) -> BackendError {
    BackendError::WorkerLost { detail: detail.to_owned() }
}

impl BackendMachine for WorkerMachine {
    fn take_channel(&mut self) -> Option<Channel> {
        self.channel.take().map(Channel::Unix)
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    fn try_exit(&self) -> Option<ExitReport> {
        if let Some(report) = self.report.get() {
            return Some(report.clone());
        }
        // The message stays where it is, so that the descriptor stays readable.
        match packet::receive::<End>(self.end.as_fd(), Take::Peek) {
            Ok((end, _)) => Some(self.set_report(end.into_report())),
            Err(PacketError::TimedOut) => None,
            Err(PacketError::Closed) => {
                let report = self.child().death(self.last_console());
                Some(self.set_report(report))
            }
            Err(error) => {
                self.child().kill();
                Some(self.set_report(ExitReport {
                    kind: ExitKind::Crashed,
                    status: ProcessStatus::None,
                    console_tail: self.last_console(),
                    stderr_tail: error.to_string(),
                }))
            }
        }
    }

    fn console_tail(&self) -> String {
        if let Some(report) = self.try_exit() {
            return report.console_tail;
        }
        if let Ok((answer, _)) = self.ask(&Request::ConsoleTail, PATIENCE) {
            self.keep_console(&answer);
        }
        self.report.get().map_or_else(|| self.last_console(), |report| report.console_tail.clone())
    }

    fn kill(&mut self) -> Result<ExitReport, BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        // How it has ended by itself counts.
        let has_ended = self.try_exit().is_some();
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // What it said last is for the report. A worker that does not answer any more is about to go anyway.
        if !has_ended
            && let Ok((answer, _)) = child.ask(&Request::ConsoleTail, &[], Instant::now() + LAST_PATIENCE)
        {
            self.keep_console(&answer);
        }
        let stuck = BackendError::StuckProcess { pid: self.pid, after: KILL_TIME };
        let Some(status) = child.kill() else { return Err(stuck) };
        drop(child);
        if let Some(report) = self.report.get() {
            return Ok(report.clone());
        }
        // It may have ended by itself before the signal.
        let report = match packet::receive::<End>(self.end.as_fd(), Take::Peek) {
            Ok((end, _)) => end.into_report(),
            Err(_) => ExitReport {
                kind: ExitKind::Killed,
                status,
                console_tail: self.last_console(),
                stderr_tail: String::new(),
            },
        };
        Ok(self.set_report(report))
    }

    fn host_memory(&self) -> Option<HostMemory> {
        if self.try_exit().is_some() {
            return None;
        }
        match self.ask(&Request::HostMemory, PATIENCE) {
            Ok((Answer::HostMemory(memory), _)) => memory.map(wire::host_memory),
            _ => None,
        }
    }

    fn process_id(&self) -> Option<u32> {
        self.report.get().is_none().then_some(self.pid)
    }

    fn place(&self) -> Place {
        Place::Worker
    }

    fn capture(&self) -> Result<Arc<dyn BackendTemplate>, BackendError> {
        let template = self.keep()?;
        Ok(Arc::new(WorkerTemplate::new(Arc::clone(&self.ready), template, self.digests.clone())?))
    }

    fn working_set(&self) -> Vec<Range<u64>> {
        match self.ask(&Request::WorkingSet, PATIENCE) {
            Ok((Answer::WorkingSet(pages), _)) => pages,
            _ => Vec::new(),
        }
    }
}

/// A guest at rest, whose clones are made in workers.
#[derive(Debug)]
pub(crate) struct WorkerTemplate {
    template: Template,
    /// The same without its memory, as workers take it.
    saved: Arc<[u8]>,
    ready: Arc<Ready>,
    digests: Option<ImageDigests>,
}

impl WorkerTemplate {
    pub(crate) fn new(
        ready: Arc<Ready>,
        template: Template,
        digests: Option<ImageDigests>,
    ) -> Result<Self, BackendError> {
        let saved = packet::encode(&Saved::of(&template)).map_err(|error| lost(&error.to_string()))?;
        Ok(Self { template, saved: saved.into(), ready, digests })
    }

    /// As [`BackendTemplate::restore`], for whoever makes the machines.
    pub(crate) fn machine(&self) -> Result<WorkerMachine, BackendError> {
        let request = Request::Restore(Restore {
            saved: self.saved.to_vec(),
            working_set: self.template.working_set.clone(),
        });
        let descriptors = self.template.descriptors();
        WorkerMachine::start(&self.ready, self.digests.clone(), &request, &descriptors, self.ram())
    }
}

impl BackendTemplate for WorkerTemplate {
    fn restore(&self) -> Result<Box<dyn BackendMachine>, BackendError> {
        Ok(Box::new(self.machine()?))
    }

    fn with_working_set(&self, pages: Vec<Range<u64>>) -> Arc<dyn BackendTemplate> {
        Arc::new(Self {
            template: self.template.with_working_set(pages),
            saved: Arc::clone(&self.saved),
            ready: Arc::clone(&self.ready),
            digests: self.digests.clone(),
        })
    }

    fn ram(&self) -> u64 {
        self.template.memory().ram()
    }

    fn save(&self, path: &Path, about: &[u8]) -> Result<(), BackendError> {
        self.ready.monitor.save_template(&self.template, self.digests.as_ref(), path, about)
    }
}
