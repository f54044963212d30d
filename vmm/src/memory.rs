//! Guest memory: where it lies in the guest's address space, and the host mappings behind it.
//!
//! RAM is private anonymous memory that the host allocates page by page as the guest touches it. Files that every guest
//! starts with (kernel, initramfs) are not copied into it: a process reads each of them once into a [`SealedImage`], and a
//! guest gets private mappings of that in place of its own pages ([`GuestRam::overlay`]). What a guest only reads is in
//! memory once for all guests; what it writes becomes its own page.
//!
//! ```text
//!  file ── read once ──► sealed memfd ──┬── MAP_PRIVATE ──► guest 1 RAM  [ anonymous | kernel | anonymous | initramfs ]
//!                                       └── MAP_PRIVATE ──► guest 2 RAM  [ anonymous | kernel | anonymous | initramfs ]
//! ```
//!
//! A guest at rest can be [captured](GuestRam::capture) in the same way: what it has written becomes one more sealed image on
//! top of those that it was made of, and guests made of that [`MemoryImage`] begin where it stood.
//!
//! No file is mapped itself: whoever truncated it would end this process by SIGBUS, and whoever changed it would change
//! guests that run.

mod image;
pub mod layout;
mod proc;
mod ram;
mod resident;
mod saved;
mod unsafe_map;
mod unsafe_observed;
mod written;

#[cfg(test)]
mod tests;

pub(crate) use image::writable_memory;
pub use image::{ForeignImage, ImageError, SealedImage};
pub use proc::keep_open;
pub use ram::{GuestRam, MemoryError};
pub use resident::Resident;
pub use saved::MemoryImage;
pub(crate) use saved::{MAX_LAYERS, end_of};

/// Size of a page in the guest's address space, and the alignment of everything that is mapped into it.
pub const PAGE: u64 = 4096;
