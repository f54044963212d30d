//! What a snapshot keeps of the transport: registers, and the positions of the queues.
//!
//! Plain values (serde); whoever stores them brings format and checksum. Everything is checked on the way
//! back as if a guest had written it: a state that no driver can have made is refused, and nothing is
//! changed then.
//!
//! Order of a restore: the device's own state first, then the transport's, then guest memory must be what it
//! was, and when all vCPUs and interrupt chips are restored too, [`MmioDevice::resume`].

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vm_memory::GuestMemory;

use super::registers::{
    DRIVER_OK, FAILED, FEATURES_OK, INTERRUPT_CONFIG, INTERRUPT_QUEUE, Registers, freeze, is_live,
    is_possible,
};
use super::{MmioDevice, Notification, Queues};
use crate::bounded::at_most;
use crate::virtio::device::{FeatureError, VirtioDevice, check_features};
use crate::virtio::queue::{ActiveQueue, QueueError, QueueRegisters, QueueState};

/// Version of [`MmioState`]. Another version is not read.
pub const STATE_VERSION: u32 = 1;

/// Queues that are read at most; no device here has more than three.
const MOST_QUEUES: usize = 64;

/// The transport of a device at rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MmioState {
    /// [`STATE_VERSION`] when it was saved.
    pub version: u32,
    /// Device type, so that states of two devices are not taken for each other.
    pub device_type: u32,
    /// Device status.
    pub status: u32,
    /// Interrupts that the driver has not acknowledged.
    pub interrupt_status: u32,
    /// Generation of the configuration space.
    pub config_generation: u32,
    /// DeviceFeaturesSel.
    pub device_features_sel: u32,
    /// DriverFeaturesSel.
    pub driver_features_sel: u32,
    /// Features that the driver chose.
    pub driver_features: u64,
    /// The driver chose features beyond the first 64.
    pub alien_features: bool,
    /// QueueSel.
    pub queue_sel: u32,
    /// Queues in their order.
    #[serde(deserialize_with = "at_most::<MOST_QUEUES, _, _>")]
    pub queues: Vec<QueueState>,
}

/// Why a saved state of a transport cannot be restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// It was saved by another version of this code, or of another device.
    #[error("mmio state: saved by version {version} of a device of type {device_type}")]
    Foreign {
        /// Its version.
        version: u32,
        /// Its device type.
        device_type: u32,
    },
    /// It contradicts itself or the device.
    #[error("mmio state: {0}")]
    Contradiction(&'static str),
    /// The device does not take the features.
    #[error("mmio state: {0}")]
    Features(#[from] FeatureError),
    /// A queue is not in guest memory.
    #[error("mmio state: {0}")]
    Queue(#[from] QueueError),
}

impl<D, M> MmioDevice<D, M>
where
    D: VirtioDevice<M>,
    M: GuestMemory,
{
    /// The transport's state. The device's own is not in it. Meant for a machine at rest: with vCPUs out of
    /// the guest and the device's thread parked.
    pub fn save(&self) -> MmioState {
        let inner = self.lock();
        let absent = |size: &u16| QueueRegisters::new(*size).save();
        let queues = match &inner.queues {
            Queues::Setup(queues) => queues.iter().map(QueueRegisters::save).collect(),
            Queues::Active(queues) => (0..self.queue_count())
                .zip(&self.queue_sizes)
                .map(|(index, size)| queues.get(index).map_or_else(|| absent(size), ActiveQueue::save))
                .collect(),
            Queues::Stopped => self.queue_sizes.iter().map(absent).collect(),
        };
        MmioState {
            version: STATE_VERSION,
            device_type: self.device_type,
            status: self.status.get(),
            interrupt_status: self.interrupt.status(),
            config_generation: self.interrupt.generation(),
            device_features_sel: inner.registers.device_features_sel,
            driver_features_sel: inner.registers.driver_features_sel,
            driver_features: inner.registers.driver_features,
            alien_features: inner.registers.alien_features,
            queue_sel: inner.registers.queue_sel,
            queues,
        }
    }

    /// Puts the transport into a saved state; guest memory must be what it was then. The device must have
    /// been restored before; it is told the features of the driver, and nothing else.
    ///
    /// # Errors
    /// [`StateError`]; the transport is as before then.
    pub fn restore(&self, state: &MmioState) -> Result<(), StateError> {
        let contradiction = |what| Err(StateError::Contradiction(what));
        if state.version != STATE_VERSION || state.device_type != self.device_type {
            let MmioState { version, device_type, .. } = *state;
            return Err(StateError::Foreign { version, device_type });
        }
        if !is_possible(state.status) {
            return contradiction("no device has such a status");
        }
        if state.interrupt_status & !(INTERRUPT_QUEUE | INTERRUPT_CONFIG) != 0 {
            return contradiction("no device has such interrupts");
        }
        if state.queues.len() != self.queue_sizes.len() {
            return contradiction("another number of queues");
        }
        let registers = self.queue_sizes.iter().zip(&state.queues).map(|(max, queue)| {
            QueueRegisters::restore(*max, queue)
                .ok_or(StateError::Contradiction("a queue of a size that the device does not take"))
        });
        let registers = registers.collect::<Result<Vec<_>, _>>()?;
        let agreed = state.status & FEATURES_OK != 0;
        if agreed {
            if state.alien_features {
                return contradiction("features that do not exist");
            }
            check_features(state.driver_features, self.features)?;
        } else if registers.iter().any(QueueRegisters::ready) {
            return contradiction("queues without features");
        }
        let queues = if is_live(state.status) {
            let mut active = freeze(&registers, state.driver_features, &self.mem)?;
            for (index, queue) in (0..).zip(&state.queues) {
                if let Some(active) = active.get_mut(index) {
                    active.set_position(queue.next_available, queue.next_used);
                }
            }
            Queues::Active(active)
        } else if state.status & (DRIVER_OK | FAILED) != 0 {
            Queues::Stopped
        } else {
            Queues::Setup(registers)
        };
        let mut inner = self.lock();
        if agreed {
            inner.device.accept_features(state.driver_features)?;
        }
        inner.queues = queues;
        inner.failure = None;
        inner.registers = Registers {
            device_features_sel: state.device_features_sel,
            driver_features_sel: state.driver_features_sel,
            driver_features: state.driver_features,
            alien_features: state.alien_features,
            queue_sel: state.queue_sel,
        };
        self.status.set(state.status);
        self.interrupt.set(state.interrupt_status, state.config_generation);
        Ok(())
    }

    /// Lets a restored device go on: repeats an interrupt that the driver has not acknowledged, and has each
    /// queue looked at, since pulses and doorbells on their way are in nobody's state.
    pub fn resume(&self) {
        self.interrupt.repeat();
        if self.status.is_live() {
            for queue in 0..self.queue_count() {
                self.notify.notify(Notification::Queue(queue));
            }
        }
        self.notify.notify(Notification::StateChanged);
    }
}
