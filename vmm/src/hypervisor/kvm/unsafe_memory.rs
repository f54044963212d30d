//! Giving memory of this process to a guest, and keeping both from a forked child.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::EventFd;

use super::failed;
use crate::hypervisor::{HypervisorError, MappedRegion};

/// Gives a region to the guest, and keeps it in `slots`, which are those of the machine and live as long as it.
pub(super) fn map(
    vm: &VmFd,
    slots: &mut BTreeMap<u32, MappedRegion>,
    slot: u32,
    region: &MappedRegion,
) -> Result<(), HypervisorError> {
    let request = kvm_userspace_memory_region {
        slot,
        flags: if region.is_writable() { 0 } else { KVM_MEM_READONLY },
        guest_phys_addr: region.guest_address(),
        memory_size: region.size(),
        userspace_addr: region.host_address(),
    };
    // SAFETY: the address and size are those of a mapping that the region owns, and a clone of it goes into the map
    // below, from where it is removed only after the slot was cleared. Nothing holds Rust references into it: its other users go
    // through vm-memory's volatile accesses, since the guest writes at any time.
    match unsafe { vm.set_user_memory_region(request) } {
        Ok(()) => {
            slots.insert(slot, region.clone());
            Ok(())
        }
        Err(error) => {
            let guest_address = region.guest_address();
            let what = match error.errno() {
                libc::EEXIST => "it overlaps another",
                libc::EINVAL => "it is empty, not aligned to pages, or the slot's number is too high",
                _ => return Err(failed("KVM_SET_USER_MEMORY_REGION")(error)),
            };
            Err(HypervisorError::Memory { slot, guest_address, what })
        }
    }
}

/// Takes the slot from the guest.
pub(super) fn clear_slot(vm: &VmFd, slot: u32) -> Result<(), kvm_ioctls::Error> {
    let request = kvm_userspace_memory_region { slot, ..Default::default() };
    // SAFETY: size 0 deletes the slot and refers to no memory.
    unsafe { vm.set_user_memory_region(request) }
}

/// Keeps a mapping from children made by `fork`.
pub(super) fn dont_fork(address: u64, size: u64) -> std::io::Result<()> {
    let size = usize::try_from(size).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    // SAFETY: the advice changes what fork does with these pages, nothing in this process. A wrong range is an error or
    // means other pages of this process, which then are missing in a child; no memory becomes invalid here.
    let result = unsafe { libc::madvise(address as *mut libc::c_void, size, libc::MADV_DONTFORK) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The descriptor of an eventfd, in the type of the standard library.
pub(super) fn into_owned(eventfd: EventFd) -> OwnedFd {
    // SAFETY: the number comes from a type that owned the descriptor and gave it up.
    unsafe { OwnedFd::from_raw_fd(eventfd.into_raw_fd()) }
}
