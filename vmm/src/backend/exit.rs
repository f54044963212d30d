//! How a machine ended.

use super::BackendError;

/// Why the guest is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitKind {
    /// The guest powered itself off (or rebooted, which is the same here).
    PowerOff,
    /// The guest kernel panicked; the console says why.
    Panic,
    /// The host killed it: [`kill`](super::Machine::kill) or drop.
    Killed,
    /// It did not end by itself: an error of the hypervisor, a guest that no processor can go on with, or a signal from
    /// elsewhere to the process that ran it (the host's out-of-memory killer, for one).
    Crashed,
}

/// How the process that ran the guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// Unknown: other code of this program collected the status first, for example by `waitpid(-1)`, or SIGCHLD is ignored.
    Unknown,
    /// There was none: the guest ran in this process.
    None,
}

impl std::fmt::Display for ProcessStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("an unknown status"),
            Self::None => f.write_str("no process of its own"),
        }
    }
}

/// How a machine ended, with what it said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// The reason.
    pub kind: ExitKind,
    /// The status of the process that ran the guest.
    pub status: ProcessStatus,
    /// The newest console output of the guest.
    pub console_tail: String,
    /// The newest error output of the hypervisor, or what it said of the crash.
    pub stderr_tail: String,
}

impl ExitReport {
    /// The error that this exit is for somebody who still needed the machine.
    pub fn into_error(self) -> BackendError {
        match self.kind {
            ExitKind::Panic => BackendError::KernelPanic { console_tail: self.console_tail },
            ExitKind::PowerOff => BackendError::PoweredOff { console_tail: self.console_tail },
            ExitKind::Killed => BackendError::Killed,
            ExitKind::Crashed if self.status == ProcessStatus::None => {
                BackendError::Crashed { detail: self.stderr_tail, console_tail: self.console_tail }
            }
            ExitKind::Crashed => BackendError::Exited {
                status: self.status,
                stderr_tail: self.stderr_tail,
                console_tail: self.console_tail,
            },
        }
    }
}
