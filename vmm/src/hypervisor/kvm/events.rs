//! Interrupt inputs.

use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::failed;
use crate::hypervisor::{HypervisorError, InterruptTrigger};

/// Inputs of the I/O APIC; KVM routes the interrupt of each number to the input of that number from the start.
pub(super) const LINES: u32 = 24;

/// An eventfd that neither blocks nor survives an exec.
pub(super) fn eventfd() -> Result<EventFd, HypervisorError> {
    EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
        .map_err(|source| HypervisorError::Call { call: "eventfd", source })
}

/// An input of the interrupt chip, by an irqfd. The kernel takes each write to it away at once and pulses the input.
/// It goes when this is dropped.
pub(super) struct IrqLine(EventFd);

impl IrqLine {
    pub(super) fn new(vm: &VmFd, line: u32) -> Result<Self, HypervisorError> {
        // KVM would take any number, and drop the interrupts of those that lead nowhere.
        if line >= LINES {
            return Err(HypervisorError::Lacks { what: "an interrupt line of this number" });
        }
        let eventfd = eventfd()?;
        vm.register_irqfd(&eventfd, line).map_err(failed("KVM_IRQFD"))?;
        Ok(Self(eventfd))
    }
}

impl InterruptTrigger for IrqLine {
    fn raise(&self) {
        // Fails only if the counter is at its end, and then an interrupt is on its way.
        let _ = self.0.write(1);
    }
}
