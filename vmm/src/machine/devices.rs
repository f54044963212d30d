//! The devices of a machine, in the order of their addresses and interrupt lines.
//!
//! | device | there |
//! |---|---|
//! | vsock, with the agent's connection | always |
//! | entropy | always |
//! | console, `hvc0` | always |
//! | block, read-only: the root image, `/dev/vda` | if there is one |
//!
//! A doorbell in the hypervisor saves an exit for each notification, and costs when a machine is made and when it ends. It pays
//! for streams and the disk, and not for the other two, from which a guest wants little once it has booted.
//!
//! They are made before the processors, since these need the bus, and served after them, since doorbells come last. A machine that
//! goes on where another stood makes them from that one's [state](super::device_state).

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use hayfork_devices::serial::SerialPort;
use hayfork_devices::virtio::block::{BlockDevice, BlockState, FileBackend};
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
use super::device_state::DevicesState;
use super::ports::{self, Registers};
use super::prepare;
use crate::backend::BackendError;
use crate::device_loop::{DeviceLoop, DoorbellSubscriber, Subscriber, Vsock, VsockSubscriber, ring};
use crate::hypervisor::{Doorbell, InterruptTrigger, Vm};
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

/// The devices of a machine in their order, for the identity of one that was saved.
pub(crate) fn names(root: bool) -> &'static str {
    if root { "vsock rng console block serial" } else { "vsock rng console serial" }
}

/// The doorbell of one device, once it is there.
type Bell = Arc<OnceLock<Arc<Doorbell>>>;

/// A device in its place.
struct Placed {
    /// It is rung for often enough that a doorbell in the hypervisor pays.
    rings_often: bool,
    registers: Arc<dyn MmioRegisters>,
    transport: Arc<dyn MmioTransport>,
    bell: Bell,
}

/// A device behind its registers.
pub(super) type Mapped<D> = Arc<MmioDevice<D, GuestMemoryMmap>>;

/// An interrupt line that a device raises.
pub(super) type Line = Arc<dyn InterruptTrigger>;

/// The devices of a machine, not served yet.
pub(super) struct Devices {
    placed: Vec<Placed>,
    agent: UnixSocket,
    /// The host's end of the agent's stream, if it was made here.
    channel: Option<UnixStream>,
    kept: Kept,
}

/// What a machine keeps of its devices while their thread serves them.
pub(super) struct Kept {
    pub(super) transports: Vec<Arc<dyn MmioTransport>>,
    pub(super) vsock: Mapped<Vsock>,
    pub(super) console: Mapped<ConsoleDevice>,
    pub(super) block: Option<BlockState>,
    pub(super) serial: Arc<SerialPort>,
    /// The doorbell of each device, once it is there.
    bells: Vec<Bell>,
    /// Rung for the vsock device.
    wake: Arc<OwnedFd>,
}

/// Makes devices one after the other.
struct Maker<'a, V> {
    vm: &'a V,
    memory: &'a GuestMemoryMmap,
    placed: Vec<Placed>,
}

impl<V: Vm> Maker<'_, V> {
    fn line(&self, number: u32) -> Result<Line, BackendError> {
        Ok(Line::from(self.vm.interrupt_line(number)?))
    }

    /// Puts a device at the next address. `wake` is rung when it goes live or stops.
    fn place<D>(
        &mut self,
        device: D,
        rings_often: bool,
        wake: Option<Arc<OwnedFd>>,
    ) -> Result<Mapped<D>, BackendError>
    where
        D: VirtioDevice<GuestMemoryMmap> + 'static,
    {
        let line = self.line(layout::device_line(self.placed.len()))?;
        let bell = Bell::default();
        let rung = Arc::clone(&bell);
        let notify = move |notification| match notification {
            // Where the hypervisor has no doorbell for it.
            Notification::Queue(_) => {
                if let Some(bell) = rung.get() {
                    ring(bell.as_ref().as_fd());
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
            rings_often,
            registers: Arc::clone(&device) as _,
            transport: Arc::clone(&device) as _,
            bell,
        });
        Ok(device)
    }
}

impl Devices {
    /// Devices as after a reset, or as `saved` was. Guest memory must be what it was then. `agent` is the device's end of the
    /// agent's stream, where somebody else has the other one.
    pub(super) fn new<V: Vm>(
        vm: &V,
        memory: &GuestMemoryMmap,
        root: Option<File>,
        console: &Arc<Console>,
        saved: Option<&DevicesState>,
        agent: Option<UnixStream>,
    ) -> Result<Self, BackendError> {
        let descriptor =
            |source| BackendError::Spawn { what: "making a descriptor for the virtual machine", source };
        let mut maker = Maker { vm, memory, placed: Vec::new() };
        let wake = VsockSubscriber::bell().map_err(descriptor)?;
        let (agent, channel) = if let Some(agent) = agent {
            (UnixSocket::new(agent).map_err(descriptor)?, None)
        } else {
            let (agent, channel) = UnixSocket::pair().map_err(descriptor)?;
            (agent, Some(channel))
        };
        let vsock = maker.place(vsock(saved)?, true, Some(Arc::clone(&wake)))?;
        maker.place(RngDevice::default(), false, None)?;
        let sink = Arc::clone(console);
        let mut device = ConsoleDevice::new(Box::new(move |bytes: &[u8]| sink.push(bytes)));
        if let Some(saved) = saved {
            device.restore(&saved.console).map_err(prepare)?;
        }
        let console_device = maker.place(device, false, None)?;
        let mut block = None;
        if let Some(root) = root {
            let disk = FileBackend::read_only(root)
                .map_err(|source| BackendError::Spawn { what: "looking at the root image", source })?;
            let device = match saved.and_then(|saved| saved.block.as_ref()) {
                Some(state) => BlockDevice::restore(disk, state).map_err(prepare)?,
                None => BlockDevice::new(disk, ROOT_ID),
            };
            block = Some(device.save());
            maker.place(device, true, None)?;
        }
        let line = maker.line(layout::SERIAL_LINE)?;
        let sink = Arc::clone(console);
        let serial =
            SerialPort::new(Box::new(move |bytes: &[u8]| sink.push(bytes)), Box::new(move || line.raise()));
        if let Some(saved) = saved {
            serial.restore(&saved.serial).map_err(prepare)?;
            if saved.transports.len() != maker.placed.len() || saved.block != block {
                return Err(prepare(OtherDevices));
            }
            for (device, state) in maker.placed.iter().zip(&saved.transports) {
                device.transport.restore(state).map_err(prepare)?;
            }
        }
        let kept = Kept {
            transports: maker.placed.iter().map(|device| Arc::clone(&device.transport)).collect(),
            vsock,
            console: console_device,
            block,
            serial: Arc::new(serial),
            bells: maker.placed.iter().map(|device| Arc::clone(&device.bell)).collect(),
            wake,
        };
        Ok(Self { placed: maker.placed, agent, channel, kept })
    }

