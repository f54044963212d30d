//! Wakes an event loop through a descriptor that the loop watches itself.
//!
//! A loop registers [`Waker::fileno`] as a reader once. A finished call puts its ticket into the
//! waker and writes to the eventfd; the loop's reader callback takes the tickets with
//! [`Waker::drain`] and resolves its own futures, on its own thread.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

/// The part that pending calls share.
#[derive(Debug)]
pub(crate) struct WakerInner {
    event: OwnedFd,
    tickets: Mutex<Vec<u64>>,
}

impl WakerInner {
    /// Hands over a ticket and wakes the loop.
    pub(crate) fn wake(&self, ticket: u64) {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);
        // It fails only when the counter is full, and then the loop is awake already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// One per event loop.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Waker {
    pub(crate) inner: Arc<WakerInner>,
}

#[pymethods]
impl Waker {
    #[new]
    fn new() -> PyResult<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))?;
        Ok(Self { inner: Arc::new(WakerInner { event, tickets: Mutex::default() }) })
    }

    /// The descriptor to watch for reading.
    fn fileno(&self) -> i32 {
        self.inner.event.as_raw_fd()
    }

    /// Takes the tickets of the calls that have finished.
    fn drain(&self) -> Vec<u64> {
        let mut counter = [0; 8];
        // Empty if another wake-up has been served already.
        let _ = rustix::io::read(&self.inner.event, &mut counter);
        std::mem::take(&mut *self.inner.tickets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
