//! The worker's side: a process that is confined, makes one machine, and answers for it until its owner lets go.
//!
//! ```text
//!  start ── open KVM, /proc/self ── confine ── Hello ── Launch | Restore ── confine more ── requests … ── owner gone: exit
//! ```
//! Its standard input is the socket to its owner, its first argument the owner's process id. It ends when that socket is
//! closed, which the kernel does when the owner ends, however it does; and by SIGKILL when the owner's thread that starts
//! processes ends (see [`crate::process::spawn`]).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use vm_memory::GuestAddress;

use super::confine;
use super::packet::{self, PacketError, Take};
use super::wire::{Answer, End, Failure, Hello, Impossible, Launch, Request, Restore, Saved};
use crate::after_fork::Released;
use crate::backend::BackendError;
use crate::boot::kernel::Kernel;
use crate::hypervisor::kvm::{KvmHypervisor, KvmVm};
use crate::machine::{Blueprint, Machine, Template};
use crate::memory::{self, MemoryImage, SealedImage};

/// Why a worker ends otherwise than by its owner's wish. It says so on its standard error.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("this program is started by hayfork, not by hand")]
    ByHand,
    #[error("the process that started this one is gone")]
    Orphan,
    #[error("{0}")]
    Backend(#[from] BackendError),
    #[error("{0}")]
    Confine(#[from] confine::ConfineError),
    #[error("the kernel does not tell what memory is used: {0}")]
    Memory(#[source] std::io::Error),
    #[error("{0}")]
    Packet(#[from] PacketError),
}

/// The program.
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hayfork-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), ServeError> {
    let owner: Option<i32> = std::env::args().nth(1).and_then(|argument| argument.parse().ok());
    let owner = owner.ok_or(ServeError::ByHand)?;
    if rustix::process::getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != owner) {
        return Err(ServeError::Orphan);
    }
    confine::prepare()?;
    let hypervisor = KvmHypervisor::open().map_err(BackendError::from)?;
    // While there are the rights to: what is open is read without any.
    memory::keep_open().map_err(ServeError::Memory)?;
    let stdin = std::io::stdin();
    let owner = stdin.as_fd();
    // What opens something at its first use has it now.
    drop(Released::new(&owner));
    let confinement = confine::confine()?;
    let hello = Hello { version: env!("CARGO_PKG_VERSION").to_owned(), confinement };
    packet::send(owner, &hello, &[], None)?;
    Ok(Worker::begin(owner, &hypervisor)?)
}

/// A worker with its machine.
struct Worker<'a> {
    owner: BorrowedFd<'a>,
    machine: Machine<KvmVm>,
    /// Taken when the end has been told.
    end: Option<OwnedFd>,
}

impl<'a> Worker<'a> {
    /// Waits for the machine to make, makes it, and serves it.
    fn begin(owner: BorrowedFd<'a>, hypervisor: &KvmHypervisor) -> Result<(), PacketError> {
        let made = loop {
            let (request, descriptors) = next(owner)?;
            let made = match request {
                Request::Launch(launch) => make(hypervisor, launch, descriptors),
                Request::Restore(restore) => remake(hypervisor, &restore, descriptors),
                _ => Err(prepare(&Impossible("a request before there is a machine"))),
            };
            match made {
                Ok(made) => break made,
                Err(error) => answer(owner, &Answer::Failed(Failure::of(&error)), &[])?,
            }
        };
        if let Err(error) = confine::confine_running() {
            let error = BackendError::Prepare { detail: error.to_string() };
            answer(owner, &Answer::Failed(Failure::of(&error)), &[])?;
            return Err(PacketError::Closed);
        }
        answer(owner, &Answer::Started, &[])?;
        let Made { machine, end } = made;
        Worker { owner, machine, end: Some(end) }.serve()
    }

    fn serve(mut self) -> Result<(), PacketError> {
        loop {
            let mut waiting = vec![PollFd::from_borrowed_fd(self.owner, PollFlags::IN)];
            let end = self.machine.end_fd();
            if self.end.is_some() {
                waiting.push(PollFd::from_borrowed_fd(end, PollFlags::IN));
            }
            let ready = poll(&mut waiting, None);
            let [asked, ended] =
                [0, 1].map(|at| ready.is_ok() && waiting.get(at).is_some_and(|fd| !fd.revents().is_empty()));
            drop(waiting);
            if ended
                && let Some(report) = self.machine.report()
                && let Some(end) = self.end.take()
            {
                // The owner may have let go at this moment; then there is nobody to tell.
                let _ = packet::send(end.as_fd(), &End::of(report), &[], None);
            }
            if asked {
                let (request, _) = next(self.owner)?;
                self.answer(&request)?;
            }
        }
    }

    fn answer(&self, request: &Request) -> Result<(), PacketError> {
        let plain = match request {
            Request::ConsoleTail => Answer::ConsoleTail(self.machine.console_tail()),
            Request::HostMemory => Answer::HostMemory(
                self.machine.resident().map(|resident| (resident.rest, resident.own, resident.shared)),
            ),
            Request::WorkingSet => Answer::WorkingSet(self.machine.working_set().unwrap_or_default()),
            Request::Capture => match self.machine.capture() {
                Ok(template) => return self.give(&template),
                Err(error) => Answer::Failed(Failure::of(&error)),
            },
            Request::Launch(_) | Request::Restore(_) => {
                Answer::Failed(Failure::of(&prepare(&Impossible("a second machine"))))
            }
        };
        answer(self.owner, &plain, &[])
    }

