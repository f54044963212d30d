//! The register file: what each offset means, and when it may be written.

use std::sync::atomic::{AtomicU32, Ordering};

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET,
};
use virtio_bindings::virtio_mmio::{
    VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_CONFIG_GENERATION, VIRTIO_MMIO_DEVICE_FEATURES,
    VIRTIO_MMIO_DEVICE_FEATURES_SEL, VIRTIO_MMIO_DEVICE_ID, VIRTIO_MMIO_DRIVER_FEATURES,
    VIRTIO_MMIO_DRIVER_FEATURES_SEL, VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING,
    VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INTERRUPT_STATUS, VIRTIO_MMIO_MAGIC_VALUE,
    VIRTIO_MMIO_QUEUE_AVAIL_HIGH, VIRTIO_MMIO_QUEUE_AVAIL_LOW, VIRTIO_MMIO_QUEUE_DESC_HIGH,
    VIRTIO_MMIO_QUEUE_DESC_LOW, VIRTIO_MMIO_QUEUE_NOTIFY, VIRTIO_MMIO_QUEUE_NUM, VIRTIO_MMIO_QUEUE_NUM_MAX,
    VIRTIO_MMIO_QUEUE_READY, VIRTIO_MMIO_QUEUE_SEL, VIRTIO_MMIO_QUEUE_USED_HIGH, VIRTIO_MMIO_QUEUE_USED_LOW,
    VIRTIO_MMIO_SHM_BASE_HIGH, VIRTIO_MMIO_SHM_BASE_LOW, VIRTIO_MMIO_SHM_LEN_HIGH, VIRTIO_MMIO_SHM_LEN_LOW,
    VIRTIO_MMIO_SHM_SEL, VIRTIO_MMIO_STATUS, VIRTIO_MMIO_VENDOR_ID, VIRTIO_MMIO_VERSION,
};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::GuestMemory;

use super::{Inner, MmioDevice, Notification, Queues};
use crate::virtio::device::VirtioDevice;
use crate::virtio::queue::{ActiveQueues, QueueError, QueueRegisters, Ring};

/// Status bit: a driver has seen the device.
pub const ACKNOWLEDGE: u32 = VIRTIO_CONFIG_S_ACKNOWLEDGE;
/// Status bit: a driver for it was found.
pub const DRIVER: u32 = VIRTIO_CONFIG_S_DRIVER;
/// Status bit: the features are agreed on.
pub const FEATURES_OK: u32 = VIRTIO_CONFIG_S_FEATURES_OK;
/// Status bit: the driver is ready, the device live.
pub const DRIVER_OK: u32 = VIRTIO_CONFIG_S_DRIVER_OK;
/// Status bit: the device met an error and works no more.
pub const NEEDS_RESET: u32 = VIRTIO_CONFIG_S_NEEDS_RESET;
/// Status bit: the driver has given up.
pub const FAILED: u32 = VIRTIO_CONFIG_S_FAILED;

/// Interrupt status bit: a queue has used chains.
pub const INTERRUPT_QUEUE: u32 = VIRTIO_MMIO_INT_VRING;
/// Interrupt status bit: the configuration or the device status changed.
pub const INTERRUPT_CONFIG: u32 = VIRTIO_MMIO_INT_CONFIG;

/// Bytes of address space that a device takes: one page, as Linux expects it on its command line.
pub const REGION_SIZE: u64 = 0x1000;
/// Offset of the doorbell: a 4-byte write of a queue's number.
pub const QUEUE_NOTIFY: u64 = VIRTIO_MMIO_QUEUE_NOTIFY as u64;
/// Offset of the configuration space.
pub const CONFIG_SPACE: u64 = VIRTIO_MMIO_CONFIG as u64;

/// "virt" in little-endian order.
const MAGIC: u32 = 0x7472_6976;
/// The modern register layout.
const VERSION: u32 = 2;
/// Nobody asks for it in virtio-mmio; "HYFK".
const VENDOR: u32 = 0x4b46_5948;

/// The steps of a driver, each of which needs the one before.
const LADDER: [u32; 4] = [ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK];
const DRIVER_BITS: u32 = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK | FAILED;

/// Device status. Written under the device's lock, read by anybody.
#[derive(Debug, Default)]
pub(super) struct Status(AtomicU32);

impl Status {
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, bits: u32) {
        self.0.store(bits, Ordering::SeqCst);
    }

    pub(super) fn add(&self, bits: u32) {
        self.0.fetch_or(bits, Ordering::SeqCst);
    }

    /// Whether the driver is ready and nobody has given up.
    pub(super) fn is_live(&self) -> bool {
        is_live(self.get())
    }
}

/// Whether a status is that of a working device.
pub(super) fn is_live(status: u32) -> bool {
    status & (DRIVER_OK | NEEDS_RESET | FAILED) == DRIVER_OK
}

