//! The seam between the engine and whatever runs virtual machines.
//!
//! The engine (crate `hayfork-sandbox`) knows only the traits here: a [`Backend`] checks once what the host can do
//! and launches machines; a [`Machine`] is one running guest. The [monitor](crate::monitor) of this crate and QEMU (crate
//! `hayfork-qemu`) implement them. A [`Template`] is a machine at rest, from which others are made. Everything blocks and nothing here knows an async runtime: what must be waited for is
//! handed out as a file descriptor.
//!
//! Life of a machine, as the engine sees it:
//!
//! ```text
//! launch(spec) ──► running ── guest powers off / panics / VM process dies ──► exited ──► dropped
//!                     │                                                          ▲
//!                     └── kill() or drop ────────────────────────────────────────┘
//! ```
//!
//! * [`Backend::launch`] returns as soon as the virtual machine runs; it does not wait for the agent. The engine takes
//!   the [`Channel`], waits for the agent's first bytes or for [`Machine::exit_fd`], whichever comes first, and asks
//!   [`Machine::boot_failure`] for the right error when the guest exits or time runs out.
//! * `exit_fd` becomes readable exactly once, when the guest is gone *and* its last console output is in the ring, and
//!   stays readable. From then on [`Machine::try_exit`] gives the report.
//! * The agent channel is also the lifetime pipe: the guest powers itself off [`MachineSpec::linger`] after the host's
//!   end has closed.

mod channel;
pub mod console;
mod error;
mod exit;
mod isolation;
mod spec;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use channel::Channel;
pub use error::BackendError;
pub use exit::{ExitKind, ExitReport, ProcessStatus};
pub use isolation::{Isolation, KernelFlavour, Place};
pub use spec::{
    AGENT_PORT_NAME, ConsoleVerbosity, DEFAULT_CONSOLE_BYTES, DEFAULT_LINGER, DEFAULT_MEMORY_MIB,
    ImageDigests, MAX_COMMAND_LINE, MAX_CONSOLE_BYTES, MAX_LINGER, MAX_MEMORY_MIB, MAX_NAME, MAX_VCPUS,
    MIN_MEMORY_MIB, MachineSpec, SECOND_AGENT_PORT_NAME, SpecError,
};

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accelerator {
    /// KVM, through `/dev/kvm`. What stands behind that is [`Capabilities::isolation`]'s to say.
    Kvm,
    /// QEMU's translator: works everywhere, several times slower.
    Tcg,
}

impl std::fmt::Display for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        })
    }
}

/// What a backend found out about this host; the answer of [`Backend::check`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the backend, as [`Backend::name`].
    pub backend: &'static str,
    /// What it runs on, for people: `QEMU 7.2.22 (/usr/bin/qemu-system-x86_64)`.
    pub description: String,
    /// What executes guest instructions.
    pub accelerator: Accelerator,
    /// The guest kernel that its machines need; [`MachineSpec::kernel`] must be one of that kind.
    pub kernel: KernelFlavour,
    /// What keeps user code in its machines from the host.
    pub isolation: Isolation,
    /// Which process its machines run in; each says itself [where it is](Machine::place).
    pub place: Place,
    /// How many of them may be there at once, if that is this process; further ones run in workers. `None`: all.
    pub machines_in_process: Option<usize>,
    /// Whether the time of a machine stands still while it is [kept](Machine::capture): its guest must be told afterwards.
    pub clock_stands: bool,
    /// Why this accelerator and no faster one, and what to do about it; one sentence each, empty if all is well.
    pub notes: Vec<String>,
    /// The most virtual CPUs a machine may have here.
    pub max_vcpus: u8,
    /// The most memory a machine may have here, in MiB.
    pub max_memory_mib: u32,
}

