//! Virtual CPUs on their threads: starting, pausing, ending.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hayfork_vmm::hypervisor::HypervisorError;
use hayfork_vmm::hypervisor::x86_64::X86Vcpu;
use hayfork_vmm::vcpu::{EndCause, Exits, Flow, StopCause, VcpuError, VcpuThreads};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::machine::{Access, CODE, Machine, Recorder, hypervisor, wait_for_end, wait_until};
use crate::unsafe_guests;

/// How long pausing may take here.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names of this process's threads.
fn thread_names() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// A thread that was waited for may be listed for a moment longer.
fn wait_for_no_threads() {
    let deadline = Instant::now() + Duration::from_secs(10);
    while thread_names().iter().any(|name| name.starts_with("hayfork-vcpu")) {
        assert!(Instant::now() < deadline, "{:?}", thread_names());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_handler_ends_the_machine_and_says_why() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::resets(), true);
    let exits = Arc::new(Recorder::default());
    let threads = machine.threads(1, &exits);
    assert!(thread_names().contains("hayfork-vcpu0"));
    std::thread::sleep(Duration::from_millis(20));
    assert!(exits.accesses().is_empty(), "a parked virtual CPU does not execute");
    threads.resume().unwrap();
    let end = wait_for_end(&threads);
    assert!(matches!(end.cause, EndCause::Requested(StopCause::Reset)), "{end}");
    assert_eq!(end.vcpu, Some(0));
    assert_eq!(exits.accesses(), [Access::Out(0x64, vec![0xfe])]);
    assert_eq!(threads.exit_counts().ports, 1);
    // Readable, and not only once.
    for _ in 0..2 {
        let descriptor = threads.end_fd();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&Timespec::default())).unwrap(), 1);
    }
    assert!(matches!(threads.resume(), Err(VcpuError::Ended)));
    assert!(matches!(threads.pause(PATIENCE), Err(VcpuError::Ended)));
    drop(threads);
    wait_for_no_threads();
}

#[test]
fn a_triple_fault_ends_all_virtual_cpus() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::faults(), true);
    let threads = machine.threads(2, &Arc::new(Recorder::default()));
    threads.resume().unwrap();
    let end = wait_for_end(&threads);
    assert!(matches!(end.cause, EndCause::TripleFault), "{end}");
    assert!(end.program_counter.is_some());
}

#[test]
fn guests_that_never_exit_are_kicked_out() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let threads = machine.threads(2, &Arc::new(Recorder::default()));
    assert!(matches!(threads.on_each(|_, _| ()), Ok(results) if results.len() == 2), "parked from the start");
    threads.resume().unwrap();
    assert!(matches!(threads.on_each(|_, _| ()), Err(VcpuError::NotPaused)));
    for _ in 0..50 {
        threads.pause(PATIENCE).unwrap();
        let at: Vec<u64> = threads.on_each(|_, vcpu| vcpu.registers().unwrap().rip).unwrap();
        assert_eq!(at, [CODE, CODE]);
        threads.resume().unwrap();
    }
    let start = Instant::now();
    threads.stop();
    assert!(matches!(wait_for_end(&threads).cause, EndCause::Stopped));
    assert_eq!(threads.end().unwrap().vcpu, None);
    println!("stopped after {:?}", start.elapsed());
}

#[test]
fn virtual_cpus_that_wait_are_kicked_out() {
    let Some(hypervisor) = hypervisor() else { return };
    // Halted with interrupts off inside the hypervisor; and as made, waiting for another to start them.
    for runs in [true, false] {
        let machine = Machine::new(self::hypervisor().unwrap(), unsafe_guests::halts(), true);
        let known = Arc::clone(&machine.hypervisor);
        let threads =
            VcpuThreads::create(&machine.vm, 2, &Arc::new(Recorder::default()), move |index, vcpu| {
                if runs || index == 0 { crate::machine::prepare(&known, vcpu) } else { Ok(()) }
            })
            .unwrap();
        threads.resume().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        threads.pause(PATIENCE).unwrap();
        threads.resume().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        threads.stop();
        wait_for_end(&threads);
    }
    drop(hypervisor);
}

/// The guest writes each number to the device and reads it back. If pausing left an access half done, or did one twice, the
/// numbers would have a gap or a repetition, or what was read were not what was written.
#[test]
fn a_pause_finishes_the_access_that_the_guest_is_at() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::counts_at_a_device(), true);
    let exits = Arc::new(Recorder::default());
    let threads = machine.threads(1, &exits);
    let mut at = BTreeSet::new();
    let mut last = 0;
    for round in 0..300 {
        threads.resume().unwrap();
        wait_until("some accesses", || exits.register.load(Ordering::SeqCst) > last + round % 7);
        threads.pause(PATIENCE).unwrap();
        let accesses = exits.accesses.lock().unwrap().len();
        let (rip, count) =
            threads.on_each(|_, vcpu| vcpu.registers().map(|r| (r.rip, r.rbx)).unwrap()).unwrap()[0];
        at.insert(rip);
        last = exits.register.load(Ordering::SeqCst);
        // Between the increment and the end of the write, the register is one behind.
        assert!([u64::from(last), u64::from(last) + 1].contains(&count), "{count} and {last}");
        assert_eq!(exits.accesses.lock().unwrap().len(), accesses, "accesses while parked");
    }
    println!("paused at {at:x?}");
    threads.stop();
    wait_for_end(&threads);
    for (index, access) in exits.accesses().iter().enumerate() {
        let count = u32::try_from(index / 2 + 1).unwrap();
        let expected = match index % 2 {
            0 => Access::Write(crate::machine::REGISTER, count.to_le_bytes().to_vec()),
            _ => Access::Read(crate::machine::REGISTER, 4),
        };
        assert_eq!(*access, expected, "access {index}");
    }
}

