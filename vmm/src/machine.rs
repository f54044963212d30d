//! One virtual machine: memory, processors, devices, and what is told of its end.
//!
//! # Made in this order
//! ```text
//!  RAM ── kernel, initramfs, parameters, tables ──► memory slots ──► interrupt chip ──► processors ──► doorbells ──► run
//! ```
//! Memory slots come before the interrupt chip, and doorbells last: in the other order the kernel makes each memory slot wait
//! for 7 ms (measured; the reason stands in [`crate::hypervisor::kvm`]).
//!
//! # Threads
//! One for each processor (`hayfork-vcpu0`, …), one for all devices (`hayfork-devices`). A processor that touches a device's
//! registers does so on its own thread; everything that a doorbell rings for, and what comes from the host, is done by the
//! devices' thread.
//!
//! # Another's place
//! A machine can be [captured](Machine::capture), and others [made](Machine::resume_from) that go on where it stood.
//!
//! # The end
//! Processors end by the guest's wish, by a fault, or because the owner wants it. When the last one is out of the guest,
//! [`Machine::end_fd`] becomes readable and [`Machine::report`] has an answer. What is left is taken apart in
//! [another thread](crate::monitor::settle), because that takes a while.

mod console;
mod device_state;
mod devices;
mod ports;
mod report;
mod reset;
mod shell;
mod snapshot;
mod working_set;

use std::any::Any;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::console::Console;
pub use self::device_state::DevicesState;
pub(crate) use self::devices::names as device_names;
use self::devices::{Devices, Kept};
use crate::backend::{BackendError, ExitReport};
use crate::boot::command_line::{self, Platform};
use crate::boot::cpuid::{self, Processors};
use crate::boot::kernel::Kernel;
use crate::boot::{entry, mptable, native_cpuid, params};
use crate::device_loop::DeviceLoop;
use crate::hypervisor::x86_64::{X86Hypervisor, X86Vcpu};
use crate::hypervisor::{Hypervisor, HypervisorError, MappedRegion, Vm};
use crate::memory::{GuestRam, Resident, SealedImage};
use crate::vcpu::{ExitCounts, VcpuError, VcpuThreads};

pub use self::shell::Shell;
pub use self::snapshot::{MachineState, STATE_VERSION, Template};

/// What a machine is made of. All files are open already.
#[derive(Debug)]
pub struct Blueprint {
    /// Bytes of RAM, in whole pages.
    pub ram: u64,
    /// Virtual CPUs.
    pub vcpus: u8,
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// The initramfs.
    pub initramfs: Arc<SealedImage>,
    /// Bytes of the initramfs; the image is longer, by whole pages.
    pub initramfs_len: u64,
    /// The root image, the guest's first disk, read-only.
    pub root: Option<File>,
    /// Kernel parameters beyond those that follow from the machine.
    pub command_line: String,
    /// Bytes of console output to keep.
    pub console_bytes: usize,
}

/// A running machine. Dropping it ends it.
pub struct Machine<V: Vm> {
    /// First, so that processors are gone before anything that they use.
    vcpus: VcpuThreads<V>,
    devices: DeviceLoop,
    kept: Kept,
    /// The root image and the size of the console's memory, for those made of this one.
    root: Option<Arc<File>>,
    console_bytes: usize,
    console: Arc<Console>,
    killed: AtomicBool,
    /// [`HostFacts::is_shadowed`](crate::hypervisor::HostFacts::is_shadowed) of its host.
    is_shadowed: bool,
    channel: Option<UnixStream>,
    /// What takes long to drop; gone once the machine was taken apart.
    slow: Option<(Arc<V>, GuestRam)>,
}

