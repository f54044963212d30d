//! A virtual machine of KVM.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::kvm_clock_data;
use kvm_ioctls::{IoEventAddress, VmFd};

use super::events::{IrqLine, eventfd};
use super::host::Host;
use super::vcpu::KvmVcpu;
use super::{failed, unsafe_chip, unsafe_doorbell, unsafe_memory};
use crate::after_fork::Released;
use crate::hypervisor::x86_64::{ClockState, InterruptChipState};
use crate::hypervisor::{Doorbell, HypervisorError, InterruptTrigger, MappedRegion, Vm};

/// A virtual machine. A handle: its virtual CPUs hold another.
#[derive(Debug)]
pub struct KvmVm(Arc<Inner>);

/// What a machine and its virtual CPUs share.
///
/// Fields drop in the order written: the last handle of the machine closes before its memory is unmapped.
#[derive(Debug)]
pub(super) struct Inner {
    _released: Released,
    pub(super) fd: VmFd,
    slots: Mutex<BTreeMap<u32, MappedRegion>>,
    /// Whether there is an interrupt chip.
    pub(super) has_chip: AtomicBool,
    pub(super) host: Arc<Host>,
}

impl KvmVm {
    pub(super) fn new(fd: VmFd, host: Arc<Host>) -> Self {
        let released = Released::of(fd.as_raw_fd());
        Self(Arc::new(Inner {
            _released: released,
            fd,
            slots: Mutex::default(),
            has_chip: AtomicBool::new(false),
            host,
        }))
    }
}

impl Vm for KvmVm {
    type Vcpu = KvmVcpu;

    fn map_memory(&self, slot: u32, region: &MappedRegion) -> Result<(), HypervisorError> {
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.contains_key(&slot) {
            let guest_address = region.guest_address();
            return Err(HypervisorError::Memory { slot, guest_address, what: "the slot is in use" });
        }
        unsafe_memory::dont_fork(region.host_address(), region.size())
            .map_err(|source| HypervisorError::Call { call: "madvise of guest memory", source })?;
        unsafe_memory::map(&self.0.fd, &mut slots, slot, region)
    }

    fn unmap_memory(&self, slot: u32) -> Result<(), HypervisorError> {
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if !slots.contains_key(&slot) {
            return Err(HypervisorError::Memory { slot, guest_address: 0, what: "the slot is empty" });
        }
        unsafe_memory::clear_slot(&self.0.fd, slot).map_err(failed("KVM_SET_USER_MEMORY_REGION"))?;
        slots.remove(&slot);
        Ok(())
    }

    fn create_interrupt_chip(&self) -> Result<(), HypervisorError> {
        self.0.fd.create_irq_chip().map_err(failed("KVM_CREATE_IRQCHIP"))?;
        self.0.has_chip.store(true, Ordering::Release);
        Ok(())
    }

    fn create_vcpu(&self, index: u8) -> Result<KvmVcpu, HypervisorError> {
        KvmVcpu::new(&self.0, index)
    }

    fn interrupt_line(&self, line: u32) -> Result<Box<dyn InterruptTrigger>, HypervisorError> {
        Ok(Box::new(IrqLine::new(&self.0, line)?))
    }

    fn doorbell(&self, addr: u64, value: Option<u32>) -> Result<Option<Doorbell>, HypervisorError> {
        let eventfd = eventfd()?;
        match value {
            Some(value) => self
                .0
                .fd
                .register_ioevent(&eventfd, &IoEventAddress::Mmio(addr), value)
                .map_err(failed("KVM_IOEVENTFD"))?,
            None => unsafe_doorbell::register(&self.0.fd, &eventfd, addr)
                .map_err(|source| HypervisorError::Call { call: "KVM_IOEVENTFD", source })?,
        }
        Ok(Some(Doorbell::new(unsafe_memory::into_owned(eventfd))))
    }

    fn clock(&self) -> Result<ClockState, HypervisorError> {
        let clock = self.0.fd.get_clock().map_err(failed("KVM_GET_CLOCK"))?;
        Ok(ClockState { nanoseconds: clock.clock })
    }

    fn set_clock(&self, state: &ClockState) -> Result<(), HypervisorError> {
        // No KVM_CLOCK_REALTIME: that would add the real time that has passed since the clock was read.
        let clock = kvm_clock_data { clock: state.nanoseconds, ..Default::default() };
        self.0.fd.set_clock(&clock).map_err(failed("KVM_SET_CLOCK"))
    }

    fn interrupt_chip_state(&self) -> Result<InterruptChipState, HypervisorError> {
        unsafe_chip::get(&self.0.fd)
    }

    fn set_interrupt_chip_state(&self, state: &InterruptChipState) -> Result<(), HypervisorError> {
        unsafe_chip::set(&self.0.fd, state)
    }
}
