//! Virtio devices (virtio 1.2).
//!
//! Each device has a folder of its own; what later devices share (transports, the mock driver for
//! tests) lies beside them.

pub mod vsock;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
