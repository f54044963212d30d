//! The engine: one for each process that uses sandboxes.
//!
//! It owns a small tokio runtime, which does control work only, the backend, and the [reaper](crate::reaper). A sandbox
//! keeps its engine alive; when the last of both is dropped, machines are gone or being killed, and the runtime ends in
//! the background, without blocking whoever dropped it.
//!
//! ```text
//!  create ── options checked ── images found ── machine launched ── agent answers ──► connection task ──► Sandbox
//!               │                   │              │ (blocking pool)    │
//!               ▼                   ▼              ▼                    ▼
//!            bad_option        images_missing   qemu_missing …    kernel_panic, boot_timeout …; machine killed
//! ```
//!
//! A `create` that is dropped half-way leaves nothing: whatever owns the machine at that moment gives it to the reaper.

use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hayfork_protocol::message::{Env, Language, Renew};
use hayfork_protocol::mux::{Mux, Role};
use hayfork_vmm::backend::{Backend, Capabilities, MachineSpec, Template};
use tokio::net::UnixStream;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::backend_choice::{Backends, Chosen};
use crate::connection::handshake::{self, Met};
use crate::connection::lifecycle::Lifecycle;
use crate::connection::lock;
use crate::connection::stream::Mailbox;
use crate::connection::task::{Connection, Parts, QUEUE};
use crate::connection::watchdog::Patience;
use crate::doctor::{self, Report};
use crate::error::Error;
use crate::images::{ImageSet, Lookup};
use crate::options::{EngineOptions, SandboxOptions, default_memory_mib};
use crate::paused::{Paused, ResumeOptions, Resumed};
use crate::process::ThisProcess;
use crate::reaper::{Reaper, Vm};
use crate::sandbox::{BootTimings, Sandbox, SandboxParts};
use crate::signals;
use crate::unsafe_watch::watch_readable;

/// Threads of the runtime that move bytes.
const WORKERS: usize = 2;
/// Threads of the runtime for what blocks: launches, mostly.
const BLOCKING: usize = 16;

/// Why sandboxes are closed by a shutdown.
const SHUT_DOWN: &str = "the engine was shut down";

/// Creates sandboxes. Cheap to clone; see the [crate's description](crate).
#[derive(Clone, Debug)]
pub struct Engine(Arc<ThisProcess<Arc<Inner>>>);

/// What an engine and its sandboxes share.
pub(crate) struct Inner {
    pub(crate) options: EngineOptions,
    pub(crate) backends: Backends,
    reaper: Reaper,
    /// Taken when the engine is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    /// What a shutdown has to close.
    sandboxes: Mutex<Vec<(Weak<Mailbox>, Weak<Lifecycle>)>>,
    patience: Patience,
    retry: Duration,
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
        Self::with_patience(options, backends, Patience::default(), handshake::RETRY)
    }

    /// An engine on a backend of the caller's; [`EngineOptions::backend`] and [`EngineOptions::qemu`] do not count.
    ///
    /// # Errors
    /// Threads could not be started.
    pub fn with_backend(options: EngineOptions, backend: Arc<dyn Backend>) -> Result<Self, Error> {
        Self::with_patience(options, Backends::One(backend), Patience::default(), handshake::RETRY)
    }

    pub(crate) fn with_patience(
        options: EngineOptions,
        backends: Backends,
        patience: Patience,
        retry: Duration,
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
        let inner = Inner {
            options,
            backends,
            reaper,
            runtime: Some(runtime),
            handle,
            sandboxes: Mutex::default(),
            patience,
            retry,
        };
        Ok(Self(Arc::new(ThisProcess::new(Arc::new(inner)))))
    }

    /// The engine's runtime, for callers that have none.
    ///
    /// # Panics
    /// In a child made by `fork`, where there is no such runtime.
    pub fn runtime(&self) -> &Handle {
        match self.0.get() {
            Ok(inner) => &inner.handle,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts a virtual machine and waits until its agent answers. Works on any executor. Dropping the future gives up
    /// and leaves nothing behind.
    ///
    /// # Errors
    /// Bad options, images or a hypervisor that are missing, or what the guest died of while it booted.
    pub async fn create(&self, options: SandboxOptions) -> Result<Sandbox, Error> {
        let inner = Arc::clone(self.0.get()?);
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
        let inner = Arc::clone(self.0.get()?);
        let id = id.to_owned();
        self.run(async move { inner.resume(id, options).await }).await
    }

    /// The paused sandboxes of this user, oldest first; without those whose files are damaged. Blocks for some file system calls.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn paused(&self) -> Result<Vec<Paused>, Error> {
        self.0.get()?.list_paused()
    }

    /// Removes a paused sandbox. Blocks for some file system calls.
    ///
    /// # Errors
    /// There is none of that id, or somebody resumes it at the moment.
    pub fn discard(&self, id: &str) -> Result<(), Error> {
        self.0.get()?.discard_paused(id)
    }

    /// Looks at what this host can do.
    pub async fn doctor(&self) -> Report {
        let inner = match self.0.get() {
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
        Ok(self.0.get()?.lookup().open()?)
    }

    /// Kills all machines of this engine and waits until they are gone; nothing can be created afterwards. Blocks for
    /// some tens of milliseconds; calling it again does nothing. In a child made by `fork` it does nothing either.
    pub fn shutdown(&self) {
        let Ok(inner) = self.0.get() else { return };
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
        run_on(&self.0.get()?.handle, future).await
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
        Err(_) => Error::closed("the engine has ended"),
    }
}

/// What a sandbox is like, apart from its machine; its forks are like it.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) language: Language,
    pub(crate) memory_mib: u32,
    pub(crate) env: Env,
    pub(crate) grant_root: bool,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) capabilities: Capabilities,
    /// Why the monitor does not run it, where that was tried.
    pub(crate) fallback: Option<String>,
}

