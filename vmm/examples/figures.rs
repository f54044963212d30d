//! What the hypervisor's operations cost through the seam, one line for each: `figure NAME NANOSECONDS`.
//!
//! Made for the nested rig (`tests/rig/`), where a nanosecond is an instruction of the host, kernel and guest included,
//! so that figures repeat; it runs anywhere else too, with times. Each figure is the least of some rounds of
//! operations by a guest of a few instructions: the round that no timer has disturbed.
//!
//! ```text
//! guest-physical 0x0000_1000  page tables: the first 2 MiB, the device's and the local APIC's, mapped to themselves
//!                0x0000_6000  segment descriptors
//!                0x0000_7000  interrupt descriptors
//!                0x0000_8000  the interrupt's handler
//!                0x0001_0000  code; its stack below
//!                0x1000_0000  a device
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hayfork_vmm::hypervisor::kvm::{KvmHypervisor, KvmVcpu, KvmVm};
use hayfork_vmm::hypervisor::x86_64::{
    DescriptorTable, Registers, Segment, SystemRegisters, X86Hypervisor, X86Vcpu,
};
use hayfork_vmm::hypervisor::{Exit, Hypervisor, Kick, MappedRegion, Vcpu, Vm};
use rustix::time::{ClockId, clock_gettime};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Rounds of a figure.
const ROUNDS: u32 = 40;

const MEMORY: usize = 2 << 20;
const PML4: u64 = 0x1000;
const SEGMENTS: u64 = 0x6000;
const INTERRUPTS: u64 = 0x7000;
const HANDLER: u64 = 0x8000;
const CODE: u64 = 0x1_0000;
const DEVICE: u64 = 0x1000_0000;
const LOCAL_APIC: u64 = 0xfee0_0000;

/// Input of the I/O APIC, and the vector that it is given.
const LINE: u32 = 5;
const VECTOR: u64 = 0x40;

/// `2: out 0x10, al; jmp 2b`
const WRITES_A_PORT: &[u8] = &[0xe6, 0x10, 0xeb, 0xfc];
/// `2: mov [rdi], eax; jmp 2b`
const WRITES_THE_DEVICE: &[u8] = &[0x89, 0x07, 0xeb, 0xfc];
/// `2: mov eax, [rdi]; jmp 2b`
const READS_THE_DEVICE: &[u8] = &[0x8b, 0x07, 0xeb, 0xfc];
/// `1: mov ecx, 1000; 2: mov [rdi], eax; dec ecx; jnz 2b; out 0x10, al; jmp 1b`
const WRITES_THE_DEVICE_OFTEN: &[u8] =
    &[0xb9, 0xe8, 0x03, 0, 0, 0x89, 0x07, 0xff, 0xc9, 0x75, 0xfa, 0xe6, 0x10, 0xeb, 0xf1];
/// Writes between two exits of [`WRITES_THE_DEVICE_OFTEN`].
const OFTEN: u32 = 1000;
/// `sti; 2: hlt; jmp 2b`
const WAITS_FOR_INTERRUPTS: &[u8] = &[0xfb, 0xf4, 0xeb, 0xfd];
/// `out 0x11, al; mov dword ptr [rsi], 0; iretq`, rsi being the local APIC's end-of-interrupt register
const HANDLES_INTERRUPTS: &[u8] = &[0xe6, 0x11, 0xc7, 0x06, 0, 0, 0, 0, 0x48, 0xcf];

fn main() -> Outcome<()> {
    let hypervisor = KvmHypervisor::open()?;
    exits(&hypervisor)?;
    doorbells(&hypervisor)?;
    interrupts(&hypervisor)?;
    state(&hypervisor)?;
    life(&hypervisor)
}

