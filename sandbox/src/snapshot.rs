//! Sandboxes that go on where another stood.
//!
//! ```text
//!  Sandbox ── snapshot() ──► Snapshot ── restore() ──► Sandbox, as often as wanted
//!     └────────────── fork(n) ────────────────────────►   (the same in one call)
//! ```
//! A restored sandbox is handed out when its guest has acknowledged everything that must not be the same in two of them: the
//! wall clock is right, the kernel's generator and the idle interpreters' have new seeds, machine id and host name are new.

use std::sync::Arc;
use std::time::Duration;

use hayfork_protocol::message::{Env, Language, validate_env};
use hayfork_vmm::backend::{MAX_VCPUS, Template};
use tokio::time::Instant;

use crate::engine;
use crate::error::Error;
use crate::named::CloneOptions;
use crate::process::ThisProcess;
use crate::sandbox::{Sandbox, StartedFrom};
use crate::start::{Restore, Shape};

/// Looks at what a file says of the sandbox whose machine it holds, and gives the language; `None` if no sandbox can be so.
pub(crate) fn known(language: &str, vcpus: u8, env: &Env) -> Option<Language> {
    let can_be = (1..=MAX_VCPUS).contains(&vcpus) && validate_env(env).is_ok();
    Language::from_name(language).filter(|_| can_be)
}

/// A sandbox at rest, in memory. Cheap to clone; it needs the original no more.
#[derive(Clone)]
pub struct Snapshot(Arc<ThisProcess<Inner>>);

struct Inner {
    template: Arc<dyn Template>,
    shape: Shape,
    engine: Arc<engine::Inner>,
}

/// The machine, what its sandboxes are like, and who makes them.
pub(crate) type Parts = (Arc<dyn Template>, Shape, Arc<engine::Inner>);

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(crate) fn new(template: Arc<dyn Template>, shape: Shape, engine: Arc<engine::Inner>) -> Self {
        Self(Arc::new(ThisProcess::new(Inner { template, shape, engine })))
    }

    /// Makes a sandbox that goes on where the original stood.
    ///
    /// # Errors
    /// The engine was shut down, the host refuses something, or the guest does not answer.
    pub async fn restore(&self) -> Result<Sandbox, Error> {
        let shape = self.0.get()?.shape.clone();
        self.restore_with(shape, None, None).await
    }

    /// The same for one who holds others already and must not wait for room for ever: `patience` at most.
    ///
    /// # Errors
    /// As [`Snapshot::restore`], or that there is no room.
    pub(crate) async fn restore_within(&self, patience: Duration) -> Result<Sandbox, Error> {
        let shape = self.0.get()?.shape.clone();
        self.restore_with(shape, None, Some(patience)).await
    }

    /// Makes a sandbox that goes on where the original stood, with options of its own.
    ///
    /// # Errors
    /// As [`Snapshot::restore`]; or options that are impossible, or do not agree with the original.
    pub async fn restore_as(&self, options: CloneOptions) -> Result<Sandbox, Error> {
        let limit = options.boot_timeout;
        let shape = options.apply(&self.0.get()?.shape)?;
        self.restore_with(shape, limit, None).await
    }

    /// What it is made of.
    ///
    /// # Errors
    /// This is a child made by `fork`.
    pub(crate) fn parts(&self) -> Result<Parts, Error> {
        let inner = self.0.get()?;
        Ok((Arc::clone(&inner.template), inner.shape.clone(), Arc::clone(&inner.engine)))
    }

    /// `limit` is for its guest to answer, `patience` for room.
    async fn restore_with(
        &self,
        shape: Shape,
        limit: Option<Duration>,
        patience: Option<Duration>,
    ) -> Result<Sandbox, Error> {
        let called = Instant::now();
        let inner = self.0.get()?;
        let (engine, template) = (Arc::clone(&inner.engine), Arc::clone(&inner.template));
        let handle = engine.handle().clone();
        engine::run_on(&handle, async move {
            let admitted =
                tokio::time::timeout(patience.unwrap_or(Duration::MAX), engine.admit(shape.memory_mib));
            let permit = admitted.await.map_err(|_| {
                Error::Capacity("this host has no room for all of these virtual machines at once".into())
            })?;
            let limit = limit.unwrap_or_else(|| engine.boot_timeout());
            let guest = engine.restored(Restore::Usual(template), permit, called, limit).await?;
            Ok(engine.sandbox(guest, shape, called, StartedFrom::Template))
        })
        .await
    }
}
