//! Interrupt inputs.

use std::sync::{Arc, Weak};

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::failed;
use super::vm::Inner;
use crate::hypervisor::{HypervisorError, InterruptTrigger};

/// Inputs of the I/O APIC; KVM routes the interrupt of each number to the input of that number from the start.
pub(super) const LINES: u32 = 24;

/// An eventfd that neither blocks nor survives an exec.
pub(super) fn eventfd() -> Result<EventFd, HypervisorError> {
    EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
        .map_err(|source| HypervisorError::Call { call: "eventfd", source })
}

/// An input of the interrupt chip, by an irqfd. It goes when this is dropped.
///
/// A write is not the interrupt yet: the kernel takes it away at once, and has a worker thread pulse the input soon after,
/// hence [`InterruptTrigger::flush`]. `KVM_IRQ_LINE` would pulse it in the call, and is faster: measured on an idle kvm_pvm,
/// 14 us to a halted guest's handler and back and 2 us for the caller, against 17 to 26 us and 6 us. But whoever has the
/// descriptor needs nothing else of the machine, and may be another process.
pub(super) struct IrqLine {
    eventfd: EventFd,
    line: u32,
    /// Weak: a line does not keep its machine alive.
    vm: Weak<Inner>,
}

impl IrqLine {
    pub(super) fn new(vm: &Arc<Inner>, line: u32) -> Result<Self, HypervisorError> {
        // KVM would take any number, and drop the interrupts of those that lead nowhere.
        if line >= LINES {
            return Err(HypervisorError::Lacks { what: "an interrupt line of this number" });
        }
        let line = Self { eventfd: eventfd()?, line, vm: Arc::downgrade(vm) };
        line.connect(vm)?;
        Ok(line)
    }

    fn connect(&self, vm: &Inner) -> Result<(), HypervisorError> {
        vm.fd.register_irqfd(&self.eventfd, self.line).map_err(failed("KVM_IRQFD"))
    }
}

impl InterruptTrigger for IrqLine {
    fn raise(&self) {
        // Fails only if the counter is at its end, and then an interrupt is on its way.
        let _ = self.eventfd.write(1);
    }

    fn flush(&self) -> Result<(), HypervisorError> {
        // Disconnecting waits for the worker. What is raised before the line is connected again stays in the counter, and KVM
        // looks there when it connects it.
        let Some(vm) = self.vm.upgrade() else {
            return Ok(());
        };
        vm.fd.unregister_irqfd(&self.eventfd, self.line).map_err(failed("KVM_IRQFD"))?;
        self.connect(&vm)
    }
}