/// What was launched, with what is known about it.
struct Launched {
    vm: Vm,
    capabilities: Capabilities,
    /// Why the monitor does not run it, where that was tried.
    fallback: Option<String>,
}

impl Inner {
    pub(crate) fn lookup(&self) -> Lookup {
        Lookup {
            explicit: self.options.images.clone(),
            package: self.options.image_package.clone(),
            ..Lookup::from_environment()
        }
    }

    async fn create(self: Arc<Self>, options: SandboxOptions, called: Instant) -> Result<Sandbox, Error> {
        options.validate()?;
        let id = new_id()?;
        let memory_mib = options.memory_mib.unwrap_or(default_memory_mib(options.language));
        let mut spec = MachineSpec::new("", "");
        spec.name =
            options.name.as_ref().map_or_else(|| format!("hayfork-{id}"), |name| format!("{name}-{id}"));
        spec.memory_mib = memory_mib;
        spec.vcpus = options.cpus.unwrap_or(1);
        // Once without files, so that bad options are found before missing images.
        spec.validate()?;

        let language = options.language;
        let inner = Arc::clone(&self);
        let launched = self.handle.spawn_blocking(move || inner.launch(spec, language.name()));
        let Launched { vm, capabilities, fallback } = launched.await.map_err(joined)??;
        let shape = Shape {
            language,
            memory_mib,
            env: options.env,
            grant_root: options.grant_root,
            idle_timeout: options.idle_timeout,
            capabilities,
            fallback,
        };
        let limit = options.boot_timeout.unwrap_or(self.options.boot_timeout);
        self.introduce(id, vm, shape, called, limit).await
    }

    /// Makes a sandbox that goes on where the one of `template` stood. It has randomness, a name and a time of its own before
    /// anybody gets it.
    pub(crate) async fn restore(
        self: Arc<Self>,
        template: Arc<dyn Template>,
        shape: Shape,
        called: Instant,
    ) -> Result<Sandbox, Error> {
        let id = new_id()?;
        let inner = Arc::clone(&self);
        let restored = self.handle.spawn_blocking(move || {
            let launch = inner.reaper.announce().ok_or_else(|| Error::closed(SHUT_DOWN))?;
            Ok::<_, Error>(launch.register(template.restore()?))
        });
        let vm = restored.await.map_err(joined)??;
        let renew = renewal(&id)?;
        let limit = self.options.boot_timeout;
        let sandbox = self.introduce(id, vm, shape, called, limit).await?;
        sandbox.renew(renew).await?;
        Ok(sandbox)
    }

    /// Waits until the agent of a running machine answers, and makes a sandbox of the two.
    async fn introduce(
        self: Arc<Self>,
        id: String,
        vm: Vm,
        shape: Shape,
        called: Instant,
        limit: Duration,
    ) -> Result<Sandbox, Error> {
        let running = Instant::now();
        let (channel, exit) =
            vm.take_channel().map_err(|error| Error::io("the machine's channel cannot be used", error))?;
        let stream = channel
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(channel.into_unix()))
            .map_err(|error| Error::io("the machine's channel cannot be used", error))?;
        let exit =
            watch_readable(exit).map_err(|error| Error::io("the machine's exit cannot be watched", error))?;
        let Met { hello, rest } = handshake::meet(&stream, &exit, &vm, running, limit, self.retry).await?;
        tracing::debug!(id, agent = hello.agent, uptime = ?Duration::from_nanos(hello.uptime_ns), "the agent answers");
        let language = shape.language;
        if !hello.languages.iter().any(|name| name == language.name()) {
            return Err(Error::NoSuchLanguage {
                language: language.name(),
                available: hello.languages.join(", "),
            });
        }

