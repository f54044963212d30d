//! Interrupts into the guest, doorbells out of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hayfork_vmm::hypervisor::Vm;
use hayfork_vmm::hypervisor::kvm::KvmVm;
use hayfork_vmm::hypervisor::x86_64::X86Vcpu;
use hayfork_vmm::vcpu::{EndCause, Exits, Flow, StopCause, VcpuThreads};
use vm_memory::{Bytes, GuestAddress};

use crate::machine::{Access, DATA, LINE, Machine, Recorder, VECTOR, hypervisor, wait_for_end, wait_until};
use crate::unsafe_guests;

/// Counts what the guest's interrupt handler says.
#[derive(Default)]
struct Served(AtomicU32);

impl Exits for Served {
    fn mmio_read(&self, addr: u64, _: &mut [u8]) -> Flow {
        panic!("a read at {addr:#x}")
    }

    fn mmio_write(&self, addr: u64, _: &[u8]) -> Flow {
        panic!("a write at {addr:#x}")
    }

    fn port_out(&self, port: u16, _: &[u8]) -> Flow {
        assert_eq!(port, 0x12);
        self.0.fetch_add(1, Ordering::SeqCst);
        Flow::Continue(())
    }
}

#[test]
fn a_halted_guest_serves_each_interrupt_once() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::serves_interrupts(), true);
    machine.route_interrupt();
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let other = machine.vm.interrupt_line(LINE + 1).unwrap();
    let served = Arc::new(Served::default());
    let threads = machine.threads(1, &served);
    threads.resume().unwrap();
    for count in 1..=50 {
        line.raise();
        wait_until("an interrupt", || served.0.load(Ordering::SeqCst) == count);
    }
    // A line that is masked gives none, and none comes by itself.
    other.raise();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(served.0.load(Ordering::SeqCst), 50);
    assert_eq!(machine.word(DATA), 50);
    threads.stop();
    wait_for_end(&threads);
}

/// However long the handler takes. An emulated host may deliver one twice (tests/rig/README.md).
#[test]
fn a_handler_that_takes_long_is_entered_once_for_each_interrupt() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::works_on_interrupts(), true);
    // Some milliseconds, on a processor that is translated as well as on one whose kernel mode is interpreted.
    let turns: u32 = if std::env::var_os("HAYFORK_RIG").is_some() { 1_000_000 } else { 2_000 };
    machine.memory.write_obj(turns, GuestAddress(DATA + 8)).unwrap();
    machine.route_interrupt();
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let served = Arc::new(Served::default());
    let threads = machine.threads(1, &served);
    threads.resume().unwrap();
    for count in 1..=50 {
        line.raise();
        wait_until("an interrupt", || served.0.load(Ordering::SeqCst) >= count);
    }
    threads.stop();
    wait_for_end(&threads);
    assert_eq!(machine.word(DATA), 50, "entries of the handler");
    assert_eq!(served.0.load(Ordering::SeqCst), 50, "of them, those that came to their end");
}

/// The guest is halted in the hypervisor, so nothing but the interrupt could bring it to the handler.
#[test]
fn an_interrupt_that_comes_while_paused_is_not_lost() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::serves_interrupts(), true);
    machine.route_interrupt();
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let served = Arc::new(Served::default());
    let threads = machine.threads(1, &served);
    for count in 1..=20 {
        line.raise();
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(served.0.load(Ordering::SeqCst), count - 1);
        threads.resume().unwrap();
        wait_until("the interrupt", || served.0.load(Ordering::SeqCst) == count);
        threads.pause(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn a_doorbell_counts_what_it_is_for_and_all_else_exits() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::rings(), true);
    let recorder = Arc::new(Recorder::default());
    let threads = machine.threads(1, &recorder);
    let bells = [1, 2].map(|value| machine.vm.doorbell(0x1000_0050, Some(value)).unwrap().unwrap());
    // Value 2, 1000 times.
    machine.memory.write_obj(2u32, GuestAddress(DATA)).unwrap();
    machine.memory.write_obj(1000u32, GuestAddress(DATA + 4)).unwrap();
    threads.resume().unwrap();
    let end = wait_for_end(&threads);
    assert!(matches!(end.cause, EndCause::Requested(StopCause::PowerOff)), "{end}");
    assert_eq!(bells.each_ref().map(hayfork_vmm::hypervisor::Doorbell::drain), [0, 1000]);
    assert_eq!(bells[1].drain(), 0);
    assert_eq!(recorder.accesses(), [Access::Out(0xf4, vec![2])], "no exit but the last");
    assert_eq!(threads.exit_counts().mmio, 0);
}

