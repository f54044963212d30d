//! Who may start a machine now: as many as the host has memory for, one after the other, in the order in which they came.
//!
//! ```text
//!   enter ──► turnstile (first come, first served) ──► does it fit? ── yes ──► Permit ──► the machine's end: given back
//!                                                        │   ▲
//!                                                        └───┘ when a permit comes back, or after a moment
//! ```
//! Only who stands in front is looked at, so the large are not overtaken for ever by the small. What fits: the host's memory
//! that is available now, less what machines that run are expected to take yet, less a reserve. What a machine is expected to
//! take in the end is a share of its memory, since hardly any uses all of it; one that has taken more counts with what it has.
//! If no machine runs, the next one is let in whatever there is: waiting would not help it.
//!
//! Machines that are made for the stock do not stand in line: they are made if there is room and nobody waits, and those that
//! are there make room for a caller who has waited for a moment ([`engine::Inner::admit`]).

mod host;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use self::host::Host;
use crate::connection::lock;
use crate::error::Error;
use crate::process::ThisProcess;
use crate::reaper::Slot;

/// After this time the host is looked at again, since others give memory back as well.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Share of a machine's memory that it is expected to take: one in this many.
const OVERCOMMIT: u64 = 4;
/// The host's share of its memory that stays free: one in this many.
const RESERVE: u64 = 12;
/// Descriptors that a machine takes at most, and that are left to the rest of the process.
const DESCRIPTORS: (u64, u64) = (48, 96);

/// See the module.
#[derive(Debug)]
pub(crate) struct Admission {
    turnstile: tokio::sync::Mutex<()>,
    /// Those who stand in front and do not fit: one at most, and behind it all who came later.
    waiting: AtomicUsize,
    shared: Arc<Shared>,
    host: fn() -> Host,
    /// Machines at once.
    most: usize,
}

#[derive(Debug, Default)]
struct Shared {
    live: Mutex<Live>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Live {
    machines: HashMap<u64, Machine>,
    next: u64,
}

#[derive(Debug)]
struct Machine {
    /// Bytes that it is expected to take.
    expected: u64,
    slot: Weak<Slot>,
}

/// Leave for one machine, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit(ThisProcess<Given>);

#[derive(Debug)]
struct Given {
    number: u64,
    shared: Arc<Shared>,
}

impl Permit {
    /// Says which machine it is for, whose memory counts from here on.
    pub(crate) fn is_for(&self, slot: &Arc<Slot>) {
        if let Ok(given) = self.0.get()
            && let Some(machine) = lock(&given.shared.live).machines.get_mut(&given.number)
        {
            machine.slot = Arc::downgrade(slot);
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        lock(&self.shared.live).machines.remove(&self.number);
        // Kept for who comes later if nobody waits, so none is lost.
        self.shared.freed.notify_one();
    }
}

impl Admission {
    /// For this host, and that many machines at once.
    pub(crate) fn new(most: usize) -> Self {
        Self::with_host(Host::now, most)
    }

    pub(crate) fn with_host(host: fn() -> Host, most: usize) -> Self {
        Self {
            turnstile: tokio::sync::Mutex::default(),
            waiting: AtomicUsize::new(0),
            shared: Arc::default(),
            host,
            most: most.max(1),
        }
    }

    /// Waits until a machine of that much memory fits. Dropping the future gives up the place.
    pub(crate) async fn enter(&self, memory_mib: u32) -> Permit {
        let expected = expected(memory_mib);
        let _turn = self.turnstile.lock().await;
        let mut waiting = None;
        while !self.fits(expected).await {
            if waiting.is_none() {
                tracing::debug!(memory_mib, "a machine waits for memory or descriptors");
                waiting = Some(Waiting::begin(&self.waiting));
            }
            // Whoever comes first; the time over is not an error.
            let _ = tokio::time::timeout(LOOK_AGAIN, self.shared.freed.notified()).await;
        }
        self.permit(expected)
    }

    /// Lets a machine of that much memory in if it fits and nobody waits.
    ///
    /// # Errors
    /// [`Error::Capacity`].
    pub(crate) async fn try_enter(&self, memory_mib: u32) -> Result<Permit, Error> {
        let expected = expected(memory_mib);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            let _turn = self.turnstile.lock().await;
            if self.fits(expected).await {
                return Ok(self.permit(expected));
            }
        }
        Err(Error::Capacity("this host has no room for one more virtual machine".into()))
    }

    /// The most machines at once.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    fn permit(&self, expected: u64) -> Permit {
        let mut live = lock(&self.shared.live);
        live.next += 1;
        let number = live.next;
        live.machines.insert(number, Machine { expected, slot: Weak::new() });
        Permit(ThisProcess::new(Given { number, shared: Arc::clone(&self.shared) }))
    }

    async fn fits(&self, expected: u64) -> bool {
        let machines: Vec<_> = {
            let live = lock(&self.shared.live);
            live.machines.values().map(|machine| (machine.expected, machine.slot.clone())).collect()
        };
        if machines.is_empty() || machines.len() >= self.most {
            return machines.is_empty();
        }
        // Asking the host, and machines of other processes, takes a while.
        let host = self.host;
        let look = move || have_room(&machines, host(), expected);
        tokio::task::spawn_blocking(look).await.unwrap_or(false)
    }
}

/// Somebody stands in front and does not fit.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether there is room beside these machines for one that is expected to take that much.
fn have_room(machines: &[(u64, Weak<Slot>)], host: Host, expected: u64) -> bool {
    // Those that are not made yet have not taken theirs.
    let to_be_made = machines.iter().filter(|(_, slot)| slot.strong_count() == 0).count() as u64;
    if host.descriptors < DESCRIPTORS.1 + DESCRIPTORS.0 * (1 + to_be_made) {
        return false;
    }
    let room = host.available.saturating_sub(host.total / RESERVE);
    let promised = machines.iter().map(|(expected, _)| expected).sum::<u64>();
    if room >= promised + expected {
        return true;
    }
    // What they have taken already is no longer available, so it must not count twice.
    let to_come: u64 = machines
        .iter()
        .map(|(expected, slot)| {
            let used = slot.upgrade().and_then(|slot| slot.host_memory());
            expected.saturating_sub(used.map_or(0, |used| used.guest + used.overhead))
        })
        .sum();
    room >= to_come + expected
}

/// Bytes that a machine of that much memory is expected to take.
fn expected(memory_mib: u32) -> u64 {
    (u64::from(memory_mib) << 20) / OVERCOMMIT
}

#[cfg(test)]
mod tests;
