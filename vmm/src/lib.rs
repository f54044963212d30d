//! The monitor of hayfork: runs Linux guests in this process, straight through the host's hypervisor.
//!
//! | module | what it is |
//! |---|---|
//! | [`backend`] | the trait that the engine works with; the monitor and QEMU implement it |
//! | [`placement`] | machines in this process, and further ones in workers |
//! | [`worker`] | the monitor in confined processes of its own |
//! | [`monitor`] | the monitor as such a backend |
//! | [`snapshot`] | snapshot files: machines at rest for other processes |
//! | [`machine`] | one virtual machine: what it is made of, in which order, and how it ends |
//! | [`device_loop`] | the thread that serves a machine's devices |
//! | [`boot`] | kernel, parameters and tables: what a guest finds when it starts |
//! | [`memory`] | guest memory and the images that guests share |
//! | [`vcpu`] | the threads that execute a guest |
//! | [`hypervisor`] | the seam: what the rest asks of a hypervisor; KVM behind it; the probe |
//! | [`process`] | child processes that die with this one |
//! | [`after_fork`] | what children of this process must not keep |
//! | [`threads`] | threads in somebody else's process |
//!
//! Modules use only those below them.

#[cfg(target_os = "linux")]
pub mod after_fork;
pub mod backend;
pub mod hypervisor;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
pub mod snapshot;
pub mod threads;
pub mod vcpu;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod boot;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod device_loop;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod machine;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod memory;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod monitor;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod placement;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod worker;
