//! What a snapshot keeps of a machine's devices.
//!
//! Saved and restored with the processors out of the guest and the devices' thread parked. A restored machine's devices are
//! made with their state, before anything runs; [`Kept::resumer`] then repeats what was on its way: interrupts that the guest has
//! not acknowledged, and doorbells.

use std::sync::Arc;

use hayfork_devices::bounded::at_most;
use hayfork_devices::serial::SerialState;
use hayfork_devices::virtio::block::BlockState;
use hayfork_devices::virtio::console::ConsoleState;
use hayfork_devices::virtio::transport::mmio::MmioState;
use hayfork_devices::virtio::vsock::VsockState;
use serde::{Deserialize, Serialize};

use super::devices::Kept;
use crate::memory::layout::MAX_DEVICES;

/// All devices of a machine at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicesState {
    /// Transports, in the order of their addresses.
    #[serde(deserialize_with = "at_most::<MAX_DEVICES, _, _>")]
    pub transports: Vec<MmioState>,
    /// Streams.
    pub vsock: VsockState,
    /// The console.
    pub console: ConsoleState,
    /// The root image's disk, if there is one.
    pub block: Option<BlockState>,
    /// The serial port.
    pub serial: SerialState,
}

impl Kept {
    /// The devices' state.
    pub(super) fn save(&self) -> DevicesState {
        DevicesState {
            transports: self.transports.iter().map(|transport| transport.save()).collect(),
            vsock: self.vsock.device(|device| device.save()),
            console: self.console.device(|device| device.save()),
            block: self.block,
            serial: self.serial.save(),
        }
    }

    /// Lets restored devices go on, when it is called.
    pub(super) fn resumer(&self) -> impl FnOnce() + Send + 'static {
        let (transports, serial) = (self.transports.clone(), Arc::clone(&self.serial));
        move || {
            for transport in transports {
                transport.resume();
            }
            serial.resume();
        }
    }
}
