//! A running machine whose agent answers, before and while it is a [`Sandbox`](crate::Sandbox).
//!
//! It knows nothing of the engine, so that the engine may own some that nobody has asked for yet (the
//! [pool](crate::pool)). Dropping it ends the machine in the background.

use std::sync::Arc;
use std::time::Duration;

use hayfork_protocol::message::{Event, Request};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::connection::lifecycle::Lifecycle;
use crate::connection::stream::{Item, Link, Mailbox, Stream};
use crate::connection::task::{New, QUEUE};
use crate::error::{ENDED, Error};
use crate::files;
use crate::reaper::Slot;

/// See the module.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) id: String,
    /// Those that its image has.
    pub(crate) languages: Vec<String>,
    /// How long it took to make the machine.
    pub(crate) launch: Duration,
    /// How long it took from there to the agent's answer.
    pub(crate) handshake: Duration,
    pub(crate) wires: Wires,
}

/// The ends of the connection's task that callers hold.
#[derive(Debug)]
pub(crate) struct Wires {
    pub(crate) runs: mpsc::Sender<New>,
    pub(crate) operations: mpsc::Sender<New>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) slot: Arc<Slot>,
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.mailbox.close("its last handle was dropped");
    }
}

impl Guest {
    /// Whether it can be given to a caller.
    pub(crate) fn is_alive(&self) -> bool {
        self.wires.lifecycle.refusal().is_none()
    }

    /// Does what is answered by its end alone.
    ///
    /// # Errors
    /// What the guest refuses, or that it is gone.
    pub(crate) async fn simple(&self, request: Request) -> Result<(), Error> {
        request.validate()?;
        files::simple(self.wires.open(request)?).await
    }

    /// Runs something and drops all of its output.
    ///
    /// # Errors
    /// What the guest refuses, that it is gone, or that the program failed, by its exit code.
    pub(crate) async fn run_silently(&self, request: Request) -> Result<(), Error> {
        request.validate()?;
        let mut stream = self.wires.open(request)?;
        let mut exit_code = None;
        loop {
            match stream.next().await? {
                Item::Event(Event::Finished(finished)) => exit_code = Some(finished.exit_code),
                Item::Event(Event::Failed(failure)) => return Err(failure.into()),
                Item::Closed => break,
                _ => {}
            }
            if exit_code.is_some() {
                break;
            }
        }
        stream.ended();
        match exit_code {
            Some(0) => Ok(()),
            Some(code) => {
                Err(Error::Protocol(format!("a guest was to be warmed up, which ended with {code}")))
            }
            None => Err(Error::Cancelled),
        }
    }
}

impl Wires {
    /// Opens a stream for a checked request.
    pub(crate) fn open(&self, request: Request) -> Result<Stream, Error> {
        if let Some(error) = self.lifecycle.refusal() {
            return Err(error);
        }
        let (queue, sends) = match &request {
            Request::Execute(execute) => (&self.runs, execute.stdin),
            Request::Command(command) => (&self.runs, command.stdin),
            Request::WriteFile { .. } => (&self.operations, true),
            _ => (&self.operations, false),
        };
        let link = Link::new(Arc::clone(&self.mailbox), sends);
        match queue.try_send(New { request, link: Arc::clone(&link) }) {
            Ok(()) => Ok(Stream::new(link)),
            Err(TrySendError::Full(_)) => Err(Error::Capacity(format!(
                "{QUEUE} requests wait in this sandbox already, which is the most"
            ))),
            // The task says why before it closes its queues.
            Err(TrySendError::Closed(_)) => {
                Err(self.lifecycle.refusal().unwrap_or_else(|| Error::closed(ENDED)))
            }
        }
    }
}
