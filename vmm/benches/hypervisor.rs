//! What calls of the hypervisor and exits of a guest cost on this host. Guests are those of `tests/bare_metal/`.
//!
//! Creation is measured from `KVM_CREATE_VM` to the return of the first `KVM_RUN`, in the order that the monitor uses and in
//! one that it avoids; the pauses between are there because what a machine's end leaves to the kernel disturbs the next one.

#![allow(missing_docs, clippy::unwrap_used)] // Made by macros; a benchmark.

#[allow(dead_code)] // Shared with the tests.
#[path = "../tests/bare_metal/machine.rs"]
mod machine;
#[path = "../tests/bare_metal/unsafe_guests.rs"]
mod unsafe_guests;

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use hayfork_vmm::hypervisor::kvm::{KvmHypervisor, KvmVcpu, KvmVm};
use hayfork_vmm::hypervisor::x86_64::X86Vcpu;
use hayfork_vmm::hypervisor::{Doorbell, Hypervisor, HypervisorError, MappedRegion, Vcpu, Vm};
use hayfork_vmm::vcpu::{Exits, Flow, VcpuThreads};
use vm_memory::{Bytes, GuestAddress, GuestRegionMmap, MmapRegion};

use self::machine::{DATA, LINE, Machine, Recorder, prepare};

/// Bytes of memory of the machines that are created: what a guest of ours has. None of it is touched but the guest's own.
const RAM: usize = 256 << 20;
/// Doorbells of a machine with three devices.
const BELLS: u64 = 5;
/// For the kernel to finish what a machine's end has left to it.
const REST: Duration = Duration::from_millis(20);

/// Where the interrupt chip comes in the order of creation.
#[derive(Clone, Copy)]
enum Chip {
    AfterMemory,
    BeforeMemory,
}

/// A machine that has run, and what it is made of.
type Made = (KvmVcpu, Vec<Doorbell>, KvmVm);

/// Creates a machine up to its first exit.
fn create(
    hypervisor: &KvmHypervisor,
    region: &MappedRegion,
    chip: Chip,
    bells: u64,
) -> Result<Made, HypervisorError> {
    let vm = hypervisor.create_vm()?;
    if let Chip::BeforeMemory = chip {
        vm.create_interrupt_chip()?;
    }
    vm.map_memory(0, region)?;
    if let Chip::AfterMemory = chip {
        vm.create_interrupt_chip()?;
    }
    let mut vcpu = vm.create_vcpu(0)?;
    prepare(hypervisor, &mut vcpu)?;
    let bells = (0..bells).map(|queue| vm.doorbell(0xd000_0050 + queue * 0x1000, Some(0)));
    let bells = bells.collect::<Result<Option<Vec<_>>, _>>()?.unwrap_or_default();
    black_box(vcpu.run()?);
    Ok((vcpu, bells, vm))
}

fn creation(criterion: &mut Criterion) {
    let Some(hypervisor) = machine::hypervisor() else { return };
    // Tables and code for all of the machines.
    let template = Machine::new(hypervisor, unsafe_guests::writes_a_port(), false);
    let hypervisor = Arc::clone(&template.hypervisor);
    let mut bytes = vec![0; machine::MEMORY];
    template.memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    let region = GuestRegionMmap::new(MmapRegion::<()>::new(RAM).unwrap(), GuestAddress(0)).unwrap();
    region.write_slice(&bytes, vm_memory::MemoryRegionAddress(0)).unwrap();
    let region = MappedRegion::from_mmap(&Arc::new(region));

    let mut group = criterion.benchmark_group("creation to first exit");
    group.sample_size(20).measurement_time(Duration::from_secs(5));
    for (name, chip) in [
        ("memory, then interrupt chip", Chip::AfterMemory),
        ("interrupt chip, then memory", Chip::BeforeMemory),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let mut time = Duration::ZERO;
                for _ in 0..rounds {
                    let start = Instant::now();
                    let made = create(&hypervisor, &region, chip, BELLS).unwrap();
                    time += start.elapsed();
                    drop(made);
                    std::thread::sleep(REST);
                }
                time
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("end of a machine");
    group.sample_size(20).measurement_time(Duration::from_secs(5));
    for (name, bells) in [("without doorbells", 0), ("with 5 doorbells", BELLS)] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let mut time = Duration::ZERO;
                for _ in 0..rounds {
                    let made = create(&hypervisor, &region, Chip::AfterMemory, bells).unwrap();
                    let start = Instant::now();
                    drop(made);
                    time += start.elapsed();
                    std::thread::sleep(REST);
                }
                time
            });
        });
    }
    group.finish();
}

