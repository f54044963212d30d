//! What a guest under QEMU sees and can do, through the backend trait.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{ExitKind, Machine, ProcessStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{BOOT_TIME, Client, is_alive, launch, spec};

fn is_readable(machine: &dyn Machine) -> bool {
    let exit = machine.exit_fd();
    poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
#[ignore = "needs the image set"]
fn a_guest_boots_answers_and_is_killed() {
    let start = Instant::now();
    let mut machine = launch(&spec("serve"));
    println!("launched after {:?}", start.elapsed());
    let mut client = Client::connect(&mut *machine);
    println!("the guest answered after {:?}", start.elapsed());
    assert!(machine.take_channel().is_none(), "the channel is handed out once");
    assert_eq!(client.text("ping hello"), "hello");
    assert!(!is_readable(&*machine) && machine.try_exit().is_none());

    let pid = machine.process_id().unwrap();
    let memory = machine.host_memory().unwrap();
    println!("{memory:?}");
    assert!((8 << 20..128 << 20).contains(&memory.guest), "{memory:?}");
    assert!((1 << 20..48 << 20).contains(&memory.overhead), "{memory:?}");

    let report = machine.kill().unwrap();
    assert_eq!((report.kind, report.status), (ExitKind::Killed, ProcessStatus::Signal(9)));
    assert!(!is_alive(pid));
    assert!(is_readable(&*machine));
    assert_eq!(machine.try_exit().unwrap(), report);
    assert_eq!(machine.kill().unwrap(), report, "killing twice is fine");
    assert_eq!((machine.host_memory(), machine.process_id()), (None, None));
    assert_eq!(machine.boot_failure(Duration::ZERO).code(), "vm_killed");
}

#[test]
#[ignore = "needs the image set"]
fn the_machine_is_what_was_asked_for() {
    let mut spec = spec("serve");
    spec.vcpus = 2;
    spec.memory_mib = 200;
    let mut machine = launch(&spec);
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

#[test]
#[ignore = "needs the image set"]
fn the_guest_has_no_devices_but_ours() {
    let root = tempfile::NamedTempFile::new().unwrap();
    fs::write(root.path(), vec![7; 1 << 20]).unwrap();
    let mut spec = spec("serve");
    spec.root_image = Some(root.path().into());
    let mut machine = launch(&spec);
    let mut client = Client::connect(&mut *machine);
    assert_eq!(client.text("list /sys/class/net"), "lo");
    let mut kinds: Vec<String> = client
        .text("list /sys/bus/virtio/devices")
        .split_whitespace()
        .map(|device| client.text(&format!("read /sys/bus/virtio/devices/{device}/device")).trim().to_owned())
        .collect();
    kinds.sort();
    // virtio 1.2, chapter 5: block 2, console 3, entropy 4
    assert_eq!(kinds, ["0x0002", "0x0003", "0x0004"]);
    assert_eq!(client.text("list /sys/class/virtio-ports").split_whitespace().count(), 1);
}

#[test]
#[ignore = "needs the image set"]
fn the_root_image_is_read_only() {
    let root = tempfile::NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..1u32 << 20).map(|at| (at % 253) as u8).collect();
    fs::write(root.path(), &content).unwrap();
    let mut spec = spec("serve");
    spec.root_image = Some(root.path().into());
    let mut machine = launch(&spec);
    let mut client = Client::connect(&mut *machine);
    assert_eq!(client.ask("read /dev/vda").unwrap(), content);
    assert_eq!(client.text("read /sys/block/vda/ro").trim(), "1");
    client.ask("write /dev/vda").unwrap_err();
    assert_eq!(fs::read(root.path()).unwrap(), content);
}

#[test]
#[ignore = "needs the image set"]
fn a_lot_of_data_arrives_whole_both_ways() {
    const SIZE: u32 = 12_345_678;
    let mut machine = launch(&spec("serve"));
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

#[test]
#[ignore = "needs the image set"]
fn touched_memory_counts_as_the_guest_s() {
    let mut machine = launch(&spec("serve"));
    let mut client = Client::connect(&mut *machine);
    let before = machine.host_memory().unwrap();
    assert_eq!(client.text("touch 40"), (40 * 256).to_string());
    let after = machine.host_memory().unwrap();
    assert!(after.guest >= before.guest + (30 << 20), "{before:?} {after:?}");
    assert!(after.overhead < before.overhead + (8 << 20), "{before:?} {after:?}");
}

#[test]
#[ignore = "needs the image set"]
fn a_guest_that_powers_off_has_done_so() {
    let machine = launch(&spec("power-off"));
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    assert_eq!((report.kind, report.status), (ExitKind::PowerOff, ProcessStatus::Code(0)), "{report:?}");
    assert_eq!(machine.boot_failure(Duration::ZERO).code(), "guest_powered_off");
}

#[test]
#[ignore = "needs the image set"]
fn a_panic_is_reported_with_what_the_kernel_said() {
    let machine = launch(&spec("die"));
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest ends");
    assert_eq!(report.kind, ExitKind::Panic, "{report:?}");
    let error = machine.boot_failure(Duration::ZERO);
    assert_eq!(error.code(), "kernel_panic");
    let message = error.to_string();
    assert!(message.contains("Attempted to kill init"), "{message}");
    assert!(machine.console_tail().contains("about to die"), "{}", machine.console_tail());
}

#[test]
#[ignore = "needs the image set"]
fn an_initramfs_that_is_none_is_a_panic() {
    let nonsense = tempfile::NamedTempFile::new().unwrap();
    fs::write(nonsense.path(), "this is no archive").unwrap();
    let mut spec = spec("serve");
    spec.initramfs = nonsense.path().into();
    let machine = launch(&spec);
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest ends");
    assert_eq!(report.kind, ExitKind::Panic, "{report:?}");
    assert!(report.console_tail.contains("Unable to mount root fs"), "{report:?}");
}

#[test]
#[ignore = "needs the image set"]
fn a_guest_that_says_nothing_is_a_boot_timeout() {
    let machine = launch(&spec("silent"));
    support::wait_until(BOOT_TIME, "the guest's line", || {
        machine.console_tail().contains("waiting for ever")
    });
    assert_eq!(machine.wait(Some(Duration::from_millis(200))), None);
    let error = machine.boot_failure(Duration::from_millis(2500));
    assert_eq!(error.code(), "boot_timeout");
    let message = error.to_string();
    assert!(message.contains("2.5 s") && message.contains("waiting for ever"), "{message}");
}

#[test]
#[ignore = "needs the image set"]
fn a_flood_on_the_console_leaves_its_end() {
    let mut spec = spec("flood");
    spec.console_bytes = 4096;
    let machine = launch(&spec);
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    assert!(report.console_tail.len() <= 4096);
    assert!(
        report.console_tail.contains("line 2999 of the flood\nthe flood is over"),
        "{}",
        report.console_tail
    );
    assert!(!report.console_tail.contains("line 100 "));
}

#[test]
#[ignore = "needs the image set"]
fn the_console_cannot_command_a_terminal() {
    let machine = launch(&spec("escape"));
    let report = machine.wait(Some(BOOT_TIME)).expect("the guest powers off");
    assert!(report.console_tail.contains("harmless"), "{}", report.console_tail);
    assert!(!report.console_tail.contains('\x1b') && !report.console_tail.contains('\x07'));
}
