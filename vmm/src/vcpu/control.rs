//! What the threads of a machine's virtual CPUs and their owner share: the state machine of the [module above](super).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::{End, EndCause};
use crate::hypervisor::{Kick, Vcpu, Vm};

/// Something to do with a virtual CPU on its own thread.
pub(super) type Job<V> = Box<dyn FnOnce(u8, &mut <V as Vm>::Vcpu) + Send>;

type Kicker<V> = <<V as Vm>::Vcpu as Vcpu>::Kicker;

/// What all virtual CPUs of a machine are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Pause,
    Run,
    Stop,
}

/// Under the lock.
struct State<V: Vm> {
    wanted: Wanted,
    /// Threads that are not in the guest and have nothing half done.
    parked: usize,
    /// Threads that have not left.
    alive: usize,
    /// What each thread is to do while it is parked.
    jobs: Vec<Option<Job<V>>>,
    /// Set by the first to end; published when all have left.
    end: Option<End>,
}

/// See the [module](self).
pub(super) struct Control<V: Vm> {
    state: Mutex<State<V>>,
    changed: Condvar,
    /// Of all virtual CPUs; empty until all have been made.
    kickers: OnceLock<Vec<Kicker<V>>>,
    end: OnceLock<End>,
    /// Readable from the moment that `end` is there.
    ended: OwnedFd,
    pub(super) exits: Vec<Counters>,
}

/// Exits of one virtual CPU; only its own thread counts.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counters {
    pub(super) mmio: AtomicU64,
    pub(super) ports: AtomicU64,
    pub(super) others: AtomicU64,
}

impl Counters {
    /// One more. Nobody else writes, so this need not be one instruction.
    pub(super) fn count(counter: &AtomicU64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// What a parked thread does next.
pub(super) enum Next<V: Vm> {
    Run,
    Job(Job<V>),
    Leave,
}

impl<V: Vm> Control<V> {
    pub(super) fn new(count: usize) -> std::io::Result<Self> {
        Ok(Self {
            state: Mutex::new(State {
                wanted: Wanted::Pause,
                parked: 0,
                alive: 0,
                jobs: std::iter::repeat_with(|| None).take(count).collect(),
                end: None,
            }),
            changed: Condvar::new(),
            kickers: OnceLock::new(),
            end: OnceLock::new(),
            ended: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            exits: std::iter::repeat_with(Counters::default).take(count).collect(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<V>> {
        // A panic under this lock is not one of a handler; what it protects is whole at every point.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // For the threads.

    /// A thread is about to start; undone by [`Self::leave`].
    pub(super) fn enter(&self) {
        self.lock().alive += 1;
    }

    /// Whether this thread should be in the guest.
    pub(super) fn wants_run(&self) -> bool {
        self.lock().wanted == Wanted::Run
    }

    /// Waits, as one of the parked, for something to do. `was_parked` as of the last call: a thread that comes back from
    /// a job was counted all the time.
    pub(super) fn park(&self, index: u8, was_parked: bool) -> Next<V> {
        let mut state = self.lock();
        if !was_parked {
            state.parked += 1;
            self.changed.notify_all();
        }
        loop {
            if state.wanted == Wanted::Stop {
                state.parked -= 1;
                return Next::Leave;
            }
            if let Some(job) = state.jobs.get_mut(usize::from(index)).and_then(Option::take) {
                return Next::Job(job);
            }
            if state.wanted == Wanted::Run {
                state.parked -= 1;
                return Next::Run;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// All virtual CPUs are to leave, for this reason unless there is one already.
    pub(super) fn end(&self, end: End) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(end);
        }
        state.wanted = Wanted::Stop;
        // Jobs that nobody will do are dropped: whoever waits for one sees that.
        let jobs: Vec<_> = state.jobs.iter_mut().map(Option::take).collect();
        self.publish_if_all_left(&mut state);
        drop(state);
        drop(jobs);
        self.changed.notify_all();
        self.kick_all();
    }

    /// A thread has left the guest for good. The last one publishes the end.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.alive -= 1;
        self.publish_if_all_left(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    fn publish_if_all_left(&self, state: &mut State<V>) {
        if state.alive > 0 {
            return;
        }
        let stopped = || End { vcpu: None, cause: EndCause::Stopped, program_counter: None };
        if self.end.set(state.end.take().unwrap_or_else(stopped)).is_ok() {
            // An eventfd's counter is not full after one write.
            let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
        }
    }

    // For the owner.

    pub(super) fn set_kickers(&self, kickers: Vec<Kicker<V>>) {
        // Called once.
        let _ = self.kickers.set(kickers);
    }

    fn kick_all(&self) {
        for kicker in self.kickers.get().into_iter().flatten() {
            kicker.kick();
        }
    }

    /// Lets the virtual CPUs run; false if they are to stop.
    pub(super) fn resume(&self) -> bool {
        let mut state = self.lock();
        if state.wanted == Wanted::Stop {
            return false;
        }
        state.wanted = Wanted::Run;
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Takes the virtual CPUs out of the guest and waits until they are parked. `Some(true)` when they are, `Some(false)` if time
    /// ran out, `None` if they are to stop.
    pub(super) fn pause(&self, patience: Duration) -> Option<bool> {
        // None: for ever.
        let deadline = Instant::now().checked_add(patience);
        let mut state = self.lock();
        if state.wanted == Wanted::Run {
            state.wanted = Wanted::Pause;
            drop(state);
            self.kick_all();
            state = self.lock();
        }
        loop {
            if state.wanted == Wanted::Stop {
                return None;
            }
            if state.parked == state.alive {
                return Some(true);
            }
            let left = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Some(false);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives each thread a job. `Some(false)` if not all are parked and to stay so, `None` if they are to stop.
    pub(super) fn post(&self, jobs: impl Iterator<Item = Job<V>>) -> Option<bool> {
        let mut state = self.lock();
        match state.wanted {
            Wanted::Stop => return None,
            Wanted::Run => return Some(false),
            Wanted::Pause if state.parked != state.alive => return Some(false),
            Wanted::Pause => {}
        }
        for (place, job) in state.jobs.iter_mut().zip(jobs) {
            *place = Some(job);
        }
        drop(state);
        self.changed.notify_all();
        Some(true)
    }

    pub(super) fn ended(&self) -> Option<&End> {
        self.end.get()
    }

    pub(super) fn end_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}
