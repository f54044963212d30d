//! A doorbell for every value: kvm-ioctls has those of one value, and those of any width.
//!
//! KVM puts a doorbell of any width on two of its buses, for the sake of processors (VMX only) whose exits tell no width. Each
//! entry costs a machine a grace period when it is made and another when it ends.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use kvm_bindings::{KVMIO, kvm_ioeventfd};
use kvm_ioctls::VmFd;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;

ioctl_iow_nr!(KVM_IOEVENTFD, KVMIO, 0x79, kvm_ioeventfd);

/// Has `bell` count the 4-byte writes to `addr`, whatever they write.
///
/// # Errors
/// The kernel's. There is one for that address already, or no memory left.
pub(super) fn register(vm: &VmFd, bell: &EventFd, addr: u64) -> io::Result<()> {
    let request = kvm_ioeventfd { addr, len: 4, fd: bell.as_raw_fd(), flags: 0, ..Default::default() };
    // SAFETY: the call reads the struct, which is the one that it expects, and takes a reference to the descriptor's file.
    let done = unsafe { ioctl_with_ref(vm, KVM_IOEVENTFD(), &request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
