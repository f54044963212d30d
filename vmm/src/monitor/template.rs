//! Machines at rest, and what is made ahead for those that go on from them.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::machine::MonitorMachine;
use super::{Ready, reaper};
use crate::backend::{BackendError, ImageDigests, Machine as BackendMachine, Template as BackendTemplate};
use crate::hypervisor::kvm::KvmVm;
use crate::machine::{Machine, Shell, Template};

/// The shell for the next restore. One, because who makes many at once keeps a stock of finished machines.
#[derive(Default)]
struct Ahead {
    place: Mutex<Place>,
}

#[derive(Default)]
enum Place {
    #[default]
    Empty,
    /// Somebody makes it.
    Coming,
    There(Box<Waiting>),
}

/// A shell and the process that it belongs to: in a child made by `fork` it is inert, as a machine is.
struct Waiting {
    shell: Option<Shell<KvmVm>>,
    owner: u32,
}

impl Ahead {
    /// It is put in and taken out whole, so a panic elsewhere leaves it good.
    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is there.
    fn take(&self) -> Option<Shell<KvmVm>> {
        let mut place = self.place();
        let Place::There(waiting) = &mut *place else { return None };
        if waiting.owner != std::process::id() {
            return None;
        }
        let shell = waiting.shell.take();
        *place = Place::Empty;
        shell
    }

    /// Has one made if there is none and nobody makes one.
    fn fill(&self, make: impl FnOnce() -> Result<Shell<KvmVm>, BackendError>) -> Result<(), BackendError> {
        {
            let mut place = self.place();
            if !matches!(*place, Place::Empty) {
                return Ok(());
            }
            *place = Place::Coming;
        }
        let coming = Coming(self);
        let waiting = Waiting { shell: Some(make()?), owner: std::process::id() };
        std::mem::forget(coming);
        *self.place() = Place::There(Box::new(waiting));
        Ok(())
    }
}

/// However making fails, the place is not left as one that somebody fills.
struct Coming<'a>(&'a Ahead);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        *self.0.place() = Place::Empty;
    }
}

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ahead").field("there", &matches!(*self.place(), Place::There(_))).finish()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(shell) = self.shell.take() else { return };
        if self.owner != std::process::id() {
            shell.disown();
        } else if let Some(remains) = shell.take_apart() {
            reaper::bury(remains);
        }
    }
}

/// A guest at rest, and what its clones are made with.
#[derive(Debug)]
pub(crate) struct MonitorTemplate {
    template: Arc<Template>,
    ready: Arc<Ready>,
    digests: Option<ImageDigests>,
    ahead: Ahead,
}

impl MonitorTemplate {
    pub(super) fn new(ready: Arc<Ready>, template: Template, digests: Option<ImageDigests>) -> Self {
        Self { template: Arc::new(template), ready, digests, ahead: Ahead::default() }
    }

    /// Another guest at rest, of the same images.
    pub(crate) fn of(&self, template: Template) -> Self {
        Self::new(Arc::clone(&self.ready), template, self.digests.clone())
    }

    /// A machine that was made of it.
    fn made(&self, machine: Machine<KvmVm>) -> MonitorMachine {
        let made = MonitorMachine::new(Arc::clone(&self.ready), machine, self.digests.clone());
        made.made_of(&self.template)
    }

    /// As [`BackendTemplate::restore`], for whoever makes the machines.
    pub(crate) fn machine(&self) -> Result<MonitorMachine, BackendError> {
        if let Some(shell) = self.ahead.take() {
            match shell.start() {
                Ok(machine) => return Ok(self.made(machine)),
                Err(error) => tracing::debug!(%error, "what was made ahead cannot be used"),
            }
        }
        let machine = Machine::resume_from(&self.ready.hypervisor, &self.template)?;
        Ok(self.made(machine))
    }

    /// As [`BackendTemplate::restore_observed`], for whoever makes the machines.
    pub(crate) fn observed(&self) -> Result<MonitorMachine, BackendError> {
        let machine = Machine::resume_observed(&self.ready.hypervisor, &self.template)?;
        Ok(self.made(machine))
    }
}

impl BackendTemplate for MonitorTemplate {
    fn restore(&self) -> Result<Box<dyn BackendMachine>, BackendError> {
        Ok(Box::new(self.machine()?))
    }

    fn prepare(&self) -> Result<(), BackendError> {
        self.ahead.fill(|| Shell::of(&self.ready.hypervisor, &self.template))
    }

    fn restore_observed(&self) -> Result<Box<dyn BackendMachine>, BackendError> {
        Ok(Box::new(self.observed()?))
    }

    fn with_working_set(&self, pages: Vec<Range<u64>>) -> Arc<dyn BackendTemplate> {
        Arc::new(self.of(self.template.with_working_set(pages)))
    }

    fn ram(&self) -> u64 {
        self.template.memory().ram()
    }

    fn save(&self, path: &Path, about: &[u8]) -> Result<(), BackendError> {
        self.ready.save(&self.template, self.digests.as_ref(), path, about)
    }
}
