//! The page that a virtual CPU shares with KVM (`struct kvm_run`): reading exits from it, and the flag of a kick.
//!
//! This is a second mapping of the page, beside the one inside `kvm_ioctls::VcpuFd`: other threads keep it alive through
//! their [`ExitFlag`]s, and nothing here makes a reference to the whole struct, so that the flag can be
//! written at any time.

#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use kvm_bindings::{
    KVM_EXIT_FAIL_ENTRY, KVM_EXIT_HLT, KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_INTR, KVM_EXIT_IO, KVM_EXIT_IO_OUT,
    KVM_EXIT_MMIO, KVM_EXIT_SHUTDOWN, KVM_EXIT_SYSTEM_EVENT, KVM_SYSTEM_EVENT_CRASH, KVM_SYSTEM_EVENT_RESET,
    KVM_SYSTEM_EVENT_SHUTDOWN, kvm_run,
};
use kvm_ioctls::VcpuFd;

use super::unsafe_memory::dont_fork;
use crate::hypervisor::{Exit, HypervisorError, SystemEvent};

/// The mapping.
struct Mapping {
    run: NonNull<kvm_run>,
    /// Bytes, at least those of the struct.
    size: usize,
    /// The process that mapped it: a child made by `fork` does not have it, and may have something else there.
    process: u32,
}

// SAFETY: the mapping stays until the last owner drops it. Through a shared `Mapping` only the one byte of the flag is
// accessed, atomically; the rest only through `RunPage`, of which there is one, by methods that take it exclusively.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn immediate_exit(&self) -> &AtomicU8 {
        // SAFETY: the field is inside the mapping, which lives as long as the result. No other code of this process
        // accesses the byte through this mapping but by this method. The kernel reads it, and only reads it.
        unsafe { AtomicU8::from_ptr(&raw mut (*self.run.as_ptr()).immediate_exit) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            // SAFETY: this process mapped these bytes, and nobody uses them any more: this is the last owner. An error
            // would mean that they are not mapped.
            unsafe { libc::munmap(self.run.as_ptr().cast(), self.size) };
        }
    }
}

/// The page, for the virtual CPU itself.
pub(super) struct RunPage(Arc<Mapping>);

/// The flag that keeps a virtual CPU out of the guest, for everybody.
#[derive(Clone)]
pub(super) struct ExitFlag(Arc<Mapping>);

impl ExitFlag {
    /// The next `KVM_RUN` finishes what is pending and returns EINTR. Everything that this thread wrote before is seen by
    /// a thread that has seen the flag.
    pub(super) fn set(&self) {
        self.0.immediate_exit().store(1, Ordering::SeqCst);
    }

    /// `KVM_RUN` enters the guest again.
    pub(super) fn clear(&self) {
        self.0.immediate_exit().swap(0, Ordering::SeqCst);
    }
}