fn exits(criterion: &mut Criterion) {
    let Some(hypervisor) = machine::hypervisor() else { return };
    let mut group = criterion.benchmark_group("exit and back");
    let machine = Machine::new(hypervisor, unsafe_guests::writes_a_port(), true);
    let mut vcpu = machine.vcpu(0);
    group.bench_function("port write", |bencher| {
        bencher.iter(|| {
            black_box(vcpu.run().unwrap());
        });
    });
    let machine = Machine::new(machine::hypervisor().unwrap(), unsafe_guests::reads_a_device(), true);
    let mut vcpu = machine.vcpu(0);
    group.bench_function("device read", |bencher| {
        bencher.iter(|| {
            black_box(vcpu.run().unwrap());
        });
    });
    group.bench_function("state, read", |bencher| bencher.iter(|| vcpu.state().unwrap()));
    let state = vcpu.state().unwrap();
    group.bench_function("state, set", |bencher| bencher.iter(|| vcpu.set_state(&state).unwrap()));
    group.finish();
}

/// Rings are counted in thousands, since the guest executes other instructions too.
fn doorbells(criterion: &mut Criterion) {
    let Some(hypervisor) = machine::hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::rings(), true);
    let mut vcpu = machine.vcpu(0);
    let bell = machine.vm.doorbell(0x1000_0050, Some(1)).unwrap();
    machine.memory.write_obj(1u32, GuestAddress(DATA)).unwrap();
    machine.memory.write_obj(1000u32, GuestAddress(DATA + 4)).unwrap();
    let start = vcpu.registers().unwrap();
    criterion.bench_function("1000 doorbells", |bencher| {
        bencher.iter(|| {
            vcpu.set_registers(&start).unwrap();
            black_box(vcpu.run().unwrap());
        });
    });
    drop(bell);
}

/// Counts the guest's interrupts.
#[derive(Default)]
struct Served(AtomicU32);

impl Exits for Served {
    fn mmio_read(&self, _: u64, _: &mut [u8]) -> Flow {
        Flow::Continue(())
    }

    fn mmio_write(&self, _: u64, _: &[u8]) -> Flow {
        Flow::Continue(())
    }

    fn port_out(&self, _: u16, _: &[u8]) -> Flow {
        self.0.fetch_add(1, Ordering::SeqCst);
        Flow::Continue(())
    }
}

fn threads(criterion: &mut Criterion) {
    let Some(hypervisor) = machine::hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::serves_interrupts(), true);
    machine.route_interrupt();
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let served = Arc::new(Served::default());
    let threads: VcpuThreads<KvmVm> = machine.threads(1, &served);
    threads.resume().unwrap();
    let mut group = criterion.benchmark_group("threads");
    group.bench_function("interrupt of a halted guest and its answer", |bencher| {
        bencher.iter(|| {
            let before = served.0.load(Ordering::SeqCst);
            line.raise();
            while served.0.load(Ordering::SeqCst) == before {
                spin_loop();
            }
        });
    });
    threads.stop();
    let machine = Machine::new(machine::hypervisor().unwrap(), unsafe_guests::spins(), true);
    for count in [1, 2] {
        let machine = if count == 1 {
            &machine
        } else {
            &Machine::new(machine::hypervisor().unwrap(), unsafe_guests::spins(), true)
        };
        let threads = machine.threads(count, &Arc::new(Recorder::default()));
        threads.resume().unwrap();
        group.bench_function(format!("pause, {count} virtual CPUs"), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut time = Duration::ZERO;
                for _ in 0..rounds {
                    let start = Instant::now();
                    threads.pause(Duration::from_secs(10)).unwrap();
                    time += start.elapsed();
                    threads.resume().unwrap();
                    // Until they are in the guest.
                    std::thread::sleep(Duration::from_micros(200));
                }
                time
            });
        });
    }
    group.finish();
}

criterion_group!(benches, creation, exits, doorbells, threads);
criterion_main!(benches);
