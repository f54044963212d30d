//! From what a caller asks for to a machine whose agent answers.
//!
//! ```text
//!  create ── options checked ── pool: one is ready ─────────────────────────────────────────► Sandbox
//!               │                 ├─ a template, here or on disk ── restored ── renewed ────►
//!               ▼                 └─ images found ── machine launched ── agent answers ─────►
//!            bad_option              images_missing    qemu_missing …     kernel_panic, boot_timeout …
//! ```

use std::sync::Arc;
use std::time::Duration;

use hayfork_protocol::message::{Env, Language, Renew, Request};
use hayfork_protocol::mux::{Mux, Role};
use hayfork_vmm::backend::{Backend, Capabilities, ImageDigests, MachineSpec, Template};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend_choice::Chosen;
use crate::connection::handshake::{self, Met};
use crate::connection::lifecycle::Lifecycle;
use crate::connection::stream::Mailbox;
use crate::connection::task::{Connection, Parts, QUEUE};
use crate::engine::{Inner, joined};
use crate::error::{Error, SHUT_DOWN};
use crate::guest::{Guest, Wires};
use crate::images::ImageSet;
use crate::options::{SandboxOptions, default_memory_mib};
use crate::pool::admission::Permit;
use crate::pool::{Find, Key, Origin};
use crate::reaper::Vm;
use crate::sandbox::{BootTimings, Sandbox, StartedFrom};
use crate::unsafe_watch::watch_readable;

/// How long a caller waits for room before a machine in stock has to go.
const PATIENCE: Duration = Duration::from_millis(300);

/// What a sandbox is like, apart from its machine; its forks are like it.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) language: Language,
    pub(crate) memory_mib: u32,
    pub(crate) vcpus: u8,
    pub(crate) env: Env,
    pub(crate) grant_root: bool,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) runs_on: RunsOn,
}

/// What runs a machine.
#[derive(Clone, Debug)]
pub(crate) struct RunsOn {
    pub(crate) capabilities: Capabilities,
    /// Why the monitor does not run it, where that was tried.
    pub(crate) fallback: Option<String>,
}

/// What a machine is made of, and whether it is for use or to learn from.
pub(crate) enum Restore {
    /// For use.
    Usual(Arc<dyn Template>),
    /// To be asked for its working set.
    Observed(Arc<dyn Template>),
}

/// A machine that was launched and whose agent has answered.
pub(crate) struct Booted {
    pub(crate) guest: Guest,
    pub(crate) runs_on: RunsOn,
}

/// A machine that could be launched now, and what it is made of.
pub(crate) struct Plan {
    pub(crate) spec: MachineSpec,
    pub(crate) digests: ImageDigests,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) runs_on: RunsOn,
}

/// What was launched, with what is known about it.
struct Launched {
    vm: Vm,
    runs_on: RunsOn,
}

impl Inner {
    /// A sandbox as the options say, from wherever it is had soonest.
    pub(crate) async fn create(
        self: Arc<Self>,
        options: SandboxOptions,
        called: Instant,
    ) -> Result<Sandbox, Error> {
        options.validate()?;
        let memory_mib = options.memory_mib.unwrap_or(default_memory_mib(options.language));
        let vcpus = options.cpus.unwrap_or(1);
        // Once without files, so that bad options are found before missing images.
        spec("hayfork".into(), memory_mib, vcpus).validate()?;
        let key = Key { language: options.language, memory_mib, vcpus, origin: Origin::Images };
        let shape = |runs_on| Shape {
            language: options.language,
            memory_mib,
            vcpus,
            env: options.env.clone(),
            grant_root: options.grant_root,
            idle_timeout: options.idle_timeout,
            runs_on,
        };

        let limit = options.boot_timeout.unwrap_or(self.options.boot_timeout);
        let line = self.pools.line(key);
        let mut found = None;
        if !options.fresh_boot {
            match line.find() {
                Find::Ready(ready) => {
                    let (guest, runs_on) = *ready;
                    self.refill(&line);
                    return Ok(self.sandbox(guest, shape(runs_on), called, StartedFrom::Pool));
                }
                Find::Template(template) => found = Some(template),
                Find::Nothing => found = self.template_on_disk(&line).await,
            }
        }
        if let Some(template) = found {
            let permit = self.admit(memory_mib).await;
            match self.restored(Restore::Usual(Arc::clone(&template.template)), permit, called, limit).await {
                Ok(guest) => {
                    self.anticipate(&line, &template);
                    let shape = shape(template.runs_on.clone());
                    return Ok(self.sandbox(guest, shape, called, StartedFrom::Template));
                }
                Err(error) if error.is_shutdown() => return Err(error),
                Err(error) => {
                    tracing::warn!(code = error.code(), %error, "a template cannot be used; a machine is booted instead");
                    self.forget_template(&line, &template, &error);
                }
            }
        }
        let name = options.name.clone();
        let permit = self.admit(memory_mib).await;
        let Booted { guest, runs_on } = Arc::clone(&self).boot(key, name, permit, called, limit).await?;
        if !options.fresh_boot {
            self.consider_template(&line);
        }
        Ok(self.sandbox(guest, shape(runs_on), called, StartedFrom::Boot))
    }

