//! How machines end, and what is told of it.

use std::time::{Duration, Instant};

use hayfork_vmm::backend::{Backend, ExitKind, Machine, ProcessStatus};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::host::wait_for;
use crate::tiny::{Act, DATA, Host, Script, elf};

/// How long anything may take: hosts are busy, and guests interpreted.
const PATIENCE: Duration = Duration::from_secs(20);

fn is_readable(machine: &dyn Machine) -> bool {
    let exit = machine.exit_fd();
    poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn a_reset_is_a_power_off_with_what_was_said_before() {
    let Some(host) = Host::new() else { return };
    let machine = host.start(&Script::saying("over and out\n", &[Act::Reset]));
    let report = machine.wait(Some(PATIENCE)).expect("it ends");
    assert_eq!((report.kind, report.status), (ExitKind::PowerOff, ProcessStatus::None), "{report:?}");
    assert_eq!(report.console_tail, "over and out\n");
    assert_eq!(report.stderr_tail, "");
    assert!(is_readable(&*machine) && is_readable(&*machine), "readable, and not only once");
    assert_eq!(machine.boot_failure(Duration::ZERO).code(), "guest_powered_off");
    assert_eq!((machine.host_memory(), machine.process_id()), (None, None));
}

#[test]
fn a_triple_fault_is_a_crash() {
    let Some(host) = Host::new() else { return };
    let machine = host.start(&Script::saying("oh", &[Act::Fault]));
    let report = machine.wait(Some(PATIENCE)).expect("it ends");
    assert_eq!((report.kind, report.status), (ExitKind::Crashed, ProcessStatus::None), "{report:?}");
    assert_eq!(report.console_tail, "oh");
    // On AMD's processors KVM has reset the virtual CPU by the time that it tells: the place is the reset vector.
    let places = ["0x10", "0xfff0"].map(|place| format!("triple fault, virtual CPU 0, at {place}"));
    assert!(places.iter().any(|place| report.stderr_tail.starts_with(place)), "{report:?}");
    let error = machine.boot_failure(Duration::ZERO);
    assert_eq!(error.code(), "vm_crashed");
    assert!(error.to_string().contains("triple fault"), "{error}");
}

#[test]
fn a_triple_fault_of_one_ends_all_virtual_cpus() {
    let Some(host) = Host::new() else { return };
    let mut spec = host.spec("kernel", &Script::of([Act::Fault]));
    spec.vcpus = 4;
    let report = host.launch(&spec).wait(Some(PATIENCE)).expect("it ends");
    assert_eq!(report.kind, ExitKind::Crashed, "{report:?}");
}

#[test]
fn last_words_and_a_reset_are_a_panic() {
    let Some(host) = Host::new() else { return };
    let words = "[    0.1] Kernel panic - not syncing: no reason\n";
    for end in [Act::Reset, Act::Fault] {
        let machine = host.start(&Script::saying(words, &[end]));
        let report = machine.wait(Some(PATIENCE)).expect("it ends");
        assert_eq!(report.kind, ExitKind::Panic, "{report:?}");
        let error = machine.boot_failure(Duration::ZERO);
        assert_eq!(error.code(), "kernel_panic");
        assert!(error.to_string().contains("no reason"), "{error}");
    }
}

#[test]
fn the_newest_console_output_is_kept() {
    let Some(host) = Host::new() else { return };
    let text = b"0123456789".to_vec();
    let acts = [
        Act::OutString { port: 0x3f8, at: DATA, bytes: 10 },
        Act::Repeat { from: 0, times: 1000 },
        Act::Out { port: 0x3f8, value: b'.', times: 3 },
        Act::Reset,
    ];
    let mut spec = host.spec("kernel", &Script { acts: acts.to_vec(), data: vec![(DATA, text)] });
    spec.console_bytes = 16;
    let report = host.launch(&spec).wait(Some(PATIENCE)).expect("it ends");
    assert_eq!(report.console_tail, "7890123456789...");
}

#[test]
fn a_guest_that_waits_for_ever_is_killed_and_that_twice() {
    let Some(host) = Host::new() else { return };
    for act in [Act::Halt, Act::Spin { times: 0 }, Act::Read { width: 4, at: 0xc000_0000, times: 0 }] {
        let mut machine = host.start(&Script::saying("here", &[act]));
        wait_for(PATIENCE, "its word", || machine.console_tail() == "here");
        assert!(!is_readable(&*machine) && machine.try_exit().is_none());
        assert!(machine.host_memory().unwrap().guest > 0);
        assert_eq!(machine.wait(Some(Duration::from_millis(50))), None);
        assert_eq!(machine.boot_failure(Duration::from_secs(1)).code(), "boot_timeout");
        let start = Instant::now();
        let report = machine.kill().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!((report.kind, report.status), (ExitKind::Killed, ProcessStatus::None), "{act:?}");
        assert_eq!(report.console_tail, "here");
        assert!(is_readable(&*machine));
        assert_eq!(machine.kill().unwrap(), report);
        assert_eq!(machine.try_exit().unwrap(), report);
    }
}

#[test]
fn a_kill_after_the_end_changes_nothing() {
    let Some(host) = Host::new() else { return };
    let mut machine = host.start(&Script::of([Act::Reset]));
    let report = machine.wait(Some(PATIENCE)).expect("it ends");
    assert_eq!(machine.kill().unwrap(), report);
    assert_eq!(report.kind, ExitKind::PowerOff);
}

#[test]
fn a_guest_is_killed_at_any_point_of_its_start() {
    let Some(host) = Host::new() else { return };
    let script = Script::saying("up", &[Act::Spin { times: 1000 }, Act::Reset]);
    let spec = host.spec("kernel", &script);
    for microseconds in (0..3000).step_by(150) {
        let mut machine = host.launch(&spec);
        std::thread::sleep(Duration::from_micros(microseconds));
        let report = machine.kill().unwrap();
        assert!(matches!(report.kind, ExitKind::Killed | ExitKind::PowerOff), "{report:?}");
    }
}

#[test]
fn two_threads_may_wait_while_a_third_kills() {
    let Some(host) = Host::new() else { return };
    let mut machine = host.start(&Script::of([Act::Halt]));
    let exit = machine.exit_fd().try_clone_to_owned().unwrap();
    let waits = || {
        let mut polled = [PollFd::new(&exit, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap()
    };
    std::thread::scope(|scope| {
        let waiting = [scope.spawn(waits), scope.spawn(waits)];
        machine.kill().unwrap();
        assert!(waiting.map(|thread| thread.join().unwrap()).iter().all(|&count| count == 1));
    });
}

#[test]
fn the_thread_that_launched_may_end() {
    let Some(host) = Host::new() else { return };
    let script = Script::saying("up", &[Act::Spin { times: 0 }]);
    let mut machine =
        std::thread::scope(|scope| scope.spawn(|| host.start(&script)).join()).expect("it launches");
    wait_for(PATIENCE, "its word", || machine.console_tail() == "up");
    assert_eq!(machine.try_exit(), None);
    assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
}

#[test]
fn kernels_that_are_none_are_refused() {
    let Some(host) = Host::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let spec = host.spec_of(&path);
        let error = host.monitor.launch(&spec).err().expect("no kernel");
        assert_eq!(error.code(), "image_unreadable", "{name}: {error}");
    };
    let code = [0xf4; 16];
    refused("text", b"#!/bin/sh\n");
    refused("empty", b"");
    refused("low", &elf(0x1000, &[(0x1000, &code)]));
    refused("elsewhere", &elf(0x50_0000, &[(0x10_0000, &code)]));
    refused("nothing", &elf(0x10_0000, &[]));
    refused("high", &elf(0x10_0000, &[(0x10_0000, &code), (1 << 40, &code)]));
    let mut cut = elf(0x10_0000, &[(0x10_0000, &code)]);
    cut.truncate(70);
    refused("cut", &cut);
    // One that is larger than the guest's memory is refused too, if not as early.
    let path = folder.path().join("large");
    std::fs::write(&path, elf(0x10_0000, &[(0x10_0000, &code), (200 << 20, &code)])).unwrap();
    let spec = host.spec_of(&path);
    let error = host.monitor.launch(&spec).err().expect("too large");
    assert_eq!(error.code(), "vm_prepare_failed", "{error}");
}
