//! The engine that the package uses, one per process and set of options.

use std::path::PathBuf;

use hayfork_sandbox::{Engine as Inner, EngineOptions, Env, SandboxOptions};
use pyo3::prelude::*;

use crate::call::Call;
use crate::error::to_python;
use crate::runtime::Runtime;
use crate::sandbox::{Sandbox, duration, language};
use crate::value::Value;

/// Starts sandboxes.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Engine {
    inner: Inner,
    runtime: Runtime,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, images=None, backend=None, isolation=None, qemu=None, worker=None))]
    fn new(
        images: Option<PathBuf>,
        backend: Option<String>,
        isolation: Option<String>,
        qemu: Option<PathBuf>,
        worker: Option<PathBuf>,
    ) -> PyResult<Self> {
        let options = EngineOptions { images, backend, isolation, qemu, worker, ..EngineOptions::default() };
        let inner = Inner::new(options).map_err(|error| to_python(&error))?;
        let runtime = Runtime::new(inner.runtime().clone());
        Ok(Self { inner, runtime })
    }

    #[pyo3(signature = (*, language, memory_mb, cpus, idle_timeout, boot_timeout, env, name, grant_root))]
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
    ) -> PyResult<Call> {
        let mut options = SandboxOptions::new(self::language(language)?);
        options.memory_mib = memory_mb;
        options.cpus = cpus;
        options.idle_timeout = duration(idle_timeout)?;
        options.boot_timeout = duration(boot_timeout)?;
        options.env = env;
        options.name = name;
        options.grant_root = grant_root;
        let engine = self.inner.clone();
        let runtime = self.runtime.clone();
        Ok(Call::spawn(&self.runtime, async move {
            let inner = engine.create(options).await?;
            Ok(Value::Sandbox(Sandbox { inner, runtime }))
        }))
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
