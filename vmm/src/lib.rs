//! The monitor of hayfork. It holds the backend trait that the engine works with; its own hypervisor seam, machine and
//! snapshots are to come.

pub mod backend;
