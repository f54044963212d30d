//! QEMU's command line for a machine. A pure function, so that tests can see all of it.
//!
//! Everything the machine needs comes by descriptor: images are opened here, guest memory is a memfd, the agent's
//! channel is one end of a socket pair. QEMU gets them as `/proc/self/fd/N`, so that no path needs quoting, nothing has
//! a name in a file system, and nothing can be exchanged between the check and the use.

use std::fmt::Write as _;
use std::os::fd::RawFd;

use hayfork_vmm::backend::{AGENT_PORT_NAME, Accelerator, MachineSpec, SECOND_AGENT_PORT_NAME};
use serde::{Deserialize, Serialize};

/// Size of the buffer for translated code, in MiB. It fills up as the guest runs new code and is thrown away when full,
/// so it bounds QEMU's private memory (its default is up to 1 GiB), and costs time when too small.
///
/// Measured with a start of Python and another with five imports: processor time 100 % with 48 MiB, 115 % with 32, 125 %
/// with 24, 160 % with 20, 210 % with 16. The rest of QEMU's private memory is 14 to 17 MiB.
pub const DEFAULT_TRANSLATION_BUFFER_MIB: u32 = 28;

/// Descriptors that QEMU inherits, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherited {
    /// A connected socket: QEMU's end of its control channel.
    pub(crate) control: RawFd,
    /// A connected socket: the guest's end of the agent channel.
    pub(crate) agent: RawFd,
    /// Guest memory, of the right size.
    pub(crate) memory: RawFd,
    pub(crate) root_image: Option<RawFd>,
    pub(crate) start: Start,
}

/// Which of the agent's two ports the host is at. The agent sees that its host is another one by finding it at the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Port {
    First,
    Second,
}

impl Port {
    /// Where the host of a machine is that goes on where one with the host here stood.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// How the guest begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// By its kernel, with the host at the first port.
    Boot { kernel: RawFd, initramfs: RawFd },
    /// Where another stood, whose state comes over the control channel and whose memory is not to be changed. The kernel is in
    /// that memory, and QEMU that is given none starts faster and is smaller.
    Saved { port: Port },
}

impl Start {
    /// Where the host is.
    pub(crate) fn port(self) -> Port {
        match self {
            Self::Boot { .. } => Port::First,
            Self::Saved { port } => port,
        }
    }
}

/// How to run the guest, apart from what the guest is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine {
    pub(crate) accelerator: Accelerator,
    /// [`DEFAULT_TRANSLATION_BUFFER_MIB`]
    pub(crate) translation_buffer_mib: u32,
    /// Frequency of the host's time stamp counter, if known.
    pub(crate) tsc_khz: Option<u32>,
}

