//! Where the monitor's machines run if nobody has said so, as a [`Backend`]: in this process as long as it bears them, else in
//! workers.
//!
//! # The rule
//! A machine is made in this process while fewer than a bound are there, [`MACHINES_IN_PROCESS`] if nothing else is asked for, and
//! in a [worker](crate::worker) of its own beyond. That is decided anew for each machine, however it is made: launched, or restored from
//! a template, from whatever place that comes. A machine stays where it is. One that has ended makes room when its handle is dropped.
//!
//! ```text
//!  launch, restore ── a seat is free? ── yes ──► Monitor   this process, a seat until the handle is dropped   (seats)
//!                          └── no ── workers can be had? ── yes ──► Workers   one process for each
//!                                          └── no ──► Monitor, one seat more than there are, and a warning once
//! ```
//! Seats are the process's, not an engine's, and there are never more taken than the bound unless there are no workers. What is made
//! ahead for the next restore of a template ([`Template::prepare`]) is no machine yet and has no seat; there is one for each template
//! at most, begun only while a seat is free.
//!
//! # The reason
//! Machines of one process share its memory map: KVM is asked for each of them whenever a page of any of them, or of the program
//! around them, is unmapped or made its own (MMU notifiers). And each takes 23 of the process's descriptors, of which there are 1024
//! as a rule. One in a worker costs the same however many there are, and 7 descriptors here. What was measured stands in
//! `docs/design.md`: beside 31 others a machine's life costs a tenth more than alone, beside 60 as much as in a worker; 16 leave the
//! descriptors for 70 workers.

mod machine;
mod seats;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::{
    self, Backend, BackendError, Capabilities, ImageDigests, Machine, MachineSpec, Template,
};
use crate::monitor::{Monitor, MonitorMachine};
use crate::worker::{self, WorkerMachine, Workers, WorkersOptions};

use self::machine::{PlacedMachine, PlacedTemplate};
use self::seats::{Seat, Seats};

/// Machines that one process bears if nothing else is asked for: see the [module](self).
pub const MACHINES_IN_PROCESS: usize = 16;

/// What the rule goes by.
#[derive(Clone, Debug)]
pub struct PlacementOptions {
    /// The most machines in this process; 0 for none as long as there are workers.
    pub machines_in_process: usize,
    /// How workers are made.
    pub workers: WorkersOptions,
}

impl Default for PlacementOptions {
    fn default() -> Self {
        Self { machines_in_process: MACHINES_IN_PROCESS, workers: WorkersOptions::default() }
    }
}

/// Runs machines in this process, and further ones each in a worker.
#[derive(Clone, Debug)]
pub struct Placement(Arc<Places>);

/// Both places, and who may have which.
#[derive(Debug)]
struct Places {
    monitor: Arc<Monitor>,
    workers: Workers,
    most: usize,
    seats: &'static Seats,
    /// Workers cannot be had, and will not be.
    no_workers: AtomicBool,
    warned: AtomicBool,
}

/// Where one machine goes.
enum Place {
    Here(Seat),
    Worker(Arc<worker::Ready>),
}

/// A machine, in its place.
enum Placed {
    /// In this process. The machine goes first.
    Here {
        machine: MonitorMachine,
        _seat: Seat,
    },
    Worker(WorkerMachine),
}

impl Placement {
    /// Both places, which have not been tried yet.
    pub fn new(options: PlacementOptions) -> Self {
        let monitor = Arc::new(Monitor::new());
        Self(Arc::new(Places {
            workers: Workers::with_monitor(options.workers, Arc::clone(&monitor)),
            monitor,
            most: options.machines_in_process,
            seats: seats::of_this_process(),
            no_workers: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        }))
    }
}

impl Places {
    /// The place of the next machine.
    fn next(&self) -> Place {
        if let Some(seat) = self.seats.take(self.most) {
            return Place::Here(seat);
        }
        if self.no_workers.load(Ordering::Relaxed) {
            return Place::Here(self.seats.take_beyond());
        }
        match self.workers.ready() {
            Ok(ready) => Place::Worker(ready),
            Err(error) => Place::Here(self.without_worker(&error)),
        }
    }

    /// A seat for a machine that should have had a worker.
    fn without_worker(&self, error: &BackendError) -> Seat {
        if matches!(error, BackendError::WorkerMissing { .. } | BackendError::WorkerUnusable { .. }) {
            self.no_workers.store(true, Ordering::Relaxed);
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                code = error.code(), %error, most = self.most,
                "there are no worker processes: this one gets more virtual machines than it bears, which slows all of them",
            );
        }
        self.seats.take_beyond()
    }

    /// Whether the next machine would be in this process.
    fn has_seat(&self) -> bool {
        self.seats.has_one(self.most) || self.no_workers.load(Ordering::Relaxed)
    }

    /// Makes a machine where it belongs.
    fn make(
        &self,
        here: impl Fn() -> Result<MonitorMachine, BackendError>,
        in_worker: impl FnOnce(&Arc<worker::Ready>) -> Result<WorkerMachine, BackendError>,
    ) -> Result<Placed, BackendError> {
        let seat = match self.next() {
            Place::Here(seat) => seat,
            Place::Worker(ready) => match in_worker(&ready) {
                Ok(machine) => return Ok(Placed::Worker(machine)),
                Err(error) if is_of_the_process(&error) => self.without_worker(&error),
                Err(error) => return Err(error),
            },
        };
        Ok(Placed::Here { machine: here()?, _seat: seat })
    }
}

/// Whether a worker could not be started at all, so that nothing is known of its machine.
fn is_of_the_process(error: &BackendError) -> bool {
    use BackendError::{Spawn, WorkerMissing, WorkerUnusable};
    matches!(error, WorkerMissing { .. } | WorkerUnusable { .. } | Spawn { .. })
}

impl Backend for Placement {
    fn name(&self) -> &'static str {
        self.0.monitor.name()
    }

    fn check(&self) -> Result<Capabilities, BackendError> {
        let mut capabilities = self.0.monitor.check()?;
        // Whether they are confined as they should be is seen when the first is needed.
        let has_workers = !self.0.no_workers.load(Ordering::Relaxed) && self.0.workers.program().is_ok();
        match self.0.most {
            _ if !has_workers => {}
            0 => capabilities.place = backend::Place::Worker,
            most => capabilities.machines_in_process = Some(most),
        }
        Ok(capabilities)
    }

    fn launch(&self, spec: &MachineSpec) -> Result<Box<dyn Machine>, BackendError> {
        let placed = self.0.make(|| self.0.monitor.start(spec), |ready| self.0.workers.start(ready, spec))?;
        Ok(Box::new(PlacedMachine::new(&self.0, placed, spec.digests.clone())))
    }

    fn load(
        &self,
        path: &Path,
        images: &ImageDigests,
        root_image: Option<&Path>,
    ) -> Result<(Arc<dyn Template>, Vec<u8>), BackendError> {
        let (template, about) = self.0.monitor.load_template(path, images, root_image)?;
        let template = PlacedTemplate::new(&self.0, template, Some(images.clone()))?;
        Ok((Arc::new(template), about))
    }
}