/// A device that breaks at the first access.
struct Panics;

impl Exits for Panics {
    fn mmio_read(&self, _: u64, _: &mut [u8]) -> Flow {
        panic!("a read")
    }

    fn mmio_write(&self, _: u64, _: &[u8]) -> Flow {
        panic!("a write")
    }
}

#[test]
fn a_device_that_panics_ends_its_machine_only() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::counts_at_a_device(), true);
    let threads = machine.threads(2, &Arc::new(Panics));
    threads.resume().unwrap();
    let end = wait_for_end(&threads);
    assert!(matches!(&end.cause, EndCause::Panicked { message } if message == "a write"), "{end}");
}

#[test]
fn a_virtual_cpu_that_cannot_be_set_up_is_an_error_with_its_number() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let exits = Arc::new(Recorder::default());
    let result = VcpuThreads::create(&machine.vm, 3, &exits, |index, _| {
        if index == 1 { Err(HypervisorError::Lacks { what: "a wheel" }) } else { Ok(()) }
    });
    match result.unwrap_err() {
        VcpuError::Setup { index: 1, source } => assert!(source.to_string().contains("a wheel")),
        other => panic!("{other}"),
    }
    wait_for_no_threads();
    // Numbers 0 to 2 are in use by virtual CPUs that are gone: KVM does not give them out again.
    let again = VcpuThreads::create(&machine.vm, 1, &exits, |_, _| Ok::<(), HypervisorError>(()));
    assert!(matches!(again.unwrap_err(), VcpuError::Create { index: 0, .. }));
}

#[test]
fn work_on_paused_virtual_cpus_is_done_once_each_whoever_asks() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), true);
    let threads = machine.threads(2, &Arc::new(Recorder::default()));
    std::thread::scope(|scope| {
        for asker in 0..4u8 {
            let threads = &threads;
            scope.spawn(move || {
                for _ in 0..50 {
                    let answers = threads.on_each(move |index, _| (asker, index)).unwrap();
                    assert_eq!(answers, [(asker, 0), (asker, 1)]);
                }
            });
        }
    });
    // Work that breaks ends the machine, and whoever waits for it hears of that.
    let broken = threads.on_each(|index, _| assert_eq!(index, 0, "broken"));
    assert!(matches!(broken, Err(VcpuError::Ended)));
    assert!(matches!(wait_for_end(&threads).cause, EndCause::Panicked { .. }));
}

/// Stays in a handler for a while.
struct Slow(AtomicU32);

impl Exits for Slow {
    fn mmio_read(&self, _: u64, _: &mut [u8]) -> Flow {
        Flow::Continue(())
    }

    fn mmio_write(&self, _: u64, _: &[u8]) -> Flow {
        self.0.store(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        self.0.store(2, Ordering::SeqCst);
        Flow::Continue(())
    }
}

#[test]
fn the_end_is_published_once_and_when_nobody_is_in_a_handler() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::counts_at_a_device(), true);
    let exits = Arc::new(Slow(AtomicU32::new(0)));
    let threads = machine.threads(1, &exits);
    threads.resume().unwrap();
    wait_until("the handler", || exits.0.load(Ordering::SeqCst) == 1);
    // Too little patience; the request stands.
    let impatient = threads.pause(Duration::from_millis(20));
    assert!(matches!(impatient, Err(VcpuError::Timeout { .. })), "{impatient:?}");
    threads.pause(PATIENCE).unwrap();
    exits.0.store(0, Ordering::SeqCst);
    threads.resume().unwrap();
    wait_until("the handler", || exits.0.load(Ordering::SeqCst) == 1);
    threads.stop();
    assert!(threads.end().is_none(), "a handler is at work");
    threads.stop();
    wait_for_end(&threads);
    assert_eq!(exits.0.load(Ordering::SeqCst), 2);
}

#[test]
fn dropping_waits_for_the_handler_that_is_at_work() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::counts_at_a_device(), true);
    let exits = Arc::new(Slow(AtomicU32::new(0)));
    let threads = machine.threads(1, &exits);
    threads.resume().unwrap();
    wait_until("the handler", || exits.0.load(Ordering::SeqCst) == 1);
    drop(threads);
    assert_eq!(exits.0.load(Ordering::SeqCst), 2);
    assert_eq!(Arc::strong_count(&exits), 1, "the thread has let go of everything");
}
