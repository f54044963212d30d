//! The seam over KVM (`Documentation/virt/kvm/api.rst` of the kernel), x86-64.
//!
//! # Order of creation, measured
//!
//! Medians from `KVM_CREATE_VM` to the first exit, 256 MiB, one virtual CPU, five doorbells, Linux 6.18 with kvm_pvm
//! (`benches/hypervisor.rs`):
//!
//! | order | ms | of it the memory slot |
//! |---|---|---|
//! | memory, interrupt chip, virtual CPU, doorbells | 1.3 | 0.36 |
//! | interrupt chip, memory, virtual CPU, doorbells | 8.4 | 7.3 |
//! | doorbells, memory, interrupt chip, virtual CPU | 8.4 | 7.4 |
//!
//! The likely reason is in the kernel: registering a device on its I/O bus, which interrupt chip and doorbells both do, frees
//! the old bus with `call_srcu` (since 6.18), and a memory slot then waits by `synchronize_srcu` for that grace period to
//! pass, at full length. No PIT either: it is another such device, and 4 ms.
//!
//! The end of a machine takes 14.5 ms, doorbells or not: the interrupt chip's devices leave the bus again. Let a thread do
//! that which nobody waits for.
//!
//! # Interrupting a virtual CPU
//!
//! ```text
//! kicker:  (request stored) ── immediate_exit = 1 ── kick signal to the thread
//! thread:  … KVM_RUN … EINTR ── immediate_exit = 0 ── (request read)
//! ```
//! The signal ends a `KVM_RUN` that is under way; the flag ends one that begins after the signal was handled. The flag
//! is cleared before the request is read, so a request whose kick was swallowed is seen, and the worst is one `Kicked` too
//! many. The signal is a real-time one with an empty handler, set once in the process: it never runs anything, and
//! system calls of other threads never see it. If other code in the process handles it, creating a machine fails.
//!
//! # fork
//!
//! Guest memory and run pages are `MADV_DONTFORK`: a child made by `fork` has neither, and dropping what it has
//! inherited unmaps nothing. Descriptors are [let go of](crate::after_fork) there. KVM itself refuses every call from a child.

mod convert;
mod events;
mod host;
mod state;
mod unsafe_chip;
mod unsafe_doorbell;
mod unsafe_kick;
mod unsafe_memory;
mod unsafe_run_page;
mod unsafe_xsave;
mod vcpu;
mod vm;

pub use host::KvmHypervisor;
pub use vcpu::{KvmKicker, KvmVcpu};
pub use vm::KvmVm;

use super::HypervisorError;

/// Says which call failed.
fn failed(call: &'static str) -> impl Fn(kvm_ioctls::Error) -> HypervisorError {
    move |error| HypervisorError::Call { call, source: std::io::Error::from_raw_os_error(error.errno()) }
}
