//! Everything that needs `unsafe`: the few system calls that neither std nor rustix offers safely.
//!
//! The agent is single-threaded from its first to its last instruction. The reasons given below rest
//! on that where they speak of threads.

pub mod entropy;
pub mod fork;
pub mod network;
pub mod schedule;
pub mod signals;
pub mod vsock;
