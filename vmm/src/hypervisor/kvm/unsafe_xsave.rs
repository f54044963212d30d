//! Floating-point and vector state: the buffer's size is the processor's, and the calls trust it.

#![allow(unsafe_code)]

use kvm_bindings::{KVMIO, Xsave, kvm_xsave};
use kvm_ioctls::{Cap, VcpuFd, VmFd};
use vmm_sys_util::ioctl::ioctl_with_ptr;
use vmm_sys_util::ioctl_iow_nr;

use super::failed;
use crate::hypervisor::HypervisorError;

ioctl_iow_nr!(KVM_SET_XSAVE, KVMIO, 0xa5, kvm_xsave);

/// Size of `struct kvm_xsave` without its flexible part, in bytes: what every kernel takes.
const BASE: usize = 4096;

/// Largest that is taken from a saved state. The largest today (AMX) is 11 KiB.
const MAX: usize = 64 * 1024;

/// Bytes of the state of this machine's virtual CPUs.
fn size(vm: &VmFd) -> usize {
    // 0 on kernels before 5.17, which have the base only.
    usize::try_from(vm.check_extension_int(Cap::Xsave2)).unwrap_or(0).max(BASE)
}

/// A buffer of that size.
fn buffer(size: usize) -> Result<Xsave, HypervisorError> {
    Xsave::new((size - BASE).div_ceil(size_of::<u32>()))
        .map_err(|_| HypervisorError::BadState { what: "the XSAVE area is too large" })
}

/// Reads it.
pub(super) fn get(vm: &VmFd, vcpu: &VcpuFd) -> Result<Vec<u8>, HypervisorError> {
    let size = size(vm);
    let mut area = buffer(size)?;
    if size == BASE {
        // KVM_GET_XSAVE2 may be missing; this one is always there.
        let base = vcpu.get_xsave().map_err(failed("KVM_GET_XSAVE"))?;
        return Ok(base.region.iter().flat_map(|word| word.to_le_bytes()).collect());
    }
    // SAFETY: the buffer has the size that KVM says it writes. The permissions of this process that the size depends on
    // (arch_prctl, ARCH_REQ_XCOMP_GUEST_PERM) only ever grow at a machine's creation, and nothing of ours asks for any.
    unsafe { vcpu.get_xsave2(&mut area) }.map_err(failed("KVM_GET_XSAVE2"))?;
    let words = area.as_fam_struct_ref().xsave.region.iter().chain(area.as_slice());
    let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(size);
    Ok(bytes)
}

/// Sets it. A larger area than this processor has is taken if the rest is zero; a smaller one is filled up with zeroes.
pub(super) fn set(vm: &VmFd, vcpu: &VcpuFd, bytes: &[u8]) -> Result<(), HypervisorError> {
    if bytes.len() < BASE || bytes.len() > MAX || !bytes.len().is_multiple_of(size_of::<u32>()) {
        return Err(HypervisorError::BadState { what: "the XSAVE area has an impossible length" });
    }
    let size = size(vm).next_multiple_of(size_of::<u32>());
    if bytes.get(size..).is_some_and(|rest| rest.iter().any(|&byte| byte != 0)) {
        return Err(HypervisorError::BadState {
            what: "this processor has no room for the vector registers",
        });
    }
    if bytes.len() >= size {
        // SAFETY: the kernel reads `size` bytes at most behind the pointer, which are there, and writes none.
        let done = unsafe { ioctl_with_ptr(vcpu, KVM_SET_XSAVE(), bytes.as_ptr()) };
        let failure = || failed("KVM_SET_XSAVE")(kvm_ioctls::Error::last());
        return if done == 0 { Ok(()) } else { Err(failure()) };
    }
    // Of a processor with less.
    let mut area = buffer(size)?;
    let mut words =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    // SAFETY: the length of the flexible part is not changed.
    let base = unsafe { area.as_mut_fam_struct() };
    for (place, word) in base.xsave.region.iter_mut().zip(words.by_ref()) {
        *place = word;
    }
    for (place, word) in area.as_mut_slice().iter_mut().zip(words) {
        *place = word;
    }
    // SAFETY: the buffer has at least the size that KVM says it reads.
    unsafe { vcpu.set_xsave2(&area) }.map_err(failed("KVM_SET_XSAVE"))
}
