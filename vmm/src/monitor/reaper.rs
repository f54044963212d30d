//! Takes dead machines apart behind their owner's back.
//!
//! Giving a machine back to the kernel takes up to 30 ms (KVM waits until no processor looks at its tables any more, the longer
//! the more doorbells there are), and longer with much memory. Nobody who ends a machine has to wait for that. One thread
//! does it for the whole process; it ends when there was nothing to do for a while. If it falls behind, owners do it themselves.
//!
//! A child made by `fork` inherits the queue but not the thread, and no business with what waits there: that is the parent's,
//! its memory is not in the child, and unmapping it would hit what the child has in its place by then.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
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
    /// The process that all this is about; another after a fork.
    process: u32,
}

static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { waiting: VecDeque::new(), served: false, busy: false, process: 0 });
static CHANGED: Condvar = Condvar::new();

/// The queue of this process. It holds values that are put in and taken out whole, so a panic elsewhere leaves it good.
fn queue() -> MutexGuard<'static, Queue> {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if queue.process != process {
        let inherited = std::mem::replace(&mut *queue, Queue { process, ..Queue::default() });
        std::mem::forget(inherited.waiting);
    }
    queue
}

/// Drops `remains` soon, in another thread if possible.
pub(crate) fn bury(remains: Remains) {
    let mut queue = queue();
    if queue.waiting.len() >= BACKLOG {
        drop(queue);
        drop(remains);
        return;
    }
    queue.waiting.push_back(remains);
    if !queue.served {
        let started = threads::spawn(Builder::new().name("hayfork-reaper".into()), reap);
        if started.is_err() {
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            drop(waiting);
            return;
        }
        queue.served = true;
    }
    CHANGED.notify_all();
}

/// Waits until nothing is left to be taken apart, for those who count what is left.
pub fn settle() {
    let mut queue = queue();
    while queue.served && (queue.busy || !queue.waiting.is_empty()) {
        queue = CHANGED.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

fn reap() {
    let mut queue = queue();
    loop {
        if let Some(remains) = queue.waiting.pop_front() {
            queue.busy = true;
            drop(queue);
            drop(remains);
            queue = self::queue();
            queue.busy = false;
            CHANGED.notify_all();
            continue;
        }
        let (again, timeout) = CHANGED.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = again;
        if timeout.timed_out() && queue.waiting.is_empty() {
            queue.served = false;
            return;
        }
    }
}
