//! Serves the queues of a device that has no events but its driver's.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use hayfork_devices::virtio::transport::mmio::MmioTransport;

use super::add;
use crate::hypervisor::Doorbell;

/// One device's doorbells: bell `n` rings for queue `n`.
pub struct DoorbellSubscriber {
    device: Arc<dyn MmioTransport>,
    bells: Vec<Arc<Doorbell>>,
}

impl DoorbellSubscriber {
    /// Serves `device` when one of `bells` rings.
    pub fn new(device: Arc<dyn MmioTransport>, bells: Vec<Arc<Doorbell>>) -> Self {
        Self { device, bells }
    }
}

impl MutEventSubscriber for DoorbellSubscriber {
    fn process(&mut self, events: Events, _ops: &mut EventOps) {
        let Ok(index) = u16::try_from(events.data()) else { return };
        let Some(bell) = self.bells.get(usize::from(index)) else { return };
        bell.drain();
        if self.device.process_queue(index).again {
            ring(bell.as_fd());
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        for (number, bell) in (0..).zip(&self.bells) {
            add(ops, bell.as_ref(), number, EventSet::IN);
        }
    }
}

/// Makes an eventfd readable.
pub fn ring(bell: BorrowedFd<'_>) {
    // Adding 1 fails only when the counter is full, and then it is readable.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
