//! What a guest sees and can do.

use std::fs;
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{ExitKind, MIN_MEMORY_MIB, Machine, MachineSpec, ProcessStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::guest::{BOOT_TIME, Client, is_alive, wait_until};
use crate::host::unsafe_process::in_a_child;
use crate::setup::{Setup, on_backends};

on_backends! {
    a_guest_boots_answers_and_is_killed: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    the_machine_is_what_was_asked_for: qemu monitor worker;
    the_guest_has_no_devices_but_ours: qemu monitor worker;
    the_root_image_is_read_only: qemu monitor worker;
    a_lot_of_data_arrives_whole_both_ways: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    touched_memory_counts_as_the_guest_s: qemu monitor worker;
    a_guest_that_powers_off_has_done_so: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    a_panic_is_reported_with_what_the_kernel_said: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    an_initramfs_that_is_none_is_a_panic: qemu monitor worker;
    a_guest_that_says_nothing_is_a_boot_timeout: qemu monitor worker;
    a_flood_on_the_console_leaves_its_end: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    the_console_cannot_command_a_terminal: qemu monitor worker;
    closing_the_channel_ends_the_guest_after_its_linger_time: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    the_end_of_the_launching_thread_is_nothing_to_the_guest: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    a_fork_leaves_the_parent_s_guest_alone: qemu monitor monitor_2_vcpus worker worker_2_vcpus;
    bad_specs_and_missing_images_are_named_before_anything_starts: qemu monitor worker;
}

fn is_readable(machine: &dyn Machine) -> bool {
    let exit = machine.exit_fd();
    poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

fn a_guest_boots_answers_and_is_killed(on: &Setup) {
    let start = Instant::now();
    let mut machine = on.start("serve");
    println!("launched after {:?}", start.elapsed());
    let mut client = Client::connect(&mut *machine);
    println!("the guest answered after {:?}", start.elapsed());
    assert!(machine.take_channel().is_none(), "the channel is handed out once");
    assert_eq!(client.text("ping hello"), "hello");
    assert!(!is_readable(&*machine) && machine.try_exit().is_none());

    let pid = machine.process_id();
    assert_eq!(pid.is_none(), on.is_here());
    let memory = machine.host_memory().unwrap();
    println!("{memory:?}");
    assert!((4 << 20..128 << 20).contains(&memory.guest), "{memory:?}");
    // The monitor's is not told apart from this process's.
    let least = if on.is_monitor() { 64 << 10 } else { 1 << 20 };
    assert!(on.is_here() || (least..48 << 20).contains(&memory.overhead), "{memory:?}");

    let report = machine.kill().unwrap();
    let status = if on.is_here() { ProcessStatus::None } else { ProcessStatus::Signal(9) };
    assert_eq!((report.kind, report.status), (ExitKind::Killed, status));
    assert!(!pid.is_some_and(is_alive));
    assert!(is_readable(&*machine));
    assert_eq!(machine.try_exit().unwrap(), report);
    assert_eq!(machine.kill().unwrap(), report, "killing twice is fine");
    assert_eq!((machine.host_memory(), machine.process_id()), (None, None));
    assert_eq!(machine.boot_failure(Duration::ZERO).code(), "vm_killed");
}

fn the_machine_is_what_was_asked_for(on: &Setup) {
    let mut spec = on.spec("serve");
    spec.vcpus = 2;
    spec.memory_mib = 200;
    let mut machine = on.launch(&spec);
    let mut client = Client::connect(&mut *machine);
    let cpuinfo = client.text("read /proc/cpuinfo");
    assert_eq!(cpuinfo.matches("processor\t").count(), 2, "{cpuinfo}");
    let meminfo = client.text("read /proc/meminfo");
    let total: u32 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((160..200).contains(&(total / 1024)), "{total} KiB");
    // Time runs by a counter, not by timer interrupts, and as fast as here.
    let source = client.text("read /sys/devices/system/clocksource/clocksource0/current_clocksource");
    assert!(["tsc", "tsc-early", "kvm-clock"].contains(&source.trim()), "{source}");
    let start = Instant::now();
    let inside: u64 = client.text("clock 2000").parse().unwrap();
    let outside = u64::try_from(start.elapsed().as_micros()).unwrap();
    assert!(inside <= outside, "two seconds took {inside} us in the guest and {outside} us here");
    assert!(outside - inside < 1_000_000, "two seconds took {inside} us in the guest and {outside} us here");
}

fn the_guest_has_no_devices_but_ours(on: &Setup) {
    let root = tempfile::NamedTempFile::new().unwrap();
    fs::write(root.path(), vec![7; 1 << 20]).unwrap();
    let mut spec = on.spec("serve");
    spec.root_image = Some(root.path().into());
    let mut machine = on.launch(&spec);
    let mut client = Client::connect(&mut *machine);
    assert_eq!(client.text("list /sys/class/net"), "lo");
    let mut kinds: Vec<String> = client
        .text("list /sys/bus/virtio/devices")
        .split_whitespace()
        .map(|device| client.text(&format!("read /sys/bus/virtio/devices/{device}/device")).trim().to_owned())
        .collect();
    kinds.sort();
    // virtio 1.2, chapter 5: block 2, console 3, entropy 4, socket 19
    let expected: &[&str] = if on.is_monitor() {
        &["0x0002", "0x0003", "0x0004", "0x0013"]
    } else {
        &["0x0002", "0x0003", "0x0004"]
    };
    assert_eq!(kinds, expected);
    // The monitor's console; the agent's two.
    let ports = if on.is_monitor() { 1 } else { 2 };
    assert_eq!(client.text("list /sys/class/virtio-ports").split_whitespace().count(), ports);
}

fn the_root_image_is_read_only(on: &Setup) {
    let root = tempfile::NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..1u32 << 20).map(|at| (at % 253) as u8).collect();
    fs::write(root.path(), &content).unwrap();
    let mut spec = on.spec("serve");
    spec.root_image = Some(root.path().into());
    let mut machine = on.launch(&spec);
    let mut client = Client::connect(&mut *machine);
    assert_eq!(client.ask("read /dev/vda").unwrap(), content);
    assert_eq!(client.text("read /sys/block/vda/ro").trim(), "1");
    client.ask("write /dev/vda").unwrap_err();
    assert_eq!(fs::read(root.path()).unwrap(), content);
}

fn a_lot_of_data_arrives_whole_both_ways(on: &Setup) {
    const SIZE: u32 = 12_345_678;
    let mut machine = on.start("serve");
    let mut client = Client::connect(&mut *machine);
    let pattern: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    let start = Instant::now();
    assert!(client.ask(&format!("get {SIZE}")).unwrap() == pattern);
    println!("from the guest: {:.1} MB/s", f64::from(SIZE) / 1e6 / start.elapsed().as_secs_f64());
    let start = Instant::now();
    let sum: u64 = pattern.iter().map(|&byte| u64::from(byte)).sum();
    assert_eq!(client.put(&pattern), sum.to_string());
    println!("to the guest: {:.1} MB/s", f64::from(SIZE) / 1e6 / start.elapsed().as_secs_f64());
    println!("{:?}", machine.host_memory());
}

fn touched_memory_counts_as_the_guest_s(on: &Setup) {
    let mut machine = on.start("serve");
    let mut client = Client::connect(&mut *machine);
    let before = machine.host_memory().unwrap();
    assert_eq!(client.text("touch 40"), (40 * 256).to_string());
    let after = machine.host_memory().unwrap();
    assert!(after.guest >= before.guest + (30 << 20), "{before:?} {after:?}");
    assert!(after.overhead < before.overhead + (8 << 20), "{before:?} {after:?}");
}

fn a_guest_that_powers_off_has_done_so(on: &Setup) {
    let machine = on.start("power-off");
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    let status = if on.is_monitor() { ProcessStatus::None } else { ProcessStatus::Code(0) };
    assert_eq!((report.kind, report.status), (ExitKind::PowerOff, status), "{report:?}");
    assert_eq!(machine.boot_failure(Duration::ZERO).code(), "guest_powered_off");
}

fn a_panic_is_reported_with_what_the_kernel_said(on: &Setup) {
    let machine = on.start("die");
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest ends");
    assert_eq!(report.kind, ExitKind::Panic, "{report:?}");
    let error = machine.boot_failure(Duration::ZERO);
    assert_eq!(error.code(), "kernel_panic");
    let message = error.to_string();
    assert!(message.contains("Attempted to kill init"), "{message}");
    assert!(machine.console_tail().contains("about to die"), "{}", machine.console_tail());
}

fn an_initramfs_that_is_none_is_a_panic(on: &Setup) {
    let nonsense = tempfile::NamedTempFile::new().unwrap();
    fs::write(nonsense.path(), "this is no archive").unwrap();
    let mut spec = on.spec("serve");
    spec.initramfs = nonsense.path().into();
    let machine = on.launch(&spec);
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest ends");
    assert_eq!(report.kind, ExitKind::Panic, "{report:?}");
    assert!(report.console_tail.contains("Unable to mount root fs"), "{report:?}");
}

fn a_guest_that_says_nothing_is_a_boot_timeout(on: &Setup) {
    let machine = on.start("silent");
    wait_until(BOOT_TIME, "the guest's line", || machine.console_tail().contains("waiting for ever"));
    assert_eq!(machine.wait(Some(Duration::from_millis(200))), None);
    let error = machine.boot_failure(Duration::from_millis(2500));
    assert_eq!(error.code(), "boot_timeout");
    let message = error.to_string();
    assert!(message.contains("2.5 s") && message.contains("waiting for ever"), "{message}");
}

fn a_flood_on_the_console_leaves_its_end(on: &Setup) {
    let mut spec = on.spec("flood");
    spec.console_bytes = 4096;
    let machine = on.launch(&spec);
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    assert!(report.console_tail.len() <= 4096);
    assert!(
        report.console_tail.contains("line 2999 of the flood\nthe flood is over"),
        "{}",
        report.console_tail
    );
    assert!(!report.console_tail.contains("line 100 "));
}

fn the_console_cannot_command_a_terminal(on: &Setup) {
    let machine = on.start("escape");
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    assert!(report.console_tail.contains("harmless"), "{}", report.console_tail);
    assert!(!report.console_tail.contains('\x1b') && !report.console_tail.contains('\x07'));
}

/// The last line of defence, which works across anything that keeps the machine alive: the guest itself.
fn closing_the_channel_ends_the_guest_after_its_linger_time(on: &Setup) {
    let mut spec = on.spec("serve");
    spec.linger = Duration::from_secs(1);
    let mut machine = on.launch(&spec);
    let client = Client::connect(&mut *machine);
    let start = Instant::now();
    drop(client);
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    assert_eq!(report.kind, ExitKind::PowerOff, "{report:?}");
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    assert!(report.console_tail.contains("the host is gone"), "{report:?}");
}

/// `PR_SET_PDEATHSIG` means the thread that forked, so a guest launched by a worker thread must not die with that.
fn the_end_of_the_launching_thread_is_nothing_to_the_guest(on: &Setup) {
    let mut machine =
        std::thread::scope(|scope| scope.spawn(|| on.start("serve")).join()).expect("it launches");
    let mut client = Client::connect(&mut *machine);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.text("ping still here"), "still here");
    assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
}

