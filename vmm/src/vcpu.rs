//! Virtual CPUs on threads of their own (`hayfork-vcpu0`, ...), written against the hypervisor [seam](crate::hypervisor).
//!
//! A thread makes its virtual CPU, sets it up, and executes the guest, handing each exit to an [`Exits`] with no lock
//! held. All virtual CPUs of a machine do the same thing at the same time:
//!
//! ```text
//!             create                 resume                    guest's end, stop, drop
//!   (threads ───────► parked ◄──────────────────► in the guest ───────────────────────► leaving ──► ended
//!    start)             │          pause                                                  ▲          (end_fd readable,
//!                       └─────────────────────────────────────────────────────────────────┘           end() is Some)
//! ```
//!
//! * **parked**: the thread is out of the guest, and the access that the guest was last at is finished: `KVM_RUN` was
//!   entered once more with `immediate_exit`, which completes it and executes nothing. Only now does the virtual CPU have
//!   a state that can be read; [`VcpuThreads::on_each`] runs closures on the threads for that.
//! * **leaving**: the first virtual CPU that cannot go on (or the owner) records why, and kicks the others out.
//! * **ended**: when the last thread is out of the guest, the [`End`] is published, exactly once, and
//!   [`VcpuThreads::end_fd`] becomes readable and stays so. No handler is called any more.
//!
//! A virtual CPU that waits for an interrupt, or for another to start it, does so inside the hypervisor, and a kick ends that
//! wait like any other. A handler that never returns cannot be ended: pausing runs out of time, and dropping waits for it.
//!
//! In a child made by `fork` none of these threads exists; what it has inherited does nothing there, and may be dropped.

mod bus;
mod control;
mod end;
mod exits;
mod thread;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

pub use bus::{Bus, BusError, Mmio, PortIo};
pub use end::{End, EndCause};
pub use exits::{Exits, Flow, StopCause};

use self::control::{Control, Job};
use crate::hypervisor::{HypervisorError, Vcpu, Vm};
use crate::threads;

/// What can go wrong with the threads of a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VcpuError {
    /// A thread cannot be started, or a descriptor not be made.
    #[error("the threads of the virtual CPUs cannot be started: {0}")]
    Threads(#[source] std::io::Error),
    /// A virtual CPU cannot be created.
    #[error("virtual CPU {index} cannot be created: {source}")]
    Create {
        /// Which.
        index: u8,
        /// Why.
        source: HypervisorError,
    },
    /// A virtual CPU was created, but not set up.
    #[error("virtual CPU {index} cannot be set up: {source}")]
    Setup {
        /// Which.
        index: u8,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A thread ended before its virtual CPU was there.
    #[error("the thread of virtual CPU {index} panicked")]
    Lost {
        /// Which.
        index: u8,
    },
    /// The virtual CPUs have ended, or are about to.
    #[error("the virtual CPUs have ended")]
    Ended,
    /// The virtual CPUs run, and what was asked needs them paused.
    #[error("the virtual CPUs are not paused")]
    NotPaused,
    /// A handler of the guest's accesses did not come back in time. The request stands: it can be waited for again.
    #[error("the virtual CPUs did not come out of the guest within {} ms", patience.as_millis())]
    Timeout {
        /// How long was waited.
        patience: Duration,
    },
    /// This is a child made by `fork`, which does not have the threads.
    #[error("virtual CPUs cannot be used in a child made by fork")]
    Forked,
}

/// Exits so far, of all virtual CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitCounts {
    /// Accesses to device memory.
    pub mmio: u64,
    /// Accesses to ports; a string of them in one instruction may count once.
    pub ports: u64,
    /// Kicks and all the rest.
    pub others: u64,
}

/// The virtual CPUs of one machine. See the [module](self) for their states. Dropping ends them and waits for the threads.
pub struct VcpuThreads<V: Vm> {
    control: Arc<Control<V>>,
    threads: Vec<JoinHandle<()>>,
    /// Held while there are jobs: there is room for one for each thread.
    jobs: Mutex<()>,
    /// The process that has the threads.
    process: u32,
}