        let timings = BootTimings {
            launch: running - called,
            handshake: running.elapsed(),
            total: called.elapsed(),
            backend: shape.capabilities.backend.to_owned(),
            accelerator: shape.capabilities.accelerator.to_string(),
            kernel: shape.capabilities.kernel,
            isolation: shape.capabilities.isolation,
            place: shape.capabilities.place,
            fallback: shape.fallback.clone(),
        };
        let mailbox = Arc::new(Mailbox::default());
        let lifecycle = Arc::new(Lifecycle::new(vm.death()));
        let (runs, runs_queue) = mpsc::channel(QUEUE);
        let (operations, operations_queue) = mpsc::channel(QUEUE);
        let idle_timeout = shape.idle_timeout;
        let sandbox = Sandbox::new(SandboxParts {
            id,
            languages: hello.languages,
            timings,
            shape,
            runs,
            operations,
            mailbox: Arc::clone(&mailbox),
            lifecycle: Arc::clone(&lifecycle),
            slot: Arc::clone(vm.slot()),
            engine: Arc::clone(&self),
        });
        {
            let mut sandboxes = lock(&self.sandboxes);
            sandboxes.retain(|(mailbox, _)| mailbox.strong_count() > 0);
            sandboxes.push((Arc::downgrade(&mailbox), Arc::downgrade(&lifecycle)));
        }
        let connection = Connection::new(Parts {
            stream,
            mux: Mux::new(Role::Host),
            received: rest,
            exit,
            vm,
            runs: runs_queue,
            operations: operations_queue,
            mailbox,
            lifecycle,
            idle_timeout,
            patience: self.patience,
        });
        self.handle.spawn(connection.run());
        Ok(sandbox)
    }

    /// The runtime, for what must go on whoever waits for it.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Finds the images and starts the machine. Blocks.
    fn launch(&self, mut spec: MachineSpec, language: &str) -> Result<Launched, Error> {
        let launch = self.reaper.announce().ok_or_else(|| Error::closed(SHUT_DOWN))?;
        let images = self.lookup().open()?;
        spec.initramfs = images.initramfs()?;
        spec.root_image = Some(images.image(language)?);
        let suits = |found: &Capabilities| suits(found, &spec, &images);
        let Chosen { backend, capabilities, fallback } = self.backends.choose(suits)?;
        spec.kernel = images.kernel_of(capabilities.kernel)?;
        spec.digests = Some(images.digests(language, capabilities.kernel)?);
        let machine = backend.launch(&spec)?;
        Ok(Launched {
            vm: launch.register(machine),
            capabilities,
            fallback: fallback.map(|obstacle| obstacle.to_string()),
        })
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

/// Whether a backend can run the machine with what the image set holds.
///
/// # Errors
/// More than it has, or a kernel that is missing.
fn suits(found: &Capabilities, spec: &MachineSpec, images: &ImageSet) -> Result<(), Error> {
    let Capabilities { backend, max_vcpus, max_memory_mib, .. } = found;
    if spec.vcpus > *max_vcpus {
        let asked = spec.vcpus;
        return Err(Error::bad_option(format!(
            "{asked} virtual CPUs are more than the {max_vcpus} of the backend {backend:?}"
        )));
    }
    if spec.memory_mib > *max_memory_mib {
        let asked = spec.memory_mib;
        return Err(Error::bad_option(format!(
            "{asked} MiB of memory are more than the {max_memory_mib} of the backend {backend:?}"
        )));
    }
    images.kernel_of(found.kernel)?;
    Ok(())
}

/// What makes a restored guest another than the one that was kept.
fn renewal(id: &str) -> Result<Renew, Error> {
    let mut seed = [0; 32];
    let mut machine_id = [0; 16];
    handshake::random(&mut seed)?;
    handshake::random(&mut machine_id)?;
    Ok(Renew { seed, machine_id, hostname: format!("sandbox-{id}") })
}

/// A new id: 12 random hexadecimal digits.
fn new_id() -> Result<String, Error> {
    let mut bytes = [0; 8];
    handshake::random(&mut bytes[..6])?;
    Ok(format!("{:012x}", u64::from_le_bytes(bytes)))
}
