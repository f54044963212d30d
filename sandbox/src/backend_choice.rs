//! Which backend runs the machines: the monitor where the host lets it, else QEMU, and then why.
//!
//! | name | what runs the machines |
//! |---|---|
//! | `auto` | the monitor; if something stands in its way, QEMU, and the reason is kept |
//! | `monitor` | the monitor, or an error that says what stands in its way |
//! | `qemu` | QEMU |
//!
//! Where the monitor runs its machines is another choice: in this process, or each in a confined worker process, or in this one as
//! long as it bears them ([`hayfork_vmm::placement`]).
//!
//! What can stand in the monitor's way: its own check, which begins with what the probe found behind `/dev/kvm`; limits
//! that the machine does not fit; an image set without a kernel of the flavour that it needs; workers whose program is missing. The choice is made anew for
//! each machine: checks answer from memory, and a kernel may have been built meanwhile.

use std::sync::Arc;

use hayfork_qemu::{Qemu, QemuOptions};
use hayfork_vmm::backend::{Backend, Capabilities};

use crate::error::Error;
use crate::options::EngineOptions;

/// The backends that an engine may use.
pub(crate) enum Backends {
    /// This one.
    One(Arc<dyn Backend>),
    /// The monitor, or what is to say about its absence; else the other one.
    Auto(Result<Arc<dyn Backend>, Error>, Arc<dyn Backend>),
}

/// A backend for one machine.
pub(crate) struct Chosen {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) capabilities: Capabilities,
    /// Why it is not the monitor, where that was tried.
    pub(crate) fallback: Option<Error>,
}

/// Where the monitor's machines are to be.
#[derive(Clone, Copy)]
enum Wanted {
    Process,
    Worker,
    /// In this process as long as it bears them, further ones in workers.
    Auto,
}

impl Wanted {
    fn new(options: &EngineOptions) -> Result<Self, Error> {
        match options.isolation.as_deref().unwrap_or("auto") {
            "process" => Ok(Self::Process),
            "worker" => Ok(Self::Worker),
            "auto" => Ok(Self::Auto),
            other => Err(Error::bad_option(format!(
                "there is no isolation {other:?}: use \"auto\", \"process\" or \"worker\""
            ))),
        }
    }
}

impl Backends {
    /// Those that the options ask for. Does not look at the host.
    ///
    /// # Errors
    /// A name that no backend of this version has.
    pub(crate) fn new(options: &EngineOptions) -> Result<Self, Error> {
        let qemu =
            || Arc::new(Qemu::new(QemuOptions { binary: options.qemu.clone(), ..QemuOptions::default() }));
        let place = Wanted::new(options)?;
        match options.backend.as_deref().unwrap_or("auto") {
            "auto" => Ok(Self::Auto(monitor(options, place), qemu())),
            "monitor" => monitor(options, place).map(Self::One),
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
            Self::Auto(..) => "auto",
        }
    }

    /// The backend of that name, if it may be used.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<dyn Backend>> {
        let (Self::One(backend) | Self::Auto(_, backend)) = self;
        let monitor = match self {
            Self::Auto(Ok(monitor), _) => Some(monitor),
            _ => None,
        };
        monitor.into_iter().chain([backend]).find(|backend| backend.name() == name).cloned()
    }

    /// The backend for the next machine, checked. `suits` says whether it can run that machine. The first call may take
    /// a second.
    ///
    /// # Errors
    /// What is missing on this host for the backend that was asked for; for `auto`, for QEMU.
    pub(crate) fn choose(&self, suits: impl Fn(&Capabilities) -> Result<(), Error>) -> Result<Chosen, Error> {
        let check = |backend: &Arc<dyn Backend>| {
            let capabilities = backend.check()?;
            suits(&capabilities)?;
            Ok(Chosen { backend: Arc::clone(backend), capabilities, fallback: None })
        };
        match self {
            Self::One(backend) => check(backend),
            Self::Auto(monitor, other) => {
                monitor.as_ref().map_err(Error::clone).and_then(check).or_else(|obstacle| {
                    tracing::debug!(code = obstacle.code(), %obstacle, "the monitor is not used");
                    Ok(Chosen { fallback: Some(obstacle), ..check(other)? })
                })
            }
        }
    }
}

/// The monitor, on hosts that it is written for.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(clippy::unnecessary_wraps)] // elsewhere there is none
fn monitor(options: &EngineOptions, place: Wanted) -> Result<Arc<dyn Backend>, Error> {
    use hayfork_vmm::monitor::Monitor;
    use hayfork_vmm::placement::{MACHINES_IN_PROCESS, Placement, PlacementOptions};
    use hayfork_vmm::worker::{Workers, WorkersOptions};

    let workers = WorkersOptions { binary: options.worker.clone() };
    Ok(match place {
        Wanted::Process => Arc::new(Monitor::new()),
        Wanted::Worker => Arc::new(Workers::new(workers)),
        Wanted::Auto => {
            let machines_in_process = options.machines_in_process.unwrap_or(MACHINES_IN_PROCESS);
            Arc::new(Placement::new(PlacementOptions { machines_in_process, workers }))
        }
    })
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn monitor(_: &EngineOptions, _: Wanted) -> Result<Arc<dyn Backend>, Error> {
    Err(Error::bad_option("there is no monitor for this kind of host: use the backend \"auto\" or \"qemu\""))
}

#[cfg(test)]
mod tests;
