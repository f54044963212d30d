//! The engine's runtime, as a process that may have been forked must use it.
//!
//! A child made by `fork` has none of the runtime's threads: what it spawned there would never run.
//! So the process that made the engine is remembered, and in any other one calls fail at once.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The runtime, and the process that it belongs to.
#[derive(Clone)]
pub(crate) struct Runtime {
    handle: Handle,
    process: u32,
}

impl Runtime {
    /// The runtime of an engine that this process made.
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle, process: std::process::id() }
    }

    /// Whether this process made the engine.
    pub(crate) fn is_ours(&self) -> bool {
        std::process::id() == self.process
    }

    /// Starts `future`; `None` in a forked child, where nothing could run it.
    pub(crate) fn spawn<F>(&self, future: F) -> Option<JoinHandle<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.is_ours().then(|| self.handle.spawn(future))
    }
}
