//! Serves the queues of a device that has no events but its driver's.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use hayfork_devices::virtio::transport::mmio::MmioTransport;

use super::add;
use crate::hypervisor::Doorbell;

/// One device and its doorbell, which rings for all its queues: to look at a queue that has nothing is cheap, and each doorbell
/// makes a machine slower to make and to end (see [`crate::hypervisor::kvm`]).
pub struct DoorbellSubscriber {
    device: Arc<dyn MmioTransport>,
    bell: Arc<Doorbell>,
}

impl DoorbellSubscriber {
    /// Serves `device` when `bell` rings.
    pub fn new(device: Arc<dyn MmioTransport>, bell: Arc<Doorbell>) -> Self {
        Self { device, bell }
    }
}

impl MutEventSubscriber for DoorbellSubscriber {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        self.bell.drain();
        let queues = self.device.queue_count();
        // Each queue gets its turn, whatever the others have left.
        let again = (0..queues).fold(false, |again, queue| self.device.process_queue(queue).again | again);
        if again {
            ring(self.bell.as_fd());
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, self.bell.as_ref(), 0, EventSet::IN);
    }
}

/// Makes an eventfd readable.
pub fn ring(bell: BorrowedFd<'_>) {
    // Adding 1 fails only when the counter is full, and then it is readable.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
