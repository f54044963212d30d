//! A running sandbox, as its users hold it.

use std::sync::Arc;
use std::time::Duration;

use hayfork_protocol::message::{Language, Request, User};
use hayfork_vmm::backend::{HostMemory, Isolation, KernelFlavour, Place};

use crate::connection::handshake;
use crate::connection::stream::Stream;
use crate::engine;
use crate::error::Error;
use crate::guest::{Guest, Wires};
use crate::options::{CommandOptions, ExecuteOptions};
use crate::process::ThisProcess;
use crate::reaper::Slot;
use crate::running::Running;
use crate::snapshot::Snapshot;
use crate::start::Shape;

/// How long each fork waits for room while others of the same call have theirs.
const FORK_PATIENCE: Duration = Duration::from_secs(10);

/// What a sandbox's machine was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartedFrom {
    /// It booted.
    Boot,
    /// It was restored from a snapshot, or from the template of its language.
    Template,
    /// It was kept ready.
    Pool,
}

/// How long the start of a sandbox took, and on what it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootTimings {
    /// What its machine was made of.
    pub from: StartedFrom,
    /// From the call of `create` until the virtual machine ran; 0 for one that was kept ready.
    pub launch: Duration,
    /// From there until the agent's answer; 0 for one that was kept ready.
    pub handshake: Duration,
    /// Everything.
    pub total: Duration,
    /// The backend's name: `monitor`, `qemu`.
    pub backend: String,
    /// What executes guest instructions: `kvm`, `tcg`.
    pub accelerator: String,
    /// The flavour of its kernel.
    pub kernel: KernelFlavour,
    /// What keeps its user code from the host.
    pub isolation: Isolation,
    /// Which process it runs in.
    pub place: Place,
    /// Why the monitor does not run it, where the choice was the engine's and fell on another backend.
    pub fallback: Option<String>,
}

/// A sandbox: one virtual machine with a guest agent.
///
/// Cheap to clone. When the last clone is dropped, and no [`Running`] of it is left either, the machine is killed in
/// the background. Methods may be called from any thread, on any async executor, and at the same time.
#[derive(Clone, Debug)]
pub struct Sandbox {
    about: Arc<About>,
    inner: Arc<ThisProcess<Inner>>,
}

/// Plain data about a sandbox.
#[derive(Debug)]
struct About {
    id: String,
    languages: Vec<String>,
    shape: Shape,
    timings: BootTimings,
}

#[derive(Debug)]
struct Inner {
    wires: Wires,
    /// Keeps the runtime alive.
    engine: Arc<engine::Inner>,
}

impl Sandbox {
    pub(crate) fn new(guest: Guest, timings: BootTimings, shape: Shape, engine: Arc<engine::Inner>) -> Self {
        let Guest { id, languages, wires, .. } = guest;
        let about = About { id, languages, shape, timings };
        Self { about: Arc::new(about), inner: Arc::new(ThisProcess::new(Inner { wires, engine })) }
    }

    /// Its id: 12 hexadecimal digits, drawn at random.
    pub fn id(&self) -> &str {
        &self.about.id
    }

    /// The language of its root image.
    pub fn language(&self) -> Language {
        self.about.shape.language
    }

    /// Its memory in MiB.
    pub fn memory_mib(&self) -> u32 {
        self.about.shape.memory_mib
    }

    /// How long its start took.
    pub fn boot_timings(&self) -> BootTimings {
        self.about.timings.clone()
    }

    /// Whether it takes no more calls: it was closed, or its machine is gone. Always so in a child made by `fork`.
    pub fn is_closed(&self) -> bool {
        self.inner.get().map_or(true, |inner| inner.wires.lifecycle.refusal().is_some())
    }

    /// Runs source text. Never blocks; executions of one context run one after the other, in the order of the calls.
    /// What is wrong comes as [`RunEvent::Failed`](crate::RunEvent::Failed).
    pub fn execute(&self, options: ExecuteOptions) -> Running {
        self.start(|| {
            let language = options.language.unwrap_or(self.about.shape.language);
            if !self.about.languages.iter().any(|name| name == language.name()) {
                return Err(Error::NoSuchLanguage {
                    language: language.name(),
                    available: self.about.languages.join(", "),
                });
            }
            options.into_request(language, &self.about.shape.env)
        })
    }

    /// Runs a program. Never blocks; commands run at the same time as each other and as executions. What is wrong comes
    /// as [`RunEvent::Failed`](crate::RunEvent::Failed).
    pub fn command(&self, options: CommandOptions) -> Running {
        self.start(|| {
            if options.user == User::Root && !self.about.shape.grant_root {
                return Err(Error::RootNotGranted);
            }
            options.into_request(&self.about.shape.env)
        })
    }

    fn start(&self, request: impl FnOnce() -> Result<Request, Error>) -> Running {
        let stream = self.inner.get().and_then(|inner| inner.wires.open(request()?));
        Running::new(stream, self.clone())
    }

