//! Devices of the hayfork monitor.
//!
//! A device here is a value that is driven by calls: it owns no thread, no event loop and no
//! hypervisor handle. Whoever embeds it (the monitor, a vhost-user server, a test, a fuzz target)
//! owns guest memory, the virtqueues and the polling of host descriptors, and tells the device
//! what happened. That makes every device testable without a virtual machine.

pub mod bounded;
pub mod interrupt;
pub mod serial;
pub mod sink;
pub mod virtio;