impl<V: Vm> Machine<V>
where
    V::Vcpu: X86Vcpu,
{
    /// Makes a machine and lets its processors run.
    ///
    /// # Errors
    /// The parts do not fit, or the host refuses something. Nothing is left behind.
    pub fn start<H>(hypervisor: &H, blueprint: Blueprint) -> Result<Self, BackendError>
    where
        H: Hypervisor<Vm = V> + X86Hypervisor,
    {
        Self::start_on(hypervisor, blueprint, None)
    }

    /// The same with the device's end of the agent's stream from elsewhere (`None`: the machine makes both, and has the host's
    /// for [`Machine::take_channel`]).
    ///
    /// # Errors
    /// As [`Machine::start`].
    pub fn start_on<H>(
        hypervisor: &H,
        blueprint: Blueprint,
        agent: Option<UnixStream>,
    ) -> Result<Self, BackendError>
    where
        H: Hypervisor<Vm = V> + X86Hypervisor,
    {
        let facts = hypervisor.facts();
        let pvm = facts.is_pvm;
        let refused_features = if pvm {
            native_cpuid::refused(hypervisor.supported_cpuid(), native_cpuid::native).collect()
        } else {
            Vec::new()
        };
        let platform = Platform { fixed_tsc: !facts.can_set_tsc, pvm, refused_features };
        let (ram, entry) = load(&blueprint, &platform)?;

        let vm = Arc::new(hypervisor.create_vm()?);
        for (slot, region) in (0u32..).zip(ram.regions()) {
            vm.map_memory(slot, &MappedRegion::from_mmap(region))?;
        }
        vm.create_interrupt_chip()?;

        let supported = hypervisor.supported_cpuid().to_vec();
        let count = blueprint.vcpus;
        let setup = move |index: u8, vcpu: &mut V::Vcpu| -> Result<(), HypervisorError> {
            let processors = Processors { count, tsc_khz: vcpu.tsc_khz()?, pvm };
            let leaves = cpuid::leaves(&supported, index, processors);
            entry::prepare(vcpu, &leaves, (index == 0).then_some(entry))
        };
        let Blueprint { root, console_bytes, .. } = blueprint;
        let root = root.map(Arc::new);
        let parts = Parts { root, console_bytes, saved: None, agent, is_shadowed: facts.is_shadowed };
        let made = Self::assemble(vm, ram, parts, count, setup)?;
        made.go()?;
        Ok(made)
    }
}

/// What a machine gets beside memory and processors.
struct Parts<'a> {
    root: Option<Arc<File>>,
    console_bytes: usize,
    saved: Option<&'a DevicesState>,
    /// The device's end of the agent's stream, where somebody else has the other one.
    agent: Option<UnixStream>,
    is_shadowed: bool,
}

impl<V: Vm> Machine<V> {
    /// Puts everything together that comes after memory and interrupt chip. Processors and devices are parked.
    fn assemble<S>(
        vm: Arc<V>,
        ram: GuestRam,
        parts: Parts<'_>,
        vcpus: u8,
        setup: S,
    ) -> Result<Self, BackendError>
    where
        S: Fn(u8, &mut V::Vcpu) -> Result<(), HypervisorError> + Send + Sync + 'static,
    {
        let Parts { root, console_bytes, saved, agent, is_shadowed } = parts;
        let console = Arc::new(Console::new(console_bytes));
        let disk = root.as_ref().map(|root| root.try_clone()).transpose();
        let disk =
            disk.map_err(|source| BackendError::Spawn { what: "opening the root image again", source })?;
        let devices = Devices::new(vm.as_ref(), ram.memory(), disk, &console, saved, agent)?;
        let bus = Arc::new(devices.bus()?);
        let vcpus = VcpuThreads::create(&vm, vcpus, &bus, setup).map_err(vcpu_error)?;
        let (devices, channel, kept) = devices.serve(vm.as_ref())?;
        Ok(Self {
            vcpus,
            devices,
            kept,
            root,
            console_bytes,
            console,
            killed: AtomicBool::new(false),
            is_shadowed,
            channel,
            slow: Some((vm, ram)),
        })
    }
}