/// Accesses that come out of the guest.
fn exits(hypervisor: &KvmHypervisor) -> Outcome<()> {
    let mut machine = Machine::new(hypervisor, WRITES_A_PORT)?;
    figure("port_write_exit", 500, || match machine.vcpu.run()? {
        Exit::PortOut { port: 0x10, .. } => Ok(()),
        other => unexpected(&other),
    })?;
    let kicker = machine.vcpu.kicker();
    figure("kick", 500, || {
        kicker.kick();
        match machine.vcpu.run()? {
            Exit::Kicked => Ok(()),
            other => unexpected(&other),
        }
    })?;
    let mut machine = Machine::new(hypervisor, WRITES_THE_DEVICE)?;
    figure("device_write_exit", 500, || match machine.vcpu.run()? {
        Exit::MmioWrite { addr: DEVICE, .. } => Ok(()),
        other => unexpected(&other),
    })?;
    let mut machine = Machine::new(hypervisor, READS_THE_DEVICE)?;
    figure("device_read_exit", 500, || match machine.vcpu.run()? {
        Exit::MmioRead { addr: DEVICE, data } => {
            data.fill(1);
            Ok(())
        }
        other => unexpected(&other),
    })
}

/// Writes that the hypervisor counts by itself.
fn doorbells(hypervisor: &KvmHypervisor) -> Outcome<()> {
    let mut machine = Machine::new(hypervisor, WRITES_THE_DEVICE_OFTEN)?;
    let doorbell = machine.vm.doorbell(DEVICE, Some(0))?.ok_or("this hypervisor has no doorbells")?;
    let mut per_run = 0;
    figure_by(ClockId::Monotonic, "doorbell", 1, OFTEN, || match machine.vcpu.run()? {
        Exit::PortOut { port: 0x10, .. } => {
            per_run = doorbell.drain();
            Ok(())
        }
        other => unexpected(&other),
    })?;
    if per_run == u64::from(OFTEN) { Ok(()) } else { Err(format!("{per_run} writes were counted").into()) }
}

/// An interrupt from the host to the guest's handler, and the handler's exit.
fn interrupts(hypervisor: &KvmHypervisor) -> Outcome<()> {
    let mut machine = Machine::new(hypervisor, WAITS_FOR_INTERRUPTS)?;
    machine.memory.write_slice(HANDLES_INTERRUPTS, GuestAddress(HANDLER))?;
    let mut chip = machine.vm.interrupt_chip_state()?;
    for pic in &mut chip.pics {
        pic.imr = 0xff; // else both controllers deliver it
    }
    chip.io_apic.redirection[LINE as usize] = VECTOR;
    machine.vm.set_interrupt_chip_state(&chip)?;
    let mut apic = machine.vcpu.local_apic()?;
    apic.set_register(0xf0, 0x1ff); // spurious interrupt vector: switched on
    machine.vcpu.set_local_apic(&apic)?;
    let line = machine.vm.interrupt_line(LINE)?;
    figure("interrupt", 100, || {
        line.raise();
        match machine.vcpu.run()? {
            Exit::PortOut { port: 0x11, .. } => Ok(()),
            other => unexpected(&other),
        }
    })
}

/// A virtual CPU's state, out and in.
fn state(hypervisor: &KvmHypervisor) -> Outcome<()> {
    let mut machine = Machine::new(hypervisor, WRITES_A_PORT)?;
    let state = machine.vcpu.state()?;
    figure("vcpu_state", 5, || Ok(machine.vcpu.state().map(drop)?))?;
    figure("set_vcpu_state", 5, || Ok(machine.vcpu.set_state(&state)?))
}

/// A machine until its guest's first exit, and its end.
fn life(hypervisor: &KvmHypervisor) -> Outcome<()> {
    // Without what both wait for: grace periods of the kernel (RCU), which pass at the host's time.
    let time = || now(ClockId::ProcessCPUTime);
    let (mut first_exit, mut end) = (Duration::MAX, Duration::MAX);
    for _ in 0..=ROUNDS {
        let start = time();
        let mut machine = Machine::new(hypervisor, WRITES_A_PORT)?;
        match machine.vcpu.run()? {
            Exit::PortOut { port: 0x10, .. } => {}
            other => return unexpected(&other),
        }
        first_exit = first_exit.min(time().saturating_sub(start));
        let start = time();
        drop(machine);
        end = end.min(time().saturating_sub(start));
    }
    println!("figure create_to_first_exit {}", first_exit.as_nanos());
    println!("figure destroy {}", end.as_nanos());
    Ok(())
}

/// Measures an operation.
fn figure(name: &str, operations: u32, operation: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    figure_by(ClockId::Monotonic, name, operations, 1, operation)
}

