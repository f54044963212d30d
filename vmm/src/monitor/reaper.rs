//! Takes dead machines apart behind their owner's back.
//!
//! Giving a machine back to the kernel takes up to 30 ms (KVM waits until no processor looks at its tables any more, the longer
//! the more doorbells there are), and longer with much memory. Nobody who ends a machine has to wait for that. One thread
//! does it for the whole process; it ends when there was nothing to do for a while. If it falls behind, owners do it themselves.

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
    /// The process whose thread takes them; another after a fork.
    served_by: Option<u32>,
    /// One is being taken apart.
    busy: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { waiting: VecDeque::new(), served_by: None, busy: false });
static CHANGED: Condvar = Condvar::new();

/// The queue holds values that are put in and taken out whole, so a panic elsewhere leaves it good.
fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
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
    let process = std::process::id();
    if queue.served_by != Some(process) {
        let started = threads::spawn(Builder::new().name("hayfork-reaper".into()), reap);
        if started.is_err() {
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            drop(waiting);
            return;
        }
        queue.served_by = Some(process);
    }
    CHANGED.notify_all();
}

/// Waits until nothing is left to be taken apart, for those who count what is left.
pub fn settle() {
    let mut queue = queue();
    while queue.served_by == Some(std::process::id()) && (queue.busy || !queue.waiting.is_empty()) {
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
            queue.served_by = None;
            return;
        }
    }
}
