//! The virtio-mmio transport (virtio 1.2, 4.2), in its modern form only: a page of registers, one interrupt.
//!
//! # Device status
//! A driver may only climb, one bit at a time or several, and only by the ladder; what does not fit is
//! ignored and counted. Writing 0 leads back to the start from everywhere.
//!
//! ```text
//!   0 ──► ACKNOWLEDGE ──► DRIVER ──► FEATURES_OK ──► DRIVER_OK      the device is live
//!                           │            │               │
//!                        features     queues are    rings are wild, or a
//!                        are chosen   set up        queue was broken: + DEVICE_NEEDS_RESET
//! ```
//!
//! Features can be written in DRIVER and queues in FEATURES_OK, and nowhere else. At DRIVER_OK the queue
//! registers become [`ActiveQueues`], which cannot be changed any more; see [`crate::virtio::queue`].
//!
//! # Threads
//! Everything is callable from several threads at once: vCPUs read and write registers, the device's thread
//! processes queues. One lock holds registers, queues and device together. Not behind it, so that a vCPU in
//! its interrupt handler never waits for a device at work: InterruptStatus, InterruptACK, Status (reading),
//! QueueNotify, ConfigGeneration and all that is constant.
//!
//! A reset takes the lock, and devices work only under it; so when a driver's reset returns, nothing of the
//! device is in flight, and no guest memory is touched until the driver begins anew.
//!
//! # Interrupts
//! One line for everything, meant to be edge-triggered: [`InterruptLine::raise`] makes one pulse. The status
//! bit is set before the pulse and cleared only by the driver's ACK of just that bit, and every event makes
//! a pulse of its own; so an event between the driver's read of the status and its ACK is seen by the next
//! handler.
//!
//! # Register map
//! The offsets are those of virtio 1.2, table 4.1. All registers are 4 bytes wide and accessed as a whole;
//! the configuration space from 0x100 on by 1, 2, 4 or 8 bytes. The doorbell is QueueNotify: 4 bytes at
//! 0x50, whose value is the queue's number. Where the hypervisor catches that write by itself (ioeventfd),
//! it never arrives here; where not, it is reported by [`Notification::Queue`].

mod interrupt;
mod registers;
mod state;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vm_memory::GuestMemory;

use crate::virtio::device::{Progress, VirtioDevice};
use crate::virtio::queue::{ActiveQueues, QueueError, QueueRegisters};

use interrupt::Interrupt;
use registers::{Registers, Status};

pub use crate::interrupt::InterruptLine;
pub use registers::{
    ACKNOWLEDGE, CONFIG_SPACE, DRIVER, DRIVER_OK, FAILED, FEATURES_OK, INTERRUPT_CONFIG, INTERRUPT_QUEUE,
    NEEDS_RESET, QUEUE_NOTIFY, REGION_SIZE,
};
pub use state::{MmioState, STATE_VERSION, StateError};

/// The object-safe view of a register file, for a bus. Offsets are from the start of the region.
pub trait MmioRegisters: Send + Sync {
    /// A vCPU read: fills all of `data`.
    fn read(&self, offset: u64, data: &mut [u8]);

    /// A vCPU wrote.
    fn write(&self, offset: u64, data: &[u8]);
}

/// The object-safe view of a whole device, for whoever serves its queues.
pub trait MmioTransport: MmioRegisters {
    /// Number of queues, and so of doorbells.
    fn queue_count(&self) -> u16;

    /// See [`MmioDevice::process_queue`].
    fn process_queue(&self, index: u16) -> Progress;

    /// See [`MmioDevice::reset`].
    fn reset(&self);

    /// See [`MmioDevice::resume`].
    fn resume(&self);

    /// See [`MmioDevice::save`].
    fn save(&self) -> MmioState;

    /// See [`MmioDevice::restore`].
    ///
    /// # Errors
    /// As there.
    fn restore(&self, state: &MmioState) -> Result<(), StateError>;
}