impl Capabilities {
    /// Capabilities with the limits of [`MachineSpec`] and no notes, for the plain kernel: KVM stands for hardware here,
    /// see [`Capabilities::on_kvm_pvm`].
    pub fn new(backend: &'static str, description: String, accelerator: Accelerator) -> Self {
        Self {
            backend,
            description,
            accelerator,
            kernel: KernelFlavour::Plain,
            isolation: match accelerator {
                Accelerator::Kvm => Isolation::Hardware,
                Accelerator::Tcg => Isolation::Emulation,
            },
            place: match accelerator {
                Accelerator::Kvm => Place::ThisProcess,
                Accelerator::Tcg => Place::Qemu,
            },
            machines_in_process: None,
            clock_stands: false,
            notes: Vec::new(),
            max_vcpus: MAX_VCPUS,
            max_memory_mib: MAX_MEMORY_MIB,
        }
    }

    /// The same where KVM is kvm_pvm: another kernel, and one wall less.
    #[must_use]
    pub fn on_kvm_pvm(self) -> Self {
        Self { kernel: KernelFlavour::Pvm, isolation: Isolation::KvmPvm, ..self }
    }
}

/// A way to run virtual machines on this host.
pub trait Backend: Send + Sync {
    /// A stable lower-case name: `monitor`, `qemu`.
    fn name(&self) -> &'static str;

    /// Finds out whether machines can run here and on what. May take a second the first time; later calls answer from
    /// memory unless the first one failed.
    ///
    /// # Errors
    /// What is missing, with [`BackendError::remedy`] saying how to get it.
    fn check(&self) -> Result<Capabilities, BackendError>;

    /// Starts a machine and returns while it boots. Includes [`MachineSpec::validate`] and [`Backend::check`].
    ///
    /// # Errors
    /// A bad spec, an unreadable image, a missing or too old hypervisor, or a process that could not be started.
    /// Nothing is left behind.
    fn launch(&self, spec: &MachineSpec) -> Result<Box<dyn Machine>, BackendError>;

    /// Reads a template that [`Template::save`] wrote, and what was saved about it. `images` are those that machines are made
    /// of here; `root_image` is the file of that digest.
    ///
    /// # Errors
    /// [`BackendError::Snapshot`] for a file that is damaged, or does not belong to these images, this host and this version
    /// of hayfork; [`BackendError::Unsupported`]; or the host refuses something. Nothing is left behind.
    fn load(
        &self,
        path: &Path,
        images: &ImageDigests,
        root_image: Option<&Path>,
    ) -> Result<(Arc<dyn Template>, Vec<u8>), BackendError> {
        let _ = (path, images, root_image);
        Err(BackendError::Unsupported { what: "a saved machine cannot be loaded" })
    }
}

/// A machine at rest, from which others are made that go on where it stood. It needs the original no more.
///
/// A restored machine's agent has lost its host and gets a new one by [`Machine::take_channel`], as after a launch; what user
/// code had in memory is all there. Its wall clock, randomness and names are those of the original until the agent renews them.
pub trait Template: Send + Sync {
    /// Makes a machine.
    ///
    /// # Errors
    /// The host refuses something. Nothing is left behind.
    fn restore(&self) -> Result<Box<dyn Machine>, BackendError>;

    /// Makes ahead what the next [restore](Template::restore) would take time for, if it is not there yet; as cheap as nothing where
    /// a backend can make nothing ahead. What is made takes some MiB of memory, a machine's descriptors and threads, and goes
    /// with the template.
    ///
    /// # Errors
    /// As [`Template::restore`], which is as good as before then.
    fn prepare(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Makes a machine that [`Machine::working_set`] is asked of later. It is slower than others.
    ///
    /// # Errors
    /// As [`Template::restore`].
    fn restore_observed(&self) -> Result<Box<dyn Machine>, BackendError> {
        self.restore()
    }

    /// The same template, whose machines get these pages of their own ahead: [`Machine::working_set`] of one that was put to use.
    fn with_working_set(&self, pages: Vec<Range<u64>>) -> Arc<dyn Template>;

    /// Bytes of guest RAM of each machine.
    fn ram(&self) -> u64;

    /// Writes a file from which [`Backend::load`] makes this template again, in this or another process, in place of one that
    /// is there. `about` are bytes of the caller's own, at most 1 MiB.
    ///
    /// # Errors
    /// [`BackendError::Snapshot`] if it cannot be written; [`BackendError::Unsupported`], also for machines whose files are not
    /// [named](MachineSpec::digests). What was at `path` is there still.
    fn save(&self, path: &Path, about: &[u8]) -> Result<(), BackendError> {
        let _ = (path, about);
        Err(BackendError::Unsupported { what: "a machine at rest cannot be saved to a file" })
    }
}

/// Host memory of one machine, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// What only this machine's process has and the host cannot get back without swapping, without guest RAM: the cost
    /// of having one more machine. 0 where it is not told apart from the rest of this process.
    pub overhead: u64,
    /// Guest RAM that the guest has touched so far.
    pub guest: u64,
    /// Unchanged pages of programs and images: the page cache, shared with all who use the same files, and given back
    /// when memory is short.
    pub cached: u64,
}

