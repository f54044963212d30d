//! Results as plain Rust values, turned into Python objects only on the caller's thread.

use std::time::UNIX_EPOCH;

use hayfork_sandbox::{BundleKind, FileInfo, FileKind, IdleOutput, NamedTemplate, RunEvent, Stats, Status};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::sandbox::{Sandbox, Snapshot};
use crate::watch::Watch;

/// What a call can result in.
pub(crate) enum Value {
    None,
    Number(u64),
    Truth(bool),
    Text(String),
    Bytes(Vec<u8>),
    Sandbox(Sandbox),
    Sandboxes(Vec<Sandbox>),
    Snapshot(Snapshot),
    Template(NamedTemplate),
    /// A sandbox that was paused, and the note that was kept with it.
    Resumed(Sandbox, String),
    Events(Vec<RunEvent>),
    File(FileInfo),
    Files(Vec<FileInfo>),
    Stats(Stats),
    Idle(IdleOutput),
    Watch(Watch),
}

impl Value {
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::None => py.None(),
            Self::Number(number) => number.into_pyobject(py)?.into_any().unbind(),
            Self::Truth(truth) => truth.into_pyobject(py)?.to_owned().into_any().unbind(),
            Self::Text(text) => text.into_pyobject(py)?.into_any().unbind(),
            Self::Bytes(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
            Self::Sandbox(sandbox) => Py::new(py, sandbox)?.into_any(),
            Self::Sandboxes(sandboxes) => {
                let list = PyList::empty(py);
                for sandbox in sandboxes {
                    list.append(Py::new(py, sandbox)?)?;
                }
                list.into_any().unbind()
            }
            Self::Snapshot(snapshot) => Py::new(py, snapshot)?.into_any(),
            Self::Template(template) => template_row(template).into_pyobject(py)?.into_any().unbind(),
            Self::Resumed(sandbox, note) => (sandbox, note).into_pyobject(py)?.into_any().unbind(),
            Self::Events(events) => {
                let list = PyList::empty(py);
                for event in events {
                    list.append(event_to_python(py, event)?)?;
                }
                list.into_any().unbind()
            }
            Self::File(file) => file_to_python(py, &file)?.into_any().unbind(),
            Self::Files(files) => {
                let list = PyList::empty(py);
                for file in &files {
                    list.append(file_to_python(py, file)?)?;
                }
                list.into_any().unbind()
            }
            Self::Stats(stats) => {
                let dict = PyDict::new(py);
                dict.set_item("agent_pss_bytes", stats.agent_pss_bytes)?;
                dict.set_item("user_memory_bytes", stats.user_memory_bytes)?;
                dict.set_item("user_memory_limit_bytes", stats.user_memory_limit_bytes)?;
                dict.set_item("user_processes", stats.user_processes)?;
                dict.set_item("uptime_s", seconds(stats.uptime_ns))?;
                dict.into_any().unbind()
            }
            Self::Watch(watch) => Py::new(py, watch)?.into_any(),
            Self::Idle(idle) => {
                let stdout = PyBytes::new(py, &idle.stdout);
                let stderr = PyBytes::new(py, &idle.stderr);
                (stdout, stderr).into_pyobject(py)?.into_any().unbind()
            }
        })
    }
}

/// Name, language, MiB of memory, virtual CPUs, bytes on disk, seconds since 1970.
pub(crate) type TemplateRow = (String, &'static str, u32, u8, u64, f64);

pub(crate) fn template_row(template: NamedTemplate) -> TemplateRow {
    let NamedTemplate { name, language, memory_mib, vcpus, bytes, since } = template;
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    (name, language.name(), memory_mib, vcpus, bytes, since)
}

#[allow(clippy::cast_precision_loss)] // a clock in seconds does not need 64 bits
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn file_to_python<'py>(py: Python<'py>, file: &FileInfo) -> PyResult<Bound<'py, PyTuple>> {
    let kind = match file.kind {
        FileKind::File => "file",
        FileKind::Directory => "dir",
        FileKind::Symlink => "symlink",
        FileKind::Other => "other",
    };
    (&file.name, kind, file.bytes, file.mode, seconds(file.modified_ns)).into_pyobject(py)
}

fn event_to_python(py: Python<'_>, event: RunEvent) -> PyResult<Bound<'_, PyTuple>> {
    match event {
        RunEvent::Started { pid } => ("started", pid).into_pyobject(py),
        RunEvent::Stdout(bytes) => ("stdout", PyBytes::new(py, &bytes)).into_pyobject(py),
        RunEvent::Stderr(bytes) => ("stderr", PyBytes::new(py, &bytes)).into_pyobject(py),
        RunEvent::Bundle { kind, parts } => {
            let kind = match kind {
                BundleKind::Result => "result",
                BundleKind::Display => "display",
            };
            let dict = PyDict::new(py);
            for (mime, content) in parts {
                dict.set_item(mime, PyBytes::new(py, &content))?;
            }
            ("bundle", kind, dict).into_pyobject(py)
        }
        RunEvent::Exception(exception) => {
            ("exception", exception.name, exception.value, exception.traceback).into_pyobject(py)
        }
        RunEvent::Omitted { stderr, bytes } => ("omitted", stderr, bytes).into_pyobject(py),
        RunEvent::Finished(outcome) => {
            let status = match outcome.status {
                Status::Exited if outcome.exit_code == 0 => "ok",
                Status::Exited => "error",
                Status::Timeout => "timeout",
                Status::OutOfMemory => "oom",
                Status::Killed => "killed",
            };
            let timings = PyDict::new(py);
            timings.set_item("queued", outcome.timings.queued.as_secs_f64())?;
            timings.set_item("spawn", outcome.timings.spawn.as_secs_f64())?;
            timings.set_item("run", outcome.timings.run.as_secs_f64())?;
            timings.set_item("total", outcome.timings.total.as_secs_f64())?;
            ("finished", status, outcome.exit_code, outcome.state_reset, timings).into_pyobject(py)
        }
        RunEvent::Failed(error) => {
            ("failed", error.code(), error.to_string(), error.remedy()).into_pyobject(py)
        }
        // Kinds that a later engine may add; the package's collector passes over what it does not know.
        _ => ("other",).into_pyobject(py),
    }
}
