//! How long a guest may take to obey.
//!
//! Timeouts are kept by the agent inside the guest, which interrupts, then kills. The guest is not trusted, and its
//! kernel may hang, so the host has a later deadline for each thing that the guest owes: the end of an execution whose
//! time is over, and the close of a stream that was abandoned or has ended. A guest that misses one is killed.

use std::time::Duration;

/// The grace that a guest has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// On top of a timeout, from the moment when the execution could begin (the one before it in its context ended)
    /// until it says so: time to start an interpreter on a loaded host.
    pub(crate) start: Duration,
    /// On top of a timeout, from the start until the end: the agent's own steps from interrupt to kill.
    pub(crate) end: Duration,
    /// From the wish to abandon a stream, or its last event, until it is closed.
    pub(crate) close: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { start: Duration::from_secs(120), end: Duration::from_secs(30), close: Duration::from_secs(60) }
    }
}
