//! One sandbox.

use std::time::Duration;

use hayfork_sandbox::{
    CloneOptions, CommandOptions, Env, ExecuteOptions, Keep, Language, OutputLimit, Sandbox as Inner,
    StartedFrom, StdinMode, User,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::Call;
use crate::run::Run;
use crate::runtime::Runtime;
use crate::transfer::{Download, Upload};
use crate::value::Value;
use crate::watch::Watch;

/// The VM ends when the last reference to its handle is gone.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Sandbox {
    pub(crate) inner: Inner,
    pub(crate) runtime: Runtime,
}

/// A sandbox at rest.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Snapshot {
    inner: hayfork_sandbox::Snapshot,
    runtime: Runtime,
}

/// What is made of a template or snapshot, as keyword arguments give it.
pub(crate) fn clone_options(
    language: Option<&str>,
    memory_mb: Option<u32>,
    cpus: Option<u8>,
    idle_timeout: Option<f64>,
    boot_timeout: Option<f64>,
    env: Env,
    grant_root: bool,
) -> PyResult<CloneOptions> {
    Ok(CloneOptions {
        language: language.map(self::language).transpose()?,
        memory_mib: memory_mb,
        cpus,
        idle_timeout: duration(idle_timeout)?,
        boot_timeout: duration(boot_timeout)?,
        env,
        grant_root,
    })
}

#[pymethods]
impl Snapshot {
    #[pyo3(signature = (*, language, memory_mb, cpus, idle_timeout, boot_timeout, env, grant_root))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of a Python call
    fn restore_as(
        &self,
        language: Option<&str>,
        memory_mb: Option<u32>,
        cpus: Option<u8>,
        idle_timeout: Option<f64>,
        boot_timeout: Option<f64>,
        env: Env,
        grant_root: bool,
    ) -> PyResult<Call> {
        let options = clone_options(language, memory_mb, cpus, idle_timeout, boot_timeout, env, grant_root)?;
        let (inner, runtime) = (self.inner.clone(), self.runtime.clone());
        Ok(Call::spawn(&self.runtime, async move {
            let inner = inner.restore_as(options).await?;
            Ok(Value::Sandbox(Sandbox { inner, runtime }))
        }))
    }

    fn restore(&self) -> Call {
        let (inner, runtime) = (self.inner.clone(), self.runtime.clone());
        Call::spawn(&self.runtime, async move {
            let inner = inner.restore().await?;
            Ok(Value::Sandbox(Sandbox { inner, runtime }))
        })
    }
}

pub(crate) fn language(name: &str) -> PyResult<Language> {
    Language::from_name(name).ok_or_else(|| PyValueError::new_err(format!("no language {name:?}")))
}

/// Seconds as a duration; what a clock cannot hold is no limit.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(s) if s.is_nan() || s < 0.0 => {
            Err(PyValueError::new_err(format!("a time must not be negative: {s}")))
        }
        Some(s) => Ok(Duration::try_from_secs_f64(s).ok()),
    }
}

fn limit(bytes: u64, tail: bool) -> OutputLimit {
    OutputLimit { bytes, keep: if tail { Keep::HeadAndTail } else { Keep::Head } }
}

fn stdin_mode(stdin: bool) -> StdinMode {
    if stdin { StdinMode::Stream } else { StdinMode::None }
}

impl Sandbox {
    fn call<F, T>(&self, operation: impl FnOnce(Inner) -> F, value: fn(T) -> Value) -> Call
    where
        F: Future<Output = Result<T, hayfork_sandbox::Error>> + Send + 'static,
        T: 'static,
    {
        let future = operation(self.inner.clone());
        Call::spawn(&self.runtime, async move { future.await.map(value) })
    }
}

#[pymethods]
impl Sandbox {
    #[getter]
    fn id(&self) -> String {
        self.inner.id().to_owned()
    }

