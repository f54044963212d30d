//! The engine: one for each process that uses sandboxes.
//!
//! It owns a small tokio runtime, which does control work only, the backend, and the [reaper](crate::reaper). A sandbox
//! keeps its engine alive; when the last of both is dropped, machines are gone or being killed, and the runtime ends in
//! the background, without blocking whoever dropped it.
//!
//! How a machine is had stands in [`crate::start`], and what is kept ready in [`crate::pool`]. When the last handle of an
//! engine is dropped, its pool ends; sandboxes live on.
//!
//! A `create` that is dropped half-way leaves nothing: whatever owns the machine at that moment gives it to the reaper.

use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hayfork_vmm::backend::Backend;
use tokio::runtime::{Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::backend_choice::Backends;
use crate::connection::handshake::Again;
use crate::connection::lifecycle::Lifecycle;
use crate::connection::lock;
use crate::connection::stream::Mailbox;
use crate::connection::watchdog::Patience;
use crate::doctor::{self, Report};
use crate::error::{ENDED, Error, SHUT_DOWN};
use crate::guest::Guest;
use crate::images::{ImageSet, Lookup};
use crate::named::{BuildOptions, CloneOptions, Named, NamedTemplate, Wishes};
use crate::options::{EngineOptions, SandboxOptions, TemplateStore, WarmOptions};
use crate::paused::{Paused, ResumeOptions, Resumed};
use crate::pool::admission::Admission;
use crate::pool::turns::Turns;
use crate::pool::{Key, Origin, Pools, Shelf};
use crate::process::ThisProcess;
use crate::reaper::Reaper;
use crate::sandbox::Sandbox;
use crate::signals;

/// Threads of the runtime that move bytes.
const WORKERS: usize = 2;
/// Threads of the runtime for what blocks: launches, mostly.
const BLOCKING: usize = 16;

/// Creates sandboxes. Cheap to clone; see the [crate's description](crate).
#[derive(Clone, Debug)]
pub struct Engine(Arc<ThisProcess<Handles>>);

/// What all handles of an engine share; sandboxes have only what is in it.
#[derive(Debug)]
struct Handles(Arc<Inner>);

impl Drop for Handles {
    fn drop(&mut self) {
        self.0.pools.close();
    }
}

/// What an engine and its sandboxes share.
pub(crate) struct Inner {
    pub(crate) options: EngineOptions,
    pub(crate) backends: Backends,
    pub(crate) reaper: Reaper,
    pub(crate) admission: Admission,
    pub(crate) turns: Turns,
    pub(crate) pools: Pools,
    pub(crate) shelf: Shelf,
    pub(crate) named: Named,
    pub(crate) wishes: Wishes,
    /// Taken when the engine is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    /// What a shutdown has to close.
    sandboxes: Mutex<Vec<(Weak<Mailbox>, Weak<Lifecycle>)>>,
    pub(crate) patience: Patience,
    pub(crate) again: Again,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backends.name()).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine with the backend that the options name, or what that comes to on this host. Starts a few threads, but no machine, and does not look at the
    /// host yet.
    ///
    /// # Errors
    /// An unknown backend, or threads that could not be started.
    pub fn new(options: EngineOptions) -> Result<Self, Error> {
        let backends = Backends::new(&options)?;
        Self::with_patience(options, backends, Patience::default(), Again::default())
    }

    /// An engine on a backend of the caller's; [`EngineOptions::backend`] and [`EngineOptions::qemu`] do not count.
    ///
    /// # Errors
    /// Threads could not be started.
    pub fn with_backend(options: EngineOptions, backend: Arc<dyn Backend>) -> Result<Self, Error> {
        Self::with_patience(options, Backends::One(backend), Patience::default(), Again::default())
    }

    pub(crate) fn with_patience(
        options: EngineOptions,
        backends: Backends,
        patience: Patience,
        again: Again,
    ) -> Result<Self, Error> {
        if options.boot_timeout.is_zero() {
            return Err(Error::bad_option("a boot timeout of 0 leaves no time to boot"));
        }
        let reaper = Reaper::start().map_err(|error| Error::io("a thread could not be started", error))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING)
            .thread_name("hayfork")
            .on_thread_start(signals::block_all)
            .enable_all()
            .build()
            .map_err(|error| Error::io("the async runtime could not be started", error))?;
        let handle = runtime.handle().clone();
        let most = options.max_machines.unwrap_or(usize::MAX);
        let inner = Inner {
            shelf: Shelf::new(if options.templates {
                options.template_store.clone()
            } else {
                TemplateStore::Off
            }),
            options,
            backends,
            named: Named::default(),
            wishes: Wishes::default(),
            reaper,
            admission: Admission::new(most),
            turns: Turns::of_this_host(),
            pools: Pools::default(),
            runtime: Some(runtime),
            handle,
            sandboxes: Mutex::default(),
            patience,
            again,
        };
        Ok(Self(Arc::new(ThisProcess::new(Handles(Arc::new(inner))))))
    }

    /// The engine's runtime, for callers that have none.
    ///
    /// # Panics
    /// In a child made by `fork`, where there is no such runtime.
    pub fn runtime(&self) -> &Handle {
        match self.inner() {
            Ok(inner) => &inner.handle,
            Err(error) => panic!("{error}"),
        }
    }

    /// What all handles share.
    ///
    /// # Errors
    /// This is a child made by `fork`.
    fn inner(&self) -> Result<&Arc<Inner>, Error> {
        self.0.get().map(|handles| &handles.0)
    }

    /// Gives a virtual machine whose agent answers: one that is kept ready ([`Engine::keep_warm`]), else one that is made of a
    /// template, else one that boots. Nobody has used it before in any case. Waits while the host has no memory for one more,
    /// in the order of the calls. Works on any executor. Dropping the future gives up and leaves nothing behind.
    ///
    /// # Errors
    /// Bad options, images or a hypervisor that are missing, or what the guest died of while it booted.
    pub async fn create(&self, options: SandboxOptions) -> Result<Sandbox, Error> {
        let inner = Arc::clone(self.inner()?);
        let called = Instant::now();
        self.run(async move { inner.create(options, called).await }).await
    }

    /// Goes on with a sandbox that was [paused](Sandbox::pause), in this process or another. It is not paused any more then,
    /// unless the options say otherwise. It has an id, randomness and a time of its own, as every restored one.
    ///
    /// # Errors
    /// There is none of that id, or somebody else resumes it at the moment; its file is damaged, or does not belong to this host,
    /// these images and this version; or what can go wrong with [`Snapshot::restore`](crate::Snapshot::restore). It stays paused.
    pub async fn resume(&self, id: &str, options: ResumeOptions) -> Result<Resumed, Error> {
        let inner = Arc::clone(self.inner()?);
        let id = id.to_owned();
        self.run(async move { inner.resume(id, options).await }).await
    }

    /// The paused sandboxes of this user, oldest first; without those whose files are damaged. Blocks for some file system calls.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn paused(&self) -> Result<Vec<Paused>, Error> {
        self.inner()?.list_paused()
    }

    /// Removes a paused sandbox. Blocks for some file system calls.
    ///
    /// # Errors
    /// There is none of that id, or somebody resumes it at the moment.
    pub fn discard(&self, id: &str) -> Result<(), Error> {
        self.inner()?.discard_paused(id)
    }

    /// Builds a template and keeps it on disk under its name, for this and other processes, until it is removed.
    ///
    /// # Errors
    /// Options that make no sense; its code did not end well ([`Error::TemplateCode`]); what can go wrong with a new sandbox; its
    /// backend has no templates, or it cannot be written.
    pub async fn build_template(&self, options: BuildOptions) -> Result<NamedTemplate, Error> {
        let inner = Arc::clone(self.inner()?);
        self.run(async move { inner.build_template(options).await }).await
    }

    /// Makes a sandbox of the template of that name. It has randomness, a time and an identity of its own.
    ///
    /// # Errors
    /// There is none of that name; the options do not agree with it; its file is damaged, or does not belong to this host, these
    /// images and this version; or what can go wrong with [`Snapshot::restore`](crate::Snapshot::restore).
    pub async fn create_from(&self, name: &str, options: CloneOptions) -> Result<Sandbox, Error> {
        let inner = Arc::clone(self.inner()?);
        let (name, called) = (name.to_owned(), Instant::now());
        self.run(async move { inner.create_from(name, options, called).await }).await
    }

    /// This user's templates, by name; without those whose files are damaged. Blocks for some file system calls.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn templates(&self) -> Result<Vec<NamedTemplate>, Error> {
        self.inner()?.list_named()
    }

    /// Removes a template. What was made of it lives on. Blocks for some file system calls.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn remove_template(&self, name: &str) -> Result<(), Error> {
        self.inner()?.remove_named(name)
    }

    /// Keeps virtual machines of a kind ready from here on, so that [`Engine::create`] gives one in a moment; 0 of them to stop
    /// that. Returns at once: see [`Engine::wait_warm`]. They are made in the background, and made up for as they are taken;
    /// each takes the host's memory that its interpreter has touched.
    ///
    /// # Errors
    /// Options that make no sense, or this is a child made by `fork`.
    pub fn keep_warm(&self, options: WarmOptions) -> Result<(), Error> {
        let inner = self.inner()?;
        let (memory_mib, vcpus) = options.machine()?;
        let _running = inner.handle.enter();
        let key = Key { language: options.language, memory_mib, vcpus, origin: Origin::Images };
        inner.keep_ready(key, options.count);
        Ok(())
    }

    /// Keeps `count` machines of the template of that name ready from here on, for [`Engine::create_from`]; 0 to stop that. As
    /// [`Engine::keep_warm`] otherwise. When the name gets another template, it is machines of that. Of the options, those that a
    /// template fixes count. Blocks for some file system calls.
    ///
    /// # Errors
    /// There is none of that name, it is damaged, the options do not agree with it, or those are too many.
    pub fn keep_warm_from(&self, name: &str, options: &CloneOptions, count: usize) -> Result<(), Error> {
        let inner = self.inner()?;
        let _running = inner.handle.enter();
        inner.keep_warm_from(name, options, count)
    }

    /// Waits until all machines are there that [`Engine::keep_warm`] or [`Engine::keep_warm_from`] asked for. False if they are not when `limit` is over.
    ///
    /// # Errors
    /// This is a child made by `fork`.
    pub async fn wait_warm(&self, limit: Duration) -> Result<bool, Error> {
        let inner = Arc::clone(self.inner()?);
        self.run(async move { Ok(inner.pools.wait_ready(limit).await) }).await
    }

    /// Looks at what this host can do.
    pub async fn doctor(&self) -> Report {
        let inner = match self.inner() {
            Ok(inner) => Arc::clone(inner),
            Err(error) => return doctor::unusable(&error),
        };
        let looked = self.run(async move {
            let handle = inner.handle.clone();
            let look = move || doctor::examine(&inner.backends, &inner.lookup());
            handle.spawn_blocking(look).await.map_err(joined)
        });
        looked.await.unwrap_or_else(|error| doctor::unusable(&error))
    }

    /// Finds the image set and reads its manifest. Blocks for some file system calls.
    ///
    /// # Errors
    /// No set, or one that cannot be used.
    pub fn images(&self) -> Result<ImageSet, Error> {
        Ok(self.inner()?.lookup().open()?)
    }

    /// Kills all machines of this engine and waits until they are gone; nothing can be created afterwards. Blocks for
    /// some tens of milliseconds; calling it again does nothing. In a child made by `fork` it does nothing either.
    pub fn shutdown(&self) {
        let Ok(inner) = self.inner() else { return };
        inner.pools.close();
        for (mailbox, lifecycle) in lock(&inner.sandboxes).drain(..) {
            if let (Some(mailbox), Some(lifecycle)) = (mailbox.upgrade(), lifecycle.upgrade()) {
                lifecycle.end(Error::closed(SHUT_DOWN));
                mailbox.close(SHUT_DOWN);
            }
        }
        inner.reaper.shutdown();
    }

    /// Runs a future on this engine's runtime.
    async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        run_on(&self.inner()?.handle, future).await
    }
}

