//! The thread that serves a machine's devices.
//!
//! ```text
//!  guest writes QueueNotify ──► doorbell (eventfd) ──┐
//!  host socket is ready ────────────────────────────►│ epoll ──► subscriber ──► device ──► interrupt line
//!  timer ───────────────────────────────────────────►│ (one thread for each machine)
//! ```
//! [`event_manager`] does the waiting and hands each descriptor's events to the [subscriber](MutEventSubscriber) that asked
//! for them. A subscriber handles a bounded amount of work and rings its own bell when something is left, so that no device
//! starves another. The thread is none of an async runtime's: guests must not be able to hold up the host program's tasks.
//!
//! Devices are behind locks of their own ([`MmioDevice`](hayfork_devices::virtio::transport::mmio::MmioDevice)), which this
//! thread holds while it serves one, and vCPU threads for the length of a register access. Nobody holds one across a guest's
//! execution.

mod doorbells;
mod vsock;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use rustix::event::{EventfdFlags, eventfd};

use crate::threads;

pub use doorbells::{DoorbellSubscriber, ring};
pub use vsock::{AGENT_PORT, Vsock, VsockSubscriber};

/// Something that is served by the loop.
pub type Subscriber = Box<dyn MutEventSubscriber + Send>;

/// The running thread. Dropping it stops it and waits until it is gone.
#[derive(Debug)]
pub struct DeviceLoop {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a child made by fork has not.
    process: u32,
}

/// What the thread is asked for, and where it stands.
#[derive(Debug)]
struct Stop {
    wanted: AtomicBool,
    bell: OwnedFd,
    parking: Mutex<Parking>,
    changed: Condvar,
}

#[derive(Default)]
struct Parking {
    wanted: bool,
    /// The thread holds nothing half done, and waits.
    parked: bool,
    /// What it serves from here on, in place of what it has served.
    next: Option<Box<EventManager<Subscriber>>>,
}

impl std::fmt::Debug for Parking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parking").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Stop {
    fn parking(&self) -> MutexGuard<'_, Parking> {
        self.parking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resume(&self) {
        self.parking().wanted = false;
        self.changed.notify_all();
    }

    /// The thread waits here while it is to be parked. Gives what it is to serve from here on, if that is something else.
    fn park_if_wanted(&self) -> Option<Box<EventManager<Subscriber>>> {
        let mut parking = self.parking();
        while parking.wanted && !self.wanted.load(Ordering::SeqCst) {
            parking.parked = true;
            self.changed.notify_all();
            parking = self.changed.wait(parking).unwrap_or_else(PoisonError::into_inner);
        }
        parking.parked = false;
        parking.next.take()
    }

    /// What waits for the events of these subscribers, and for this bell.
    fn manager(stop: &Arc<Self>, subscribers: Vec<Subscriber>) -> io::Result<EventManager<Subscriber>> {
        let mut manager: EventManager<Subscriber> = EventManager::new().map_err(io::Error::other)?;
        manager.add_subscriber(Box::new(StopSubscriber(Arc::clone(stop))));
        for subscriber in subscribers {
            manager.add_subscriber(subscriber);
        }
        Ok(manager)
    }
}

/// Makes the loop look at its flag.
struct StopSubscriber(Arc<Stop>);

impl MutEventSubscriber for StopSubscriber {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        // Read, so that a loop that goes on after a pause does not turn for nothing.
        let _ = rustix::io::read(&self.0.bell, &mut [0; 8]);
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, &self.0.bell, 0, EventSet::IN);
    }
}

impl DeviceLoop {
    /// Starts a thread that serves `subscribers` from [`Self::resume`] on.
    ///
    /// # Errors
    /// There is no descriptor, memory or thread left.
    pub fn start(subscribers: Vec<Subscriber>) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = Arc::new(Stop {
            wanted: AtomicBool::new(false),
            bell,
            parking: Mutex::new(Parking { wanted: true, parked: false, next: None }),
            changed: Condvar::new(),
        });
        let mut manager = Box::new(Stop::manager(&stop, subscribers)?);
        let watched = Arc::clone(&stop);
        let thread = threads::spawn(Builder::new().name("hayfork-devices".into()), move || {
            while !watched.wanted.load(Ordering::SeqCst) {
                if let Some(next) = watched.park_if_wanted() {
                    manager = next;
                }
                if let Err(error) = manager.run() {
                    // Only a lack of kernel memory gets here. Waiting makes room.
                    tracing::warn!(%error, "waiting for device events");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread), process: std::process::id() })
    }

    /// Has the thread finish what it is at, and wait. Events that come meanwhile are served after [`Self::resume`]. False if it
    /// has not come to rest within `patience`; the request stands.
    pub fn park(&self, patience: Duration) -> bool {
        let mut parking = self.stop.parking();
        parking.wanted = true;
        ring(self.stop.bell.as_fd());
        let rest = self.stop.changed.wait_timeout_while(parking, patience, |parking| !parking.parked);
        rest.unwrap_or_else(PoisonError::into_inner).0.parked
    }

    /// Lets the thread begin, or go on after it was parked.
    pub fn resume(&self) {
        self.stop.resume();
    }

    /// [`Self::resume`], for another thread to call.
    pub fn resumer(&self) -> impl FnOnce() + Send + 'static {
        let stop = Arc::clone(&self.stop);
        move || stop.resume()
    }

    /// Has the thread serve others from [`Self::resume`] on. It must be [parked](Self::park). Those that it has served are dropped
    /// by it, without another event.
    ///
    /// # Errors
    /// There is no descriptor left. Nothing has changed then.
    pub fn replace(&self, subscribers: Vec<Subscriber>) -> io::Result<()> {
        let next = Box::new(Stop::manager(&self.stop, subscribers)?);
        self.stop.parking().next = Some(next);
        Ok(())
    }

    /// Stops the thread and waits until it is gone, and its subscribers with it.
    pub fn stop(&mut self) {
        if self.process != std::process::id() {
            // Waiting for a thread that is not there would be for ever.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.wanted.store(true, Ordering::SeqCst);
        // Under the lock, so that a thread about to park does not miss it.
        drop(self.stop.parking());
        self.stop.changed.notify_all();
        ring(self.stop.bell.as_fd());
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Drop for DeviceLoop {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Adds a descriptor. Fails only for want of kernel memory, or if the descriptor is there already.
fn add(ops: &mut EventOps, descriptor: &impl AsRawFd, data: u32, events: EventSet) {
    if let Err(error) = ops.add(Events::with_data(descriptor, data, events)) {
        tracing::error!(%error, "a device's descriptor cannot be watched");
    }
}
