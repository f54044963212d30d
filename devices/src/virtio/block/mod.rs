//! The block device (virtio 1.2, 5.2): a guest's disk, over whatever a [`BlockBackend`] keeps it in.
//!
//! # Requests
//! A chain is a 16-byte header, data, and a status byte, cut into descriptors as the driver likes. The device
//! takes everything readable as one run of bytes and everything writable as another, whose last byte is the
//! status.
//!
//! ```text
//!   header (type, sector) ─► IN            sectors into the writable bytes
//!                            OUT           the readable bytes into sectors
//!                            FLUSH         until written data is safe
//!                            DISCARD       segments of 16 bytes name sectors nobody needs
//!                            WRITE_ZEROES  segments name sectors to become zero
//!                            GET_ID        20 bytes of name
//!   status: 0 done, 1 failed or not allowed, 2 unknown
//! ```
//!
//! A request is finished before the next one is begun, all under the transport's lock; so a reset finds
//! nothing in flight.
//!
//! # Rules
//! - Read-only is the device's own rule: what writes is refused by the type of the request, before anything
//!   of the backend is called, whatever the driver thinks of the feature bit (CVE-2026-46695 was a share
//!   that was read-only in the guest's eyes only).
//! - A request has at most [`SEGMENTS_MAX`] data descriptors of [`SEGMENT_BYTES_MAX`] bytes by what is
//!   announced, and never more than [`REQUEST_BYTES_MAX`] bytes in all, by what is checked. Data goes
//!   straight between file and guest memory, so a request holds no host memory; a backend without a file
//!   goes through one buffer of 64 KiB.
//! - Sectors are checked against the capacity that the device had when it was made; the file is never
//!   mapped, so one that is cut short makes a failed request and no signal.

mod backend;
mod device;
mod file;
mod state;
mod transfer;
mod unsafe_vectored;

#[cfg(test)]
mod tests;

pub use backend::BlockBackend;
pub use device::{BlockCounters, BlockDevice};
pub use file::FileBackend;
pub use state::{BlockState, BlockStateError, STATE_VERSION};

/// Bytes of a sector, the unit of all addresses (virtio 1.2, 5.2.4).
pub const SECTOR: u64 = 512;

/// Most data descriptors of a request, as announced (SEG_MAX).
pub const SEGMENTS_MAX: u32 = 126;

/// Most bytes of one data descriptor, as announced (SIZE_MAX).
pub const SEGMENT_BYTES_MAX: u32 = 64 * 1024;

/// Most bytes of data of one request.
pub const REQUEST_BYTES_MAX: usize = SEGMENTS_MAX as usize * SEGMENT_BYTES_MAX as usize;

/// Most segments of one DISCARD request.
pub const DISCARD_SEGMENTS_MAX: u32 = 16;

/// Most sectors of one segment of a DISCARD request: 1 GiB.
pub const DISCARD_SECTORS_MAX: u32 = 1 << 21;

/// Most segments of one WRITE_ZEROES request.
pub const ZEROES_SEGMENTS_MAX: u32 = 1;

/// Most sectors of one segment of a WRITE_ZEROES request: 64 MiB, since it may be written byte by byte.
pub const ZEROES_SECTORS_MAX: u32 = 1 << 17;

/// Length of the name that GET_ID gives, in bytes.
pub const ID_BYTES: usize = 20;