/// What the driver did, for the thread that serves the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// The driver rang for this queue by a register write that no doorbell caught.
    Queue(u16),
    /// The device went live, stopped, or was reset. A device with events of its own may have some now.
    StateChanged,
}

/// How the transport wakes the thread that serves the device. Called on vCPU threads, without locks held;
/// must not wait.
///
/// Any `Fn(Notification)` is one.
pub trait Notify: Send + Sync {
    /// Tells of one notification.
    fn notify(&self, notification: Notification);
}

impl<F: Fn(Notification) + Send + Sync> Notify for F {
    fn notify(&self, notification: Notification) {
        self(notification);
    }
}

/// Queues by the device's state.
#[derive(Debug)]
enum Queues {
    /// The driver may set them up.
    Setup(Vec<QueueRegisters>),
    /// The device may use them.
    Active(ActiveQueues),
    /// Nobody may do anything until a reset: the driver broke one, or has given up.
    Stopped,
}

/// What the lock guards.
#[derive(Debug)]
struct Inner<D> {
    registers: Registers,
    queues: Queues,
    device: D,
    failure: Option<QueueError>,
}

#[derive(Debug, Default)]
struct Counts {
    ignored: AtomicU64,
    notifications: AtomicU64,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MmioCounters {
    /// Accesses without effect: of a wrong size, at an unknown offset, or in a state that forbids them.
    pub ignored: u64,
    /// Notifications that came as register writes.
    pub notifications: u64,
    /// Interrupts to the driver.
    pub interrupts: u64,
}

/// A virtio device behind a page of registers.
pub struct MmioDevice<D, M> {
    device_type: u32,
    features: u64,
    queue_sizes: Vec<u16>,
    mem: M,
    /// Written under the lock, read without.
    status: Status,
    interrupt: Interrupt,
    notify: Box<dyn Notify>,
    counts: Counts,
    inner: Mutex<Inner<D>>,
}

impl<D, M> MmioDevice<D, M>
where
    D: VirtioDevice<M>,
    M: GuestMemory,
{
    /// Puts a device behind registers, in the state after a reset.
    pub fn new(device: D, mem: M, line: Box<dyn InterruptLine>, notify: Box<dyn Notify>) -> Self {
        let queue_sizes = device.queue_sizes().to_vec();
        Self {
            device_type: device.device_type(),
            features: device.features(),
            mem,
            status: Status::default(),
            interrupt: Interrupt::new(line),
            notify,
            counts: Counts::default(),
            inner: Mutex::new(Inner {
                registers: Registers::default(),
                queues: setup(&queue_sizes),
                device,
                failure: None,
            }),
            queue_sizes,
        }
    }

    /// Number of queues, and so of doorbells.
    pub fn queue_count(&self) -> u16 {
        u16::try_from(self.queue_sizes.len()).unwrap_or(u16::MAX)
    }

    /// Device status, as the driver reads it.
    pub fn status(&self) -> u32 {
        self.status.get()
    }

    /// What has happened so far.
    pub fn counters(&self) -> MmioCounters {
        MmioCounters {
            ignored: self.counts.ignored.load(Ordering::Relaxed),
            notifications: self.counts.notifications.load(Ordering::Relaxed),
            interrupts: self.interrupt.count(),
        }
    }

    /// Why the device needs a reset, for diagnosis.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.as_ref().map(ToString::to_string)
    }

    /// Lets the device handle queue `index`, and interrupts the driver if that is due. Does nothing unless
    /// the device is live. To be called by one thread at a time, on the driver's notification, and again
    /// while [`Progress::again`] is set.
    pub fn process_queue(&self, index: u16) -> Progress {
        let mut inner = self.lock();
        let Inner { queues, device, .. } = &mut *inner;
        let Queues::Active(queues) = queues else {
            return Progress::default();
        };
        let result = device.process_queue(index, queues, &self.mem);
        self.conclude(inner, result)
    }