/// Measures, by a clock, an operation that each of `calls` calls does `each` times.
fn figure_by(
    clock: ClockId,
    name: &str,
    calls: u32,
    each: u32,
    mut operation: impl FnMut() -> Outcome<()>,
) -> Outcome<()> {
    let mut least = Duration::MAX;
    // One more, which comes first and is not counted: it reads in code and grows caches.
    for round in 0..=ROUNDS {
        let start = now(clock);
        for _ in 0..calls {
            operation()?;
        }
        let time = now(clock).saturating_sub(start);
        if round > 0 {
            least = least.min(time);
        }
    }
    println!("figure {name} {:.1}", least.as_secs_f64() * 1e9 / f64::from(calls) / f64::from(each));
    Ok(())
}

fn now(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    // Both clocks start at 0, so neither part is negative.
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

fn unexpected<T>(exit: &Exit<'_>) -> Outcome<T> {
    Err(format!("the guest came out with {exit:?}").into())
}

/// A machine with one virtual CPU in 64-bit mode, about to execute at [`CODE`].
///
/// Fields drop in the order written.
struct Machine {
    vcpu: KvmVcpu,
    vm: KvmVm,
    memory: GuestMemoryMmap,
}

impl Machine {
    fn new(hypervisor: &KvmHypervisor, code: &[u8]) -> Outcome<Self> {
        let vm = hypervisor.create_vm()?;
        let region =
            GuestRegionMmap::new(MmapRegion::<()>::new(MEMORY)?, GuestAddress(0)).ok_or("no address")?;
        let region = Arc::new(region);
        vm.map_memory(0, &MappedRegion::from_mmap(&region))?;
        vm.create_interrupt_chip()?;
        let memory = GuestMemoryMmap::from_arc_regions(vec![region])?;
        memory.write_slice(code, GuestAddress(CODE))?;
        write_tables(&memory)?;
        let mut vcpu = vm.create_vcpu(0)?;
        vcpu.set_cpuid(hypervisor.supported_cpuid())?;
        let system = vcpu.system_registers()?;
        vcpu.set_system_registers(&long_mode(&system))?;
        vcpu.set_registers(&Registers {
            rip: CODE,
            rsp: CODE,
            rdi: DEVICE,
            rsi: LOCAL_APIC + 0xb0,
            rflags: 2,
            ..Registers::default()
        })?;
        Ok(Self { vcpu, vm, memory })
    }
}

/// Page tables and descriptors.
fn write_tables(memory: &GuestMemoryMmap) -> Outcome<()> {
    const TABLE: u64 = 0b11; // present, writable
    const LARGE_PAGE: u64 = 0b1000_0011;
    let write = |value: u64, at: u64| memory.write_obj(value, GuestAddress(at));
    let (directories, low, high) = (PML4 + 0x1000, PML4 + 0x2000, PML4 + 0x3000);
    write(directories | TABLE, PML4)?;
    write(low | TABLE, directories)?;
    write(high | TABLE, directories + 3 * 8)?;
    write(LARGE_PAGE, low)?;
    for (directory, page) in [(low, DEVICE), (high, LOCAL_APIC)] {
        write(page | LARGE_PAGE, directory + (page >> 21) % 512 * 8)?;
    }
    // 64-bit code and data (SDM volume 3, 3.4.5), and an interrupt gate (6.14.1).
    write(0x00af_9b00_0000_ffff, SEGMENTS + 8)?;
    write(0x00cf_9300_0000_ffff, SEGMENTS + 16)?;
    write(HANDLER | 8 << 16 | 0x8e << 40, INTERRUPTS + VECTOR * 16)?;
    Ok(())
}

fn long_mode(system: &SystemRegisters) -> SystemRegisters {
    let code = Segment {
        base: 0,
        limit: u32::MAX,
        selector: 8,
        kind: 0b1011,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Segment::default()
    };
    let data = Segment { selector: 16, kind: 0b0011, db: 1, l: 0, ..code };
    SystemRegisters {
        cs: code,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        gdt: DescriptorTable { base: SEGMENTS, limit: 23 },
        idt: DescriptorTable { base: INTERRUPTS, limit: 0xfff },
        cr0: 0x8000_0031, // PG, NE, ET, PE
        cr3: PML4,
        cr4: 0x20,   // PAE
        efer: 0x500, // LMA, LME
        ..*system
    }
}
