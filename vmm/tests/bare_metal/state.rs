//! Saving a machine and going on with it in another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hayfork_vmm::hypervisor::kvm::{KvmHypervisor, KvmVm};
use hayfork_vmm::hypervisor::probe::{Verdict, probe};
use hayfork_vmm::hypervisor::x86_64::{
    ClockState, InterruptChipState, Msr, VcpuState, X86Hypervisor, X86Vcpu, msr,
};
use hayfork_vmm::hypervisor::{Hypervisor, HypervisorError, Vcpu, Vm};
use hayfork_vmm::vcpu::{Exits, Flow, VcpuThreads};
use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};

use crate::machine::{DATA, LINE, MEMORY, Machine, REGISTER, VECTOR, hypervisor, wait_until};
use crate::unsafe_guests;

const PATIENCE: Duration = Duration::from_secs(10);

/// A whole machine, but for its memory.
#[derive(Serialize, Deserialize)]
struct Saved {
    chip: InterruptChipState,
    clock: ClockState,
    vcpus: Vec<VcpuState>,
}

/// Pauses and saves: memory, and all else through a file format.
fn save(machine: &Machine, threads: &VcpuThreads<KvmVm>) -> (Vec<u8>, String) {
    threads.pause(PATIENCE).unwrap();
    let vcpus = threads.on_each(|_, vcpu| vcpu.state().unwrap()).unwrap();
    let saved =
        Saved { chip: machine.vm.interrupt_chip_state().unwrap(), clock: machine.vm.clock().unwrap(), vcpus };
    let mut memory = vec![0; MEMORY];
    machine.memory.read_slice(&mut memory, GuestAddress(0)).unwrap();
    (memory, serde_json::to_string(&saved).unwrap())
}

/// Makes a machine of it, paused.
fn restore<E: Exits>(memory: &[u8], saved: &str, exits: &Arc<E>) -> (Machine, VcpuThreads<KvmVm>) {
    let saved: Saved = serde_json::from_str(saved).unwrap();
    let machine = Machine::new(hypervisor().unwrap(), &[], true);
    machine.memory.write_slice(memory, GuestAddress(0)).unwrap();
    let count = u8::try_from(saved.vcpus.len()).unwrap();
    let setup = |_, _: &mut _| Ok::<(), HypervisorError>(());
    let threads = VcpuThreads::create(&machine.vm, count, exits, setup).unwrap();
    machine.vm.set_interrupt_chip_state(&saved.chip).unwrap();
    machine.vm.set_clock(&saved.clock).unwrap();
    let vcpus = saved.vcpus;
    for result in threads.on_each(move |index, vcpu| vcpu.set_state(&vcpus[usize::from(index)])).unwrap() {
        result.unwrap();
    }
    (machine, threads)
}

/// Two devices to which the guest must write 1, 2, 3, ... each.
#[derive(Default)]
struct Counted([AtomicU32; 2]);

impl Exits for Counted {
    fn mmio_read(&self, addr: u64, _: &mut [u8]) -> Flow {
        panic!("a read at {addr:#x}")
    }

    fn mmio_write(&self, addr: u64, data: &[u8]) -> Flow {
        let device = usize::try_from((addr - REGISTER) / 0x1000).unwrap();
        let count = u32::from_le_bytes(data.try_into().unwrap());
        let before = self.0[device].swap(count, Ordering::SeqCst);
        assert_eq!(count, before + 1, "device {device}");
        Flow::Continue(())
    }

    fn port_out(&self, port: u16, data: &[u8]) -> Flow {
        panic!("port {port:#x}: some register has another value ({data:x?})")
    }
}

/// General, vector and debug registers, stacks, and half-done accesses of two virtual CPUs go through ten generations.
#[test]
fn a_restored_machine_goes_on_as_if_nothing_had_been() {
    let Some(hypervisor) = hypervisor() else { return };
    let exits = Arc::new(Counted::default());
    let machine = Machine::new(hypervisor, unsafe_guests::counts_everywhere(), true);
    let known = Arc::clone(&machine.hypervisor);
    let threads = VcpuThreads::create(&machine.vm, 2, &exits, move |index, vcpu| {
        crate::machine::prepare(&known, vcpu)?;
        let registers = vcpu.registers()?;
        vcpu.set_registers(&hayfork_vmm::hypervisor::x86_64::Registers { rsi: index.into(), ..registers })
    })
    .unwrap();
    let (mut machine, mut threads) = (machine, threads);
    for generation in 0..10 {
        let before = exits.0.each_ref().map(|count| count.load(Ordering::SeqCst));
        threads.resume().unwrap();
        wait_until("both to count", || {
            assert!(threads.end().is_none(), "generation {generation}: {}", threads.end().unwrap());
            exits.0.iter().zip(before).all(|(count, before)| count.load(Ordering::SeqCst) > before + 50)
        });
        let (memory, saved) = save(&machine, &threads);
        drop((threads, machine));
        (machine, threads) = restore(&memory, &saved, &exits);
        // What was set reads back.
        let again = save(&machine, &threads).1;
        let [first, second]: [Saved; 2] = [&saved, &again].map(|text| serde_json::from_str(text).unwrap());
        assert_eq!(second.chip, first.chip);
        assert!(second.clock.nanoseconds >= first.clock.nanoseconds);
        for (first, second) in first.vcpus.iter().zip(&second.vcpus) {
            assert_same(first, second);
        }
        if generation == 0 {
            let vcpu = &first.vcpus[0];
            println!(
                "{} MSRs, {} bytes of XSAVE, JSON of {}",
                vcpu.msrs.len(),
                vcpu.xsave.len(),
                saved.len()
            );
        }
    }
}

