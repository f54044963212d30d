//! Virtio devices (virtio 1.2).
//!
//! - [`device`]: the trait that all devices implement;
//! - [`queue`]: queues, whose settings are frozen when the driver is ready;
//! - [`transport`]: how a driver reaches a device;
//! - a folder for each device.

pub mod block;
pub mod console;
pub mod device;
pub mod queue;
pub mod rng;
pub mod transport;
pub mod vsock;

mod buffers;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use device::{FeatureError, Progress, VirtioDevice};
pub use queue::{ActiveQueue, ActiveQueues, QueueError};
