//! Takes dead machines apart behind their owner's back.
//!
//! Giving a machine back to the kernel takes up to 30 ms (KVM waits until no processor looks at its tables any more, the longer
//! the more doorbells there are), and longer with much memory. Nobody who ends a machine has to wait for that. One thread
//! does it for the whole process; it ends when there was nothing to do for a while. If it falls behind, owners do it themselves.
//!
//! A child made by `fork` inherits what waits, but not the thread, and has no business with it: its memory is not in the child,
//! and unmapping it would hit what the child has in its place by then. So each process has an office of its own.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::threads;

/// Machines that wait to be taken apart before their owners do it themselves.
const BACKLOG: usize = 32;
/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(2);

/// What is left of a machine; dropping it is all there is to do.
pub(crate) type Remains = Box<dyn Any + Send>;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Remains>,
    /// There is a thread that takes them.
    served: bool,
    /// One is being taken apart.
    busy: bool,
}

/// The queue of one process, and behind it that of a child. A child gets its own instead of the parent's, whose lock a thread
/// that is not there may hold for ever.
struct Office {
    /// The process that it belongs to; 0 as long as nobody asked for it.
    process: AtomicU32,
    queue: Mutex<Queue>,
    changed: Condvar,
    child: OnceLock<Box<Office>>,
}

static FIRST: Office = Office::new();

impl Office {
    const fn new() -> Self {
        Self {
            process: AtomicU32::new(0),
            queue: Mutex::new(Queue { waiting: VecDeque::new(), served: false, busy: false }),
            changed: Condvar::new(),
            child: OnceLock::new(),
        }
    }

    /// This process's.
    fn of_this_process() -> &'static Self {
        let process = std::process::id();
        let mut office = &FIRST;
        loop {
            match office.process.compare_exchange(0, process, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return office,
                Err(owner) if owner == process => return office,
                Err(_) => office = office.child.get_or_init(|| Box::new(Self::new())),
            }
        }
    }

    /// It holds values that are put in and taken out whole, so a panic elsewhere leaves it good.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops `remains` soon, in another thread if possible.
pub(crate) fn bury(remains: Remains) {
    let office = Office::of_this_process();
    let mut queue = office.queue();
    if queue.waiting.len() >= BACKLOG {
        drop(queue);
        drop(remains);
        return;
    }
    queue.waiting.push_back(remains);
    if !queue.served {
        let started = threads::spawn(Builder::new().name("hayfork-reaper".into()), || reap(office));
        if started.is_err() {
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            drop(waiting);
            return;
        }
        queue.served = true;
    }
    office.changed.notify_all();
}

/// Waits until nothing is left to be taken apart, for those who count what is left.
pub fn settle() {
    let office = Office::of_this_process();
    let mut queue = office.queue();
    while queue.served && (queue.busy || !queue.waiting.is_empty()) {
        queue = office.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

fn reap(office: &Office) {
    let mut queue = office.queue();
    loop {
        if let Some(remains) = queue.waiting.pop_front() {
            queue.busy = true;
            drop(queue);
            drop(remains);
            queue = office.queue();
            queue.busy = false;
            office.changed.notify_all();
            continue;
        }
        let (again, timeout) =
            office.changed.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = again;
        if timeout.timed_out() && queue.waiting.is_empty() {
            queue.served = false;
            return;
        }
    }
}
