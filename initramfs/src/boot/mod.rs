//! From the kernel's jump to `/init` to a machine that can run user code.
//!
//! The order is that of `main.rs`: mounts of the agent's own ([`mounts`]), kernel settings ([`sysctl`]), `lo`
//! ([`crate::sys::network`]), the division of memory ([`budget`]) and its enforcement ([`crate::cgroup`]), and last the
//! root that user code sees ([`user_root`]).

pub mod budget;
pub mod mounts;
pub mod sysctl;
pub mod user_root;
