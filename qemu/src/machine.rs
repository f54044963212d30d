//! One guest under QEMU: the process, its output, its end.
//!
//! Each machine has one thread of its own. It reads QEMU's standard output (the guest's console) and standard error
//! into rings until QEMU has ended, collects the status, makes the [`ExitReport`], and only then raises the exit event,
//! so that whoever is woken by it finds everything in place.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hayfork_vmm::backend::{
    BackendError, Channel, ExitKind, ExitReport, HostMemory, Machine, MachineSpec, ProcessStatus,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::binary::Binary;
use crate::command::{Engine, Inherited, arguments};
use crate::diagnosis;
use hayfork_vmm::backend::console::{LastWords, Ring, Watch};
use hayfork_vmm::process::{self, Killer, Output, Process, spawn};

/// How much of QEMU's own messages is kept, in bytes.
const STDERR_BYTES: usize = 16 * 1024;
/// How long a killed process may take to go. Giving back some GiB of memory takes a good part of a second.
const KILL_TIME: Duration = Duration::from_secs(30);

/// A guest that QEMU runs.
pub(crate) struct QemuMachine {
    binary: Binary,
    channel: Option<Channel>,
    pid: u32,
    killer: Killer,
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
    /// The process that launched it; see [`Machine`] about forks.
    owner: u32,
}

/// What the watching thread and the machine's handle share.
struct Shared {
    console: Mutex<Ring>,
    stderr: Mutex<Ring>,
    /// Set before SIGKILL is sent.
    killed: AtomicBool,
    /// Set once, before `exit` is raised.
    report: OnceLock<ExitReport>,
    /// An eventfd that becomes readable at the end.
    exit: OwnedFd,
}

impl QemuMachine {
    /// Starts QEMU. The spec is valid.
    pub(crate) fn launch(binary: &Binary, engine: Engine, spec: &MachineSpec) -> Result<Self, BackendError> {
        let kernel = open_image("kernel", &spec.kernel)?;
        check_kernel(&kernel, &spec.kernel)?;
        let initramfs = open_image("initramfs", &spec.initramfs)?;
        let root_image = spec.root_image.as_deref().map(|path| open_image("root image", path)).transpose()?;
        let memory = guest_memory(spec.memory_mib).map_err(failed("allocating guest memory"))?;
        let (ours, theirs) = UnixStream::pair().map_err(failed("making the agent's channel"))?;
        let exit = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed("making an event descriptor")(error.into()))?;

        let inherited = Inherited {
            agent: theirs.as_raw_fd(),
            memory: memory.as_raw_fd(),
            kernel: kernel.as_raw_fd(),
            initramfs: initramfs.as_raw_fd(),
            root_image: root_image.as_ref().map(AsRawFd::as_raw_fd),
        };
        let mut command = Command::new(&binary.path);
        command.args(arguments(spec, engine, inherited)).env_clear().current_dir("/");
        let mut keep = vec![theirs.as_fd(), memory.as_fd(), kernel.as_fd(), initramfs.as_fd()];
        keep.extend(root_image.as_ref().map(AsFd::as_fd));
        let process = spawn::spawn(command, &keep).map_err(failed("starting QEMU"))?;
        // QEMU holds what it needs; guest memory goes with it.
        drop((theirs, memory, kernel, initramfs, root_image));

        let shared = Arc::new(Shared {
            console: Mutex::new(Ring::new(spec.console_bytes)),
            stderr: Mutex::new(Ring::new(STDERR_BYTES)),
            killed: AtomicBool::new(false),
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
            binary: binary.clone(),
            channel: Some(Channel::Unix(ours)),
            pid,
            killer,
            shared,
            watcher: Some(watcher),
            owner: std::process::id(),
        })
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
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).ok()?;
        parse_rollup(&rollup)
    }

    fn process_id(&self) -> Option<u32> {
        self.shared.report.get().is_none().then_some(self.pid)
    }

    fn boot_failure(&self, after: Duration) -> BackendError {
        match self.try_exit() {
            None => BackendError::BootTimeout { after, console_tail: self.console_tail() },
            Some(report) => diagnosis::error(&self.binary, report),
        }
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

/// Opens an image for reading.
fn open_image(what: &'static str, path: &Path) -> Result<File, BackendError> {
    let unreadable = |source| BackendError::ImageUnreadable { what, path: path.to_path_buf(), source };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")));
    }
    if metadata.len() == 0 {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, "it is empty")));
    }
    Ok(file)
}

/// A compressed kernel would start QEMU, and fail there with a message that helps nobody.
fn check_kernel(mut kernel: &File, path: &Path) -> Result<(), BackendError> {
    let unreadable =
        |source| BackendError::ImageUnreadable { what: "kernel", path: path.to_path_buf(), source };
    let mut magic = [0; 4];
    match kernel.read_exact(&mut magic) {
        Ok(()) if magic == *b"\x7fELF" => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(unreadable(error)),
        Ok(()) | Err(_) => Err(unreadable(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is no uncompressed ELF kernel (vmlinux)",
        ))),
    }
}

/// Memory for the guest, in no file system. Its size is fixed by seals, so that QEMU cannot lose pages from under the
/// guest. Pages come as the guest touches them.
fn guest_memory(mib: u32) -> io::Result<OwnedFd> {
    let memory = memfd_create("hayfork-ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, u64::from(mib) << 20)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

/// Takes `/proc/PID/smaps_rollup` apart. Guest memory is the only shared memory object that QEMU maps, and nobody else
/// maps it, so that its pages count as private there, under `Pss_Shmem` too.
fn parse_rollup(rollup: &str) -> Option<HostMemory> {
    let bytes = |field: &str| -> Option<u64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    let clean = bytes("Private_Clean")? + bytes("Shared_Clean")?;
    let dirty = bytes("Private_Dirty")? + bytes("Shared_Dirty")?;
    let guest = bytes("Pss_Shmem")?;
    // Pages of guest memory that were only read count as clean; they are few.
    Some(HostMemory { overhead: dirty.saturating_sub(guest), guest, cached: clean })
}

/// Says what failed.
fn failed(what: &'static str) -> impl Fn(io::Error) -> BackendError {
    move |source| BackendError::Spawn { what, source }
}

/// Rings hold plain bytes: whatever panicked while it held one, they are good to use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
