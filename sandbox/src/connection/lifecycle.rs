//! How a sandbox ends: open, then closing (no more calls), then dead (the machine is gone).
//!
//! [`End`] says why, and which error that is for whom.
//!
//! Written by the connection task and the reaper, read by callers. The reason is set once.

use std::sync::{Arc, Mutex};

use hayfork_vmm::backend::BackendError;
use tokio::sync::watch;

use super::lock;
use crate::error::Error;

/// Whether the machine is gone: `None` while it is not, an error if it could not be killed.
pub(crate) type Death = Option<Result<(), Arc<BackendError>>>;

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Somebody wanted it.
    Closed(&'static str),
    /// The machine died.
    Died(Arc<BackendError>),
    /// The guest broke the protocol.
    Protocol(String),
    /// The guest missed a deadline.
    Unresponsive(String),
}

impl End {
    /// For operations that had reached the guest.
    pub(crate) fn for_running(&self) -> Error {
        match self {
            Self::Closed(reason) => Error::closed(*reason),
            Self::Died(cause) => Error::OutcomeUnknown { cause: Arc::clone(cause) },
            Self::Protocol(detail) => Error::Protocol(detail.clone()),
            Self::Unresponsive(detail) => Error::Unresponsive(detail.clone()),
        }
    }

    /// For operations that had not, and for every call from now on.
    pub(crate) fn for_later(&self) -> Error {
        let (reason, cause) = match self {
            Self::Closed(reason) => ((*reason).to_owned(), None),
            Self::Died(cause) => (format!("its virtual machine died: {cause}"), Some(Arc::clone(cause))),
            Self::Protocol(detail) => {
                (format!("it was killed, since its guest broke the protocol: {detail}"), None)
            }
            Self::Unresponsive(detail) => {
                (format!("it was killed, since its guest no longer obeyed: {detail}"), None)
            }
        };
        Error::SessionClosed { reason, cause }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// The error for calls from now on; `None` while open.
    ended: Mutex<Option<Error>>,
    /// The error for calls until it is taken back.
    held: Mutex<Option<Error>>,
    death: watch::Receiver<Death>,
}

impl Lifecycle {
    /// An open sandbox, whose machine reports its death there.
    pub(crate) fn new(death: watch::Receiver<Death>) -> Self {
        Self { ended: Mutex::default(), held: Mutex::default(), death }
    }

    /// The error for a call now, if the sandbox takes none.
    pub(crate) fn refusal(&self) -> Option<Error> {
        lock(&self.ended).clone().or_else(|| lock(&self.held).clone())
    }

    /// Refuses calls with that error for the time being; `None`: no longer.
    pub(crate) fn hold(&self, error: Option<Error>) {
        *lock(&self.held) = error;
    }

    /// Takes no more calls. The first error stays.
    pub(crate) fn end(&self, error: Error) {
        lock(&self.ended).get_or_insert(error);
    }

    /// Waits until the machine is gone.
    ///
    /// # Errors
    /// It could not be killed.
    pub(crate) async fn dead(&self) -> Result<(), Error> {
        let mut death = self.death.clone();
        match death.wait_for(Option::is_some).await.map(|death| death.clone()) {
            Ok(Some(Err(error))) => Err(Error::Backend(error)),
            // The sender lives as long as the machine's slot.
            _ => Ok(()),
        }
    }
}
