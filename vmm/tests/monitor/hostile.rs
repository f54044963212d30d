//! Guests that mean harm do none: the process lives, its memory is bounded, others go on.

use std::time::{Duration, Instant};

use hayfork_vmm::backend::{ExitKind, Machine};
use hayfork_vmm::monitor::settle;

use crate::host::{Holdings, alone, or_in_rig, resident, wait_for};
use crate::tiny::{Act, DATA, Host, Script, hostile};

const PATIENCE: Duration = Duration::from_secs(20);
/// How long each of them may do what it likes, in milliseconds.
const ATTACK: u64 = 1500;
const ATTACK_IN_RIG: u64 = 100;
/// What it may make this process take: memory of its guest that it touches, and buffers.
const BOUND: u64 = 24 << 20;

/// Runs one of them beside a guest that goes on saying something, and others that come and go.
fn attack(host: &Host, name: &str, script: &Script, vcpus: u8) {
    let beats = Script::saying("beat\n", &[Act::Spin { times: 3000 }, Act::Repeat { from: 0, times: 0 }]);
    let bystander = host.launch(&host.spec("beats", &beats));
    let short = host.spec("short", &Script::saying("done", &[Act::Reset]));
    wait_for(PATIENCE, "a beat", || !bystander.console_tail().is_empty());
    let mut spec = host.spec("hostile", script);
    spec.vcpus = vcpus;
    // Kernels are kept once they were read.
    for spec in [&short, &spec] {
        drop(host.launch(spec));
    }
    settle();
    let before = Holdings::now();

    let mut machine = host.launch(&spec);
    let start = Instant::now();
    let attack = Duration::from_millis(or_in_rig(ATTACK, ATTACK_IN_RIG));
    let (mut most, mut lives, mut slowest) = (0, 0, Duration::ZERO);
    let mut beats = bystander.console_tail().len();
    while start.elapsed() < attack {
        let begun = Instant::now();
        let report = host.launch(&short).wait(Some(PATIENCE)).expect("it ends");
        assert_eq!((report.kind, &report.console_tail[..]), (ExitKind::PowerOff, "done"), "{name}");
        slowest = slowest.max(begun.elapsed());
        lives += 1;
        most = most.max(resident());
    }
    let alive = |what: &str, machine: &dyn Machine, said: &mut usize| {
        let enough = *said + 5;
        wait_for(PATIENCE, what, || machine.console_tail().len() > enough);
        *said = machine.console_tail().len();
    };
    alive("beats of the other guest", &*bystander, &mut beats);
    if name.starts_with("console flood") {
        // On one processor the thread of its devices comes late to it.
        wait_for(PATIENCE, "the flood", || machine.console_tail().len() > 2000);
    }
    let end = machine.try_exit();
    let begun = Instant::now();
    let report = machine.kill().unwrap();
    println!(
        "{name}: {lives} others, the slowest {slowest:?}; +{} KiB; killed in {:?}; {:?}, {} bytes of console{}",
        most.saturating_sub(before.resident) >> 10,
        begun.elapsed(),
        report.kind,
        report.console_tail.len(),
        end.map(|end| format!("; had ended: {}", end.stderr_tail)).unwrap_or_default(),
    );
    assert!(begun.elapsed() < Duration::from_secs(5), "{name}: {:?}", begun.elapsed());
    assert!(most < before.resident + BOUND, "{name}: {} to {most}", before.resident);
    drop(machine);
    alive("beats afterwards", &*bystander, &mut beats);
    settle();
    Holdings::now().check_against(&before);
}

#[test]
fn a_tiny_guest_s_driver_works() {
    let Some(host) = Host::new() else { return };
    let report = host.start(&hostile::sane()).wait(Some(PATIENCE)).expect("it ends");
    assert!(report.console_tail.ends_with("\nread the disk"), "{report:?}");
    // And random accesses are made: here to memory.
    let acts = [
        Act::Random { at: DATA, mask: 0xff, times: 2000 },
        Act::OutString { port: 0x3f8, at: DATA, bytes: 256 },
        Act::Reset,
    ];
    let script = Script { acts: acts.to_vec(), data: vec![(DATA, vec![b'0'; 0x110])] };
    let report = host.start(&script).wait(Some(PATIENCE)).expect("it ends");
    let untouched = report.console_tail.bytes().filter(|&byte| byte == b'0').count();
    assert!(untouched < 128, "{untouched} of 256 bytes are as they were");
}

macro_rules! attacks {
    ($($test:ident: $name:literal;)*) => {
        $(#[test]
        fn $test() {
            alone(concat!("hostile::", stringify!($test)), || {
                let Some(host) = Host::new() else { return };
                let scripts = hostile::all();
                let (name, script) = scripts.iter().find(|(name, _)| *name == $name).expect("a script");
                attack(&host, name, script, 1);
            });
        })*

        /// None is forgotten here.
        #[test]
        fn all_are_tested() {
            let tested = [$($name),*];
            assert_eq!(hostile::all().iter().map(|(name, _)| *name).collect::<Vec<_>>(), tested);
        }
    };
}

attacks! {
    a_flood_of_the_console_by_port: "console flood by port";
    a_flood_of_the_console_by_port_byte_by_byte: "console flood by port, byte by byte";
    a_flood_of_the_console_by_queue: "console flood by queue";
    doorbells_without_drivers: "doorbells without drivers";
    doorbells_of_live_devices: "doorbells of live devices";
    resets_of_devices_at_work: "resets of devices at work";
    rings_at_wild_addresses: "rings at wild addresses";
    descriptors_of_wild_content: "descriptors of wild content";
    indices_that_jump: "indices that jump";
    vsock_packets_of_nonsense: "vsock packets of nonsense";
    accesses_all_over_the_register_files: "accesses all over the register files";
    accesses_all_over_the_device_gap: "accesses all over the device gap";
    accesses_to_all_ports: "accesses to all ports";
}
