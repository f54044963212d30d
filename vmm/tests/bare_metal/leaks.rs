//! Nothing is left behind, and nothing is taken along into a child.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hayfork_vmm::hypervisor::{Hypervisor, HypervisorError, Vm};
use hayfork_vmm::vcpu::VcpuError;
use vm_memory::GuestMemoryBackend;

use crate::machine::{LINE, Machine, Recorder, hypervisor, wait_for_end};
use crate::{unsafe_guests, unsafe_host};

/// Descriptors, threads and mappings of this process.
fn holdings() -> [usize; 3] {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    [count("/proc/self/fd"), count("/proc/self/task"), maps]
}

/// One machine's life. Some have two virtual CPUs, and some a doorbell.
fn one_life(number: u32) {
    let machine = Machine::new(hypervisor().unwrap(), unsafe_guests::resets(), true);
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let threads = machine.threads(if number % 8 < 2 { 2 } else { 1 }, &Arc::new(Recorder::default()));
    let bell = (number % 20 < 3).then(|| machine.vm.doorbell(0x1000_0050, None).unwrap());
    match number % 3 {
        // Never run; run to its end; stopped.
        0 => {}
        1 => {
            threads.resume().unwrap();
            wait_for_end(&threads);
        }
        _ => {
            threads.resume().unwrap();
            threads.stop();
        }
    }
    // In any order.
    if number.is_multiple_of(2) {
        drop((machine, threads, line, bell));
    } else {
        drop((bell, line, threads, machine));
    }
}

#[test]
fn a_thousand_machines_leave_nothing_behind() {
    let Some(_) = hypervisor() else { return };
    // The allocator keeps some memory of threads, up to a limit.
    for number in 0..60 {
        one_life(number);
    }
    let before = holdings();
    let start = Instant::now();
    for number in 0..1000 {
        one_life(number);
    }
    let after = holdings();
    println!("{before:?} then {after:?}, {:?} each", start.elapsed() / 1000);
    assert_eq!(after[..2], before[..2], "descriptors and threads");
    // Where the allocator's arenas end up is not the same each time.
    assert!(after[2] <= before[2] + 5, "mappings: {} then {}", before[2], after[2]);
}

#[test]
fn a_forked_child_has_neither_the_guest_s_memory_nor_its_virtual_cpus() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let line = machine.vm.interrupt_line(LINE).unwrap();
    let threads = machine.threads(1, &Arc::new(Recorder::default()));
    threads.resume().unwrap();
    let host_address = machine.memory.iter().next().unwrap().as_ptr() as usize;
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let memory = maps.lines().any(|line| {
            let mut ends = line.split(['-', ' ']).map(|part| usize::from_str_radix(part, 16).unwrap_or(0));
            let (start, end) = (ends.next().unwrap(), ends.next().unwrap());
            (start..end).contains(&host_address)
        });
        (memory, maps.contains("kvm-vcpu"))
    };
    assert_eq!(is_mapped(), (true, true));
    let code = unsafe_host::in_a_child(move || {
        if is_mapped() != (false, false) {
            return 1;
        }
        let is_forked = |result: Result<(), VcpuError>| matches!(result, Err(VcpuError::Forked));
        if !is_forked(threads.pause(Duration::from_secs(1))) || !is_forked(threads.resume()) {
            return 2;
        }
        threads.stop();
        // KVM knows the process that a machine belongs to.
        if machine.vm.clock().is_ok() {
            return 3;
        }
        // Dropped, which neither waits for threads that are not here nor touches those of the parent.
        drop((threads, line, machine));
        0
    });
    assert_eq!(code, 0);
}

#[test]
fn a_parent_s_machine_survives_its_child() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let threads = machine.threads(2, &Arc::new(Recorder::default()));
    threads.resume().unwrap();
    assert_eq!(unsafe_host::in_a_child(|| 7), 7);
    threads.pause(Duration::from_secs(10)).unwrap();
    threads.resume().unwrap();
    assert!(threads.end().is_none());
    threads.stop();
    wait_for_end(&threads);
}

#[test]
fn a_taken_kick_signal_is_an_error_with_its_number() {
    let Some(hypervisor) = hypervisor() else { return };
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        unsafe_host::handle(signal, true);
    }
    let Err(HypervisorError::KickSignalTaken { signal }) = hypervisor.create_vm() else {
        panic!("a machine was made although the signal is taken");
    };
    assert!((libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal));
    unsafe_host::handle(signal, false);
    drop(hypervisor.create_vm().unwrap());
    // Ours by now; and if somebody takes it later, that is seen too.
    drop(hypervisor.create_vm().unwrap());
    unsafe_host::handle(signal, true);
    assert!(matches!(hypervisor.create_vm(), Err(HypervisorError::KickSignalTaken { .. })));
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        unsafe_host::handle(signal, false);
    }
}

#[test]
fn the_thread_of_a_virtual_cpu_takes_the_kick_and_faults_only() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let threads = machine.threads(1, &Arc::new(Recorder::default()));
    threads.resume().unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let task = tasks
        .into_iter()
        .find(|task| std::fs::read_to_string(task.join("comm")).unwrap().trim() == "hayfork-vcpu0")
        .unwrap();
    let status = std::fs::read_to_string(task.join("status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
    let open: Vec<i32> = (1..=64).filter(|signal| blocked >> (signal - 1) & 1 == 0).collect();
    let faults = [libc::SIGILL, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGKILL, libc::SIGSTOP];
    // From 32 on there are the C library's own, two or (musl) three.
    let is_the_librarys = |signal: &i32| (32..libc::SIGRTMIN()).contains(signal);
    let others: Vec<i32> =
        open.iter().copied().filter(|s| !faults.contains(s) && !is_the_librarys(s)).collect();
    assert_eq!(others.len(), 1, "{open:?}");
    assert!(others[0] >= libc::SIGRTMIN());
}