    /// Waits in line until a caller's machine fits. Machines in stock make room for one who has waited for a moment.
    pub(crate) async fn admit(&self, memory_mib: u32) -> Permit {
        let entering = self.admission.enter(memory_mib);
        tokio::pin!(entering);
        loop {
            match tokio::time::timeout(PATIENCE, &mut entering).await {
                Ok(permit) => return permit,
                Err(_) => self.pools.shed(),
            }
        }
    }

    /// Boots a machine and waits until its agent answers.
    pub(crate) async fn boot(
        self: Arc<Self>,
        key: Key,
        name: Option<String>,
        permit: Permit,
        called: Instant,
        limit: Duration,
    ) -> Result<Booted, Error> {
        let id = new_id()?;
        let name = name.map_or_else(|| format!("hayfork-{id}"), |name| format!("{name}-{id}"));
        let inner = Arc::clone(&self);
        let launched = self.handle().spawn_blocking(move || inner.launch(key, name, permit));
        let Launched { vm, runs_on } = launched.await.map_err(joined)??;
        let guest = self.introduce(id, vm, called, limit).await?;
        if !guest.languages.iter().any(|name| name == key.language.name()) {
            return Err(Error::NoSuchLanguage {
                language: key.language.name(),
                available: guest.languages.join(", "),
            });
        }
        Ok(Booted { guest, runs_on })
    }

    /// Makes a machine that goes on where the one of `template` stood. It has randomness, a name and a time of its own before
    /// anybody gets it.
    pub(crate) async fn restored(
        self: &Arc<Self>,
        how: Restore,
        permit: Permit,
        called: Instant,
        limit: Duration,
    ) -> Result<Guest, Error> {
        let id = new_id()?;
        let _turn = self.turns.take().await;
        let inner = Arc::clone(self);
        let restored = self.handle().spawn_blocking(move || {
            let launch = inner.reaper.announce().ok_or_else(|| Error::closed(SHUT_DOWN))?;
            let machine = match how {
                Restore::Usual(template) => template.restore(),
                Restore::Observed(template) => template.restore_observed(),
            };
            Ok::<_, Error>(launch.register(machine?, permit))
        });
        let vm = restored.await.map_err(joined)??;
        let renew = renewal(&id)?;
        let guest = self.introduce(id, vm, called, limit).await?;
        within(limit, "renew itself", guest.simple(Request::Renew(renew))).await?;
        Ok(guest)
    }

    /// Gives a guest to a caller.
    pub(crate) fn sandbox(
        self: &Arc<Self>,
        guest: Guest,
        shape: Shape,
        called: Instant,
        from: StartedFrom,
    ) -> Sandbox {
        let capabilities = &shape.runs_on.capabilities;
        let is_of_the_pool = from == StartedFrom::Pool;
        let timings = BootTimings {
            from,
            launch: if is_of_the_pool { Duration::ZERO } else { guest.launch },
            handshake: if is_of_the_pool { Duration::ZERO } else { guest.handshake },
            total: called.elapsed(),
            backend: capabilities.backend.to_owned(),
            accelerator: capabilities.accelerator.to_string(),
            kernel: capabilities.kernel,
            isolation: capabilities.isolation,
            place: guest.wires.slot.place(),
            fallback: shape.runs_on.fallback.clone(),
        };
        guest.wires.mailbox.set_idle_timeout(shape.idle_timeout);
        Sandbox::new(guest, timings, shape, Arc::clone(self))
    }

