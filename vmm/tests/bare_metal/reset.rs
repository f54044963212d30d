//! A virtual CPU that has run is made another, with nothing left of what its guest did to it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hayfork_vmm::hypervisor::kvm::{KvmVcpu, KvmVm};
use hayfork_vmm::hypervisor::x86_64::{DebugRegisters, Msr, Registers, VcpuState, X86Vcpu, msr};
use hayfork_vmm::hypervisor::{Hypervisor, Vcpu};
use hayfork_vmm::vcpu::{Exits, Flow, VcpuThreads};
use vm_memory::{Bytes, GuestAddress};

use crate::machine::{DATA, Machine, hypervisor, wait_until};
use crate::unsafe_guests;

const PATIENCE: Duration = Duration::from_secs(20);

/// General protection.
const GP: u8 = 13;

/// Model-specific registers: Intel's and common ones, Hyper-V's, KVM's, AMD's. Not kvm_pvm's own, by which a guest becomes one of
/// another kind.
const REGISTERS: [Range<u32>; 5] = [
    0..0x1000,
    0x4000_0000..0x4000_0200,
    0x4b56_4d00..0x4b56_4d10,
    0xc000_0080..0xc000_0120,
    0xc001_0000..0xc001_0200,
];

/// Waits for the guest to say that it is done.
#[derive(Default)]
struct Done(AtomicBool);

impl Exits for Done {
    fn mmio_read(&self, addr: u64, _: &mut [u8]) -> Flow {
        panic!("a read at {addr:#x}")
    }

    fn mmio_write(&self, addr: u64, _: &[u8]) -> Flow {
        panic!("a write at {addr:#x}")
    }

    fn port_out(&self, _: u16, _: &[u8]) -> Flow {
        self.0.store(true, Ordering::SeqCst);
        Flow::Continue(())
    }
}

/// All model-specific registers that the hypervisor knows, but for those that move by themselves.
fn all_msrs(vcpu: &KvmVcpu) -> BTreeMap<u32, u64> {
    let moves = [msr::IA32_TSC, 0xe7, 0xe8, 0x4000_0010, 0x4000_0020];
    let indices: Vec<u32> = REGISTERS.into_iter().flatten().filter(|index| !moves.contains(index)).collect();
    // KVM takes no more at a time.
    let all = indices.chunks(255).flat_map(|some| vcpu.msrs(some).unwrap());
    all.map(|msr| (msr.index, msr.value)).collect()
}

/// A machine whose guest writes registers, its virtual CPU parked at the beginning.
fn machine(exits: &Arc<Done>) -> Option<(Machine, VcpuThreads<KvmVm>)> {
    let machine = Machine::new(hypervisor()?, unsafe_guests::writes_registers(), true);
    machine.handle(GP);
    for (number, range) in (0..).zip(REGISTERS) {
        machine.memory.write_obj(range.start, GuestAddress(DATA + 0x10 + number * 8)).unwrap();
        machine.memory.write_obj(range.end, GuestAddress(DATA + 0x14 + number * 8)).unwrap();
    }
    let threads = machine.threads(1, exits);
    Some((machine, threads))
}

fn first<R>(mut results: Vec<R>) -> R {
    results.remove(0)
}