/// Compares two states of one virtual CPU, but for what time changes.
fn assert_same(first: &VcpuState, second: &VcpuState) {
    // IA32_TSC; IA32_MPERF and IA32_APERF, which count cycles; Hyper-V's run time and reference time; the current count
    // of the APIC's timer.
    let moves = |index: u32| [msr::IA32_TSC, 0xe7, 0xe8, 0x4000_0010, 0x4000_0020].contains(&index);
    let strip = |state: &VcpuState| {
        let mut state = state.clone();
        state.msrs.retain(|msr| !moves(msr.index));
        state.local_apic.set_register(0x390, 0);
        state
    };
    let (first, second) = (strip(first), strip(second));
    for (a, b) in first.msrs.iter().zip(&second.msrs) {
        assert_eq!(a, b, "MSR {:#x}", a.index);
    }
    assert_eq!(first, second);
}

/// A halted guest with its timer armed, restored after more time than the timer had left: it fires that much later.
#[test]
fn an_armed_timer_fires_after_what_it_had_left() {
    let Some(hypervisor) = hypervisor() else { return };
    let (left, asleep) = (Duration::from_secs(1), Duration::from_millis(1500));
    let machine = Machine::new(hypervisor, unsafe_guests::serves_interrupts(), true);
    let exits = Arc::new(Served::default());
    let known = Arc::clone(&machine.hypervisor);
    let threads = VcpuThreads::create(&machine.vm, 1, &exits, move |_, vcpu| {
        crate::machine::prepare(&known, vcpu)?;
        // Before the first run: KVM takes no other features later.
        vcpu.set_cpuid(&with_deadline_timer(&known))
    })
    .unwrap();
    threads.resume().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    threads.pause(PATIENCE).unwrap();
    threads
        .on_each(move |_, vcpu| {
            let mut apic = vcpu.local_apic().unwrap();
            // The timer's entry in the local vector table: deadline mode (SDM volume 3, 11.5.4.1).
            apic.set_register(0x320, 2 << 17 | u32::from(VECTOR));
            vcpu.set_local_apic(&apic).unwrap();
            let now = vcpu.msrs(&[msr::IA32_TSC]).unwrap()[0].value;
            let ahead = u64::from(vcpu.tsc_khz().unwrap()) * u64::try_from(left.as_millis()).unwrap();
            vcpu.set_msrs(&[Msr { index: msr::IA32_TSC_DEADLINE, value: now + ahead }]).unwrap();
        })
        .unwrap();
    let (memory, saved) = save(&machine, &threads);
    drop((threads, machine));
    std::thread::sleep(asleep);
    let restored = Instant::now();
    let (_machine, threads) = restore(&memory, &saved, &exits);
    threads.resume().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let served = exits.0.load(Ordering::SeqCst);
    if restored.elapsed() < left / 2 {
        assert_eq!(served, 0, "it must not fire yet");
    }
    wait_until("the timer", || exits.0.load(Ordering::SeqCst) == 1);
    println!("fired {:?} after the restore", restored.elapsed());
    assert!(restored.elapsed() > left / 2, "{:?}", restored.elapsed());
}

/// Counts the guest's interrupts.
#[derive(Default)]
struct Served(AtomicU32);

impl Exits for Served {
    fn mmio_read(&self, addr: u64, _: &mut [u8]) -> Flow {
        panic!("a read at {addr:#x}")
    }

    fn mmio_write(&self, addr: u64, _: &[u8]) -> Flow {
        panic!("a write at {addr:#x}")
    }

    fn port_out(&self, _: u16, _: &[u8]) -> Flow {
        self.0.fetch_add(1, Ordering::SeqCst);
        Flow::Continue(())
    }
}

/// The features of this host, and the timer's deadline mode, which KVM offers without listing it.
fn with_deadline_timer(hypervisor: &KvmHypervisor) -> Vec<hayfork_vmm::hypervisor::x86_64::CpuidEntry> {
    let mut cpuid = hypervisor.supported_cpuid().to_vec();
    for entry in &mut cpuid {
        if entry.function == 1 {
            entry.ecx |= 1 << 24;
        }
    }
    cpuid
}

