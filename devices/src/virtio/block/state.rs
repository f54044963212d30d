//! What a snapshot keeps of a block device: what it looked like to its driver. The bytes of the disk are the
//! backend's matter, and nothing is in flight between two calls.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ID_BYTES;
use super::backend::BlockBackend;
use super::device::BlockDevice;

/// Version of [`BlockState`]. Another version is not read.
pub const STATE_VERSION: u32 = 1;

/// A block device at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockState {
    /// [`STATE_VERSION`] when it was saved.
    pub version: u32,
    /// Size in bytes.
    pub capacity: u64,
    /// Whether nothing could be written.
    pub read_only: bool,
    /// Its name.
    pub id: [u8; ID_BYTES],
}

/// Why a disk cannot take the place of a saved one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlockStateError {
    /// Saved by another version of this code.
    #[error("block state: saved by version {0}")]
    Version(u32),
    /// The backend has another size, or can be written where it could not, or the other way round: the
    /// driver would notice.
    #[error(
        "block state: a disk of {saved_capacity} bytes (read-only: {saved_read_only}) was saved, this one has \
         {capacity} (read-only: {read_only})"
    )]
    OtherDisk {
        /// Size of the saved one.
        saved_capacity: u64,
        /// Whether the saved one was read-only.
        saved_read_only: bool,
        /// Size of this one.
        capacity: u64,
        /// Whether this one is read-only.
        read_only: bool,
    },
}

impl<B: BlockBackend> BlockDevice<B> {
    /// The device's state.
    pub fn save(&self) -> BlockState {
        BlockState {
            version: STATE_VERSION,
            capacity: self.capacity(),
            read_only: self.is_read_only(),
            id: *self.id(),
        }
    }

    /// A device over `backend` in the place of a saved one.
    ///
    /// # Errors
    /// [`BlockStateError`], if the driver could notice the difference.
    pub fn restore(backend: B, state: &BlockState) -> Result<Self, BlockStateError> {
        if state.version != STATE_VERSION {
            return Err(BlockStateError::Version(state.version));
        }
        let device = Self::new(backend, state.id);
        if device.save() != *state {
            return Err(BlockStateError::OtherDisk {
                saved_capacity: state.capacity,
                saved_read_only: state.read_only,
                capacity: device.capacity(),
                read_only: device.is_read_only(),
            });
        }
        Ok(device)
    }
}
