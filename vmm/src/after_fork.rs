//! What a child made by `fork` without `exec` must not keep of the parent's machines.
//!
//! A child inherits every descriptor. A virtual machine's descriptor keeps its tables, doorbells and interrupt lines in the
//! kernel after the parent has ended it, and a socket's keeps the other end from seeing that it was closed. So a descriptor
//! that stands for something of a machine is [registered](Released::new) as long as it is open, and a hook of the C library
//! (`pthread_atfork`) lets go of them in each child, before `fork` returns there.
//!
//! ```text
//!  parent: open ── register ── … ── forget ── close
//!                     │ fork
//!                     ▼
//!  child:        the number stays taken, by /dev/null: whatever was inherited that closes it, closes no file of the child's
//! ```
//! The hook runs in a copy of a process with many threads, so it takes no lock and no memory: the table is of atomics, of a
//! fixed size. A descriptor that finds it full is not registered, and so stays open in children; nothing else changes.
//!
//! Memory is none of this: guest RAM and run pages are `MADV_DONTFORK` (see [`crate::hypervisor::kvm`]).

mod unsafe_hook;

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Registered descriptors at most: those of some 300 machines.
const MOST: usize = 1024;

/// A free place of the table.
const FREE: RawFd = -1;

static TABLE: [AtomicI32; MOST] = [const { AtomicI32::new(FREE) }; MOST];

/// An entry of the table: while it lives, children of this process do not get what the descriptor stands for.
///
/// Belongs before the descriptor in a struct: fields drop in the order written, and a number may be somebody else's as soon
/// as it is closed.
#[derive(Debug)]
pub struct Released {
    place: Option<usize>,
    process: u32,
}

impl Released {
    /// Registers an open descriptor.
    pub fn new(descriptor: &impl AsFd) -> Self {
        Self::of(descriptor.as_fd().as_raw_fd())
    }

    /// The same, by number.
    pub fn of(descriptor: RawFd) -> Self {
        let process = std::process::id();
        if !unsafe_hook::install() {
            return Self { place: None, process };
        }
        let place = TABLE.iter().position(|place| {
            place.compare_exchange(FREE, descriptor, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        });
        if place.is_none() {
            tracing::debug!(descriptor, "stays open in children made by fork: there are too many machines");
        }
        Self { place, process }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        // In a child the hook has emptied the table, and the place may be the child's own by now.
        if let Some(place) = self.place
            && self.process == std::process::id()
        {
            TABLE[place].store(FREE, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests;
