//! Finds out what stands behind `/dev/kvm`, by running a guest on it.
//!
//! That the device opens, creates a VM and passes every ioctl says little: some hosts (those that are virtual machines
//! without nested virtualisation themselves) serve `/dev/kvm` by software that interprets the guest's kernel mode one
//! instruction at a time. An ordinary Linux guest does not get through its boot there, and translating it with QEMU is
//! a hundred times faster. So the probe measures: a guest in 64-bit kernel mode executes a counted loop, and the rate
//! decides. Interpreters reach about 1 million instructions a second, hardware more than 100 million even in nested
//! virtual machines.
//!
//! The probe costs 1 ms on hardware and about 20 ms on an interpreter: what the guest executes is a fixed number of
//! instructions, and after some runs none is started later than [`RUN_BUDGET`]. The best run counts, since whatever
//! disturbs one makes it slower. It uses one VM, one virtual CPU and four pages, all
//! gone when it returns.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod guest;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod unsafe_slot;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Instructions a second from which on a hypervisor counts as hardware: several times what interpreters reach. Hardware
/// reaches more than 100 million, and 10 to 20 million where what passes for hardware is translated itself.
pub const HARDWARE_RATE: f64 = 5e6;

/// After this time no further measuring run is started, but for the first few. A run on a slow interpreter (0.6 million
/// instructions a second) takes 7 ms.
pub const RUN_BUDGET: Duration = Duration::from_millis(15);

/// What stands behind `/dev/kvm`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Hardware virtualisation: an ordinary guest runs at native speed.
    Hardware {
        /// Instructions a second in the guest's kernel mode, at least.
        rate: f64,
    },
    /// kvm_pvm: no hardware virtualisation; kernel mode is interpreted for every guest kernel but one made for it.
    KvmPvm {
        /// Instructions a second in the guest's kernel mode.
        rate: f64,
    },
    /// Some other software that interprets the guest.
    Emulating {
        /// Instructions a second in the guest's kernel mode.
        rate: f64,
    },
    /// There is no such device: no module loaded, no virtualisation in the processor, or a container without it.
    Absent,
    /// This user may not open the device.
    NoPermission,
    /// The device opened, but a guest could not be run.
    Broken {
        /// What failed, and how.
        detail: String,
    },
    /// hayfork cannot probe a hypervisor on this kind of host.
    Unsupported,
}

impl Verdict {
    /// Whether an ordinary guest kernel runs there at full speed.
    pub fn is_hardware(&self) -> bool {
        matches!(self, Self::Hardware { .. })
    }

    /// A stable name, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Hardware { .. } => "hardware",
            Self::KvmPvm { .. } => "kvm_pvm",
            Self::Emulating { .. } => "emulating",
            Self::Absent => "absent",
            Self::NoPermission => "no_permission",
            Self::Broken { .. } => "broken",
            Self::Unsupported => "unsupported",
        }
    }

    /// Instructions a second that the probe's guest reached, if it ran.
    pub fn rate(&self) -> Option<f64> {
        match self {
            Self::Hardware { rate } | Self::KvmPvm { rate } | Self::Emulating { rate } => Some(*rate),
            Self::Absent | Self::NoPermission | Self::Broken { .. } | Self::Unsupported => None,
        }
    }

    /// What to do to get hardware virtualisation; `None` where it is there already.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::Hardware { .. } => return None,
            Self::KvmPvm { .. } | Self::Emulating { .. } => {
                "This machine is virtual itself and has no nested virtualisation: switch that on where it is hosted, or use a physical one."
            }
            Self::Absent => {
                "Load the module (modprobe kvm_intel or kvm_amd), switch on virtualisation in the firmware, or pass /dev/kvm into the container."
            }
            Self::NoPermission => {
                "Join the group kvm (sudo usermod -aG kvm $USER) and log in again; if the device is not that group's, make it so (sudo chgrp kvm /dev/kvm; sudo chmod g+rw /dev/kvm)."
            }
            Self::Broken { .. } => {
                "Look into the host's kernel log; another hypervisor may hold the processor."
            }
            Self::Unsupported => "Hardware virtualisation is used on Linux with an x86-64 processor only.",
        })
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hardware { rate } => {
                write!(
                    f,
                    "/dev/kvm runs on hardware (at least {:.0} million instructions a second)",
                    rate / 1e6
                )
            }
            Self::KvmPvm { rate } => write!(
                f,
                "/dev/kvm is kvm_pvm: it interprets the kernel of ordinary guests ({:.2} million instructions a second)",
                rate / 1e6
            ),
            Self::Emulating { rate } => {
                write!(f, "/dev/kvm interprets its guests ({:.2} million instructions a second)", rate / 1e6)
            }
            Self::Absent => f.write_str("there is no /dev/kvm"),
            Self::NoPermission => f.write_str("this user may not open /dev/kvm"),
            Self::Broken { detail } => write!(f, "/dev/kvm runs no guest: {detail}"),
            Self::Unsupported => f.write_str("this host has no hypervisor that hayfork knows"),
        }
    }
}

/// The verdict and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// What stands behind the device.
    pub verdict: Verdict,
    /// How long the probe took.
    pub took: Duration,
}

/// The verdict on this host's `/dev/kvm`; probed once in the life of the process.
pub fn verdict() -> &'static Verdict {
    static VERDICT: OnceLock<Verdict> = OnceLock::new();
    VERDICT.get_or_init(|| {
        let Probe { verdict, took } = probe();
        tracing::debug!(verdict = verdict.code(), rate = verdict.rate(), ?took, "probed /dev/kvm");
        verdict
    })
}

/// Probes `/dev/kvm`.
pub fn probe() -> Probe {
    probe_device(Path::new("/dev/kvm"))
}

/// Probes a KVM device node.
pub fn probe_device(device: &Path) -> Probe {
    let start = std::time::Instant::now();
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    let verdict = guest::measure(device);
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    let verdict = {
        let _ = device;
        Verdict::Unsupported
    };
    Probe { verdict, took: start.elapsed() }
}
