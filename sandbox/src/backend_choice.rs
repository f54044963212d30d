//! Which backend runs the machines: the monitor where the host lets it, else QEMU, and then why.
//!
//! | name | what runs the machines |
//! |---|---|
//! | `auto` | the monitor; if something stands in its way, QEMU, and the reason is kept |
//! | `monitor` | the monitor, or an error that says what stands in its way |
//! | `qemu` | QEMU |
//!
//! What can stand in the monitor's way, in the order in which it is looked at: `/dev/kvm` as the probe finds it, the
//! monitor's own check, and a kernel of the flavour that it needs in the image set. The choice is made anew for each
//! machine: the probe and the checks answer from memory, and a kernel may have been built meanwhile.

use std::sync::Arc;

use hayfork_qemu::{Qemu, QemuOptions};
use hayfork_vmm::backend::{Backend, BackendError, Capabilities, KernelFlavour};
use hayfork_vmm::hypervisor::probe::Verdict;

use crate::error::Error;
use crate::options::EngineOptions;

/// The monitor. Where a version or a host has none, what to say about it.
fn monitor() -> Result<Arc<dyn Backend>, Error> {
    Err(Error::bad_option("this version of hayfork has no monitor: use the backend \"auto\" or \"qemu\""))
}

/// The backends that an engine may use, and how it chooses.
pub(crate) enum Backends {
    /// This one.
    One(Arc<dyn Backend>),
    /// The monitor or nothing.
    Monitor(Monitor),
    /// The monitor, else the other one.
    Auto(Monitor, Arc<dyn Backend>),
}

/// The monitor with what decides whether it can be used.
pub(crate) struct Monitor {
    backend: Result<Arc<dyn Backend>, Error>,
    /// What stands behind `/dev/kvm`. Asked at the first machine, not when an engine is made: the probe runs a guest.
    hypervisor: fn() -> Verdict,
}

/// A backend for one machine.
pub(crate) struct Chosen {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) capabilities: Capabilities,
    /// Why it is not the monitor, where that was tried.
    pub(crate) fallback: Option<Error>,
}

impl Backends {
    /// Those that the options ask for. Does not look at the host.
    ///
    /// # Errors
    /// A name that no backend of this version has.
    pub(crate) fn new(options: &EngineOptions) -> Result<Self, Error> {
        let name = options.backend.as_deref().unwrap_or("auto");
        let qemu =
            || Arc::new(Qemu::new(QemuOptions { binary: options.qemu.clone(), ..QemuOptions::default() }));
        let monitor = || Monitor { backend: monitor(), hypervisor: || hayfork_qemu::hypervisor().clone() };
        match name {
            "auto" => Ok(Self::Auto(monitor(), qemu())),
            "monitor" => {
                let monitor = monitor();
                monitor.backend.as_ref().map_err(Error::clone)?;
                Ok(Self::Monitor(monitor))
            }
            "qemu" => Ok(Self::One(qemu())),
            other => Err(Error::bad_option(format!(
                "there is no backend {other:?}: use \"auto\", \"monitor\" or \"qemu\""
            ))),
        }
    }

    /// The name that was asked for.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::One(backend) => backend.name(),
            Self::Monitor(_) => "monitor",
            Self::Auto(..) => "auto",
        }
    }

    /// The backend for the next machine, checked. `has_kernel` says whether the image set has a kernel of a flavour. The
    /// first call may take a second.
    ///
    /// # Errors
    /// What is missing on this host for the backend that was asked for; for `auto`, for QEMU.
    pub(crate) fn choose(
        &self,
        has_kernel: impl Fn(KernelFlavour) -> Result<(), Error>,
    ) -> Result<Chosen, Error> {
        match self {
            Self::One(backend) => Chosen::checked(backend, &has_kernel),
            Self::Monitor(monitor) => monitor.choose(&has_kernel),
            Self::Auto(monitor, other) => monitor.choose(&has_kernel).or_else(|obstacle| {
                tracing::debug!(code = obstacle.code(), %obstacle, "the monitor is not used");
                let chosen = Chosen::checked(other, &has_kernel)?;
                Ok(Chosen { fallback: Some(obstacle), ..chosen })
            }),
        }
    }
}

impl Monitor {
    fn choose(&self, has_kernel: &dyn Fn(KernelFlavour) -> Result<(), Error>) -> Result<Chosen, Error> {
        let backend = self.backend.as_ref().map_err(Error::clone)?;
        match (self.hypervisor)() {
            Verdict::Hardware { .. } | Verdict::KvmPvm { .. } => Chosen::checked(backend, has_kernel),
            verdict => Err(BackendError::AcceleratorUnusable {
                detail: verdict.to_string(),
                remedy: verdict.remedy().unwrap_or("Use another host."),
            }
            .into()),
        }
    }
}

impl Chosen {
    fn checked(
        backend: &Arc<dyn Backend>,
        has_kernel: &dyn Fn(KernelFlavour) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let capabilities = backend.check()?;
        has_kernel(capabilities.kernel)?;
        Ok(Self { backend: Arc::clone(backend), capabilities, fallback: None })
    }
}

#[cfg(test)]
mod tests;
