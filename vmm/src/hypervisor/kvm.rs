//! The seam over KVM (`Documentation/virt/kvm/api.rst` of the kernel), x86-64.
//!
//! # Order of creation, measured
//!
//! Memory slots, then the interrupt chip, then virtual CPUs, doorbells last: 0.7 ms. With the interrupt chip (or a
//! doorbell) before a memory slot it is 8 ms, nearly all of it in `KVM_SET_USER_MEMORY_REGION`. The reason is in the
//! kernel: registering a device on its I/O bus, which both do, frees the old bus with `call_srcu` (since 6.18), and a
//! memory slot then waits by `synchronize_srcu` for that grace period to pass, at full length. The interrupt
//! chip costs 20 us in either place and a doorbell 2 us; only what comes after them gets slow. No PIT either: it is
//! another such device, and 4 ms. Destroying a machine with doorbells takes 15 ms, so let another thread do it.
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
//! inherited unmaps nothing. KVM itself refuses every call from a child.

mod convert;
mod events;
mod host;
mod state;
mod unsafe_chip;
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
