//! The devices of a machine, in the order of their addresses and interrupt lines.
//!
//! | device | there |
//! |---|---|
//! | vsock, with the agent's connection | always |
//! | entropy | always |
//! | console, `hvc0` | always |
//! | block, read-only: the root image, `/dev/vda` | if there is one |
//!
//! They are made before the processors, since these need the bus, and served after them, since doorbells come last.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use hayfork_devices::virtio::block::{BlockDevice, FileBackend};
use hayfork_devices::virtio::console::ConsoleDevice;
use hayfork_devices::virtio::device::VirtioDevice;
use hayfork_devices::virtio::rng::RngDevice;
use hayfork_devices::virtio::transport::mmio::{
    MmioDevice, MmioRegisters, MmioTransport, Notification, QUEUE_NOTIFY, REGION_SIZE,
};
use hayfork_devices::virtio::vsock::host::{RefuseAll, UnixSocket};
use hayfork_devices::virtio::vsock::{VsockConfig, VsockDevice};
use rustix::event::{EventfdFlags, eventfd};
use vm_memory::GuestMemoryMmap;

use super::console::Console;
use super::ports::{self, Registers};
use super::prepare;
use crate::backend::BackendError;
use crate::device_loop::{DeviceLoop, DoorbellSubscriber, Subscriber, Vsock, VsockSubscriber, ring};
use crate::hypervisor::{Doorbell, Vm};
use crate::memory::layout;
use crate::vcpu::Bus;

/// The guest's vsock address. Each guest has its own host device, so all may have the same.
const GUEST_CID: u64 = 3;

/// What the root image answers when it is asked who it is (`VIRTIO_BLK_T_GET_ID`).
const ROOT_ID: [u8; 20] = *b"hayfork-root\0\0\0\0\0\0\0\0";

/// How many virtio devices a machine has.
pub(super) fn count(root: bool) -> usize {
    3 + usize::from(root)
}

/// Doorbells of one device, once they are there.
type Bells = Arc<OnceLock<Vec<Arc<Doorbell>>>>;

/// A device in its place.
struct Placed {
    registers: Arc<dyn MmioRegisters>,
    transport: Arc<dyn MmioTransport>,
    bells: Bells,
}

/// The devices of a machine, not served yet.
pub(super) struct Devices {
    placed: Vec<Placed>,
    vsock: Arc<MmioDevice<Vsock, GuestMemoryMmap>>,
    wake: Arc<OwnedFd>,
    agent: UnixSocket,
    channel: UnixStream,
    console: Arc<Console>,
}

/// Makes devices one after the other.
struct Maker<'a, V> {
    vm: &'a V,
    memory: &'a GuestMemoryMmap,
    placed: Vec<Placed>,
}

impl<V: Vm> Maker<'_, V> {
    /// Puts a device at the next address. `wake` is rung when it goes live or stops.
    fn place<D>(
        &mut self,
        device: D,
        wake: Option<Arc<OwnedFd>>,
    ) -> Result<Arc<MmioDevice<D, GuestMemoryMmap>>, BackendError>
    where
        D: VirtioDevice<GuestMemoryMmap> + 'static,
    {
        let line = self.vm.interrupt_line(layout::device_line(self.placed.len()))?;
        let bells = Bells::default();
        let rung = Arc::clone(&bells);
        let notify = move |notification| match notification {
            // Where the hypervisor has no doorbells.
            Notification::Queue(index) => {
                if let Some(bell) = rung.get().and_then(|bells| bells.get(usize::from(index))) {
                    ring(bell.as_fd());
                }
            }
            _ => {
                if let Some(wake) = &wake {
                    ring(wake.as_fd());
                }
            }
        };
        let interrupt = move || line.raise();
        let device =
            Arc::new(MmioDevice::new(device, self.memory.clone(), Box::new(interrupt), Box::new(notify)));
        self.placed.push(Placed {
            registers: Arc::clone(&device) as _,
            transport: Arc::clone(&device) as _,
            bells,
        });
        Ok(device)
    }
}

impl Devices {
    pub(super) fn new<V: Vm>(
        vm: &V,
        memory: &GuestMemoryMmap,
        root: Option<File>,
        console: &Arc<Console>,
    ) -> Result<Self, BackendError> {
        let descriptor =
            |source| BackendError::Spawn { what: "making a descriptor for the virtual machine", source };
        let mut maker = Maker { vm, memory, placed: Vec::new() };
        let wake = VsockSubscriber::bell().map_err(descriptor)?;
        let (agent, channel) = UnixSocket::pair().map_err(descriptor)?;
        let vsock = VsockDevice::new(VsockConfig::new(GUEST_CID), RefuseAll).map_err(prepare)?;
        let vsock = maker.place(vsock, Some(Arc::clone(&wake)))?;
        maker.place(RngDevice::default(), None)?;
        let sink = Arc::clone(console);
        maker.place(ConsoleDevice::new(Box::new(move |bytes: &[u8]| sink.push(bytes))), None)?;
        if let Some(root) = root {
            let disk = FileBackend::read_only(root)
                .map_err(|source| BackendError::Spawn { what: "looking at the root image", source })?;
            maker.place(BlockDevice::new(disk, ROOT_ID), None)?;
        }
        Ok(Self { placed: maker.placed, vsock, wake, agent, channel, console: Arc::clone(console) })
    }

    /// What processors reach by address and port.
    pub(super) fn bus<V: Vm>(&self, vm: &V) -> Result<Bus, BackendError> {
        let mut bus = Bus::new();
        for (index, device) in self.placed.iter().enumerate() {
            let start = layout::device_address(index).0;
            let registers = Arc::new(Registers(Arc::clone(&device.registers)));
            bus.add_mmio(start..start + REGION_SIZE, registers).map_err(prepare)?;
        }
        let line = vm.interrupt_line(layout::SERIAL_LINE)?;
        ports::add(&mut bus, &self.console, Box::new(move || line.raise())).map_err(prepare)?;
        Ok(bus)
    }

    /// Makes doorbells and starts the thread that answers them. Also gives the host's end of the agent's stream.
    pub(super) fn serve<V: Vm>(self, vm: &V) -> Result<(DeviceLoop, UnixStream), BackendError> {
        let failed = |source| BackendError::Spawn { what: "serving the virtual machine's devices", source };
        let mut subscribers: Vec<Subscriber> = Vec::new();
        let mut bells_of_vsock = Vec::new();
        for (index, device) in self.placed.into_iter().enumerate() {
            let address = layout::device_address(index).0 + QUEUE_NOTIFY;
            let mut bells = Vec::new();
            for queue in 0..device.transport.queue_count() {
                let bell = match vm.doorbell(address, Some(u32::from(queue)))? {
                    Some(bell) => bell,
                    None => Doorbell::new(
                        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                            .map_err(|errno| failed(errno.into()))?,
                    ),
                };
                bells.push(Arc::new(bell));
            }
            // Filled here only.
            let _ = device.bells.set(bells.clone());
            if index == 0 {
                bells_of_vsock = bells;
            } else {
                subscribers.push(Box::new(DoorbellSubscriber::new(device.transport, bells)));
            }
        }
        let vsock =
            VsockSubscriber::new(self.vsock, bells_of_vsock, self.wake, self.agent).map_err(failed)?;
        subscribers.push(Box::new(vsock));
        let devices = DeviceLoop::start(subscribers).map_err(failed)?;
        Ok((devices, self.channel))
    }
}