    /// Lets `work` use the device between two calls of its driver, with its queues if it is live, and
    /// interrupts the driver if the progress that `work` returns says so.
    pub fn with_device<R>(
        &self,
        work: impl FnOnce(&mut D, Option<&mut ActiveQueues>, &M) -> (R, Result<Progress, QueueError>),
    ) -> R {
        let mut inner = self.lock();
        let Inner { queues, device, .. } = &mut *inner;
        let queues = match queues {
            Queues::Active(queues) => Some(queues),
            _ => None,
        };
        let (answer, result) = work(device, queues, &self.mem);
        self.conclude(inner, result);
        answer
    }

    /// Lets `look` read or change the device, without its queues.
    pub fn device<R>(&self, look: impl FnOnce(&mut D) -> R) -> R {
        look(&mut self.lock().device)
    }

    /// Tells the driver that the configuration space changed.
    pub fn config_changed(&self) {
        let progress = Progress { config_changed: true, ..Progress::default() };
        self.conclude(self.lock(), Ok(progress));
    }

    /// Resets the device as the driver would.
    pub fn reset(&self) {
        let mut inner = self.lock();
        inner.device.reset();
        inner.registers = Registers::default();
        inner.queues = setup(&self.queue_sizes);
        inner.failure = None;
        self.status.set(0);
        self.interrupt.clear();
        drop(inner);
        self.notify.notify(Notification::StateChanged);
    }

    /// The lock. A device that panicked under it is our fault and its state unknown, but each piece of it is
    /// memory-safe; going on lets the driver reset it.
    fn lock(&self) -> MutexGuard<'_, Inner<D>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ignore(&self) {
        self.counts.ignored.fetch_add(1, Ordering::Relaxed);
    }

    /// Interrupts the driver for what was done, or stops the device. Takes the lock with it: an interrupt
    /// that is raised under it cannot arrive after a later reset.
    fn conclude(
        &self,
        mut inner: MutexGuard<'_, Inner<D>>,
        result: Result<Progress, QueueError>,
    ) -> Progress {
        match result {
            Ok(progress) => {
                if progress.config_changed {
                    // Before the lock is free: who reads new values reads the new number afterwards.
                    self.interrupt.next_generation();
                }
                if self.status.is_live() {
                    let mut bits = if progress.interrupt { INTERRUPT_QUEUE } else { 0 };
                    bits |= if progress.config_changed { INTERRUPT_CONFIG } else { 0 };
                    self.interrupt.raise(bits);
                }
                progress
            }
            Err(error) => {
                self.fail(&mut inner, error);
                drop(inner);
                self.notify.notify(Notification::StateChanged);
                Progress::default()
            }
        }
    }

    /// Stops the device until a reset (virtio 1.2, 2.1.2).
    fn fail(&self, inner: &mut Inner<D>, error: QueueError) {
        inner.queues = Queues::Stopped;
        inner.failure = Some(error);
        self.status.add(NEEDS_RESET);
        if self.status.get() & DRIVER_OK != 0 {
            self.interrupt.raise(INTERRUPT_CONFIG);
        }
    }
}

fn setup(queue_sizes: &[u16]) -> Queues {
    Queues::Setup(queue_sizes.iter().map(|size| QueueRegisters::new(*size)).collect())
}

impl<D, M> MmioRegisters for MmioDevice<D, M>
where
    D: VirtioDevice<M>,
    M: GuestMemory + Send + Sync,
{
    fn read(&self, offset: u64, data: &mut [u8]) {
        Self::read(self, offset, data);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        Self::write(self, offset, data);
    }
}

impl<D, M> MmioTransport for MmioDevice<D, M>
where
    D: VirtioDevice<M>,
    M: GuestMemory + Send + Sync,
{
    fn queue_count(&self) -> u16 {
        Self::queue_count(self)
    }

    fn process_queue(&self, index: u16) -> Progress {
        Self::process_queue(self, index)
    }

    fn reset(&self) {
        Self::reset(self);
    }

    fn resume(&self) {
        Self::resume(self);
    }

    fn save(&self) -> MmioState {
        Self::save(self)
    }

    fn restore(&self, state: &MmioState) -> Result<(), StateError> {
        Self::restore(self, state)
    }
}