/// The interrupt is in the local APIC when the state is read, and served by the restored guest.
#[test]
fn a_pending_interrupt_is_restored() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::serves_interrupts(), true);
    machine.route_interrupt();
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let exits = Arc::new(Served::default());
    let threads = machine.threads(1, &exits);
    threads.resume().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    threads.pause(PATIENCE).unwrap();
    line.raise();
    let (memory, saved) = save(&machine, &threads);
    drop((threads, line, machine));
    assert_eq!(exits.0.load(Ordering::SeqCst), 0);
    let (machine, threads) = restore(&memory, &saved, &exits);
    threads.resume().unwrap();
    wait_until("the interrupt", || exits.0.load(Ordering::SeqCst) == 1);
    // And the line works in the new machine, on the old one's routing.
    machine.vm.interrupt_line(LINE).unwrap().raise();
    wait_until("another", || exits.0.load(Ordering::SeqCst) == 2);
    assert_eq!(machine.word(DATA), 2);
}

#[test]
fn the_clock_goes_on_from_what_it_is_set_to() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let first = machine.vm.clock().unwrap().nanoseconds;
    assert!(first < 5_000_000_000, "it starts with the machine: {first}");
    machine.vm.set_clock(&ClockState { nanoseconds: 1_000_000_000_000 }).unwrap();
    let [second, third] = [0, 0].map(|_| machine.vm.clock().unwrap().nanoseconds);
    assert!((1_000_000_000_000..1_005_000_000_000).contains(&second), "{second}");
    assert!(third >= second);
}

#[test]
fn an_impossible_state_is_refused() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let mut vcpu = machine.vcpu(0);
    let good = vcpu.state().unwrap();
    vcpu.set_state(&good).unwrap();
    let mut refused = |change: &dyn Fn(&mut VcpuState)| {
        let mut state = good.clone();
        change(&mut state);
        vcpu.set_state(&state).unwrap_err()
    };
    for length in [0, 100, 4095, 4097, 1 << 20] {
        let error = refused(&|state| state.xsave.resize(length, 0));
        assert!(matches!(error, HypervisorError::BadState { .. }), "{length}: {error}");
    }
    // Registers that this processor does not have.
    let error = refused(&|state| state.xsave.resize(32 * 1024, 1));
    assert!(matches!(error, HypervisorError::BadState { .. }), "{error}");
    for length in [0, 1023, 1025] {
        let error = refused(&|state| state.local_apic.0.resize(length, 0));
        assert!(matches!(error, HypervisorError::BadState { .. }), "{length}: {error}");
    }
    let error = refused(&|state| state.msrs.push(Msr { index: 0xdead_beef, value: 1 }));
    assert!(matches!(error, HypervisorError::MsrRefused { index: 0xdead_beef, value: 1 }), "{error}");
    let error = refused(&|state| state.cpuid = vec![state.cpuid[0]; 1000]);
    assert!(matches!(error, HypervisorError::BadState { .. }), "{error}");
    let error = refused(&|state| state.xcrs = vec![state.xcrs[0]; 17]);
    assert!(matches!(error, HypervisorError::BadState { .. }), "{error}");
    let error = refused(&|state| state.tsc_khz = 1);
    assert!(matches!(error, HypervisorError::BadState { .. }), "{error}");
    // Room for registers that nobody uses is no harm, as a state of a larger processor has it.
    let mut larger = good.clone();
    larger.xsave.resize(larger.xsave.len() + 4096, 0);
    vcpu.set_state(&larger).unwrap();
}

#[test]
fn the_host_is_described() {
    let Some(hypervisor) = hypervisor() else { return };
    let facts = hypervisor.facts();
    println!("{facts:?}");
    assert!(facts.max_vcpus >= 8);
    assert_eq!(facts.name == "kvm_pvm", facts.is_pvm);
    // The probe asks by a guest of its own, and hardware is never kvm_pvm.
    assert_eq!(matches!(probe().verdict, Verdict::KvmPvm { .. }), facts.is_pvm);
    if facts.is_pvm {
        assert!(!facts.can_set_tsc, "writes of IA32_TSC do nothing on kvm_pvm");
    }
    // A guest made for kvm_pvm is nothing without this register, which no list of KVM has.
    let machine = Machine::new(self::hypervisor().unwrap(), unsafe_guests::spins(), true);
    let msrs = machine.vcpu(0).state().unwrap().msrs;
    assert_eq!(msrs.iter().any(|msr| msr.index == msr::PVM_GUEST_PAGE), facts.is_pvm);
    assert!(msrs.iter().any(|msr| msr.index == msr::IA32_TSC));
    assert!(hypervisor.supported_cpuid().iter().any(|entry| entry.function == 0x8000_0001));
}