/// Runs a future on the engine's runtime, whatever executor waits for it; dropping the wait ends it.
pub(crate) async fn run_on<T: Send + 'static>(
    handle: &Handle,
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let mut task = AbortOnDrop(handle.spawn(future));
    (&mut task.0).await.unwrap_or_else(|error| Err(joined(error)))
}

/// Ends a task when nobody waits for it any more.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The answer for a task that did not come to its end.
pub(crate) fn joined(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Error::closed(ENDED),
    }
}

impl Inner {
    pub(crate) fn lookup(&self) -> Lookup {
        Lookup {
            explicit: self.options.images.clone(),
            package: self.options.image_package.clone(),
            ..Lookup::from_environment()
        }
    }

    /// How long a guest may take to boot.
    pub(crate) fn boot_timeout(&self) -> Duration {
        self.options.boot_timeout
    }

    /// Whether templates are made of machines that are wanted again.
    pub(crate) fn makes_templates(&self) -> bool {
        self.options.templates
    }

    /// The runtime, for what must go on whoever waits for it.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Remembers a sandbox for the shutdown.
    pub(crate) fn enrol(&self, guest: &Guest) {
        let mut sandboxes = lock(&self.sandboxes);
        sandboxes.retain(|(mailbox, _)| mailbox.strong_count() > 0);
        sandboxes.push((Arc::downgrade(&guest.wires.mailbox), Arc::downgrade(&guest.wires.lifecycle)));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The ordinary way waits for tasks, which is forbidden on an async thread.
            runtime.shutdown_background();
        }
    }
}