    /// Waits until the agent of a running machine answers.
    async fn introduce(&self, id: String, vm: Vm, called: Instant, limit: Duration) -> Result<Guest, Error> {
        let running = Instant::now();
        let (channel, exit) =
            vm.take_channel().map_err(|error| Error::io("the machine's channel cannot be used", error))?;
        let stream = channel
            .set_nonblocking(true)
            .and_then(|()| UnixStream::from_std(channel.into_unix()))
            .map_err(|error| Error::io("the machine's channel cannot be used", error))?;
        let exit =
            watch_readable(exit).map_err(|error| Error::io("the machine's exit cannot be watched", error))?;
        let Met { hello, rest } = handshake::meet(&stream, &exit, &vm, running, limit, self.again).await?;
        tracing::debug!(id, agent = hello.agent, uptime = ?Duration::from_nanos(hello.uptime_ns), "the agent answers");

        let mailbox = Arc::new(Mailbox::default());
        let lifecycle = Arc::new(Lifecycle::new(vm.death()));
        let (runs, runs_queue) = mpsc::channel(QUEUE);
        let (operations, operations_queue) = mpsc::channel(QUEUE);
        let slot = Arc::clone(vm.slot());
        let guest = Guest {
            id,
            languages: hello.languages,
            launch: running - called,
            handshake: running.elapsed(),
            wires: Wires {
                runs,
                operations,
                mailbox: Arc::clone(&mailbox),
                lifecycle: Arc::clone(&lifecycle),
                slot,
            },
        };
        self.enrol(&guest);
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
            patience: self.patience,
        });
        self.handle().spawn(connection.run());
        Ok(guest)
    }

    /// Finds the images and the backend of a machine. Blocks.
    pub(crate) fn plan(&self, key: Key, name: String) -> Result<Plan, Error> {
        let images = self.lookup().open()?;
        let mut spec = spec(name, key.memory_mib, key.vcpus);
        spec.initramfs = images.initramfs()?;
        spec.root_image = Some(images.image(key.language.name())?);
        let suits = |found: &Capabilities| suits(found, &spec, &images);
        let Chosen { backend, capabilities, fallback } = self.backends.choose(suits)?;
        spec.kernel = images.kernel_of(capabilities.kernel)?;
        let digests = images.digests(key.language.name(), capabilities.kernel)?;
        spec.digests = Some(digests.clone());
        let fallback = fallback.map(|obstacle| obstacle.to_string());
        Ok(Plan { spec, digests, backend, runs_on: RunsOn { capabilities, fallback } })
    }

    /// Starts a machine. Blocks.
    fn launch(&self, key: Key, name: String, permit: Permit) -> Result<Launched, Error> {
        let launch = self.reaper.announce().ok_or_else(|| Error::closed(SHUT_DOWN))?;
        let Plan { spec, backend, runs_on, .. } = self.plan(key, name)?;
        let machine = backend.launch(&spec)?;
        Ok(Launched { vm: launch.register(machine, permit), runs_on })
    }
}

/// A machine without files.
pub(crate) fn spec(name: String, memory_mib: u32, vcpus: u8) -> MachineSpec {
    let mut spec = MachineSpec::new("", "");
    spec.name = name;
    spec.memory_mib = memory_mib;
    spec.vcpus = vcpus;
    spec
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

/// Waits for what a guest owes, but not for ever: its kernel may hang.
///
/// # Errors
/// What the guest says, or that it says nothing within `limit`. It is not to be used any more then.
pub(crate) async fn within(
    limit: Duration,
    what: &str,
    owed: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let late = |_| Err(Error::Unresponsive(format!("it was told to {what} and did not within {limit:?}")));
    tokio::time::timeout(limit, owed).await.unwrap_or_else(late)
}

/// What makes a restored guest another than the one that was kept.
pub(crate) fn renewal(id: &str) -> Result<Renew, Error> {
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