impl<V: Vm> VcpuThreads<V> {
    /// Makes `count` virtual CPUs, each on its own thread, which calls `setup` with its number and leaves it parked. They
    /// are made at the same time, and all are there when this returns; doorbells are best made after it.
    ///
    /// # Errors
    /// The first error of any of them; those that were made are gone again.
    pub fn create<E, S, X>(vm: &Arc<V>, count: u8, exits: &Arc<E>, setup: S) -> Result<Self, VcpuError>
    where
        E: Exits,
        S: Fn(u8, &mut V::Vcpu) -> Result<(), X> + Send + Sync + 'static,
        X: Into<Box<dyn Error + Send + Sync>>,
    {
        let control = Arc::new(Control::new(usize::from(count)).map_err(VcpuError::Threads)?);
        let setup = Arc::new(setup);
        let (ready, made) = mpsc::channel();
        let mut this =
            Self { control, threads: Vec::new(), jobs: Mutex::new(()), process: std::process::id() };
        for index in 0..count {
            let (vm, exits, setup) = (Arc::clone(vm), Arc::clone(exits), Arc::clone(&setup));
            let (control, ready) = (Arc::clone(&this.control), ready.clone());
            let body = move || {
                let left = Left(&control);
                match make(&*vm, index, &*setup) {
                    Ok(mut vcpu) => {
                        // The maker may have given up; then it says so to all of us.
                        let _ = ready.send((index, Ok(vcpu.kicker())));
                        drop((ready, vm, setup));
                        let counters = &control.exits[usize::from(index)];
                        thread::run(&control, index, &mut vcpu, &*exits, counters);
                        // The end is published before the virtual CPU is destroyed, which may destroy the machine too.
                        drop(left);
                        drop(vcpu);
                    }
                    Err(error) => {
                        let _ = ready.send((index, Err(error)));
                    }
                }
            };
            this.control.enter();
            let builder = Builder::new().name(format!("hayfork-vcpu{index}"));
            match threads::spawn(builder, body) {
                Ok(thread) => this.threads.push(thread),
                Err(error) => {
                    this.control.leave();
                    return Err(VcpuError::Threads(error));
                }
            }
        }
        drop(ready);
        // Waited for once: those that are made park, and all others have left.
        this.pause(Duration::MAX)?;
        let mut kickers: Vec<_> = std::iter::repeat_with(|| None).take(usize::from(count)).collect();
        for (index, result) in made {
            kickers[usize::from(index)] = Some(result?);
        }
        let missing = kickers.iter().position(Option::is_none);
        if let Some(index) = missing {
            return Err(VcpuError::Lost { index: u8::try_from(index).unwrap_or(u8::MAX) });
        }
        // Nobody has wanted them out of the guest yet.
        this.control.set_kickers(kickers.into_iter().flatten().collect());
        Ok(this)
    }

    /// Lets the virtual CPUs execute the guest: the first time, or after a [pause](Self::pause).
    ///
    /// # Errors
    /// [`Ended`](VcpuError::Ended), [`Forked`](VcpuError::Forked).
    pub fn resume(&self) -> Result<(), VcpuError> {
        self.check_process()?;
        if self.control.resume() { Ok(()) } else { Err(VcpuError::Ended) }
    }

    /// Takes all virtual CPUs out of the guest and returns when they are parked.
    ///
    /// # Errors
    /// [`Timeout`](VcpuError::Timeout) when a handler takes longer than `patience`; the virtual CPUs park as soon as they
    /// can, and this may be called again. [`Ended`](VcpuError::Ended), [`Forked`](VcpuError::Forked).
    pub fn pause(&self, patience: Duration) -> Result<(), VcpuError> {
        self.check_process()?;
        match self.control.pause(patience) {
            Some(true) => Ok(()),
            Some(false) => Err(VcpuError::Timeout { patience }),
            None => Err(VcpuError::Ended),
        }
    }

    /// Calls `work` for each virtual CPU, on its thread, at the same time; results in their order. They must be paused. Not
    /// to be called from a handler or from `work`.
    ///
    /// # Errors
    /// [`NotPaused`](VcpuError::NotPaused); [`Ended`](VcpuError::Ended) if they end meanwhile;
    /// [`Forked`](VcpuError::Forked).
    pub fn on_each<R, F>(&self, work: F) -> Result<Vec<R>, VcpuError>
    where
        R: Send + 'static,
        F: Fn(u8, &mut V::Vcpu) -> R + Send + Sync + 'static,
    {
        self.post(work, |_| {})
    }

    /// Calls `work` as [`on_each`](Self::on_each) does. If it succeeds for all, `before` is called on one of their threads and
    /// they execute the guest, else they stay paused. That is [`resume`](Self::resume) without a thread waking another twice.
    ///
    /// # Errors
    /// As [`on_each`](Self::on_each); within, the error of the first virtual CPU that has one.
    pub fn resume_after<E, F, B>(&self, work: F, before: B) -> Result<Result<(), E>, VcpuError>
    where
        E: Send + 'static,
        F: Fn(u8, &mut V::Vcpu) -> Result<(), E> + Send + Sync + 'static,
        B: FnOnce() + Send + 'static,
    {
        let left = AtomicUsize::new(self.threads.len());
        let before = Mutex::new(Some(before));
        let control = Arc::downgrade(&self.control);
        let results = self.post(work, move |result| {
            let mut before = before.lock().unwrap_or_else(PoisonError::into_inner);
            if result.is_err() {
                *before = None;
            }
            if left.fetch_sub(1, Ordering::SeqCst) == 1
                && let Some(before) = before.take()
                && let Some(control) = control.upgrade()
            {
                before();
                // Those that are to stop by now find that out by themselves.
                control.resume();
            }
        })?;
        Ok(results.into_iter().collect())
    }