impl<V: Vm> Machine<V> {
    /// Lets devices and processors work.
    fn go(&self) -> Result<(), BackendError> {
        self.devices.resume();
        self.vcpus.resume().map_err(vcpu_error)
    }

    /// The host's end of the agent's stream; once, and only if it was made with the machine.
    pub fn take_channel(&mut self) -> Option<UnixStream> {
        self.channel.take()
    }

    /// Becomes readable at the end, and stays so. Not to be read from.
    pub fn end_fd(&self) -> BorrowedFd<'_> {
        self.vcpus.end_fd()
    }

    /// How it ended; `None` while it runs.
    pub fn report(&self) -> Option<ExitReport> {
        let end = self.vcpus.end()?;
        Some(report::report(end, self.killed.load(Ordering::SeqCst), &self.console))
    }

    /// The newest console output, as text that is safe to show.
    pub fn console_tail(&self) -> String {
        self.console.tail()
    }

    /// Asks the processors to leave the guest; does not wait. What ends from here on was killed.
    pub fn kill(&self) {
        if self.vcpus.end().is_none() {
            self.killed.store(true, Ordering::SeqCst);
        }
        self.vcpus.stop();
    }

    /// Exits of the processors so far.
    pub fn exit_counts(&self) -> ExitCounts {
        self.vcpus.exit_counts()
    }

    /// How much of the guest's RAM takes host memory; `None` once it was taken apart, or where the kernel does not say.
    pub fn resident(&self) -> Option<Resident> {
        self.slow.as_ref()?.1.resident().ok()
    }

    /// The guest's RAM as it is at the moment; `None` once it was taken apart.
    pub fn ram(&self) -> Option<&GuestRam> {
        self.slow.as_ref().map(|(_, ram)| ram)
    }

    /// Forgets what belongs to the parent, in a child made by fork: nothing is unmapped or closed in the guest's name that the
    /// child may have something else in place of by now.
    pub fn disown(&mut self) {
        std::mem::forget(self.slow.take());
    }

    /// Ends all threads, and returns what is slow to drop; once.
    pub fn take_apart(&mut self) -> Option<Box<dyn Any + Send>> {
        let slow = self.slow.take()?;
        self.channel = None;
        self.vcpus.join();
        self.devices.stop();
        Some(Box::new(slow))
    }
}

/// Puts kernel, initramfs, parameters and tables into RAM, and says where the kernel begins.
fn load(
    blueprint: &Blueprint,
    platform: &Platform,
) -> Result<(GuestRam, vm_memory::GuestAddress), BackendError> {
    let kernel = &blueprint.kernel;
    let mut ram = GuestRam::new(blueprint.ram).map_err(prepare)?;
    ram.overlay(vm_memory::GuestAddress(0), &kernel.image).map_err(prepare)?;
    let initramfs = params::place_initramfs(&mut ram, kernel.end, &blueprint.initramfs).map_err(prepare)?;
    let count = devices::count(blueprint.root.is_some());
    let line = command_line::build(platform, count, &blueprint.command_line);
    params::write(ram.memory(), ram.len(), &line, Some((initramfs, blueprint.initramfs_len)))
        .map_err(prepare)?;
    mptable::write(ram.memory(), blueprint.vcpus).map_err(prepare)?;
    entry::write_tables(ram.memory()).map_err(prepare)?;
    Ok((ram, kernel.entry))
}

/// Says what does not fit, with its cause.
fn prepare(error: impl std::error::Error) -> BackendError {
    let mut detail = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        detail.push_str(": ");
        detail.push_str(&error.to_string());
        cause = error.source();
    }
    BackendError::Prepare { detail }
}

fn vcpu_error(error: VcpuError) -> BackendError {
    match error {
        VcpuError::Create { source, .. } => BackendError::Hypervisor(source),
        VcpuError::Threads(source) => {
            BackendError::Spawn { what: "starting the processors' threads", source }
        }
        other => prepare(other),
    }
}
