//! The hypervisor seam: everything that the monitor asks of whatever executes the guest's instructions.
//!
//! Machine, devices and snapshots are written against the traits of this module ([`Hypervisor`], [`Vm`], [`Vcpu`],
//! [`Kick`], [`InterruptTrigger`]) and against plain state structs. [`kvm`] implements them on Linux. They are shaped so
//! that Hypervisor.framework on Apple silicon can implement them too, and its limits are the contract: one virtual
//! machine in a process, a virtual CPU belongs to the thread that made it, guest memory in whole pages of 16 KiB, no
//! event descriptors in the kernel. What only one architecture has stands in a module named for it
//! (`x86_64`), never in a trait that both must implement.
//!
//! # What each call is on either hypervisor
//!
//! | Call | KVM | Hypervisor.framework (arm64) |
//! |---|---|---|
//! | [`Hypervisor::create_vm`] | `KVM_CREATE_VM`, `KVM_SET_TSS_ADDR` | `hv_vm_create` (an error if the process has one) |
//! | [`Hypervisor::facts`] | `KVM_CHECK_EXTENSION`, `KVM_GET_SUPPORTED_CPUID`, a throw-away virtual CPU | `hv_vm_get_max_vcpu_count`, `hv_vcpu_config_get_feature_reg` |
//! | [`Vm::map_memory`] | `KVM_SET_USER_MEMORY_REGION` | `hv_vm_map` with `HV_MEMORY_READ`, `EXEC`, and `WRITE` if writable |
//! | [`Vm::unmap_memory`] | the same with size 0 | `hv_vm_unmap` |
//! | [`Vm::create_interrupt_chip`] | `KVM_CREATE_IRQCHIP` | `hv_gic_create` (macOS 15), before the first virtual CPU |
//! | [`Vm::create_vcpu`] | `KVM_CREATE_VCPU`, `mmap` of the run page | `hv_vcpu_create` on the calling thread; the run page is its `hv_vcpu_exit_t` |
//! | [`Vm::interrupt_line`] | `KVM_IRQ_LINE` to low | a closure over the SPI number |
//! | [`InterruptTrigger::raise`] | `KVM_IRQ_LINE` to high, then to low | `hv_gic_set_spi(intid, true)`, then `false` |
//! | [`Vm::doorbell`] | `KVM_IOEVENTFD` | `None`: the write arrives as an exit |
//! | [`Vm::clock`], [`Vm::set_clock`] | `KVM_GET_CLOCK`, `KVM_SET_CLOCK` | `mach_absolute_time` and `hv_vcpu_set_vtimer_offset` of each virtual CPU |
//! | [`Vm::interrupt_chip_state`], [`Vm::set_interrupt_chip_state`] | `KVM_GET_IRQCHIP`, `KVM_SET_IRQCHIP` | `hv_gic_state_create` + `hv_gic_state_get_data`, `hv_gic_set_state` |
//! | [`Vcpu::run`] | `KVM_RUN` | `hv_vcpu_run`; data aborts are decoded from the syndrome into [`Exit`] |
//! | [`Vcpu::settle`] | `KVM_RUN` with `immediate_exit` set | writes the register that a data abort was to load; no call |
//! | [`Kick::kick`] | `immediate_exit` and the kick signal to the thread | `hv_vcpus_exit` |
//! | [`Vcpu::state`], [`Vcpu::set_lasting_state`], [`Vcpu::set_momentary_state`] | a dozen of `KVM_GET_*`, `KVM_SET_*` | `hv_vcpu_get_reg`, `_sys_reg`, `_simd_fp_reg`, `hv_gic_get_icc_reg`, `hv_vcpu_get_vtimer_*`, and their setters |
//! | [`Vcpu::tell_paused`] | `KVM_KVMCLOCK_CTRL` | nothing |
//! | dropping a [`Vcpu`] | `close`, `munmap` | `hv_vcpu_destroy`, on its thread |
//! | dropping a [`Vm`] | `close` | `hv_vm_destroy`, when the last virtual CPU is gone |
//!
//! # Order of creation
//!
//! Memory slots first, then the interrupt chip, then the virtual CPUs, doorbells last. Every other order works as well
//! and costs up to ten times as much on KVM; [`kvm`] says why.

mod error;
mod exit;
mod memory;
pub mod probe;
mod traits;

#[cfg(target_arch = "x86_64")]
pub mod x86_64;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod kvm;

pub use error::HypervisorError;
pub use exit::{Exit, SystemEvent};
pub use memory::MappedRegion;
pub use traits::{Doorbell, HostFacts, Hypervisor, InterruptTrigger, Kick, Vcpu, Vm};

/// State structs of the architecture that this crate is built for.
#[cfg(target_arch = "x86_64")]
pub use x86_64 as arch;
