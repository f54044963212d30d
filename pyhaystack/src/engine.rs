//! The engine that the package uses, one per process and set of options.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use hayfork_sandbox::{
    BuildOptions, Engine as Inner, EngineOptions, Env, Paused, ResumeOptions, Resumed, SandboxOptions,
    WarmOptions,
};
use pyo3::prelude::*;

use crate::call::Call;
use crate::error::to_python;
use crate::runtime::Runtime;
use crate::sandbox::{Sandbox, clone_options, duration, language};
use crate::value::{TemplateRow, Value, template_row};

/// Id, language, MiB of memory, bytes on disk, seconds since 1970.
type PausedRow = (String, &'static str, u32, u64, f64);

/// Starts sandboxes.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Engine {
    inner: Inner,
    runtime: Runtime,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, images=None, backend=None, isolation=None, qemu=None, worker=None, templates=true))]
    fn new(
        images: Option<PathBuf>,
        backend: Option<String>,
        isolation: Option<String>,
        qemu: Option<PathBuf>,
        worker: Option<PathBuf>,
        templates: bool,
    ) -> PyResult<Self> {
        let options =
            EngineOptions { images, backend, isolation, qemu, worker, templates, ..EngineOptions::default() };
        let inner = Inner::new(options).map_err(|error| to_python(&error))?;
        let runtime = Runtime::new(inner.runtime().clone());
        Ok(Self { inner, runtime })
    }

    #[pyo3(signature = (*, language, memory_mb, cpus, idle_timeout, boot_timeout, env, name, grant_root, fresh_boot))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of a Python call
    fn create(
        &self,
        language: &str,
        memory_mb: Option<u32>,
        cpus: Option<u8>,
        idle_timeout: Option<f64>,
        boot_timeout: Option<f64>,
        env: Env,
        name: Option<String>,
        grant_root: bool,
        fresh_boot: bool,
    ) -> PyResult<Call> {
        let mut options = SandboxOptions::new(self::language(language)?);
        options.memory_mib = memory_mb;
        options.cpus = cpus;
        options.idle_timeout = duration(idle_timeout)?;
        options.boot_timeout = duration(boot_timeout)?;
        options.env = env;
        options.name = name;
        options.grant_root = grant_root;
        options.fresh_boot = fresh_boot;
        let engine = self.inner.clone();
        let runtime = self.runtime.clone();
        Ok(Call::spawn(&self.runtime, async move {
            let inner = engine.create(options).await?;
            Ok(Value::Sandbox(Sandbox { inner, runtime }))
        }))
    }

    /// Makes a sandbox of the template of that name.
    #[pyo3(signature = (name, *, language, memory_mb, cpus, idle_timeout, boot_timeout, env, grant_root))]
    #[allow(clippy::too_many_arguments)] // keyword arguments of a Python call
    fn create_from(
        &self,
        name: String,
        language: Option<&str>,
        memory_mb: Option<u32>,
        cpus: Option<u8>,
        idle_timeout: Option<f64>,
        boot_timeout: Option<f64>,
        env: Env,
        grant_root: bool,
    ) -> PyResult<Call> {
        let options = clone_options(language, memory_mb, cpus, idle_timeout, boot_timeout, env, grant_root)?;
        let (engine, runtime) = (self.inner.clone(), self.runtime.clone());
        Ok(Call::spawn(&self.runtime, async move {
            let inner = engine.create_from(&name, options).await?;
            Ok(Value::Sandbox(Sandbox { inner, runtime }))
        }))
    }

    /// Builds a template and keeps it on disk.
    #[pyo3(signature = (name, *, language, memory_mb, cpus, code, timeout))]
    fn build_template(
        &self,
        name: String,
        language: &str,
        memory_mb: Option<u32>,
        cpus: Option<u8>,
        code: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        let options = BuildOptions {
            name,
            language: self::language(language)?,
            memory_mib: memory_mb,
            cpus,
            code,
            timeout: duration(timeout)?,
        };
        let engine = self.inner.clone();
        Ok(Call::spawn(
            &self.runtime,
            async move { engine.build_template(options).await.map(Value::Template) },
        ))
    }

    /// Templates on disk, by name.
    fn templates(&self, py: Python<'_>) -> PyResult<Vec<TemplateRow>> {
        let templates = py.detach(|| self.inner.templates()).map_err(|error| to_python(&error))?;
        Ok(templates.into_iter().map(template_row).collect())
    }

    /// Removes a template.
    fn remove_template(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.inner.remove_template(name)).map_err(|error| to_python(&error))
    }

    /// Keeps that many machines of a kind ready.
    #[pyo3(signature = (*, language, memory_mb, cpus, count))]
    fn keep_warm(
        &self,
        language: &str,
        memory_mb: Option<u32>,
        cpus: Option<u8>,
        count: usize,
    ) -> PyResult<()> {
        let options = WarmOptions { language: self::language(language)?, memory_mib: memory_mb, cpus, count };
        self.inner.keep_warm(options).map_err(|error| to_python(&error))
    }

    /// Keeps that many machines of the template of that name ready.
    #[pyo3(signature = (name, *, language, memory_mb, cpus, count))]
    fn keep_warm_from(
        &self,
        py: Python<'_>,
        name: &str,
        language: Option<&str>,
        memory_mb: Option<u32>,
        cpus: Option<u8>,
        count: usize,
    ) -> PyResult<()> {
        let options = clone_options(language, memory_mb, cpus, None, None, Env::new(), false)?;
        py.detach(|| self.inner.keep_warm_from(name, &options, count)).map_err(|error| to_python(&error))
    }

    /// Whether all of them are there within that many seconds.
    fn wait_warm(&self, timeout: f64) -> PyResult<Call> {
        let limit = duration(Some(timeout))?.unwrap_or(Duration::MAX);
        let engine = self.inner.clone();
        Ok(Call::spawn(&self.runtime, async move { engine.wait_warm(limit).await.map(Value::Truth) }))
    }

    /// The sandbox, and the note that was kept with it.
    fn resume(&self, id: String, keep: bool) -> Call {
        let engine = self.inner.clone();
        let runtime = self.runtime.clone();
        Call::spawn(&self.runtime, async move {
            let Resumed { sandbox: inner, note } = engine.resume(&id, ResumeOptions { keep }).await?;
            Ok(Value::Resumed(Sandbox { inner, runtime }, note))
        })
    }

    /// Paused sandboxes, oldest first.
    fn paused(&self, py: Python<'_>) -> PyResult<Vec<PausedRow>> {
        let paused = py.detach(|| self.inner.paused()).map_err(|error| to_python(&error))?;
        let row = |Paused { id, language, memory_mib, bytes, since }| {
            let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            (id, language.name(), memory_mib, bytes, since)
        };
        Ok(paused.into_iter().map(row).collect())
    }

    /// Removes a paused sandbox.
    fn discard(&self, py: Python<'_>, id: &str) -> PyResult<()> {
        py.detach(|| self.inner.discard(id)).map_err(|error| to_python(&error))
    }

    /// The report as JSON.
    fn doctor(&self) -> Call {
        let engine = self.inner.clone();
        Call::spawn(&self.runtime, async move {
            let report = engine.doctor().await;
            Ok(Value::Text(serde_json::to_string(&report).unwrap_or_default()))
        })
    }

    /// The image set's folder and its manifest as JSON.
    fn images(&self) -> PyResult<(PathBuf, String)> {
        let set = self.inner.images().map_err(|error| to_python(&error))?;
        let manifest = serde_json::to_string(set.manifest()).unwrap_or_default();
        Ok((set.directory().to_path_buf(), manifest))
    }

    /// Ends all of its sandboxes and waits for that.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.inner.shutdown());
    }
}