    #[getter]
    fn language(&self) -> &'static str {
        self.inner.language().name()
    }

    #[getter]
    fn memory_mb(&self) -> u32 {
        self.inner.memory_mib()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// What its start took, and on what it runs.
    fn boot(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let boot = self.inner.boot_timings();
        let dict = PyDict::new(py);
        dict.set_item("launch", boot.launch.as_secs_f64())?;
        dict.set_item("handshake", boot.handshake.as_secs_f64())?;
        dict.set_item("total", boot.total.as_secs_f64())?;
        dict.set_item("backend", boot.backend)?;
        dict.set_item("accelerator", boot.accelerator)?;
        dict.set_item("kernel", boot.kernel.name())?;
        dict.set_item("isolation", boot.isolation.code())?;
        dict.set_item("isolates", boot.isolation.description())?;
        dict.set_item("place", boot.place.name())?;
        dict.set_item(
            "made_from",
            match boot.from {
                StartedFrom::Template => "template",
                StartedFrom::Pool => "pool",
                _ => "boot",
            },
        )?;
        dict.set_item("fallback", boot.fallback)?;
        Ok(dict.unbind())
    }

    #[pyo3(signature = (
        code, *, language, context, env, stdin, last, timeout, stdout_limit, stderr_limit, keep_tail
    ))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of a Python call
    fn execute(
        &self,
        code: String,
        language: Option<&str>,
        context: u32,
        env: Env,
        stdin: bool,
        last: bool,
        timeout: Option<f64>,
        stdout_limit: u64,
        stderr_limit: u64,
        keep_tail: bool,
    ) -> PyResult<Run> {
        let mut options = ExecuteOptions::new(code);
        options.language = language.map(self::language).transpose()?;
        options.context = context;
        options.env = env;
        options.stdin = stdin_mode(stdin);
        options.last = last;
        options.timeout = duration(timeout)?;
        options.stdout = limit(stdout_limit, keep_tail);
        options.stderr = limit(stderr_limit, keep_tail);
        Ok(Run::new(self.runtime.clone(), self.inner.execute(options)))
    }

    #[pyo3(signature = (argv, *, cwd, env, root, stdin, timeout, stdout_limit, stderr_limit))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of a Python call
    fn command(
        &self,
        argv: Vec<String>,
        cwd: Option<String>,
        env: Env,
        root: bool,
        stdin: bool,
        timeout: Option<f64>,
        stdout_limit: u64,
        stderr_limit: u64,
    ) -> PyResult<Run> {
        let mut options = CommandOptions::new(argv);
        options.cwd = cwd;
        options.env = env;
        options.user = if root { User::Root } else { User::Sandbox };
        options.stdin = stdin_mode(stdin);
        options.timeout = duration(timeout)?;
        options.stdout = limit(stdout_limit, true);
        options.stderr = limit(stderr_limit, true);
        Ok(Run::new(self.runtime.clone(), self.inner.command(options)))
    }

    fn upload(&self, path: String, mode: u32) -> Upload {
        Upload::start(self.runtime.clone(), self.inner.clone(), path, mode)
    }

    fn download(&self, path: String) -> Download {
        Download::start(self.runtime.clone(), self.inner.clone(), path)
    }

    fn list(&self, path: String) -> Call {
        self.call(|s| async move { s.list(&path).await }, Value::Files)
    }

    fn stat(&self, path: String) -> Call {
        self.call(|s| async move { s.stat(&path).await }, Value::File)
    }

    fn make_dir(&self, path: String) -> Call {
        self.call(|s| async move { s.make_dir(&path).await }, |()| Value::None)
    }

    fn remove(&self, path: String) -> Call {
        self.call(|s| async move { s.remove(&path).await }, |()| Value::None)
    }

    fn rename(&self, from: String, to: String) -> Call {
        self.call(|s| async move { s.rename(&from, &to).await }, |()| Value::None)
    }

    fn watch(&self, path: String, recursive: bool) -> Call {
        let (inner, runtime) = (self.inner.clone(), self.runtime.clone());
        Call::spawn(&self.runtime, async move {
            let watch = inner.watch(&path, recursive).await?;
            Ok(Value::Watch(Watch::new(runtime, watch)))
        })
    }

    fn idle_output(&self, context: u32) -> Call {
        self.call(move |s| async move { s.idle_output(context).await }, Value::Idle)
    }

    fn close_context(&self, context: u32) -> Call {
        self.call(move |s| async move { s.close_context(context).await }, |()| Value::None)
    }

    fn stats(&self) -> Call {
        self.call(|s| async move { s.stats().await }, Value::Stats)
    }

    /// Host memory as (overhead, guest, cached) bytes; `None` where it is unknown.
    fn host_memory(&self) -> Option<(u64, u64, u64)> {
        self.inner.host_memory().map(|m| (m.overhead, m.guest, m.cached))
    }

    fn console_tail(&self) -> String {
        self.inner.console_tail()
    }

    fn interrupt(&self) {
        self.inner.interrupt();
    }

    #[pyo3(signature = (name=None))]
    fn snapshot(&self, name: Option<String>) -> Call {
        let (inner, runtime) = (self.inner.clone(), self.runtime.clone());
        Call::spawn(&self.runtime, async move {
            let inner = match name {
                None => inner.snapshot().await?,
                Some(name) => inner.snapshot_as(&name).await?,
            };
            Ok(Value::Snapshot(Snapshot { inner, runtime }))
        })
    }

    /// Writes it to disk and ends it; gives the id to resume it by.
    fn pause(&self, note: String) -> Call {
        self.call(|s| async move { s.pause(note).await }, Value::Text)
    }

    fn fork(&self, count: usize) -> Call {
        let (inner, runtime) = (self.inner.clone(), self.runtime.clone());
        Call::spawn(&self.runtime, async move {
            let forks = inner.fork(count).await?;
            let sandboxes = forks.into_iter().map(|inner| Sandbox { inner, runtime: runtime.clone() });
            Ok(Value::Sandboxes(sandboxes.collect()))
        })
    }

    /// Ends it in the background.
    fn close_soon(&self) {
        let inner = self.inner.clone();
        self.runtime.spawn(async move {
            // The engine's own shutdown waits for VMs that are still there.
            let _ = inner.close().await;
        });
    }

    fn close(&self) -> Call {
        self.call(|s| async move { s.close().await }, |()| Value::None)
    }
}