/// The arguments behind the name of the binary.
pub(crate) fn arguments(spec: &MachineSpec, engine: Engine, fds: Inherited) -> Vec<String> {
    let mut all = Arguments::default();
    let memory = spec.memory_mib;
    all.option("-name", &spec.name);
    // Before everything else: whatever QEMU parses later runs with few system calls left to it.
    all.option("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    // No ACPI: only then does QEMU tell the kernel by its command line where the devices are. No option ROMs: qboot
    // starts the kernel itself. The clock chip gives the guest its date. A saved state needs no description of itself.
    let timers = if needs_timer_chip(engine) { "on" } else { "off" };
    all.option(
        "-machine",
        &format!(
            "microvm,acpi=off,pic={timers},pit={timers},rtc=on,isa-serial=on,x-option-roms=off,auto-kernel-cmdline=on,\
             usb=off,graphics=off,mem-merge=off,dump-guest-core=off,suppress-vmdesc=on,memory-backend=ram"
        ),
    );
    if engine.accelerator == Accelerator::Tcg {
        all.option("-accel", &format!("tcg,tb-size={}", engine.translation_buffer_mib));
        all.option("-cpu", TCG_CPU);
    } else {
        all.option("-accel", "kvm");
        all.option("-cpu", "host");
    }
    all.option("-smp", &spec.vcpus.to_string());
    all.option("-m", &format!("{memory}M"));
    // What a restored guest writes are pages of its own.
    let share = if matches!(fds.start, Start::Boot { .. }) { "on" } else { "off" };
    all.option(
        "-object",
        &format!("memory-backend-file,id=ram,mem-path={},size={memory}M,share={share}", path(fds.memory)),
    );
    for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        all.flag(flag);
    }
    all.option("-display", "none");
    all.option("-rtc", "base=utc");
    match fds.start {
        Start::Boot { kernel, initramfs, .. } => {
            all.option("-kernel", &path(kernel));
            all.option("-initrd", &path(initramfs));
            all.option("-append", &kernel_command_line(spec, engine));
        }
        Start::Saved { .. } => all.option("-incoming", "defer"),
    }
    all.option("-chardev", &format!("socket,id=control,fd={}", fds.control));
    all.option("-mon", "chardev=control,mode=control");
    // See `snapshot`: a state that is saved by the devices alone does not say of which machine it is.
    all.option("-global", "migration.send-configuration=off");
    // The console: what the guest writes is read from QEMU's standard output; its standard input is empty.
    all.option("-chardev", "stdio,id=console,signal=off");
    all.option("-serial", "chardev:console");
    all.option("-global", "virtio-mmio.force-legacy=false");
    all.option("-device", "virtio-serial-device,max_ports=3");
    for (number, port, name) in [(1, Port::First, AGENT_PORT_NAME), (2, Port::Second, SECOND_AGENT_PORT_NAME)]
    {
        let host = if port == fds.start.port() {
            format!("socket,id=agent{number},fd={}", fds.agent)
        } else {
            format!("null,id=agent{number}")
        };
        all.option("-chardev", &host);
        all.option("-device", &format!("virtserialport,nr={number},chardev=agent{number},name={name}"));
    }
    all.option("-device", "virtio-rng-device");
    if let Some(root_image) = fds.root_image {
        all.option(
            "-blockdev",
            &format!("driver=file,node-name=root,filename={},read-only=on,locking=off", path(root_image)),
        );
        all.option("-device", "virtio-blk-device,drive=root");
    }
    all.0
}

/// The processor that is translated: everything that the translator can do, but for one promise. A kernel that is told
/// that string instructions are fast clears and copies memory by them, and the translator does those byte by byte.
const TCG_CPU: &str = "max,erms=off";

/// Whether the kernel must find out the frequency of its clocks, which it does by the old timer chip. A translated guest
/// is told instead; by the chip it would often get it wrong, being too slow, and keep time by counting interrupts.
fn needs_timer_chip(engine: Engine) -> bool {
    engine.accelerator != Accelerator::Tcg || engine.tsc_khz.is_none()
}

/// The kernel's parameters; QEMU appends one `virtio_mmio.device=` for each device. What they mean is documented where
/// the kernel is configured (crate `hayfork-guest-kernel`, `cmdline`).
fn kernel_command_line(spec: &MachineSpec, engine: Engine) -> String {
    // A panic resets the machine at once, a reset is by triple fault (there is no keyboard controller), and either ends
    // QEMU (-no-reboot).
    let mut line = String::from("console=ttyS0 panic=-1 reboot=t noreplace-smp ");
    if engine.accelerator == Accelerator::Tcg {
        // The translator of QEMU 7.2 leaves garbage in the flags register after CMPXCHG16B: it computes the flags from a
        // state that it has not written back. An interrupt at that moment saves the garbage and its return loads it
        // (seen: a double fault in kmalloc, with the freelist pointer in EFLAGS, once in some dozens of boots). Without
        // this feature the kernel's allocator does the same with interrupts off.
        line.push_str("clearcpuid=cx16 ");
    }
    match engine.tsc_khz {
        // See `host_clock`. QEMU's local APIC timer counts nanoseconds. "reliable": there is nothing in this machine to
        // check the counter against.
        Some(khz) if !needs_timer_chip(engine) => {
            // Writing to a String cannot fail.
            let _ = write!(line, "tsc_early_khz={khz} tsc=reliable lapic_timer_khz=1000000 ");
        }
        // The translator delivers timer interrupts too irregularly for the kernel's check of them.
        _ if engine.accelerator == Accelerator::Tcg => line.push_str("no_timer_check "),
        _ => {}
    }
    line.push_str(&spec.command_line(&format!("virtio-serial:{AGENT_PORT_NAME}")));
    line
}

/// A descriptor as a path in QEMU.
fn path(fd: RawFd) -> String {
    format!("/proc/self/fd/{fd}")
}

#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, flag: &str) {
        self.0.push(flag.to_owned());
    }

    fn option(&mut self, name: &str, value: &str) {
        self.0.push(name.to_owned());
        self.0.push(value.to_owned());
    }
}

#[cfg(test)]
mod tests;
