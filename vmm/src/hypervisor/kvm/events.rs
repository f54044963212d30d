//! Interrupt inputs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::vm::Inner;
use crate::hypervisor::{HypervisorError, InterruptTrigger};

/// Inputs of the I/O APIC; KVM routes the interrupt of each number to the input of that number from the start.
pub(super) const LINES: u32 = 24;

/// An eventfd that neither blocks nor survives an exec.
pub(super) fn eventfd() -> Result<EventFd, HypervisorError> {
    EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
        .map_err(|source| HypervisorError::Call { call: "eventfd", source })
}

/// An input of the interrupt chip. One raise is a rise and a fall of the input, both by `KVM_IRQ_LINE`.
///
/// By an irqfd it would be a write to a descriptor. But inputs of an I/O APIC may not be set where KVM hears of that write, so it
/// has a worker thread of the kernel do it, some time later: measured on an idle kvm_pvm, 17 to 26 us to a halted guest's handler and
/// back and 6 us for the caller, against 14 us and 2 us by the call. And interrupts on their way would have to be waited for before
/// state is read. Whoever raises an input is in the machine's process in any case.
pub(super) struct IrqLine {
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
        if !vm.has_chip.load(Ordering::Acquire) {
            return Err(HypervisorError::Lacks { what: "an interrupt chip, which is to be created first" });
        }
        Ok(Self { line, vm: Arc::downgrade(vm) })
    }
}

impl InterruptTrigger for IrqLine {
    fn raise(&self) {
        let Some(vm) = self.vm.upgrade() else {
            return;
        };
        // Fails only where there is no such input, and there was one.
        let _ = vm.fd.set_irq_line(self.line, true);
        let _ = vm.fd.set_irq_line(self.line, false);
    }
}
