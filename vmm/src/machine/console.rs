//! What the guest says on its console, kept for reports.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::console::{LastWords, Ring, Watch};

/// The newest output of a guest, and whether its kernel said its last words.
#[derive(Debug)]
pub(crate) struct Console {
    kept: Mutex<(Ring, Watch)>,
}

impl Console {
    /// Keeps `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { kept: Mutex::new((Ring::new(bytes), Watch::default())) }
    }

    /// More output. Never waits but for another writer.
    pub(crate) fn push(&self, bytes: &[u8]) {
        let (ring, watch) = &mut *self.lock();
        ring.push(bytes);
        watch.push(bytes);
    }

    /// The newest output as text that is safe to show.
    pub(crate) fn tail(&self) -> String {
        self.lock().0.text()
    }

    /// Forgets everything, as for another guest.
    pub(crate) fn clear(&self) {
        let (ring, watch) = &mut *self.lock();
        ring.clear();
        *watch = Watch::default();
    }

    /// What the kernel said before it went.
    pub(crate) fn heard(&self) -> LastWords {
        self.lock().1.heard()
    }

    /// Plain bytes: whatever panicked while it held them, they are good to use.
    fn lock(&self) -> MutexGuard<'_, (Ring, Watch)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
