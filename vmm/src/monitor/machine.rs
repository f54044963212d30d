//! The owner's handle of a machine in this process.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::reaper;
use crate::backend::{BackendError, Channel, ExitReport, HostMemory, Machine as BackendMachine};
use crate::hypervisor::Vm;
use crate::machine::Machine;

/// How long processors may take to come out of the guest. Only a device that does not return takes longer.
const KILL_TIME: Duration = Duration::from_secs(30);

/// A guest in this process.
pub(super) struct MonitorMachine<V: Vm> {
    machine: Machine<V>,
    /// The process that launched it.
    owner: u32,
}

impl<V: Vm> MonitorMachine<V> {
    pub(super) fn new(machine: Machine<V>) -> Self {
        Self { machine, owner: std::process::id() }
    }

    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }
}

impl<V: Vm> BackendMachine for MonitorMachine<V> {
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
}

impl<V: Vm> Drop for MonitorMachine<V> {
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
