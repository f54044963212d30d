//! A machine in its place, and a template of which machines are made in either.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use super::{Placed, Places};
use crate::backend::{
    BackendError, Channel, ExitReport, HostMemory, ImageDigests, Machine as BackendMachine, Place,
    Template as BackendTemplate,
};
use crate::machine::Template;
use crate::monitor::{MonitorMachine, MonitorTemplate};
use crate::worker::WorkerTemplate;

/// A machine, wherever it is.
pub(super) struct PlacedMachine {
    placed: Placed,
    /// For those made of this one.
    places: Arc<Places>,
    digests: Option<ImageDigests>,
}

impl PlacedMachine {
    pub(super) fn new(places: &Arc<Places>, placed: Placed, digests: Option<ImageDigests>) -> Self {
        Self { placed, places: Arc::clone(places), digests }
    }

    fn get(&self) -> &dyn BackendMachine {
        match &self.placed {
            Placed::Here { machine, .. } => machine,
            Placed::Worker(machine) => machine,
        }
    }

    fn get_mut(&mut self) -> &mut dyn BackendMachine {
        match &mut self.placed {
            Placed::Here { machine, .. } => machine,
            Placed::Worker(machine) => machine,
        }
    }
}

impl BackendMachine for PlacedMachine {
    fn take_channel(&mut self) -> Option<Channel> {
        self.get_mut().take_channel()
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.get().exit_fd()
    }

    fn try_exit(&self) -> Option<ExitReport> {
        self.get().try_exit()
    }

    fn console_tail(&self) -> String {
        self.get().console_tail()
    }

    fn kill(&mut self) -> Result<ExitReport, BackendError> {
        self.get_mut().kill()
    }

    fn capture(&self) -> Result<Arc<dyn BackendTemplate>, BackendError> {
        let template = match &self.placed {
            Placed::Here { machine, .. } => machine.keep()?,
            Placed::Worker(machine) => machine.keep()?,
        };
        Ok(Arc::new(PlacedTemplate::new(&self.places, template, self.digests.clone())?))
    }

    fn reset(&mut self) -> Result<(), BackendError> {
        self.get_mut().reset()
    }

    fn working_set(&self) -> Vec<Range<u64>> {
        self.get().working_set()
    }

    fn host_memory(&self) -> Option<HostMemory> {
        self.get().host_memory()
    }

    fn process_id(&self) -> Option<u32> {
        self.get().process_id()
    }

    fn place(&self) -> Place {
        self.get().place()
    }
}

/// A guest at rest. It is the same for both places: sealed memory, and the state of processors and devices.
#[derive(Debug)]
pub(super) struct PlacedTemplate {
    places: Arc<Places>,
    template: Template,
    digests: Option<ImageDigests>,
    /// With what is made ahead.
    here: MonitorTemplate,
}

impl PlacedTemplate {
    pub(super) fn new(
        places: &Arc<Places>,
        template: Template,
        digests: Option<ImageDigests>,
    ) -> Result<Self, BackendError> {
        let here = places.monitor.template(template.clone(), digests.clone())?;
        Ok(Self { places: Arc::clone(places), template, digests, here })
    }

    /// Makes a machine: in this process by `here`.
    fn make(
        &self,
        here: impl Fn() -> Result<MonitorMachine, BackendError>,
    ) -> Result<Box<dyn BackendMachine>, BackendError> {
        let placed = self.places.make(here, |ready| {
            // Made anew each time: its parts are shared, and starting a worker takes a thousand times as long.
            let template = self.template.clone();
            WorkerTemplate::new(Arc::clone(ready), template, self.digests.clone())?.machine()
        })?;
        Ok(Box::new(PlacedMachine::new(&self.places, placed, self.digests.clone())))
    }
}

impl BackendTemplate for PlacedTemplate {
    fn restore(&self) -> Result<Box<dyn BackendMachine>, BackendError> {
        self.make(|| self.here.machine())
    }

    fn prepare(&self) -> Result<(), BackendError> {
        // The next one would not use it.
        if !self.places.has_seat() {
            return Ok(());
        }
        self.here.prepare()
    }

    /// In a worker it is one like others, which knows what it has written, and not what it has read.
    fn restore_observed(&self) -> Result<Box<dyn BackendMachine>, BackendError> {
        self.make(|| self.here.observed())
    }

    fn with_working_set(&self, pages: Vec<Range<u64>>) -> Arc<dyn BackendTemplate> {
        let template = self.template.with_working_set(pages);
        Arc::new(Self {
            places: Arc::clone(&self.places),
            here: self.here.of(template.clone()),
            template,
            digests: self.digests.clone(),
        })
    }

    fn ram(&self) -> u64 {
        self.here.ram()
    }

    fn save(&self, path: &Path, about: &[u8]) -> Result<(), BackendError> {
        self.here.save(path, about)
    }
}
