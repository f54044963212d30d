//! The owner's handle of a machine in this process.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::template::MonitorTemplate;
use super::{Ready, reaper};
use crate::backend::{
    BackendError, Channel, ExitReport, HostMemory, ImageDigests, Machine as BackendMachine, Place,
    Template as BackendTemplate,
};
use crate::hypervisor::kvm::KvmVm;
use crate::machine::{Machine, Template};

/// How long processors may take to come out of the guest. Only a device that does not return takes longer.
const KILL_TIME: Duration = Duration::from_secs(30);

/// A guest in this process.
pub(crate) struct MonitorMachine {
    machine: Machine<KvmVm>,
    /// For those made of this one.
    ready: Arc<Ready>,
    digests: Option<ImageDigests>,
    /// What it was made of, if it was restored.
    origin: Option<Arc<Template>>,
    /// The process that launched it.
    owner: u32,
}

impl MonitorMachine {
    pub(super) fn new(ready: Arc<Ready>, machine: Machine<KvmVm>, digests: Option<ImageDigests>) -> Self {
        Self { machine, ready, digests, origin: None, owner: std::process::id() }
    }

    /// What it is restored from.
    pub(super) fn made_of(mut self, origin: &Arc<Template>) -> Self {
        self.origin = Some(Arc::clone(origin));
        self
    }

    /// As [`BackendMachine::capture`], for whoever makes the machines.
    pub(crate) fn keep(&self) -> Result<Template, BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        if let Some(report) = self.machine.report() {
            return Err(report.into_error());
        }
        self.machine.capture()
    }

    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }
}

impl BackendMachine for MonitorMachine {
    fn take_channel(&mut self) -> Option<Channel> {
        self.machine.take_channel().map(Channel::Unix)
    }

    fn exit_fd(&self) -> BorrowedFd<'_> {
        self.machine.end_fd()
    }

    fn try_exit(&self) -> Option<ExitReport> {
        self.machine.report()
    }

    fn console_tail(&self) -> String {
        self.machine.console_tail()
    }

    fn kill(&mut self) -> Result<ExitReport, BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        self.machine.kill();
        self.wait(Some(KILL_TIME))
            .ok_or(BackendError::StuckProcess { pid: std::process::id(), after: KILL_TIME })
    }

    fn capture(&self) -> Result<Arc<dyn BackendTemplate>, BackendError> {
        let template = self.keep()?;
        Ok(Arc::new(MonitorTemplate::new(Arc::clone(&self.ready), template, self.digests.clone())))
    }

    fn reset(&mut self) -> Result<(), BackendError> {
        if !self.is_ours() {
            return Err(BackendError::ForkedProcess);
        }
        let Some(origin) = &self.origin else {
            return Err(BackendError::Unsupported { what: "a machine that was booted cannot be used again" });
        };
        if let Some(report) = self.machine.report() {
            return Err(report.into_error());
        }
        self.machine.reset_to(origin)
    }

    fn working_set(&self) -> Vec<Range<u64>> {
        if self.is_ours() { self.machine.working_set().unwrap_or_default() } else { Vec::new() }
    }

    /// The machine's own structures are not told apart from the rest of this process: some 100 KiB of stacks and buffers.
    fn host_memory(&self) -> Option<HostMemory> {
        if !self.is_ours() || self.machine.report().is_some() {
            return None;
        }
        let resident = self.machine.resident()?;
        Some(HostMemory { overhead: 0, guest: resident.own, cached: resident.shared })
    }

    fn process_id(&self) -> Option<u32> {
        None
    }

    fn place(&self) -> Place {
        Place::ThisProcess
    }
}

impl Drop for MonitorMachine {
    fn drop(&mut self) {
        if self.is_ours() {
            self.machine.kill();
            if let Some(remains) = self.machine.take_apart() {
                reaper::bury(remains);
            }
        } else {
            self.machine.disown();
        }
    }
}
