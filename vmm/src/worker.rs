//! The monitor in processes of its own, as a [`Backend`]: one confined worker for each machine.
//!
//! ```text
//!  this process                                          hayfork-worker (dies with this process)
//!    Workers ── check, images: as the monitor              KVM, seccomp that kills, Landlock, no rights   (confine)
//!      shelf: one worker ahead, confined already
//!    WorkerMachine ── requests ◄── SOCK_SEQPACKET ──►       one machine, as in the monitor                 (serve)
//!                  ── agent's channel ◄── socket pair ──►   its vsock device
//!                  ── end ◄──────── socket pair ────────    how it ended; closed by its death
//!    kernel, initramfs, templates: sealed memory ──────►    mapped privately, by descriptor
//! ```
//! What a guest that breaks out of its machine has in its hands is a process that can do [next to nothing](confine), and no
//! other guest's memory. What this process believes of a worker is checked as if a guest had said it.
//!
//! Images are read here, once, and handed on as sealed memory, so workers share what guests only read. So do templates: one
//! that was captured in one worker is restored in others.
//!
//! # One machine in each
//! The boundary is then that of a machine, and the end of a worker is the end of no other. What that costs was measured
//! (`sandbox/examples/placement_figures.rs`): see `docs/design.md`.
//!
//! | module | what it is |
//! |---|---|
//! | `confine` | what a worker may still do |
//! | `wire` | what owner and worker say |
//! | `packet` | how that travels |
//! | `serve` | the worker's side |
//! | `child` | a worker process, from here |
//! | `machine` | a machine and a template in one, from here |
//! | `find` | where the program is |

mod child;
pub mod confine;
mod find;
mod machine;
pub mod packet;
mod serve;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod wire;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use self::child::Shelf;
use crate::backend::{
    Backend, BackendError, Capabilities, ImageDigests, Machine, MachineSpec, Place, Template,
};
use crate::monitor::Monitor;

pub(crate) use self::machine::{WorkerMachine, WorkerTemplate};
pub use find::{BINARY_NAME, BINARY_VARIABLE};
pub use serve::main;
pub use wire::Confinement;

/// How workers are made.
#[derive(Clone, Debug, Default)]
pub struct WorkersOptions {
    /// The program. `None`: what the variable [`BINARY_VARIABLE`] names, else one beside this program.
    pub binary: Option<PathBuf>,
}

/// Runs each machine in a worker process of its own.
#[derive(Debug, Default)]
pub struct Workers {
    options: WorkersOptions,
    /// For its check and its images; it makes no machine.
    monitor: Arc<Monitor>,
    ready: Mutex<Option<Arc<Ready>>>,
}

/// What the check found.
#[derive(Debug)]
pub(crate) struct Ready {
    capabilities: Capabilities,
    monitor: Arc<Monitor>,
    shelf: Arc<Shelf>,
}

impl Workers {
    /// Workers that have not been tried yet.
    pub fn new(options: WorkersOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// How far the workers are confined on this host.
    ///
    /// # Errors
    /// As [`Backend::check`].
    pub fn confinement(&self) -> Result<Confinement, BackendError> {
        Ok(self.ready()?.shelf.confinement.clone())
    }

    /// The same, with the check and the images of a monitor that makes machines itself.
    pub(crate) fn with_monitor(options: WorkersOptions, monitor: Arc<Monitor>) -> Self {
        Self { options, monitor, ready: Mutex::default() }
    }

    /// Where their program is.
    pub(crate) fn program(&self) -> Result<PathBuf, BackendError> {
        find::find(self.options.binary.as_deref())
    }

    /// What their machines need, found out at the first call, and again as long as that fails.
    pub(crate) fn ready(&self) -> Result<Arc<Ready>, BackendError> {
        // Assigned whole or not at all, so a panic elsewhere leaves it good.
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = ready.as_ref().filter(|ready| ready.shelf.is_ours()) {
            return Ok(Arc::clone(ready));
        }
        let mut capabilities = self.monitor.check()?;
        let shelf = Arc::new(Shelf::new(self.program()?)?);
        capabilities.place = Place::Worker;
        capabilities.description.push_str(", each machine in a worker process");
        if shelf.confinement.landlock.is_none() {
            capabilities.notes.push(
                "this kernel has no Landlock: a filter of system calls alone keeps workers from files"
                    .to_owned(),
            );
        }
        Ok(Arc::clone(ready.insert(Arc::new(Ready {
            capabilities,
            monitor: Arc::clone(&self.monitor),
            shelf,
        }))))
    }
}

impl Workers {
    /// As [`Backend::launch`], for whoever makes the machines.
    pub(crate) fn start(
        &self,
        ready: &Arc<Ready>,
        spec: &MachineSpec,
    ) -> Result<WorkerMachine, BackendError> {
        let blueprint = self.monitor.blueprint(spec, ready.capabilities.max_vcpus)?;
        let machine = machine::launch(ready, &blueprint, spec.digests.clone())?;
        tracing::debug!(
            name = spec.name,
            pid = machine.process_id(),
            "started a virtual machine in a worker"
        );
        Ok(machine)
    }
}

impl Backend for Workers {
    fn name(&self) -> &'static str {
        "monitor"
    }

    fn check(&self) -> Result<Capabilities, BackendError> {
        Ok(self.ready()?.capabilities.clone())
    }

    fn launch(&self, spec: &MachineSpec) -> Result<Box<dyn Machine>, BackendError> {
        spec.validate()?;
        Ok(Box::new(self.start(&self.ready()?, spec)?))
    }

    fn load(
        &self,
        path: &Path,
        images: &ImageDigests,
        root_image: Option<&Path>,
    ) -> Result<(Arc<dyn Template>, Vec<u8>), BackendError> {
        let (template, about) = self.monitor.load_template(path, images, root_image)?;
        Ok((Arc::new(WorkerTemplate::new(self.ready()?, template, Some(images.clone()))?), about))
    }
}