    /// `work` for each virtual CPU, and then, on the same thread, `done` for its result.
    fn post<R, F, D>(&self, work: F, done: D) -> Result<Vec<R>, VcpuError>
    where
        R: Send + 'static,
        F: Fn(u8, &mut V::Vcpu) -> R + Send + Sync + 'static,
        D: Fn(&R) + Send + Sync + 'static,
    {
        self.check_process()?;
        let _one_at_a_time = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let work = Arc::new((work, done));
        let (sender, results) = mpsc::channel();
        let count = self.threads.len();
        let jobs = (0..count).map(|_| {
            let (work, sender) = (Arc::clone(&work), sender.clone());
            Box::new(move |index: u8, vcpu: &mut V::Vcpu| {
                let result = (work.0)(index, vcpu);
                (work.1)(&result);
                // Received until all senders are gone.
                let _ = sender.send((index, result));
            }) as Job<V>
        });
        match self.control.post(jobs) {
            Some(true) => {}
            Some(false) => return Err(VcpuError::NotPaused),
            None => return Err(VcpuError::Ended),
        }
        drop(sender);
        let mut results: Vec<_> = results.into_iter().collect();
        if results.len() < count {
            return Err(VcpuError::Ended);
        }
        results.sort_by_key(|(index, _)| *index);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }

    /// Asks all virtual CPUs to leave; the end is [`Stopped`](EndCause::Stopped) unless it is something else already.
    /// Does not wait.
    pub fn stop(&self) {
        if self.check_process().is_ok() {
            self.control.end(End { vcpu: None, cause: EndCause::Stopped, program_counter: None });
        }
    }

    /// How it ended; `None` until the last virtual CPU has left the guest.
    pub fn end(&self) -> Option<&End> {
        self.control.ended()
    }

    /// Becomes readable when [`Self::end`] has an answer, and stays so. Not to be read from.
    pub fn end_fd(&self) -> BorrowedFd<'_> {
        self.control.end_fd()
    }

    /// Exits so far.
    pub fn exit_counts(&self) -> ExitCounts {
        let mut sum = ExitCounts::default();
        for counters in &self.control.exits {
            sum.mmio += counters.mmio.load(Ordering::Relaxed);
            sum.ports += counters.ports.load(Ordering::Relaxed);
            sum.others += counters.others.load(Ordering::Relaxed);
        }
        sum
    }

    /// Counts exits from 0 again. The virtual CPUs must be paused, else one that counts at the moment goes on from its number.
    pub fn forget_exits(&self) {
        for counters in &self.control.exits {
            for counter in [&counters.mmio, &counters.ports, &counters.others] {
                counter.store(0, Ordering::Relaxed);
            }
        }
    }

    fn check_process(&self) -> Result<(), VcpuError> {
        if std::process::id() == self.process { Ok(()) } else { Err(VcpuError::Forked) }
    }
}

impl<V: Vm> VcpuThreads<V> {
    /// Ends all virtual CPUs and waits until their threads are gone. Dropping does the same.
    pub fn join(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if self.check_process().is_err() {
            // They are threads of another process, and waiting for them would be forever.
            std::mem::forget(threads);
            return;
        }
        self.stop();
        for thread in threads {
            // A panic of it has been reported as the end.
            let _ = thread.join();
        }
    }
}

impl<V: Vm> Drop for VcpuThreads<V> {
    fn drop(&mut self) {
        self.join();
    }
}

impl<V: Vm> std::fmt::Debug for VcpuThreads<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VcpuThreads")
            .field("count", &self.threads.len())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}

/// Reports, when dropped, that a thread has left, by whatever way.
struct Left<'a, V: Vm>(&'a Control<V>);

impl<V: Vm> Drop for Left<'_, V> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Creates a virtual CPU on this thread and sets it up.
fn make<V, S, X>(vm: &V, index: u8, setup: &S) -> Result<V::Vcpu, VcpuError>
where
    V: Vm,
    S: Fn(u8, &mut V::Vcpu) -> Result<(), X>,
    X: Into<Box<dyn Error + Send + Sync>>,
{
    let mut vcpu = vm.create_vcpu(index).map_err(|source| VcpuError::Create { index, source })?;
    setup(index, &mut vcpu).map_err(|error| VcpuError::Setup { index, source: error.into() })?;
    Ok(vcpu)
}
