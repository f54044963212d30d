//! What can go wrong between the engine and a machine. Every error has a stable code, a cause and a remedy.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::{ProcessStatus, SpecError};

/// Why a machine could not be started or is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// No QEMU was found.
    #[error("QEMU was not found: looked for {looked_for}")]
    QemuMissing {
        /// The places that were searched.
        looked_for: String,
    },
    /// The QEMU that was found is too old.
    #[error("{} is QEMU {found}, and hayfork needs {needed} or newer", path.display())]
    QemuTooOld {
        /// The binary.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest that works.
        needed: String,
    },
    /// The file is there, but does not work as QEMU.
    #[error("{} does not work as QEMU: {detail}", path.display())]
    QemuUnusable {
        /// The binary.
        path: PathBuf,
        /// What it said or did.
        detail: String,
    },
    /// Hardware virtualisation was asked for by name, and it is not to be had here.
    #[error("KVM cannot be used: {detail}")]
    AcceleratorUnusable {
        /// What stands in the way.
        detail: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The machine asked for is impossible.
    #[error("this machine is impossible: {0}")]
    BadSpec(#[source] SpecError),
    /// Too little memory was asked for.
    #[error("{given} MiB of memory is too little: a guest needs at least {minimum} MiB")]
    MemoryTooSmall {
        /// MiB asked for.
        given: u32,
        /// MiB needed.
        minimum: u32,
    },
    /// The kernel, initramfs or root image cannot be read.
    #[error("the {what} {} cannot be read", path.display())]
    ImageUnreadable {
        /// `kernel`, `initramfs` or `root image`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The host refused a resource that the machine needs (memory, a descriptor, a thread, a process).
    #[error("the virtual machine could not be started: {what}")]
    Spawn {
        /// What was being done.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The guest kernel panicked.
    #[error("the guest kernel panicked{}", panic_message(console_tail))]
    KernelPanic {
        /// The newest console output.
        console_tail: String,
    },
    /// The agent did not answer in time.
    #[error("the guest did not come up within {:.1} s{}", after.as_secs_f64(), tail(console_tail))]
    BootTimeout {
        /// How long was waited.
        after: Duration,
        /// The newest console output.
        console_tail: String,
    },
    /// The guest powered itself off although it was needed.
    #[error("the guest powered itself off{}", tail(console_tail))]
    PoweredOff {
        /// The newest console output.
        console_tail: String,
    },
    /// The process that ran the guest ended by itself.
    #[error("the virtual machine's process ended with {status}{}", tail(stderr_tail))]
    Exited {
        /// How it ended.
        status: ProcessStatus,
        /// The newest error output of the hypervisor.
        stderr_tail: String,
        /// The newest console output of the guest.
        console_tail: String,
    },
    /// The guest, or what runs it in this process, came to a point from which it cannot go on.
    #[error("the virtual machine crashed: {detail}{}", tail(console_tail))]
    Crashed {
        /// What happened, with the address of the guest's instruction.
        detail: String,
        /// The newest console output of the guest.
        console_tail: String,
    },
    /// The hypervisor refused a call that machines are made with.
    #[error("the hypervisor refused: {0}")]
    Hypervisor(#[from] crate::hypervisor::HypervisorError),
    /// A guest's memory or boot parameters could not be set up.
    #[error("the guest could not be prepared: {detail}")]
    Prepare {
        /// What does not fit or could not be had.
        detail: String,
    },
    /// A snapshot file cannot be read or written.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Snapshot(#[from] crate::snapshot::SnapshotError),
    /// This backend cannot do that.
    #[error("this backend cannot do that: {what}")]
    Unsupported {
        /// What was asked of it.
        what: &'static str,
    },
    /// The program for worker processes was not found.
    #[error("the program hayfork-worker was not found: looked for {looked_for}")]
    WorkerMissing {
        /// The places that were searched.
        looked_for: String,
    },
    /// The file is there, but does not work as one.
    #[error("{} does not work as hayfork's worker: {detail}", path.display())]
    WorkerUnusable {
        /// The program.
        path: PathBuf,
        /// What it said or did.
        detail: String,
    },
    /// A worker process does not do what it is asked any more, and was killed.
    #[error("the virtual machine's worker process was killed: {detail}")]
    WorkerLost {
        /// What it did, or did not.
        detail: String,
    },
    /// An error in a worker process. Code and remedy are those of the error there.
    #[error("{message}")]
    InWorker {
        /// The code of the error there.
        code: &'static str,
        /// What happened, with its causes.
        message: String,
        /// What to do.
        remedy: String,
    },
    /// The machine was killed by its owner.
    #[error("the virtual machine was killed")]
    Killed,
    /// The process was killed and is still there.
    #[error("the virtual machine's process {pid} is still there {:.0} s after SIGKILL", after.as_secs_f64())]
    StuckProcess {
        /// The process.
        pid: u32,
        /// How long was waited.
        after: Duration,
    },
    /// The handle was used in a child made by `fork`.
    #[error("this virtual machine belongs to another process: it was started before a fork")]
    ForkedProcess,
}

impl BackendError {
    /// A short name that never changes, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::QemuMissing { .. } => "qemu_missing",
            Self::QemuTooOld { .. } => "qemu_too_old",
            Self::QemuUnusable { .. } => "qemu_unusable",
            Self::AcceleratorUnusable { .. } => "accelerator_unusable",
            Self::BadSpec(_) => "bad_machine_spec",
            Self::MemoryTooSmall { .. } => "memory_too_small",
            Self::ImageUnreadable { .. } => "image_unreadable",
            Self::Spawn { .. } => "spawn_failed",
            Self::KernelPanic { .. } => "kernel_panic",
            Self::BootTimeout { .. } => "boot_timeout",
            Self::PoweredOff { .. } => "guest_powered_off",
            Self::Exited { .. } => "vm_exited",
            Self::Crashed { .. } => "vm_crashed",
            Self::Hypervisor(_) => "hypervisor_refused",
            Self::Prepare { .. } => "vm_prepare_failed",
            #[cfg(target_os = "linux")]
            Self::Snapshot(error) => error.code(),
            Self::Unsupported { .. } => "unsupported_here",
            Self::WorkerMissing { .. } => "worker_missing",
            Self::WorkerUnusable { .. } => "worker_unusable",
            Self::WorkerLost { .. } => "worker_lost",
            Self::InWorker { code, .. } => code,
            Self::Killed => "vm_killed",
            Self::StuckProcess { .. } => "vm_stuck",
            Self::ForkedProcess => "forked_process",
        }
    }

    /// The code of that name, if one of these errors has it.
    pub(crate) fn known_code(name: &str) -> Option<&'static str> {
        const CODES: &[&str] = &[
            "accelerator_unusable",
            "bad_machine_spec",
            "memory_too_small",
            "image_unreadable",
            "spawn_failed",
            "kernel_panic",
            "boot_timeout",
            "guest_powered_off",
            "vm_exited",
            "vm_crashed",
            "hypervisor_refused",
            "vm_prepare_failed",
            "unsupported_here",
            "vm_killed",
        ];
        CODES.iter().find(|code| **code == name).copied()
    }

    /// What to do about it, in one or two sentences.
    pub fn remedy(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::QemuMissing { .. } => {
                "Install QEMU (on Debian and Ubuntu: apt install qemu-system-x86), or set HAYFORK_QEMU to the path of qemu-system-x86_64."
            }
            Self::QemuTooOld { needed, .. } => {
                return Cow::Owned(format!(
                    "Install QEMU {needed} or newer, or set HAYFORK_QEMU to the path of a newer one."
                ));
            }
            Self::QemuUnusable { .. } => {
                "Run it with --version in a shell to see what is wrong, or set HAYFORK_QEMU to the path of a working qemu-system-x86_64."
            }
            Self::AcceleratorUnusable { remedy, .. } => remedy,
            Self::BadSpec(_) => "Change the option named in the message.",
            Self::MemoryTooSmall { minimum, .. } => {
                return Cow::Owned(format!("Ask for {minimum} MiB or more."));
            }
            Self::ImageUnreadable { .. } => {
                "Build the images (make images), or set HAYFORK_IMAGES_DIR to a folder that holds them and that this user may read."
            }
            Self::Spawn { .. } => {
                "Look at the cause: usually a limit on processes, open files or memory of this user (ulimit -a) or of its cgroup."
            }
            Self::KernelPanic { .. } => {
                "Read the console output: most panics while booting come from too little memory or from images that do not belong together."
            }
            Self::BootTimeout { .. } => {
                "Read the console output. If the guest was merely slow, because the host is loaded or has no KVM, allow it more time."
            }
            Self::PoweredOff { .. } => {
                "Start a new machine. If this comes while booting, kernel, initramfs and root image probably do not belong together: rebuild them."
            }
            Self::Exited { .. } => {
                "Read the error output; after signal 9 look into the host's kernel log for the out-of-memory killer."
            }
            Self::Crashed { .. } => {
                "Start a new machine. If it happens again with the same code, please report it with this message and the output of hayfork doctor."
            }
            Self::Hypervisor(_) => {
                "Look at the cause; hayfork doctor shows what this host's hypervisor can do. backend=\"qemu\" works without it."
            }
            Self::Prepare { .. } => {
                "Look at the cause: usually too little memory for the guest, or a limit of this user (ulimit -a)."
            }
            #[cfg(target_os = "linux")]
            Self::Snapshot(error) => return error.remedy(),
            Self::Unsupported { .. } => "Use another backend (hayfork doctor lists them), or do without it.",
            Self::WorkerMissing { .. } => {
                "Install hayfork's package whole, or set HAYFORK_WORKER to the path of hayfork-worker (cargo build -p hayfork-vmm builds one); isolation=\"process\" works without it."
            }
            Self::WorkerUnusable { .. } => {
                "Install or build hayfork-worker of the same version, and see that it may be executed (HAYFORK_WORKER names another one)."
            }
            Self::WorkerLost { .. } => "Start a new machine. Do not trust what the guest said last.",
            Self::InWorker { remedy, .. } => return Cow::Owned(remedy.clone()),
            Self::Killed => "Start a new machine.",
            Self::StuckProcess { .. } => "The host's kernel does not end the process: look into its log.",
            Self::ForkedProcess => {
                "Start machines in the process that uses them, or use the spawn start method of multiprocessing."
            }
        })
    }
}

