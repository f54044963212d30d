//! Transports: how a driver finds and reaches a device (virtio 1.2, 4).

pub mod mmio;
