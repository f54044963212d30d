//! The one unsafe step of the probe: giving the hypervisor the probe's memory.

#![allow(unsafe_code)]

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// A virtual machine with one memory slot at guest-physical address 0.
///
/// Fields drop in the order written: the machine's handle closes before its memory is unmapped. A virtual CPU made from
/// [`Slot::vm`] is to be dropped before the slot; were it not, the kernel would still take the memory from the guest
/// when it is unmapped.
pub(super) struct Slot {
    vm: VmFd,
    memory: GuestMemoryMmap,
}

impl Slot {
    /// Maps `size` bytes and makes them the guest's memory.
    pub(super) fn new(vm: VmFd, size: usize) -> Result<Self, String> {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), size)])
            .map_err(|error| format!("allocating guest memory: {error}"))?;
        let host = memory
            .get_host_address(GuestAddress(0))
            .map_err(|error| format!("finding guest memory: {error}"))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: size as u64,
            userspace_addr: host as u64,
        };
        // SAFETY: the region is one whole mapping of `size` bytes that `memory` owns and nothing else uses as Rust data:
        // all accesses go through vm-memory's volatile ones. It lives in the same struct as the VM (see the struct for
        // the order of dropping), and the only slot cannot overlap another.
        unsafe { vm.set_user_memory_region(region) }
            .map_err(|error| format!("giving the virtual machine its memory: {error}"))?;
        Ok(Self { vm, memory })
    }

    pub(super) fn vm(&self) -> &VmFd {
        &self.vm
    }

    pub(super) fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}
