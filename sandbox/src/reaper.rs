//! The engine's register of virtual machines, and the thread that kills them.
//!
//! Killing a machine waits until its process is gone and its memory is free, which takes milliseconds to tens of them:
//! too long for an async thread, and it must happen also when the async runtime is on its way out. So every machine is
//! in a [`Slot`], and whoever is done with it, by wish or by `Drop` ([`Vm`]), sends the slot to the reaper's thread.
//! [`Reaper::shutdown`] kills all machines at once and waits.
//!
//! The thread ends when the last handle to the reaper is gone and its queue is empty. In a child made by `fork` it does
//! not exist, and machines there are inert; so nothing is sent to it.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use hayfork_vmm::backend::{
    BackendError, Channel, ExitReport, HostMemory, Machine, Place, ProcessStatus, Template,
};
use tokio::sync::watch;

use crate::connection::lifecycle::Death;
use crate::connection::lock;
use crate::pool::admission::Permit;
use crate::signals;

/// How long a shutdown waits for launches that are under way.
const LAUNCH_WAIT: Duration = Duration::from_secs(10);

/// One machine, from its launch until it is dead, and what is known of it afterwards.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u64,
    place: Place,
    state: Mutex<State>,
    death: watch::Sender<Death>,
    /// Given back when the machine is gone.
    permit: Mutex<Option<Permit>>,
}

/// Where the machine is.
enum State {
    Alive(Box<dyn Machine>),
    /// Gone; how it ended, if it was seen.
    Dead(Option<ExitReport>),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Alive(_) => "Alive",
            Self::Dead(_) => "Dead",
        })
    }
}

impl Slot {
    /// Which process the machine runs in, or ran in.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The newest console output; empty while the machine is being killed.
    pub(crate) fn console_tail(&self) -> String {
        match self.state.try_lock().as_deref() {
            Ok(State::Alive(machine)) => machine.console_tail(),
            Ok(State::Dead(Some(report))) => report.console_tail.clone(),
            _ => String::new(),
        }
    }

    /// What the machine costs the host, while it lives.
    pub(crate) fn host_memory(&self) -> Option<HostMemory> {
        match self.state.try_lock().as_deref() {
            Ok(State::Alive(machine)) => machine.host_memory(),
            _ => None,
        }
    }

    /// The process that runs the guest, while it lives.
    pub(crate) fn process_id(&self) -> Option<u32> {
        match self.state.try_lock().as_deref() {
            Ok(State::Alive(machine)) => machine.process_id(),
            _ => None,
        }
    }

    /// Keeps the machine as it is now. Blocks for some tens of milliseconds.
    ///
    /// # Errors
    /// It is dead, or its backend cannot.
    pub(crate) fn capture(&self) -> Result<Arc<dyn Template>, BackendError> {
        match &*lock(&self.state) {
            State::Alive(machine) => machine.capture(),
            State::Dead(Some(report)) => Err(report.clone().into_error()),
            State::Dead(None) => Err(BackendError::Killed),
        }
    }

    /// Pages that machines like this one had better have ahead, by guest address.
    pub(crate) fn working_set(&self) -> Vec<Range<u64>> {
        match &*lock(&self.state) {
            State::Alive(machine) => machine.working_set(),
            State::Dead(_) => Vec::new(),
        }
    }

    /// What the machine died of. Blocks while it is being kept, asked or killed.
    fn exit_error(&self) -> BackendError {
        match &*lock(&self.state) {
            State::Alive(machine) => machine.try_exit().map_or_else(
                // It said that it had exited, and then did not say how.
                || BackendError::Exited {
                    status: ProcessStatus::Unknown,
                    stderr_tail: String::new(),
                    console_tail: machine.console_tail(),
                },
                ExitReport::into_error,
            ),
            State::Dead(Some(report)) => report.clone().into_error(),
            State::Dead(None) => BackendError::Killed,
        }
    }

    /// Kills the machine, if it lives, and waits until it is gone.
    fn kill(&self) {
        let mut state = lock(&self.state);
        let State::Alive(machine) = &mut *state else { return };
        let result = machine.kill();
        let (report, death) = match result {
            Ok(report) => (Some(report), Ok(())),
            Err(error) => {
                tracing::error!(%error, "a virtual machine could not be killed");
                (None, Err(Arc::new(error)))
            }
        };
        *state = State::Dead(report);
        drop(state);
        lock(&self.permit).take();
        self.death.send_replace(Some(death));
    }
}

fn kill_all(slots: &[Arc<Slot>]) {
    for slot in slots {
        slot.kill();
    }
}

#[derive(Debug)]
struct Shared {
    slots: Mutex<HashMap<u64, Arc<Slot>>>,
    next: AtomicU64,
    /// No machine may be launched any more.
    closed: AtomicBool,
    /// Launches under way.
    launches: Mutex<usize>,
    launched: Condvar,
}

/// A handle to the register and the thread.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Arc<Slot>>,
    process: u32,
}

