//! Snapshot files: machines at rest, kept where another process finds them.
//!
//! One container for every backend; what a backend keeps of its machines besides their memory is bytes to it.
//!
//! # Format 1
//! Numbers are little-endian. There is no padding between sections, and the header covers its own: every byte of a file is under
//! a digest (BLAKE3), and a file is as long as it says.
//!
//! ```text
//!       0  header, one page
//!            0  magic                8   HAYSNAP and a line feed; stays so in every format
//!            8  format               4   stays there in every format, as do magic and digest
//!           12  sections             4
//!           16  length of the file   8
//!           24  digest of the page  32   with zeroes in place of itself
//!           56  sections, 56 bytes each: kind 4, zero 4, offset 8, length 8, digest 32; then zeroes
//!    4096  memory         pages that are not all zero, one after the other
//!          identity       what the machine was made of and runs on, as names and values      (postcard)
//!          about          bytes of whoever saved it
//!          extents        length of the memory, then begin and end of each run of pages that is in the file, 8 bytes each
//!          working set    begin and end of each run of pages that a clone writes to at once
//!          state          the machine without its memory, in a form of the backend's own
//! ```
//!
//! # Reading
//! ```text
//!  SnapshotFile::open ──► identity, about ── admit(own identity) ──► Admitted ──► state, working set, memory
//! ```
//! Nothing of the state or the memory is read before the identity is that of this host and these images. All of it is then read
//! once, the memory into memory of this process's own, and compared with its digest. Whoever makes machines of that seals it and
//! checks nothing again.
//!
//! # Writing
//! A file is written aside, without a name where the file system can do that, brought to the disk, and renamed over what was
//! there. It is never changed afterwards, and can only be read (mode 0400). A crash leaves the old file, and at most one with a
//! name of its own, which [`remove_leftovers`] knows by its owner's lock being free.

mod error;
mod format;
mod identity;
mod read;
mod write;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests;

pub use error::SnapshotError;
pub use identity::{Identity, boot_id};
pub use read::{Admitted, LoadedMemory, SnapshotFile, Source};
pub use write::{Contents, Memory, remove_leftovers, write};

pub use format::{FORMAT, HEADER, MAX_ABOUT, MAX_STATE, StateKind};
