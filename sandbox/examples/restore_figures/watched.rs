//! The monitor, watched: templates that the engine makes can be had here too, and nobody makes machines of them behind a closed gate.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use hayfork_vmm::backend::{
    Backend, BackendError, Capabilities, Channel, ExitReport, HostMemory, Machine, MachineSpec, Place,
    Template,
};
use hayfork_vmm::monitor::Monitor;

/// The backend. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Watched {
    monitor: Arc<Monitor>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    kept: Mutex<Kept>,
    is_shut: Mutex<bool>,
    opened: Condvar,
}

/// The templates that were made last.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    /// Of a running machine.
    pub(crate) plain: Option<Arc<dyn Template>>,
    /// The same with pages that each machine gets ahead.
    pub(crate) ahead: Option<Arc<dyn Template>>,
    /// Bytes of those pages.
    pub(crate) ahead_bytes: u64,
    /// Ranges of those pages.
    pub(crate) ahead_ranges: usize,
}

/// A program that panics has no figures, so what is behind a lock does not matter then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// The templates that were made last.
    pub(crate) fn kept(&self) -> Kept {
        lock(&self.seen.kept).clone()
    }

    /// Whoever makes a machine of a template from here on waits.
    pub(crate) fn shut(&self) {
        *lock(&self.seen.is_shut) = true;
    }

    /// Nobody waits any more.
    pub(crate) fn open(&self) {
        *lock(&self.seen.is_shut) = false;
        self.seen.opened.notify_all();
    }
}

impl Seen {
    fn pass(&self) {
        let shut = lock(&self.is_shut);
        let _open = self.opened.wait_while(shut, |shut| *shut).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Backend for Watched {
    fn name(&self) -> &'static str {
        self.monitor.name()
    }

    fn check(&self) -> Result<Capabilities, BackendError> {
        self.monitor.check()
    }

    fn launch(&self, spec: &MachineSpec) -> Result<Box<dyn Machine>, BackendError> {
        let machine = self.monitor.launch(spec)?;
        Ok(Box::new(WatchedMachine { machine, seen: Arc::clone(&self.seen) }))
    }
}

struct WatchedMachine {
    machine: Box<dyn Machine>,
    seen: Arc<Seen>,
}

impl Machine for WatchedMachine {
    fn take_channel(&mut self) -> Option<Channel> {
        self.machine.take_channel()
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.machine.exit_fd()
    }

    fn try_exit(&self) -> Option<ExitReport> {
        self.machine.try_exit()
    }

    fn console_tail(&self) -> String {
        self.machine.console_tail()
    }

    fn kill(&mut self) -> Result<ExitReport, BackendError> {
        self.machine.kill()
    }

    fn host_memory(&self) -> Option<HostMemory> {
        self.machine.host_memory()
    }

    fn process_id(&self) -> Option<u32> {
        self.machine.process_id()
    }

    fn place(&self) -> Place {
        self.machine.place()
    }

    fn capture(&self) -> Result<Arc<dyn Template>, BackendError> {
        let template = self.machine.capture()?;
        *lock(&self.seen.kept) = Kept { plain: Some(Arc::clone(&template)), ..Kept::default() };
        Ok(Arc::new(WatchedTemplate { template, seen: Arc::clone(&self.seen) }))
    }

    fn working_set(&self) -> Vec<Range<u64>> {
        self.machine.working_set()
    }
}

struct WatchedTemplate {
    template: Arc<dyn Template>,
    seen: Arc<Seen>,
}

impl WatchedTemplate {
    fn machine(&self, machine: Box<dyn Machine>) -> Box<dyn Machine> {
        Box::new(WatchedMachine { machine, seen: Arc::clone(&self.seen) })
    }
}

impl Template for WatchedTemplate {
    fn restore(&self) -> Result<Box<dyn Machine>, BackendError> {
        self.seen.pass();
        Ok(self.machine(self.template.restore()?))
    }

    fn restore_observed(&self) -> Result<Box<dyn Machine>, BackendError> {
        Ok(self.machine(self.template.restore_observed()?))
    }

    fn with_working_set(&self, pages: Vec<Range<u64>>) -> Arc<dyn Template> {
        let (ahead_bytes, ahead_ranges) =
            (pages.iter().map(|range| range.end - range.start).sum(), pages.len());
        let template = self.template.with_working_set(pages);
        let mut kept = lock(&self.seen.kept);
        *kept = Kept { ahead: Some(Arc::clone(&template)), ahead_bytes, ahead_ranges, ..kept.clone() };
        Arc::new(Self { template, seen: Arc::clone(&self.seen) })
    }

    fn ram(&self) -> u64 {
        self.template.ram()
    }
}