/// In a fork of this process the handle must neither kill the parent's guest nor wait for threads that are not there.
fn a_fork_leaves_the_parent_s_guest_alone(on: &Setup) {
    let mut machine = on.start("serve");
    let mut client = Client::connect(&mut *machine);
    let mut inherited = Some(machine);
    let code = in_a_child(|| {
        let Some(mut machine) = inherited.take() else { return 1 };
        let refused = machine.kill().err().is_some_and(|error| error.code() == "forked_process");
        drop(machine);
        if refused { 7 } else { 8 }
    });
    assert_eq!(code, 7);
    assert_eq!(client.text("ping alive"), "alive");
    let mut machine = inherited.take().expect("it is the child that took it");
    assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
}

fn bad_specs_and_missing_images_are_named_before_anything_starts(on: &Setup) {
    let error = |change: fn(&mut MachineSpec)| {
        let mut spec = on.spec("serve");
        change(&mut spec);
        on.backend().launch(&spec).err().expect("the launch fails")
    };
    let small = error(|spec| spec.memory_mib = 1);
    assert_eq!(small.code(), "memory_too_small");
    assert!(small.to_string().contains(&MIN_MEMORY_MIB.to_string()));
    assert_eq!(error(|spec| spec.vcpus = 0).code(), "bad_machine_spec");
    for missing in [
        error(|spec| spec.kernel = "/nonexistent/vmlinux".into()),
        error(|spec| spec.initramfs = "/nonexistent/initramfs".into()),
        error(|spec| spec.root_image = Some("/nonexistent/root".into())),
    ] {
        assert_eq!(missing.code(), "image_unreadable");
        assert!(missing.to_string().contains("/nonexistent/"), "{missing}");
    }
    assert_eq!(error(|spec| spec.kernel = spec.initramfs.clone()).code(), "image_unreadable");
}