    /// What processors reach by address and port.
    pub(super) fn bus(&self) -> Result<Bus, BackendError> {
        let mut bus = Bus::new();
        for (index, device) in self.placed.iter().enumerate() {
            let start = layout::device_address(index).0;
            let registers = Arc::new(Registers(Arc::clone(&device.registers)));
            bus.add_mmio(start..start + REGION_SIZE, registers).map_err(prepare)?;
        }
        ports::add(&mut bus, &self.kept.serial).map_err(prepare)?;
        Ok(bus)
    }

    /// Makes a doorbell for each device and starts the thread that answers them. Also gives the host's end of the agent's stream,
    /// if it was made here.
    pub(super) fn serve<V: Vm>(self, vm: &V) -> Result<(DeviceLoop, Option<UnixStream>, Kept), BackendError> {
        let failed = |source| BackendError::Spawn { what: "serving the virtual machine's devices", source };
        for (index, device) in self.placed.into_iter().enumerate() {
            let address = layout::device_address(index).0 + QUEUE_NOTIFY;
            let bell = if device.rings_often { vm.doorbell(address, None)? } else { None };
            let bell = match bell {
                Some(bell) => bell,
                // Rung by the exit of the guest's write.
                None => Doorbell::new(
                    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                        .map_err(|errno| failed(errno.into()))?,
                ),
            };
            // Filled here only.
            let _ = device.bell.set(Arc::new(bell));
        }
        let subscribers = self.kept.subscribers(self.agent).map_err(failed)?;
        let devices = DeviceLoop::start(subscribers).map_err(failed)?;
        Ok((devices, self.channel, self.kept))
    }
}

impl Kept {
    /// Those who serve the devices, with the device's end of the agent's stream.
    fn subscribers(&self, agent: UnixSocket) -> std::io::Result<Vec<Subscriber>> {
        // All are there: only a machine whose devices are served has this.
        let mut bells = self.bells.iter().filter_map(|bell| bell.get()).cloned();
        let own = bells.next().ok_or(std::io::ErrorKind::NotFound)?;
        let mut subscribers: Vec<Subscriber> = Vec::new();
        for (transport, bell) in self.transports.iter().skip(1).zip(bells) {
            subscribers.push(Box::new(DoorbellSubscriber::new(Arc::clone(transport), bell)));
        }
        let (vsock, wake) = (Arc::clone(&self.vsock), Arc::clone(&self.wake));
        subscribers.push(Box::new(VsockSubscriber::new(vsock, own, wake, agent)?));
        Ok(subscribers)
    }

    /// Makes the devices those that were saved, as if they had been made so, with nothing left of what went through them. All that
    /// use them must be at rest, and guest memory must be what it was then. Gives the host's end of a new stream to the agent.
    pub(super) fn rewind(
        &self,
        saved: &DevicesState,
        devices: &DeviceLoop,
    ) -> Result<UnixStream, BackendError> {
        let failed = |source| BackendError::Spawn { what: "serving the virtual machine's devices", source };
        if saved.transports.len() != self.transports.len() || saved.block != self.block {
            return Err(prepare(OtherDevices));
        }
        let (agent, channel) = UnixSocket::pair().map_err(failed)?;
        // Before the new ones, which may be rung for.
        devices.replace(self.subscribers(agent).map_err(failed)?).map_err(failed)?;
        self.transports.iter().for_each(|transport| transport.reset());
        let vsock = vsock(Some(saved))?;
        self.vsock.device(|device| *device = vsock);
        self.console.device(|device| device.restore(&saved.console)).map_err(prepare)?;
        self.serial.restore(&saved.serial).map_err(prepare)?;
        for (transport, state) in self.transports.iter().zip(&saved.transports) {
            transport.restore(state).map_err(prepare)?;
        }
        for bell in self.bells.iter().filter_map(|bell| bell.get()) {
            bell.drain();
        }
        Ok(channel)
    }
}

/// A saved machine had others.
#[derive(Debug, thiserror::Error)]
#[error("the saved machine had other devices")]
struct OtherDevices;

/// Streams are not carried over: their host ends are gone, so the guest sees them reset, and is connected to anew.
fn vsock(saved: Option<&DevicesState>) -> Result<Vsock, BackendError> {
    let config = VsockConfig::new(GUEST_CID);
    match saved {
        None => VsockDevice::new(config, RefuseAll).map_err(prepare),
        Some(saved) => {
            let restored = VsockDevice::restore(config, RefuseAll, saved.vsock.clone(), |_| None);
            restored.map(|(device, _)| device).map_err(prepare)
        }
    }
}
