//! The device's side of its interrupt, usable without any lock.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::interrupt::InterruptLine;

/// InterruptStatus, its line, and the configuration's generation.
pub(super) struct Interrupt {
    status: AtomicU32,
    generation: AtomicU32,
    count: AtomicU64,
    line: Box<dyn InterruptLine>,
}

impl Interrupt {
    pub(super) fn new(line: Box<dyn InterruptLine>) -> Self {
        Self { status: AtomicU32::new(0), generation: AtomicU32::new(0), count: AtomicU64::new(0), line }
    }

    pub(super) fn status(&self) -> u32 {
        self.status.load(Ordering::SeqCst)
    }

    /// Sets bits of the status, then pulses the line: a handler that runs by this pulse finds the bits, or
    /// an earlier handler has found them already, and with them what they stand for. No bits, no pulse.
    pub(super) fn raise(&self, bits: u32) {
        if bits != 0 {
            self.status.fetch_or(bits, Ordering::SeqCst);
            self.count.fetch_add(1, Ordering::Relaxed);
            self.line.raise();
        }
    }

    /// The driver has handled these bits. Others stay, also those that were set since it read the status.
    pub(super) fn acknowledge(&self, bits: u32) {
        self.status.fetch_and(!bits, Ordering::SeqCst);
    }

    /// Pulses the line again if anything is unacknowledged.
    pub(super) fn repeat(&self) {
        self.raise(self.status());
    }

    pub(super) fn clear(&self) {
        self.status.store(0, Ordering::SeqCst);
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(super) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes saved values over, without a pulse.
    pub(super) fn set(&self, status: u32, generation: u32) {
        self.status.store(status, Ordering::SeqCst);
        self.generation.store(generation, Ordering::SeqCst);
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt")
            .field("status", &self.status)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
