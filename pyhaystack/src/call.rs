//! A pending operation, waited for by a blocking caller or by an event loop.
//!
//! ```text
//!  pending ──── the task ends ───► ready ──── result() ───► taken
//!     └─ cancel(), or dropped before it is ready: the task is dropped, and with it what it started
//! ```

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hayfork_sandbox::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::error::to_python;
use crate::runtime::Runtime;
use crate::value::Value;
use crate::waker::{Waker, WakerInner};

/// How long a blocking wait goes without looking for signals, such as Ctrl-C.
const SIGNAL_SLICE: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    done: bool,
    outcome: Option<Result<Value, Error>>,
    waker: Option<(Arc<WakerInner>, u64)>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ready: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, outcome: Option<Result<Value, Error>>) {
        let waker = {
            let mut state = self.lock();
            if std::mem::replace(&mut state.done, true) {
                return;
            }
            state.outcome = outcome;
            state.waker.take()
        };
        self.ready.notify_all();
        if let Some((waker, ticket)) = waker {
            waker.wake(ticket);
        }
    }
}

/// Marks the call as finished even if its task is dropped half-way.
struct Finisher(Arc<Shared>);

impl Drop for Finisher {
    fn drop(&mut self) {
        self.0.finish(None);
    }
}

/// See the module's description.
#[pyclass(frozen, generic, module = "hayfork._native")]
pub(crate) struct Call {
    shared: Arc<Shared>,
    task: Option<AbortHandle>,
}

impl Call {
    /// Starts `future` on the engine's runtime. In a forked child the call has failed already.
    pub(crate) fn spawn<F>(runtime: &Runtime, future: F) -> Self
    where
        F: Future<Output = Result<Value, Error>> + Send + 'static,
    {
        let shared = Arc::new(Shared::default());
        if !runtime.is_ours() {
            shared.finish(Some(Err(Error::ForkedProcess)));
        }
        let finisher = Finisher(Arc::clone(&shared));
        let task = runtime.spawn(async move {
            let outcome = future.await;
            finisher.0.finish(Some(outcome));
        });
        Self { shared, task: task.map(|task| task.abort_handle()) }
    }

    fn abort(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.abort();
    }
}

#[pymethods]
impl Call {
    /// Whether `result` would give an answer at once.
    fn done(&self) -> bool {
        self.shared.lock().done
    }

    /// Blocks until the call is done, at most `timeout` seconds; tells whether it is. Signal handlers
    /// run meanwhile; one that raises ends the wait, and the call goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = timeout.and_then(|s| {
            Duration::try_from_secs_f64(s.max(0.0)).ok().and_then(|d| Instant::now().checked_add(d))
        });
        loop {
            let slice = deadline
                .map_or(SIGNAL_SLICE, |d| d.saturating_duration_since(Instant::now()).min(SIGNAL_SLICE));
            let done = py.detach(|| {
                let state = self.shared.lock();
                let waited = self.shared.ready.wait_timeout_while(state, slice, |state| !state.done);
                waited.unwrap_or_else(PoisonError::into_inner).0.done
            });
            if done {
                return Ok(true);
            }
            py.check_signals()?;
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Ok(false);
            }
        }
    }

    /// Has `waker` get `ticket` once the call is done, at once if it is.
    fn wake(&self, waker: &Waker, ticket: u64) {
        let mut state = self.shared.lock();
        if state.done {
            drop(state);
            waker.inner.wake(ticket);
        } else {
            state.waker = Some((Arc::clone(&waker.inner), ticket));
        }
    }

    /// The result, once. Raises `NativeError` if the operation failed.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (done, outcome) = {
            let mut state = self.shared.lock();
            (state.done, state.outcome.take())
        };
        match outcome {
            Some(Ok(value)) => value.into_python(py),
            Some(Err(error)) => Err(to_python(&error)),
            None if done => Err(PyRuntimeError::new_err("the call was cancelled, or its result was taken")),
            None => Err(PyRuntimeError::new_err("the call is not done")),
        }
    }

    /// Drops the operation and what it started, unless it is done.
    fn cancel(&self) {
        self.abort();
    }
}
