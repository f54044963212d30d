//! How many machines come to life at once.
//!
//! From its first page to its agent's answer a restored machine is work for a processor, so more of them at once than there are
//! processors are not sooner there. They are later: they change one memory map, and spin for its lock. Measured on two processors,
//! kvm_pvm, 16 callers with a machine for each run: 54 ms of processor time and 32 runs a second, against 34 ms and 49 runs in turns. So they stand in one
//! line, first come, first served.
//!
//! A machine that does not answer keeps its turn for [`LONGEST`] only.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Many times what a restore takes where guests are not translated; where they are, a turn is not worth much anyway.
const LONGEST: Duration = Duration::from_millis(250);

/// The line.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

/// A turn, until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(AbortHandle);

impl Turns {
    /// One for each processor of this process.
    pub(crate) fn of_this_host() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// Waits for one's turn.
    pub(crate) async fn take(&self) -> Turn {
        // The line is never closed.
        let permit: Option<OwnedSemaphorePermit> = Arc::clone(&self.0).acquire_owned().await.ok();
        let held = tokio::spawn(async move {
            tokio::time::sleep(LONGEST).await;
            drop(permit);
        });
        Turn(held.abort_handle())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn so_many_at_once_and_the_next_when_one_is_over() {
        let turns = Turns::new(2);
        let first = turns.take().await;
        let _second = turns.take().await;
        assert!(timeout(SOON, turns.take()).await.is_err());
        drop(first);
        assert!(timeout(SOON, turns.take()).await.is_ok());
    }

    #[tokio::test]
    async fn a_turn_that_is_not_given_back_ends() {
        let turns = Turns::new(1);
        let began = Instant::now();
        let _held = turns.take().await;
        assert!(timeout(SOON, turns.take()).await.is_err());
        let _next = turns.take().await;
        assert!(began.elapsed() >= LONGEST);
    }
}