/// One running guest. Dropping it kills the guest and waits until it is gone.
///
/// In a child made by `fork` without `exec` the handle is inert: dropping it there leaves the parent's machine alone
/// and `kill` gives [`BackendError::ForkedProcess`].
pub trait Machine: Send {
    /// The ordered byte stream to the agent; `None` if it was taken before. Closing it starts the guest's linger time.
    fn take_channel(&mut self) -> Option<Channel>;

    /// A descriptor that becomes, and stays, readable when the machine has exited. Only to be polled, never read.
    fn exit_fd(&self) -> BorrowedFd<'_>;

    /// How the machine ended; `None` while it runs.
    fn try_exit(&self) -> Option<ExitReport>;

    /// The newest console output, lossily decoded; bounded by [`MachineSpec::console_bytes`].
    fn console_tail(&self) -> String;

    /// Kills the machine and waits until it is dead and its memory is free. Killing twice, or after the guest's own
    /// exit, is fine; the report then tells how it really ended.
    ///
    /// # Errors
    /// [`BackendError::StuckProcess`] if the process has not gone after some seconds, which only a kernel fault explains.
    fn kill(&mut self) -> Result<ExitReport, BackendError>;

    /// What this machine costs the host; `None` where that is unknown or after its exit.
    fn host_memory(&self) -> Option<HostMemory>;

    /// The process that runs the guest, where it is one of its own.
    fn process_id(&self) -> Option<u32>;

    /// Which process that is.
    fn place(&self) -> Place;

    /// Keeps the machine as it is now, and lets it go on. It stands still meanwhile, and its agent's stream is not kept.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`]; the machine has ended, does not come to rest, or there is no memory for the copy.
    fn capture(&self) -> Result<Arc<dyn Template>, BackendError> {
        Err(BackendError::Unsupported { what: "a running machine cannot be kept or forked" })
    }

    /// Makes a machine that was [restored](Template::restore) again what it was then, as if another had been made: nothing is left
    /// of what it did since. Its agent's stream ends, and [`Machine::take_channel`] gives a new one.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the backend cannot do it, or this machine was not made by a restore; then it goes on. In
    /// each other case it has ended: before, or because the host refused something on the way.
    fn reset(&mut self) -> Result<(), BackendError> {
        Err(BackendError::Unsupported { what: "a machine cannot be used again" })
    }

    /// Guest addresses of pages that a machine like this one had better have ahead, by what this one has used since it was made;
    /// in ranges of whole pages. Empty where that is not known.
    fn working_set(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Waits until the machine has exited, at most `timeout` (`None`: without limit).
    fn wait(&self, timeout: Option<Duration>) -> Option<ExitReport> {
        // A timeout too long for the clock is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(report) = self.try_exit() {
                return Some(report);
            }
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None | Some(Duration::ZERO) => return None,
                    Some(left) => Some(left),
                },
            };
            wait_readable(self.exit_fd(), left);
        }
    }

    /// The error for a machine whose agent has not answered within `after` its launch: what it died of if it exited,
    /// else a boot timeout with what the console says.
    fn boot_failure(&self, after: Duration) -> BackendError {
        match self.try_exit() {
            None => BackendError::BootTimeout { after, console_tail: self.console_tail() },
            Some(report) => report.into_error(),
        }
    }
}

/// Waits until `fd` is readable or `timeout` has passed. May return early; the caller looks again.
fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // Timespec::try_from fails only for times beyond i64 seconds, which are as good as no limit.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    // An error here is EINTR, or a lack of memory in the kernel: look again.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
}