/// A launch under way; a shutdown waits for it.
pub(crate) struct Launch<'a> {
    reaper: &'a Reaper,
}

impl Reaper {
    /// An empty register and its thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (queue, jobs) = mpsc::channel::<Arc<Slot>>();
        let shared = Arc::new(Shared {
            slots: Mutex::default(),
            next: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            launches: Mutex::new(0),
            launched: Condvar::new(),
        });
        let register = Arc::clone(&shared);
        thread::Builder::new().name("hayfork-reaper".into()).stack_size(256 * 1024).spawn(move || {
            signals::block_all();
            for slot in jobs {
                slot.kill();
                lock(&register.slots).remove(&slot.number);
            }
        })?;
        Ok(Self { shared, queue, process: std::process::id() })
    }

    /// Announces a launch; `None` after a shutdown.
    pub(crate) fn announce(&self) -> Option<Launch<'_>> {
        *lock(&self.shared.launches) += 1;
        let launch = Launch { reaper: self };
        // Looked at after the announcement, so that a shutdown either is seen here or waits for this launch.
        (!self.shared.closed.load(Ordering::SeqCst)).then_some(launch)
    }

    /// Kills every machine and waits until they are gone. No machine can be launched afterwards.
    pub(crate) fn shutdown(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        let launches = lock(&self.shared.launches);
        let waited = self.shared.launched.wait_timeout_while(launches, LAUNCH_WAIT, |launches| *launches > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let slots: Vec<Arc<Slot>> = lock(&self.shared.slots).drain().map(|(_, slot)| slot).collect();
        // Mostly waiting for the kernel to free memory, so a few at a time; and here if threads are not to be had.
        thread::scope(|scope| {
            for some in slots.chunks(slots.len().div_ceil(8).max(1)) {
                if thread::Builder::new().spawn_scoped(scope, move || kill_all(some)).is_err() {
                    kill_all(some);
                }
            }
        });
    }

    fn send(&self, slot: &Arc<Slot>) {
        // The thread lives as long as this sender; after a fork there is none, and nothing to kill.
        if self.process == std::process::id() && self.queue.send(Arc::clone(slot)).is_err() {
            tracing::error!("the reaper's thread is gone");
        }
    }
}

impl Launch<'_> {
    /// Registers the machine that was launched.
    pub(crate) fn register(self, machine: Box<dyn Machine>, permit: Permit) -> Vm {
        let number = self.reaper.shared.next.fetch_add(1, Ordering::Relaxed);
        let (death, _) = watch::channel(None);
        let slot = Arc::new(Slot {
            number,
            place: machine.place(),
            state: Mutex::new(State::Alive(machine)),
            death,
            permit: Mutex::default(),
        });
        permit.is_for(&slot);
        *lock(&slot.permit) = Some(permit);
        lock(&self.reaper.shared.slots).insert(number, Arc::clone(&slot));
        Vm { slot, reaper: self.reaper.clone() }
    }
}

impl Drop for Launch<'_> {
    fn drop(&mut self) {
        *lock(&self.reaper.shared.launches) -= 1;
        self.reaper.shared.launched.notify_all();
    }
}

/// The owner of a machine: dropping it sends the machine to the reaper.
#[derive(Debug)]
pub(crate) struct Vm {
    slot: Arc<Slot>,
    reaper: Reaper,
}

impl Vm {
    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Reports the machine's death.
    pub(crate) fn death(&self) -> watch::Receiver<Death> {
        self.slot.death.subscribe()
    }

    /// The byte stream to the agent, and a descriptor that becomes readable when the machine has exited.
    ///
    /// # Errors
    /// The machine is gone, or the process has no descriptor left.
    pub(crate) fn take_channel(&self) -> io::Result<(Channel, OwnedFd)> {
        match &mut *lock(&self.slot.state) {
            State::Alive(machine) => {
                let exit = machine.exit_fd().try_clone_to_owned()?;
                let channel =
                    machine.take_channel().ok_or_else(|| io::Error::other("the channel was taken before"))?;
                Ok((channel, exit))
            }
            State::Dead(_) => Err(io::Error::other("the virtual machine was killed")),
        }
    }

    /// The error for a guest that has not answered within `after`.
    pub(crate) fn boot_failure(&self, after: Duration) -> BackendError {
        match self.slot.state.try_lock().as_deref() {
            Ok(State::Alive(machine)) => machine.boot_failure(after),
            _ => BackendError::Killed,
        }
    }

    /// What the machine died of. Waits for whoever is at it: one who keeps it, asks it or kills it.
    pub(crate) async fn exit_error(&self) -> BackendError {
        let slot = Arc::clone(&self.slot);
        // A runtime that ends kills its machines.
        tokio::task::spawn_blocking(move || slot.exit_error()).await.unwrap_or(BackendError::Killed)
    }

    /// Has the machine killed, in the background.
    pub(crate) fn kill_soon(&self) {
        self.reaper.send(&self.slot);
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill_soon();
    }
}
