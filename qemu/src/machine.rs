//! One guest under QEMU: the process, its output, its end.
//!
//! Each machine has one thread of its own. It reads QEMU's standard output (the guest's console) and standard error
//! into rings until QEMU has ended, collects the status, makes the [`ExitReport`], and only then raises the exit event,
//! so that whoever is woken by it finds everything in place.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hayfork_vmm::backend::console::{LastWords, Ring, Watch};
use hayfork_vmm::backend::{
    BackendError, Channel, ExitKind, ExitReport, HostMemory, Machine, MachineSpec, Place, ProcessStatus,
    Template,
};
use hayfork_vmm::process::{self, Killer, Output, Process, spawn};
use rustix::event::{EventfdFlags, eventfd};

use crate::binary::Binary;
use crate::command::{Engine, Inherited, Port, Start, arguments};
use crate::images;
use crate::qmp::{Qmp, QmpError};
use crate::ram::Ram;
use crate::{diagnosis, footprint, snapshot};

/// How much of QEMU's own messages is kept, in bytes.
const STDERR_BYTES: usize = 16 * 1024;
/// How long a killed process may take to go. Giving back some GiB of memory takes a good part of a second.
const KILL_TIME: Duration = Duration::from_secs(30);

/// How long QEMU may take to end after it has closed its control channel.
const END_TIME: Duration = Duration::from_secs(5);

/// What a machine is made of, but for its memory and how it begins. Those that are restored from it are made of the same.
#[derive(Debug)]
pub(crate) struct Blueprint {
    pub(crate) binary: Binary,
    pub(crate) engine: Engine,
    pub(crate) spec: MachineSpec,
    pub(crate) root_image: Option<File>,
}

/// A guest that QEMU runs.
pub(crate) struct QemuMachine {
    pub(crate) blueprint: Arc<Blueprint>,
    pub(crate) port: Port,
    channel: Option<Channel>,
    pub(crate) pid: u32,
    killer: Killer,
    pub(crate) shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
    pub(crate) control: Mutex<Qmp>,
    /// The process that launched it; see [`Machine`] about forks.
    owner: u32,
}

/// What the watching thread and the machine's handle share.
pub(crate) struct Shared {
    console: Mutex<Ring>,
    stderr: Mutex<Ring>,
    /// Set before SIGKILL is sent.
    killed: AtomicBool,
    /// Given up at the end, so that the host has it back then.
    pub(crate) ram: Mutex<Option<Ram>>,
    /// Set once, before `exit` is raised.
    report: OnceLock<ExitReport>,
    /// An eventfd that becomes readable at the end.
    exit: OwnedFd,
}

impl QemuMachine {
    /// Starts QEMU, which boots the guest. The spec is valid.
    pub(crate) fn launch(binary: &Binary, engine: Engine, spec: &MachineSpec) -> Result<Self, BackendError> {
        let kernel = images::open("kernel", &spec.kernel)?;
        images::check_kernel(&kernel, &spec.kernel)?;
        let initramfs = images::open("initramfs", &spec.initramfs)?;
        let root_image =
            spec.root_image.as_deref().map(|path| images::open("root image", path)).transpose()?;
        let blueprint =
            Arc::new(Blueprint { binary: binary.clone(), engine, spec: spec.clone(), root_image });
        let ram = Ram::new(spec.memory_mib).map_err(failed("allocating guest memory"))?;
        let start = Start::Boot { kernel: kernel.as_raw_fd(), initramfs: initramfs.as_raw_fd() };
        Self::start(blueprint, ram, start, &[kernel.as_fd(), initramfs.as_fd()])
    }

    /// Starts QEMU. It inherits the descriptors in `keep`, and those of the blueprint and the memory.
    pub(crate) fn start(
        blueprint: Arc<Blueprint>,
        ram: Ram,
        start: Start,
        keep: &[BorrowedFd<'_>],
    ) -> Result<Self, BackendError> {
        let Blueprint { binary, engine, spec, root_image } = &*blueprint;
        let (channel, agent) = UnixStream::pair().map_err(failed("making the agent's channel"))?;
        let (control, theirs) = UnixStream::pair().map_err(failed("making QEMU's control channel"))?;
        let control = Qmp::new(control).map_err(failed("making QEMU's control channel"))?;
        let exit = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed("making an event descriptor")(error.into()))?;

        // Another descriptor, since ours is one that children do not get.
        let memory =
            ram.descriptor().try_clone_to_owned().map_err(failed("making a descriptor of guest memory"))?;
        let inherited = Inherited {
            control: theirs.as_raw_fd(),
            agent: agent.as_raw_fd(),
            memory: memory.as_raw_fd(),
            root_image: root_image.as_ref().map(AsRawFd::as_raw_fd),
            start,
        };
        let mut command = Command::new(&binary.path);
        command.args(arguments(spec, *engine, inherited)).env_clear().current_dir("/");
        let mut keep = keep.to_vec();
        keep.extend([theirs.as_fd(), agent.as_fd(), memory.as_fd()]);
        keep.extend(root_image.as_ref().map(AsFd::as_fd));
        let process = spawn::spawn(command, &keep).map_err(failed("starting QEMU"))?;
        drop((theirs, agent, memory));

        let shared = Arc::new(Shared {
            console: Mutex::new(Ring::new(spec.console_bytes)),
            stderr: Mutex::new(Ring::new(STDERR_BYTES)),
            killed: AtomicBool::new(false),
            ram: Mutex::new(Some(ram)),
            report: OnceLock::new(),
            exit,
        });
        let (pid, killer) = (process.id(), process.killer());
        tracing::debug!(pid, name = spec.name, accelerator = %engine.accelerator, "started QEMU");
        let watched = Arc::clone(&shared);
        // If there is no thread, the closure is dropped and the process with it.
        let watcher = std::thread::Builder::new()
            .name("hayfork-qemu".into())
            .stack_size(128 * 1024)
            .spawn(move || watch(process, &watched))
            .map_err(failed("starting a thread"))?;
        Ok(Self {
            blueprint,
            port: start.port(),
            channel: Some(Channel::Unix(channel)),
            pid,
            killer,
            shared,
            watcher: Some(watcher),
            control: Mutex::new(control),
            owner: std::process::id(),
        })
    }

