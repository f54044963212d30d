//! Tests of the register file against a driver that does as Linux does, and against drivers that do not.

mod hostile;
mod interrupts;
mod linux;
mod state;

use std::sync::{Arc, Mutex};

use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::{MmioDevice, Notification};
use crate::virtio::device::{Progress, VirtioDevice, read_space};
use crate::virtio::queue::{ActiveQueues, QueueError};
use crate::virtio::testing::DriverQueue;

pub(super) const VERSION_1: u64 = 1 << 32;
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// A feature bit of the mock device's own.
pub(super) const OWN: u64 = 1 << 3;

/// Uses every chain with its head as length.
#[derive(Debug, Default)]
pub(super) struct Mock {
    pub(super) features: Option<u64>,
    pub(super) config: [u8; 8],
    pub(super) processed: Vec<u16>,
    pub(super) resets: u32,
}

impl VirtioDevice<GuestMemoryMmap> for Mock {
    fn device_type(&self) -> u32 {
        77
    }

    fn queue_sizes(&self) -> &[u16] {
        &[16, 256]
    }

    fn features(&self) -> u64 {
        VERSION_1 | EVENT_IDX | OWN
    }

    fn accept_features(&mut self, features: u64) -> Result<(), crate::virtio::FeatureError> {
        crate::virtio::device::check_features(features, VERSION_1 | EVENT_IDX | OWN)?;
        self.features = Some(features);
        Ok(())
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_space(&self.config, offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(bytes) = self.config.get_mut(at..at.saturating_add(data.len())) {
            bytes.copy_from_slice(data);
        }
    }

    fn reset(&mut self) {
        *self = Self { resets: self.resets + 1, config: self.config, ..Self::default() };
    }

    fn process_queue(
        &mut self,
        index: u16,
        queues: &mut ActiveQueues,
        mem: &GuestMemoryMmap,
    ) -> Result<Progress, QueueError> {
        self.processed.push(index);
        let mut progress = Progress::default();
        let Some(queue) = queues.get_mut(index) else {
            return Ok(progress);
        };
        while let Some(chain) = queue.next_chain(mem)? {
            let head = chain.head_index();
            queue.add_used(mem, head, head.into())?;
            progress.interrupt = true;
        }
        progress.interrupt = progress.interrupt && queue.needs_interrupt(mem)?;
        Ok(progress)
    }
}

/// What a mock device told its surroundings.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) pulses: u32,
    pub(super) notifications: Vec<Notification>,
}

pub(super) type Device = MmioDevice<Mock, GuestMemoryMmap>;

/// A device, its memory, and what it tells.
pub(super) struct Rig {
    pub(super) device: Device,
    pub(super) heard: Arc<Mutex<Heard>>,
    /// The driver's queues.
    pub(super) queues: [DriverQueue; 2],
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with_memory(&GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap())
    }

    pub(super) fn with_memory(mem: &GuestMemoryMmap) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (for_line, for_notify) = (heard.clone(), heard.clone());
        let device = MmioDevice::new(
            Mock::default(),
            mem.clone(),
            Box::new(move || for_line.lock().unwrap().pulses += 1),
            Box::new(move |n| for_notify.lock().unwrap().notifications.push(n)),
        );
        let queues = [DriverQueue::new(mem, 0x1000, 16), DriverQueue::new(mem, 0x4000, 64)];
        Self { device, heard, queues }
    }

    /// Pulses since the last call.
    pub(super) fn pulses(&self) -> u32 {
        std::mem::take(&mut self.heard.lock().unwrap().pulses)
    }

    /// Notifications since the last call.
    pub(super) fn notifications(&self) -> Vec<Notification> {
        std::mem::take(&mut self.heard.lock().unwrap().notifications)
    }

    /// A live device.
    pub(super) fn live() -> Self {
        let rig = Self::new();
        rig.driver().start(VERSION_1, &[&rig.queues[0], &rig.queues[1]]);
        rig.pulses();
        rig.notifications();
        rig
    }

    pub(super) fn driver(&self) -> crate::virtio::testing::mmio::MmioDriver<'_> {
        crate::virtio::testing::mmio::MmioDriver(&self.device)
    }
}