#[test]
fn registers_that_a_guest_wrote_are_as_in_a_new_virtual_cpu() {
    let exits = Arc::new(Done::default());
    let Some((machine, threads)) = machine(&exits) else { return };
    let saved = first(threads.on_each(|_, vcpu| vcpu.state().unwrap()).unwrap());
    let before = first(threads.on_each(|_, vcpu| all_msrs(vcpu)).unwrap());
    threads.resume().unwrap();
    wait_until("the guest to have written them", || {
        assert!(threads.end().is_none(), "{}", threads.end().unwrap());
        exits.0.load(Ordering::SeqCst)
    });
    threads.pause(PATIENCE).unwrap();
    let written = machine.word(DATA) & 0xffff_ffff;
    let mut dirty = first(threads.on_each(|_, vcpu| all_msrs(vcpu)).unwrap());
    dirty.retain(|index, value| before.get(index) != Some(value));
    println!("{} registers known, {written} writes taken, {} are others now", before.len(), dirty.len());
    assert!(written > 10 && dirty.len() > 5, "the guest must have written some: {dirty:x?}");
    let unlisted: Vec<u32> =
        dirty.keys().copied().filter(|index| saved.msrs.iter().all(|msr| msr.index != *index)).collect();
    println!("of them in no saved state: {unlisted:x?}");

    // And what the guest cannot write without more code.
    let to_set = saved.clone();
    threads
        .on_each(move |_, vcpu| {
            let mut state = VcpuState { msrs: Vec::new(), ..to_set.clone() };
            let r = 0x5ec2_e7ff_5ec2_e700;
            state.registers =
                Registers { rax: r, rbx: r, r15: r, rip: 0x1_0000, rflags: 2, ..Default::default() };
            state.debug = DebugRegisters { db: [0x5ec2; 4], ..state.debug };
            // x87 and SSE registers, in use (SDM volume 1, 13.4).
            state.xsave[32..416].fill(0x5e);
            state.xsave[512] |= 3;
            vcpu.set_state(&state).unwrap();
            let now = vcpu.state().unwrap();
            assert_eq!((now.registers.r15, now.debug.db[3], now.xsave[200]), (r, 0x5ec2, 0x5e));
        })
        .unwrap();

    let set = saved.clone();
    let reset = move |vcpu: &mut KvmVcpu| {
        vcpu.forget().unwrap();
        vcpu.set_state(&set).unwrap();
        (all_msrs(vcpu), vcpu.state().unwrap())
    };
    let (msrs, state) = first(threads.on_each(move |_, vcpu| reset(vcpu)).unwrap());

    let (_fresh, fresh_threads) = self::machine(&exits).unwrap();
    let set = saved.clone();
    let restore = move |vcpu: &mut KvmVcpu| {
        vcpu.set_state(&set).unwrap();
        (all_msrs(vcpu), vcpu.state().unwrap())
    };
    let (expected, new) = first(fresh_threads.on_each(move |_, vcpu| restore(vcpu)).unwrap());
    let differ = |(index, value): (&u32, &u64)| {
        (expected.get(index) != Some(value)).then(|| (*index, *value, expected.get(index).copied()))
    };
    let left: Vec<_> = msrs.iter().filter_map(differ).collect();
    assert!(left.is_empty(), "left: {left:x?}");
    assert_eq!(msrs.len(), expected.len());
    let strip = |state: VcpuState| {
        let mut state = VcpuState { msrs: Vec::new(), ..state };
        state.local_apic.set_register(0x390, 0);
        state
    };
    assert_eq!(strip(state), strip(new));
}

/// A counter that goes back by less than a second is really set, and not taken for one that is to be kept in step.
#[test]
fn the_time_stamp_counter_goes_back() {
    let exits = Arc::new(Done::default());
    let Some((machine, threads)) = machine(&exits) else { return };
    if !machine.hypervisor.facts().can_set_tsc {
        return eprintln!("skipped: it cannot be set here");
    }
    let counter = |vcpu: &KvmVcpu| vcpu.msrs(&[msr::IA32_TSC]).unwrap()[0].value;
    let (before, khz) = first(
        threads
            .on_each(move |_, vcpu| {
                let value = 1 << 50;
                vcpu.set_msrs(&[Msr { index: msr::IA32_TSC, value }]).unwrap();
                (vcpu.state().unwrap(), vcpu.tsc_khz().unwrap())
            })
            .unwrap(),
    );
    let saved = before.msrs.iter().find(|msr| msr.index == msr::IA32_TSC).unwrap().value;
    std::thread::sleep(Duration::from_millis(400));
    let now = first(
        threads
            .on_each(move |_, vcpu| {
                vcpu.forget().unwrap();
                vcpu.set_state(&before).unwrap();
                counter(vcpu)
            })
            .unwrap(),
    );
    let passed = now.wrapping_sub(saved) / u64::from(khz);
    assert!(passed < 200, "{passed} ms have passed for the guest");
}