impl RunPage {
    /// Maps the page of a virtual CPU, `size` bytes (`KVM_GET_VCPU_MMAP_SIZE`).
    pub(super) fn map(vcpu: &mut VcpuFd, size: usize) -> Result<Self, HypervisorError> {
        let failed = |source| HypervisorError::Call { call: "mmap of kvm_run", source };
        if size < size_of::<kvm_run>() {
            return Err(failed(std::io::ErrorKind::InvalidData.into()));
        }
        let (protection, sharing) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other; the result is checked.
        let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, sharing, vcpu.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error()));
        }
        let run =
            NonNull::new(address.cast()).ok_or_else(|| failed(std::io::ErrorKind::InvalidData.into()))?;
        let mapping = Mapping { run, size, process: std::process::id() };
        // Both mappings of it.
        let other = ptr::from_mut(vcpu.get_kvm_run());
        dont_fork(address as u64, size as u64)
            .and_then(|()| dont_fork(other as u64, size as u64))
            .map_err(|source| HypervisorError::Call { call: "madvise of kvm_run", source })?;
        Ok(Self(Arc::new(mapping)))
    }

    /// The flag of this page.
    pub(super) fn exit_flag(&self) -> ExitFlag {
        ExitFlag(Arc::clone(&self.0))
    }

    /// Decodes the exit of a `KVM_RUN` that returned 0.
    pub(super) fn exit(&mut self) -> Exit<'_> {
        let base: *mut u8 = self.0.run.as_ptr().cast();
        let run = self.0.run.as_ptr();
        // SAFETY (for all blocks below): `run` points to a live mapping of at least the struct's size. The virtual CPU is
        // not in KVM_RUN, since its only thread is here, so the kernel writes nothing; other threads write only
        // `immediate_exit`. Every field is of integers, for which all bit patterns are values, and which member of
        // the union is meant says the exit reason. Slices borrow this page exclusively until the next KVM_RUN.
        // SAFETY: see above.
        let (reason, detail) = unsafe { ((*run).exit_reason, &raw mut (*run).__bindgen_anon_1) };
        match reason {
            KVM_EXIT_MMIO => {
                // SAFETY: see above.
                let (addr, length, is_write) =
                    unsafe { ((*detail).mmio.phys_addr, (*detail).mmio.len, (*detail).mmio.is_write) };
                let length = (length as usize).min(8);
                // SAFETY: see above; `data` has 8 bytes.
                let data =
                    unsafe { std::slice::from_raw_parts_mut((&raw mut (*detail).mmio.data).cast(), length) };
                if is_write == 0 { Exit::MmioRead { addr, data } } else { Exit::MmioWrite { addr, data } }
            }
            KVM_EXIT_IO => {
                // SAFETY: see above.
                let io = unsafe { (*detail).io };
                let length = u64::from(io.size) * u64::from(io.count);
                let in_page = io.data_offset.checked_add(length).is_some_and(|end| end <= self.0.size as u64);
                let (Ok(offset), Ok(length), true) =
                    (usize::try_from(io.data_offset), usize::try_from(length), in_page)
                else {
                    return Exit::Other { reason };
                };
                // SAFETY: see above; the range was checked to be inside the mapping. It is the page after the struct,
                // so it does not overlap the flag.
                let data = unsafe { std::slice::from_raw_parts_mut(base.add(offset), length) };
                if u32::from(io.direction) == KVM_EXIT_IO_OUT {
                    Exit::PortOut { port: io.port, size: io.size, data }
                } else {
                    Exit::PortIn { port: io.port, size: io.size, data }
                }
            }
            KVM_EXIT_HLT => Exit::Halt,
            KVM_EXIT_SHUTDOWN => Exit::TripleFault,
            KVM_EXIT_INTR => Exit::Kicked,
            KVM_EXIT_SYSTEM_EVENT => {
                // SAFETY: see above.
                let kind = match unsafe { (*detail).system_event.type_ } {
                    KVM_SYSTEM_EVENT_SHUTDOWN => SystemEvent::Shutdown,
                    KVM_SYSTEM_EVENT_RESET => SystemEvent::Reset,
                    KVM_SYSTEM_EVENT_CRASH => SystemEvent::Crash,
                    other => SystemEvent::Other(other),
                };
                Exit::SystemEvent { kind }
            }
            KVM_EXIT_INTERNAL_ERROR => {
                // SAFETY: see above.
                let internal = unsafe { (*detail).internal };
                let count = (internal.ndata as usize).min(internal.data.len());
                Exit::InternalError { suberror: internal.suberror, data: internal.data[..count].to_vec() }
            }
            KVM_EXIT_FAIL_ENTRY => {
                // SAFETY: see above.
                let entry = unsafe { (*detail).fail_entry };
                Exit::FailedEntry { reason: entry.hardware_entry_failure_reason, cpu: entry.cpu }
            }
            reason => Exit::Other { reason },
        }
    }
}
