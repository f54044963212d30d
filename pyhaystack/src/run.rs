//! A running execution or command: its events, in batches, and the ways to act on it.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use hayfork_sandbox::{RunEvent, RunHandle, Running};
use pyo3::prelude::*;
use tokio::sync::Mutex;

use crate::call::Call;
use crate::runtime::Runtime;
use crate::value::Value;

/// Events that one batch holds at most.
const BATCH: usize = 64;

/// Dropping it before its end ends what runs in the guest.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Run {
    runtime: Runtime,
    handle: RunHandle,
    running: std::sync::Mutex<Option<Arc<Mutex<Running>>>>,
}

impl Run {
    pub(crate) fn new(runtime: Runtime, running: Running) -> Self {
        let handle = running.handle();
        Self { runtime, handle, running: std::sync::Mutex::new(Some(Arc::new(Mutex::new(running)))) }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Arc<Mutex<Running>>>> {
        self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[pymethods]
impl Run {
    /// The events that have come, at least one; an empty list when none will come any more.
    fn next(&self) -> Call {
        let running = self.running().clone();
        Call::spawn(&self.runtime, async move {
            let mut events = Vec::new();
            let Some(running) = running else { return Ok(Value::Events(events)) };
            let mut running = running.lock().await;
            let first = running.next().await;
            events.extend(first);
            while !events.is_empty() && events.len() < BATCH {
                match running.next().now_or_never() {
                    Some(Some(event)) => events.push(event),
                    Some(None) | None => break,
                }
            }
            debug_assert!(events.iter().rev().skip(1).all(|e| !matches!(e, RunEvent::Finished(_))));
            Ok(Value::Events(events))
        })
    }

    /// As Ctrl-C.
    fn interrupt(&self) {
        self.handle.interrupt();
    }

    /// Ends it and everything it started.
    fn kill(&self) {
        self.handle.kill();
    }

    /// Sends a signal to a command's process group.
    fn signal(&self, number: i32) {
        self.handle.signal(number);
    }

    /// Sends bytes to its standard input; done when the engine has taken them.
    fn write_stdin(&self, content: &[u8]) -> Call {
        let handle = self.handle.clone();
        let content = Bytes::copy_from_slice(content);
        Call::spawn(&self.runtime, async move {
            handle.write_stdin(content).await?;
            Ok(Value::None)
        })
    }

    /// Sends bytes to its standard input and then ends it, in the background.
    fn feed_stdin(&self, content: &[u8]) {
        let handle = self.handle.clone();
        let content = Bytes::copy_from_slice(content);
        self.runtime.spawn(async move {
            // It fails when the program has ended without reading all of it, which is its own affair.
            let _ = handle.write_stdin(content).await;
            handle.close_stdin();
        });
    }

    /// Ends its standard input.
    fn close_stdin(&self) {
        self.handle.close_stdin();
    }

    /// Abandons it: what runs in the guest is ended.
    fn abandon(&self) {
        self.running().take();
    }
}