    /// Opens a stream for a request that is none of `Execute` and `Command`.
    pub(crate) fn operation(&self, request: Request) -> Result<Stream, Error> {
        request.validate()?;
        self.inner.get()?.wires.open(request)
    }

    /// Keeps the sandbox as it is now, and lets it go on: its memory with everything that runs in it, and its files. It
    /// stands still for some tens of milliseconds meanwhile. Executions and commands that run are in the snapshot, but are
    /// stopped in what is made of it, since nobody waits for them there; what they left in the background goes on.
    ///
    /// # Errors
    /// It is closed, its backend cannot do that, or there is no memory for the copy.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let inner = self.inner.get()?;
        if let Some(error) = inner.wires.lifecycle.refusal() {
            return Err(error);
        }
        let (engine, slot) = (Arc::clone(&inner.engine), Arc::clone(&inner.wires.slot));
        let shape = self.about.shape.clone();
        let original = self.clone();
        engine::run_on(&Arc::clone(&engine).handle().clone(), async move {
            let kept = engine.handle().spawn_blocking(move || slot.capture()).await;
            original.goes_on().await;
            let template = kept.map_err(engine::joined)??;
            Ok(Snapshot::new(template, shape, engine))
        })
        .await
    }

    /// Its machine goes on after it was kept, or was to be: where its time has stood still, it is told.
    pub(crate) async fn goes_on(&self) {
        if let Ok(inner) = self.inner.get()
            && self.about.shape.runs_on.capabilities.clock_stands
        {
            let told = handshake::tell_time(|request| self.simple(request));
            // An agent that does not answer keeps nobody from what was kept.
            let _ = tokio::time::timeout(inner.engine.boot_timeout(), told).await;
        }
    }

    /// Makes `count` sandboxes that go on where this one stands: see [`Sandbox::snapshot`]. All or none.
    ///
    /// # Errors
    /// As [`Sandbox::snapshot`] and [`Snapshot::restore`]; or there is no room for so many within some seconds.
    pub async fn fork(&self, count: usize) -> Result<Vec<Self>, Error> {
        let most = self.inner.get()?.engine.admission.most();
        if count >= most {
            return Err(Error::Capacity(format!(
                "{count} forks and the original are more than the {most} virtual machines that there may be at once"
            )));
        }
        let snapshot = self.snapshot().await?;
        let mut forks = Vec::with_capacity(count);
        for _ in 0..count {
            forks.push(snapshot.restore_within(FORK_PATIENCE).await?);
        }
        Ok(forks)
    }

    /// What it is made of, while it takes calls.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn running(&self) -> Result<(Arc<engine::Inner>, Arc<Slot>, Shape), Error> {
        let inner = self.inner.get()?;
        match inner.wires.lifecycle.refusal() {
            Some(error) => Err(error),
            None => Ok((Arc::clone(&inner.engine), Arc::clone(&inner.wires.slot), self.about.shape.clone())),
        }
    }

    /// Takes no calls until it is released.
    pub(crate) fn hold(&self, reason: &'static str) -> Result<(), Error> {
        self.inner.get()?.wires.lifecycle.hold(Some(Error::closed(reason)));
        Ok(())
    }

    /// Takes calls again, if it has not ended.
    pub(crate) fn release(&self) -> Result<(), Error> {
        self.inner.get()?.wires.lifecycle.hold(None);
        Ok(())
    }

    /// Takes no more calls, and ends in the background.
    pub(crate) fn end(&self, reason: &'static str) -> Result<(), Error> {
        let inner = self.inner.get()?;
        inner.wires.lifecycle.end(Error::closed(reason));
        inner.wires.mailbox.close(reason);
        Ok(())
    }

    /// Waits until its machine is gone.
    pub(crate) async fn gone(&self) -> Result<(), Error> {
        self.inner.get()?.wires.lifecycle.dead().await
    }

    /// What the machine costs the host; `None` where that is unknown, or after its end. Reads from /proc.
    pub fn host_memory(&self) -> Option<HostMemory> {
        self.inner.get().ok()?.wires.slot.host_memory()
    }

    /// The host's process that runs the machine, while it lives.
    pub fn process_id(&self) -> Option<u32> {
        self.inner.get().ok()?.wires.slot.process_id()
    }

    /// The newest console output of the guest's kernel, also after its end.
    pub fn console_tail(&self) -> String {
        self.inner.get().map(|inner| inner.wires.slot.console_tail()).unwrap_or_default()
    }

    /// Interrupts everything that runs, as Ctrl-C: code may catch it, and its state survives.
    pub fn interrupt(&self) {
        if let Ok(inner) = self.inner.get() {
            inner.wires.mailbox.interrupt();
        }
    }

    /// Closes it and waits until its machine is gone. What runs in it ends with `session_closed`. Closing again is fine.
    ///
    /// # Errors
    /// The machine could not be killed, which only a fault of the host's kernel explains.
    pub async fn close(&self) -> Result<(), Error> {
        self.end("it was closed")?;
        self.gone().await
    }
}