#[test]
fn a_value_without_a_doorbell_exits() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::rings(), true);
    let recorder = Arc::new(Recorder::default());
    let threads = machine.threads(1, &recorder);
    let bell = machine.vm.doorbell(0x1000_0050, Some(1)).unwrap().unwrap();
    machine.memory.write_obj(7u32, GuestAddress(DATA)).unwrap();
    machine.memory.write_obj(2u32, GuestAddress(DATA + 4)).unwrap();
    threads.resume().unwrap();
    wait_for_end(&threads);
    assert_eq!(bell.drain(), 0);
    let write = Access::Write(0x1000_0050, vec![7, 0, 0, 0]);
    assert_eq!(recorder.accesses(), [write.clone(), write, Access::Out(0xf4, vec![7])]);
    drop(threads);

    // One for all values takes them too.
    let machine = Machine::new(self::hypervisor().unwrap(), unsafe_guests::rings(), true);
    let bell = machine.vm.doorbell(0x1000_0050, None).unwrap().unwrap();
    machine.memory.write_obj(7u32, GuestAddress(DATA)).unwrap();
    machine.memory.write_obj(2u32, GuestAddress(DATA + 4)).unwrap();
    let threads = machine.threads(1, &recorder);
    threads.resume().unwrap();
    wait_for_end(&threads);
    assert_eq!(bell.drain(), 2);
    assert_eq!(threads.exit_counts().mmio, 0);
}

/// The local APIC's request bit for [`VECTOR`].
fn is_requested(threads: &VcpuThreads<KvmVm>) -> bool {
    let apics = threads.on_each(|_, vcpu| vcpu.local_apic().unwrap()).unwrap();
    // 32 vectors each 16 bytes from 0x200 on.
    let at = 0x200 + usize::from(VECTOR) / 32 * 16;
    apics[0].register(at).unwrap() >> (VECTOR % 32) & 1 == 1
}

#[test]
fn a_raised_interrupt_is_in_the_local_apic_and_then_served() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::serves_interrupts(), true);
    machine.route_interrupt();
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let served = Arc::new(Served::default());
    let threads = machine.threads(1, &served);
    for count in 1..=20 {
        assert!(!is_requested(&threads));
        line.raise();
        assert!(is_requested(&threads), "interrupt {count}");
        threads.resume().unwrap();
        wait_until("the interrupt", || served.0.load(Ordering::SeqCst) == count);
        threads.pause(Duration::from_secs(10)).unwrap();
    }
}

/// What is raised is in the state at once: here in that of the first PIC, which keeps an edge on a masked input.
#[test]
fn no_interrupt_is_under_way_after_it_was_raised() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::serves_interrupts(), true);
    let mut idle = machine.vm.interrupt_chip_state().unwrap();
    idle.pics[0].imr = 0xff;
    machine.vm.set_interrupt_chip_state(&idle).unwrap();
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let is_pending = || machine.vm.interrupt_chip_state().unwrap().pics[0].irr >> LINE & 1 == 1;
    for round in 0..300 {
        line.raise();
        assert!(is_pending(), "round {round}");
        machine.vm.set_interrupt_chip_state(&idle).unwrap();
        assert!(!is_pending());
    }
}