    /// The error for a conversation with QEMU that failed. A QEMU that has closed its end is ending, and how says more.
    pub(crate) fn failure(&self, error: &QmpError) -> BackendError {
        if matches!(error, QmpError::Closed | QmpError::Io(_))
            && let Some(report) = self.wait(Some(END_TIME))
        {
            return diagnosis::error(&self.blueprint.binary, report);
        }
        let path = self.blueprint.binary.path.clone();
        BackendError::QemuUnusable { path, detail: error.to_string() }
    }

    /// Ends it as one that has crashed; does not wait.
    pub(crate) fn end(&self) {
        tracing::warn!(pid = self.pid, "QEMU is ended, because it is not to be understood");
        self.killer.kill();
    }

    /// Whether this is the process that launched the machine, not a fork of it.
    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }
}

impl Machine for QemuMachine {
    fn take_channel(&mut self) -> Option<Channel> {
        self.channel.take()
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.shared.exit.as_fd()
    }

    fn try_exit(&self) -> Option<ExitReport> {
        self.shared.report.get().cloned()
    }

    fn console_tail(&self) -> String {
        lock(&self.shared.console).text()
    }

    fn kill(&mut self) -> Result<ExitReport, BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        if self.shared.report.get().is_none() {
            self.shared.killed.store(true, Ordering::SeqCst);
            self.killer.kill();
        }
        let report = self
            .wait(Some(KILL_TIME))
            .ok_or(BackendError::StuckProcess { pid: self.pid, after: KILL_TIME })?;
        if let Some(watcher) = self.watcher.take() {
            // It has raised the event as its last act. A panic in it was reported by the panic hook.
            let _ = watcher.join();
        }
        Ok(report)
    }

    fn host_memory(&self) -> Option<HostMemory> {
        // The process id is QEMU's until its status has been collected, and a report is made right after that. In the
        // moment between, the worst that can be read is the memory of another process.
        if self.shared.report.get().is_some() {
            return None;
        }
        let is_shared = lock(&self.shared.ram).as_ref()?.is_shared();
        footprint::of(self.pid, is_shared)
    }

    fn process_id(&self) -> Option<u32> {
        self.shared.report.get().is_none().then_some(self.pid)
    }

    fn place(&self) -> Place {
        Place::Qemu
    }

    fn boot_failure(&self, after: Duration) -> BackendError {
        match self.try_exit() {
            None => BackendError::BootTimeout { after, console_tail: self.console_tail() },
            Some(report) => diagnosis::error(&self.blueprint.binary, report),
        }
    }

    fn capture(&self) -> Result<Arc<dyn Template>, BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        if let Some(report) = self.try_exit() {
            return Err(report.into_error());
        }
        Ok(Arc::new(snapshot::capture(self)?))
    }
}

impl Drop for QemuMachine {
    fn drop(&mut self) {
        if self.is_ours()
            && let Err(error) = self.kill()
        {
            tracing::error!(%error, "a virtual machine could not be killed");
        }
    }
}

/// The machine's thread: reads until QEMU has ended, then tells how.
fn watch(mut process: Process, shared: &Shared) {
    process::block_signals();
    let mut words = Watch::default();
    let status = process.pump(None, |output, bytes| match output {
        Output::Stdout => {
            words.push(bytes);
            lock(&shared.console).push(bytes);
        }
        Output::Stderr => lock(&shared.stderr).push(bytes),
    });
    let status = status.unwrap_or(ProcessStatus::Unknown);
    let kind = classify(status, words.heard(), shared.killed.load(Ordering::SeqCst));
    let report = ExitReport {
        kind,
        status,
        console_tail: lock(&shared.console).text(),
        stderr_tail: lock(&shared.stderr).text(),
    };
    tracing::debug!(?kind, %status, "QEMU has ended");
    drop(lock(&shared.ram).take());
    // This is the only place that sets it.
    let _ = shared.report.set(report);
    // Adding 1 to an eventfd fails only when it is near its maximum of 2^64 - 1.
    let _ = rustix::io::write(&shared.exit, &1u64.to_ne_bytes());
}

/// Why QEMU ended. A guest that resets, after a panic or on purpose, makes QEMU exit with 0 (`-no-reboot`); the
/// kernel's last words tell these apart.
fn classify(status: ProcessStatus, words: LastWords, killed: bool) -> ExitKind {
    match status {
        ProcessStatus::Signal(libc::SIGKILL) | ProcessStatus::Unknown if killed => ExitKind::Killed,
        ProcessStatus::Code(0) | ProcessStatus::Unknown if words.panic => ExitKind::Panic,
        ProcessStatus::Code(0) => ExitKind::PowerOff,
        ProcessStatus::Unknown if words.reboot => ExitKind::PowerOff,
        _ => ExitKind::Crashed,
    }
}

/// Says what failed.
pub(crate) fn failed(what: &'static str) -> impl Fn(io::Error) -> BackendError {
    move |source| BackendError::Spawn { what, source }
}

/// Rings hold plain bytes: whatever panicked while it held one, they are good to use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
