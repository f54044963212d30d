//! The monitor of hayfork. It holds the backend trait that the engine works with, and the probe that tells a hypervisor
//! that can be used from one that only looks like it; its own hypervisor seam, machine and snapshots are to come.

pub mod backend;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod boot;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod device_loop;
pub mod hypervisor;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod memory;
pub mod threads;
pub mod vcpu;