/// Whether a device can have this status.
pub(super) fn is_possible(status: u32) -> bool {
    let climbed = LADDER.windows(2).all(|steps| status & steps[1] == 0 || status & steps[0] != 0);
    climbed
        && status & !(DRIVER_BITS | NEEDS_RESET) == 0
        && (status & NEEDS_RESET == 0 || status & DRIVER_OK != 0)
}

/// Registers that are neither constant nor a queue's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Registers {
    pub(super) device_features_sel: u32,
    pub(super) driver_features_sel: u32,
    pub(super) driver_features: u64,
    /// The driver chose a feature beyond the 64 that there are.
    pub(super) alien_features: bool,
    pub(super) queue_sel: u32,
}

impl<D, M> MmioDevice<D, M>
where
    D: VirtioDevice<M>,
    M: GuestMemory,
{
    /// A vCPU read from the device's region. What cannot be read reads as 0.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        if let Some(offset) = offset.checked_sub(CONFIG_SPACE) {
            data.fill(0);
            match data.len() {
                1 | 2 | 4 | 8 => self.lock().device.read_config(offset, data),
                _ => self.ignore(),
            }
            return;
        }
        let value = if data.len() == 4 { self.read_register(offset) } else { None };
        if let Some(value) = value {
            data.copy_from_slice(&value.to_le_bytes());
        } else {
            self.ignore();
            data.fill(0);
        }
    }

    fn read_register(&self, offset: u64) -> Option<u32> {
        Some(match u32::try_from(offset).ok()? {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => self.device_type,
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt.status(),
            VIRTIO_MMIO_STATUS => self.status.get(),
            VIRTIO_MMIO_CONFIG_GENERATION => self.interrupt.generation(),
            VIRTIO_MMIO_DEVICE_FEATURES => match self.lock().registers.device_features_sel {
                0 => low(self.features),
                1 => high(self.features),
                _ => 0,
            },
            VIRTIO_MMIO_QUEUE_NUM_MAX => {
                let selected = self.lock().registers.queue_sel as usize;
                self.queue_sizes.get(selected).copied().unwrap_or(0).into()
            }
            VIRTIO_MMIO_QUEUE_READY => self.lock().queue_ready().into(),
            // All ones: there is no such region (virtio 1.2, 4.2.2).
            VIRTIO_MMIO_SHM_LEN_LOW
            | VIRTIO_MMIO_SHM_LEN_HIGH
            | VIRTIO_MMIO_SHM_BASE_LOW
            | VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            _ => return None,
        })
    }

    /// A vCPU wrote to the device's region. What may not be written stays as it is.
    pub fn write(&self, offset: u64, data: &[u8]) {
        if let Some(offset) = offset.checked_sub(CONFIG_SPACE) {
            match data.len() {
                1 | 2 | 4 | 8 => self.lock().device.write_config(offset, data),
                _ => self.ignore(),
            }
            return;
        }
        let taken = match (u32::try_from(offset), <[u8; 4]>::try_from(data)) {
            (Ok(offset), Ok(bytes)) => self.write_register(offset, u32::from_le_bytes(bytes)),
            _ => false,
        };
        if !taken {
            self.ignore();
        }
    }

    /// Gives whether the write had its effect.
    fn write_register(&self, offset: u32, value: u32) -> bool {
        match offset {
            VIRTIO_MMIO_QUEUE_NOTIFY => self.notified(value),
            VIRTIO_MMIO_INTERRUPT_ACK => {
                self.interrupt.acknowledge(value);
                true
            }
            VIRTIO_MMIO_STATUS => self.write_status(value),
            // There are no regions to choose from.
            VIRTIO_MMIO_SHM_SEL => true,
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => {
                self.lock().registers.device_features_sel = value;
                true
            }
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => {
                self.lock().registers.driver_features_sel = value;
                true
            }
            VIRTIO_MMIO_QUEUE_SEL => {
                self.lock().registers.queue_sel = value;
                true
            }
            VIRTIO_MMIO_DRIVER_FEATURES => self.write_features(value),
            _ => self.write_queue(offset, value),
        }
    }

    fn notified(&self, queue: u32) -> bool {
        let Some(queue) = u16::try_from(queue).ok().filter(|queue| *queue < self.queue_count()) else {
            return false;
        };
        if !self.status.is_live() {
            return false;
        }
        self.counts.notifications.fetch_add(1, Ordering::Relaxed);
        self.notify.notify(Notification::Queue(queue));
        true
    }

    fn write_features(&self, value: u32) -> bool {
        let mut inner = self.lock();
        if self.status.get() & (DRIVER | FEATURES_OK | FAILED) != DRIVER {
            return false;
        }
        let registers = &mut inner.registers;
        let (chosen, value) = (registers.driver_features, u64::from(value));
        match registers.driver_features_sel {
            0 => registers.driver_features = chosen & !0xffff_ffff | value,
            1 => registers.driver_features = chosen & 0xffff_ffff | value << 32,
            _ => registers.alien_features |= value != 0,
        }
        true
    }

    fn write_queue(&self, offset: u32, value: u32) -> bool {
        let mut inner = self.lock();
        if self.status.get() & (FEATURES_OK | DRIVER_OK | FAILED) != FEATURES_OK {
            return false;
        }
        let Some(queue) = inner.selected_queue() else {
            return false;
        };
        match offset {
            VIRTIO_MMIO_QUEUE_NUM => queue.set_size(value),
            VIRTIO_MMIO_QUEUE_READY if value <= 1 => {
                queue.set_ready(value == 1);
                true
            }
            VIRTIO_MMIO_QUEUE_DESC_LOW => queue.set_address(Ring::Descriptors, false, value),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => queue.set_address(Ring::Descriptors, true, value),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => queue.set_address(Ring::Available, false, value),
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => queue.set_address(Ring::Available, true, value),
            VIRTIO_MMIO_QUEUE_USED_LOW => queue.set_address(Ring::Used, false, value),
            VIRTIO_MMIO_QUEUE_USED_HIGH => queue.set_address(Ring::Used, true, value),
            _ => false,
        }
    }

    fn write_status(&self, value: u32) -> bool {
        if value == 0 {
            self.reset();
            return true;
        }
        let mut inner = self.lock();
        let old = self.status.get();
        // NEEDS_RESET is ours: a driver writes back what it read, or not.
        let dropped = old & !value & DRIVER_BITS;
        if dropped != 0 || value & !(DRIVER_BITS | NEEDS_RESET) != 0 || old & FAILED != 0 {
            return false;
        }
        let new = value & !old & DRIVER_BITS;
        let mut taken = true;
        for step in LADDER.into_iter().filter(|step| new & step != 0) {
            taken = is_possible(self.status.get() | step) && self.climb(&mut inner, step);
            if !taken {
                break;
            }
        }
        if new & FAILED != 0 {
            self.status.add(FAILED);
            inner.queues = Queues::Stopped;
        }
        drop(inner);
        if (old ^ self.status.get()) & (DRIVER_OK | FAILED) != 0 {
            self.notify.notify(Notification::StateChanged);
        }
        taken
    }

    /// Takes one step of the ladder; gives whether the driver may go on.
    fn climb(&self, inner: &mut Inner<D>, step: u32) -> bool {
        match step {
            FEATURES_OK => {
                let Registers { driver_features, alien_features, .. } = inner.registers;
                if alien_features || inner.device.accept_features(driver_features).is_err() {
                    // The driver reads the status back and finds the bit missing.
                    return false;
                }
                self.status.add(FEATURES_OK);
            }
            DRIVER_OK => {
                let frozen = match &inner.queues {
                    Queues::Setup(queues) => freeze(queues, inner.registers.driver_features, &self.mem),
                    // Not in this state of the ladder.
                    Queues::Active(_) | Queues::Stopped => return false,
                };
                self.status.add(DRIVER_OK);
                match frozen {
                    Ok(queues) => inner.queues = Queues::Active(queues),
                    Err(error) => self.fail(inner, error),
                }
            }
            step => self.status.add(step),
        }
        true
    }
}

