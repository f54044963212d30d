//! The connection to one guest: a task that owns the byte stream and the protocol's state, and what callers share with it.
//!
//! ```text
//!  callers (any thread, any executor)                 connection task (the engine's runtime)
//!  ─────────────────────────────────                  ────────────────────────────────────
//!  New { request, link } ──── bounded queues ───────► opens a stream of the mux
//!  Stream  ◄───── link: inbox of events and data ──── what the guest sent, checked by the ledger
//!          ────── link: outbox, control, consumed ──► mailbox wakes the task
//!  Lifecycle ◄─── open, closing, dead ─────────────── why it ended, and that the machine is gone
//! ```
//!
//! * [`handshake`]: finds the agent and agrees on a version, or says what the guest died of.
//! * [`task`]: the loop.
//! * [`stream`]: the two ends of one stream between a caller and the task.
//! * [`ledger`]: what the guest may still send on a stream. The guest is not trusted: whatever is out of order or
//!   beyond a limit ends the connection.
//! * [`watchdog`]: how long a guest may take to obey.
//! * [`lifecycle`]: how a sandbox ends, and who waits for that.
//!
//! **What bounds memory.** Data is bounded by the protocol's credit, which is granted anew only when the caller has
//! taken the bytes; so a slow caller stalls its own stream and no other. Events are bounded by weight
//! ([`stream::MAX_PENDING`]). Requests wait in queues of fixed length. What callers send is bounded by the outbox.

pub(crate) mod handshake;
pub(crate) mod ledger;
pub(crate) mod lifecycle;
pub(crate) mod stream;
pub(crate) mod task;
pub(crate) mod watchdog;

#[cfg(test)]
pub(crate) mod fake_guest;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. What these protect is consistent at every moment, so a panic elsewhere changes nothing.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
