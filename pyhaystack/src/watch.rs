//! A watched folder.
//!
//! Its calls carry no changes: they say when there is something to take, and [`Watch::take`] takes it at once, on the
//! caller's thread. So a call may be cancelled at any moment, and nothing is lost.

use std::sync::Arc;

use hayfork_sandbox::{Change, ChangeKind, Watch as Inner};
use pyo3::prelude::*;

use crate::call::Call;
use crate::runtime::Runtime;
use crate::value::Value;

/// Kind, path, new path, whether it is a folder.
type Row = (&'static str, String, Option<String>, bool);

/// Dropping it ends the watch.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Watch {
    inner: Arc<Inner>,
    runtime: Runtime,
}

impl Watch {
    pub(crate) fn new(runtime: Runtime, inner: Inner) -> Self {
        Self { inner: Arc::new(inner), runtime }
    }
}

fn row(change: Change) -> Row {
    let kind = match change.kind {
        ChangeKind::Created => "create",
        ChangeKind::Written => "write",
        ChangeKind::Removed => "remove",
        ChangeKind::Renamed => "rename",
        ChangeKind::Attributes => "chmod",
        ChangeKind::Overflow => "overflow",
    };
    (kind, change.path, change.to, change.directory)
}

#[pymethods]
impl Watch {
    /// Waits until there is something to take; `False` if nothing will come any more.
    fn wait(&self) -> Call {
        let inner = Arc::clone(&self.inner);
        Call::spawn(&self.runtime, async move { inner.wait().await.map(Value::Truth) })
    }

    /// Waits until everything can be taken that has happened by now.
    fn flush(&self) -> Call {
        let inner = Arc::clone(&self.inner);
        Call::spawn(&self.runtime, async move { inner.flush().await.map(|()| Value::None) })
    }

    /// Takes what has come, at most so much, oldest first.
    fn take(&self, most: usize) -> Vec<Row> {
        self.inner.take(most).into_iter().map(row).collect()
    }

    /// Whether nothing new will come.
    #[getter]
    fn over(&self) -> bool {
        self.inner.is_over()
    }

    /// Ends it.
    fn stop(&self) {
        self.inner.stop();
    }
}