/// Makes the queues that the device uses of those that the driver has set up.
pub(super) fn freeze<M: GuestMemory>(
    queues: &[QueueRegisters],
    features: u64,
    mem: &M,
) -> Result<ActiveQueues, QueueError> {
    let event_idx = features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
    let freeze = |queue: &QueueRegisters| queue.ready().then(|| queue.freeze(event_idx, mem)).transpose();
    Ok(ActiveQueues::new(queues.iter().map(freeze).collect::<Result<_, _>>()?))
}

impl<D> Inner<D> {
    fn selected_queue(&mut self) -> Option<&mut QueueRegisters> {
        match &mut self.queues {
            Queues::Setup(queues) => queues.get_mut(self.registers.queue_sel as usize),
            Queues::Active(_) | Queues::Stopped => None,
        }
    }

    fn queue_ready(&self) -> bool {
        match &self.queues {
            Queues::Setup(queues) => {
                queues.get(self.registers.queue_sel as usize).is_some_and(QueueRegisters::ready)
            }
            Queues::Active(queues) => {
                u16::try_from(self.registers.queue_sel).is_ok_and(|queue| queues.get(queue).is_some())
            }
            Queues::Stopped => false,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
fn low(value: u64) -> u32 {
    value as u32
}

fn high(value: u64) -> u32 {
    low(value >> 32)
}