/// The last lines of an output for an error message: at most 6 lines and 800 bytes, since a message is read by people;
/// the whole tail is in the error's field.
fn tail(output: &str) -> String {
    const LINES: usize = 6;
    const BYTES: usize = 800;
    let output = output.trim_end();
    let mut start = output.len().saturating_sub(BYTES);
    while !output.is_char_boundary(start) {
        start += 1;
    }
    let output = &output[start..];
    let lines: Vec<&str> = output.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("; its last output was:\n{}", lines[lines.len().saturating_sub(LINES)..].join("\n"))
}

/// The kernel's own line about its panic: after it, the kernel prints the registers and the stack, which tell little to
/// anybody who did not write it. Without such a line, the last output.
fn panic_message(console: &str) -> String {
    const MARK: &str = "Kernel panic - not syncing: ";
    // The last one: what came before may be the text of a guest that wants to be misread.
    match console.lines().rev().find_map(|line| Some(line.split_once(MARK)?.1.trim())) {
        Some(message) => format!(": {}", message.chars().take(200).collect::<String>()),
        None => tail(console),
    }
}

#[cfg(test)]
mod tests {
    use super::{panic_message, tail};

    #[test]
    fn a_panic_is_named_by_the_kernel_s_own_line() {
        let console = "[    0.9] VFS: Cannot open root\n[    0.94] Kernel panic - not syncing: VFS: Unable to mount root fs\r\n\
                       [    0.95] CPU: 0 UID: 0 PID: 1\n[    0.96] Call Trace:\n";
        assert_eq!(panic_message(console), ": VFS: Unable to mount root fs");
        assert_eq!(panic_message("something else\n"), "; its last output was:\nsomething else");
        assert!(panic_message(&format!("Kernel panic - not syncing: {}", "x".repeat(1000))).len() < 210);
    }

    #[test]
    fn the_tail_in_a_message_is_short_and_cut_at_a_character() {
        assert_eq!(tail(" \n"), "");
        assert_eq!(tail("one\r\n\r\ntwo\r\n"), "; its last output was:\none\ntwo");
        let many = (0..20).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        assert!(tail(&many).ends_with("line 14\nline 15\nline 16\nline 17\nline 18\nline 19"));
        assert!(!tail(&many).contains("line 13"));
        let wide = "ü".repeat(2000);
        assert!(tail(&wide).len() < 900);
    }
}
