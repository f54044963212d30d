//! What every virtio device is towards its transport.
//!
//! A device knows neither how its driver reaches it (the transport's matter) nor what runs the guest. It is
//! a value that is driven by calls, one at a time; the transport holds the lock. Its life is the
//! transport's:
//!
//! ```text
//!            accept_features            process_queue, as often as the driver
//!   made ───────────────────► agreed ─────────────────────────────────────────┐
//!    ▲                          │                                  ▲          │
//!    └──────────── reset ───────┴───────────────── reset ──────────┴──────────┘
//! ```
//!
//! Reading and writing the configuration space is possible in every state.

use thiserror::Error;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use vm_memory::GuestMemory;

use super::queue::{ActiveQueues, QueueError};

/// One virtio device, without its transport.
///
/// All calls return soon: a device neither waits for its driver nor for the host's network or terminals
/// (block devices wait for their files, by bounded requests).
pub trait VirtioDevice<M: GuestMemory>: Send {
    /// Device type (virtio 1.2, 5).
    fn device_type(&self) -> u32;

    /// The largest size of each queue, in descriptors; powers of two up to 32768.
    fn queue_sizes(&self) -> &[u16];

    /// Feature bits on offer, VERSION_1 and those of the rings included (virtio 1.2, 6). The same at every
    /// call.
    fn features(&self) -> u64;

    /// Takes the features that the driver chose, at FEATURES_OK and after a restore.
    ///
    /// # Errors
    /// If the device cannot work with that choice; then FEATURES_OK stays unset (virtio 1.2, 3.1.1).
    fn accept_features(&mut self, features: u64) -> Result<(), FeatureError> {
        check_features(features, self.features())
    }

    /// Reads the configuration space from `offset` on; bytes behind its end are 0.
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Writes to the configuration space; most have nothing there that a driver may write.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// Forgets the driver. When this returns, nothing is in flight any more: no guest memory is touched on
    /// behalf of a request from before (virtio 1.2, 2.4).
    fn reset(&mut self);

    /// Handles what the driver put into queue `index`, up to a bound, and whatever else is to do for that
    /// queue. An index without a queue is no error.
    ///
    /// # Errors
    /// If the driver broke a queue; the transport then stops the device (DEVICE_NEEDS_RESET).
    fn process_queue(
        &mut self,
        index: u16,
        queues: &mut ActiveQueues,
        mem: &M,
    ) -> Result<Progress, QueueError>;
}

impl<M: GuestMemory, D: VirtioDevice<M> + ?Sized> VirtioDevice<M> for Box<D> {
    fn device_type(&self) -> u32 {
        (**self).device_type()
    }

    fn queue_sizes(&self) -> &[u16] {
        (**self).queue_sizes()
    }

    fn features(&self) -> u64 {
        (**self).features()
    }

    fn accept_features(&mut self, features: u64) -> Result<(), FeatureError> {
        (**self).accept_features(features)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        (**self).read_config(offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        (**self).write_config(offset, data);
    }

    fn reset(&mut self) {
        (**self).reset();
    }

    fn process_queue(
        &mut self,
        index: u16,
        queues: &mut ActiveQueues,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        (**self).process_queue(index, queues, mem)
    }
}

/// What a call did, and what should follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Chains were used, and the driver wants an interrupt for that.
    pub interrupt: bool,
    /// The call stopped at its bound. Read the device's events, if it has any, then call again without
    /// waiting for the driver's next notification.
    pub again: bool,
    /// The configuration space is another than before; the driver is to be told.
    pub config_changed: bool,
}

impl std::ops::BitOrAssign for Progress {
    fn bitor_assign(&mut self, other: Self) {
        self.interrupt |= other.interrupt;
        self.again |= other.again;
        self.config_changed |= other.config_changed;
    }
}

impl std::ops::BitOr for Progress {
    type Output = Self;

    fn bitor(mut self, other: Self) -> Self {
        self |= other;
        self
    }
}

/// A driver's choice of features that a device cannot work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FeatureError {
    /// The driver chose what was not offered.
    #[error("the driver accepted features {accepted:#x}, of which only {offered:#x} were offered")]
    NotOffered {
        /// What the driver chose.
        accepted: u64,
        /// What the device offers.
        offered: u64,
    },
    /// The driver did not choose VERSION_1: it is older than virtio 1.0.
    #[error("the driver did not accept VERSION_1 (it chose {accepted:#x}); legacy drivers are not served")]
    Legacy {
        /// What the driver chose.
        accepted: u64,
    },
}

/// Checks what holds for every device: only offered features, and VERSION_1 among them.
///
/// # Errors
/// [`FeatureError`], if that is not so.
pub fn check_features(accepted: u64, offered: u64) -> Result<(), FeatureError> {
    if accepted & !offered != 0 {
        return Err(FeatureError::NotOffered { accepted, offered });
    }
    if accepted & (1 << VIRTIO_F_VERSION_1) == 0 {
        return Err(FeatureError::Legacy { accepted });
    }
    Ok(())
}

/// Copies the part of a configuration space that a driver reads; bytes behind its end are 0.
pub fn read_space(space: &[u8], offset: u64, data: &mut [u8]) {
    data.fill(0);
    if let Some(rest) = usize::try_from(offset).ok().and_then(|at| space.get(at..)) {
        let n = rest.len().min(data.len());
        data[..n].copy_from_slice(&rest[..n]);
    }
}