    /// Hands a template to the owner.
    fn give(&self, template: &Template) -> Result<(), PacketError> {
        let saved = packet::encode(&Saved::of(template))?;
        answer(self.owner, &Answer::Captured(saved), &template.descriptors())
    }
}

/// The next request. When the owner has let go, the process ends here: what the machine has, the kernel takes back.
fn next(owner: BorrowedFd<'_>) -> Result<packet::Received<Request>, PacketError> {
    match packet::receive(owner, Take::Until(None)) {
        Err(PacketError::Closed) => std::process::exit(0),
        received => received,
    }
}

fn answer(owner: BorrowedFd<'_>, answer: &Answer, descriptors: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
    packet::send(owner, answer, descriptors, None)
}

const MISSING: Impossible = Impossible("a descriptor that is missing");

/// What a machine was made into.
struct Made {
    machine: Machine<KvmVm>,
    /// Where its end is told.
    end: OwnedFd,
}

fn prepare(error: &dyn std::error::Error) -> BackendError {
    BackendError::Prepare { detail: format!("the worker was asked for what cannot be: {error}") }
}

fn bound_memory(ram: u64) -> Result<(), BackendError> {
    confine::bound_memory(ram).map_err(|error| BackendError::Prepare { detail: error.to_string() })
}

/// The device's end of the agent's stream, and the socket for the machine's end: what comes first with each machine.
fn ends(descriptors: &mut impl Iterator<Item = OwnedFd>) -> Result<(UnixStream, OwnedFd), BackendError> {
    match (descriptors.next(), descriptors.next()) {
        (Some(agent), Some(end)) => Ok((agent.into(), end)),
        _ => Err(prepare(&MISSING)),
    }
}

fn make(hypervisor: &KvmHypervisor, launch: Launch, descriptors: Vec<OwnedFd>) -> Result<Made, BackendError> {
    launch.validate().map_err(|error| prepare(&error))?;
    let missing = || prepare(&MISSING);
    let mut descriptors = descriptors.into_iter();
    let (agent, end) = ends(&mut descriptors)?;
    let mut image = |extents| -> Result<SealedImage, BackendError> {
        let memory = descriptors.next().ok_or_else(missing)?;
        SealedImage::adopt(memory, extents).map_err(|error| prepare(&error))
    };
    let kernel = image(launch.kernel)?;
    let initramfs = image(launch.initramfs)?;
    let root = if launch.root { Some(File::from(descriptors.next().ok_or_else(missing)?)) } else { None };
    if launch.initramfs_len > initramfs.len() {
        return Err(prepare(&Impossible("bytes of the initramfs")));
    }
    bound_memory(launch.ram)?;
    let blueprint = Blueprint {
        ram: launch.ram,
        vcpus: launch.vcpus,
        kernel: Arc::new(Kernel {
            image: kernel,
            entry: GuestAddress(launch.kernel_entry),
            end: GuestAddress(launch.kernel_end),
        }),
        initramfs: Arc::new(initramfs),
        initramfs_len: launch.initramfs_len,
        root,
        command_line: launch.command_line,
        console_bytes: usize::try_from(launch.console_bytes).unwrap_or(usize::MAX),
    };
    Ok(Made { machine: Machine::start_on(hypervisor, blueprint, Some(agent))?, end })
}

fn remake(
    hypervisor: &KvmHypervisor,
    restore: &Restore,
    descriptors: Vec<OwnedFd>,
) -> Result<Made, BackendError> {
    let saved: Saved = packet::decode(&restore.saved).map_err(|error| prepare(&error))?;
    restore.validate(saved.ram).map_err(|error| prepare(&error))?;
    bound_memory(saved.ram)?;
    let mut descriptors = descriptors.into_iter();
    let (agent, end) = ends(&mut descriptors)?;
    let template = saved.into_template(descriptors.collect())?.with_working_set(restore.working_set.clone());
    Ok(Made { machine: Machine::resume_on(hypervisor, &template, Some(agent))?, end })
}

impl Saved {
    /// What of a template is no descriptor.
    pub(super) fn of(template: &Template) -> Self {
        Self {
            state: (*template.state).clone(),
            ram: template.memory.ram(),
            layers: template.memory.layers().iter().map(|layer| layer.extents().to_vec()).collect(),
            root: template.root.is_some(),
            console_bytes: template.console_bytes as u64,
        }
    }

    /// The template, with the layers and the root image as descriptors.
    ///
    /// # Errors
    /// [`BackendError::Prepare`]: something in it cannot be.
    pub(super) fn into_template(self, descriptors: Vec<OwnedFd>) -> Result<Template, BackendError> {
        self.validate().map_err(|error| prepare(&error))?;
        if descriptors.len() != self.layers.len() + usize::from(self.root) {
            return Err(prepare(&Impossible("a descriptor that is missing, or one too many")));
        }
        let mut descriptors = descriptors.into_iter();
        let layers = self.layers.into_iter().zip(&mut descriptors);
        let layers = layers
            .map(|(extents, memory)| SealedImage::adopt(memory, extents))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| prepare(&error))?;
        let memory = MemoryImage::of_layers(self.ram, layers).map_err(|error| prepare(&error))?;
        Ok(Template {
            state: Arc::new(self.state),
            memory: Arc::new(memory),
            root: descriptors.next().map(|root| Arc::new(File::from(root))),
            console_bytes: usize::try_from(self.console_bytes).unwrap_or(usize::MAX),
            working_set: Vec::new(),
        })
    }
}

impl Template {
    /// Layers and root image, as [`Saved`] names them.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let layers = self.memory.layers().iter().map(|layer| layer.memory());
        layers.chain(self.root.as_deref().map(AsFd::as_fd)).collect()
    }
}
