//! Nothing is left behind.

use std::time::{Duration, Instant};

use hayfork_vmm::backend::{Backend, ExitKind, MachineSpec};
use hayfork_vmm::monitor::settle;

use crate::host::{Holdings, alone, or_in_rig, thread_names, wait_for};
use crate::tiny::{Act, Host, Script};

const PATIENCE: Duration = Duration::from_secs(20);

/// Machines whose guests do different things with their devices, by the number of virtual CPUs.
fn specs(host: &Host) -> [MachineSpec; 4] {
    let live = crate::tiny::hostile::all();
    let busy = &live.iter().find(|(name, _)| *name == "doorbells of live devices").unwrap().1;
    let mut specs = [
        host.spec("resets", &Script::of([Act::Reset])),
        host.spec("faults", &Script::of([Act::Fault])),
        host.spec("halts", &Script::saying("x", &[Act::Halt])),
        host.spec("busy", busy),
    ];
    specs[2].vcpus = 2;
    specs
}

/// A machine's life, each a little different.
fn one_life(host: &Host, specs: &[MachineSpec; 4], number: usize) {
    let kind = number % 4;
    let mut machine = host.launch(&specs[kind]);
    match number / 4 % 4 {
        // Killed or dropped as it starts.
        0 => {}
        1 => {
            machine.kill().unwrap();
        }
        2 if kind < 2 => {
            machine.wait(Some(PATIENCE)).expect("it ends");
        }
        _ => {
            let channel = machine.take_channel();
            assert!(channel.is_some());
            if number.is_multiple_of(3) {
                drop(machine);
                drop(channel);
            }
        }
    }
}

#[test]
fn a_thousand_machines_leave_nothing_behind() {
    alone("leaks::a_thousand_machines_leave_nothing_behind", || {
        let Some(host) = Host::new() else { return };
        let specs = specs(&host);
        // The allocator keeps some memory of threads, up to a limit.
        for number in 0..or_in_rig(64, 32) {
            one_life(&host, &specs, number);
        }
        settle();
        let before = Holdings::now();
        assert_eq!(before.of_guests, 0, "no guest's memory is left");
        let start = Instant::now();
        let lives = or_in_rig(1000, 64);
        for number in 0..lives {
            one_life(&host, &specs, number);
        }
        settle();
        let after = Holdings::now();
        println!("{before:?} then {after:?}, {:?} each", start.elapsed() / u32::try_from(lives).unwrap());
        after.check_against(&before);
    });
}

#[test]
fn launches_that_fail_leave_nothing_behind() {
    alone("leaks::launches_that_fail_leave_nothing_behind", || {
        let Some(host) = Host::new() else { return };
        let good = host.spec("kernel", &Script::of([Act::Reset]));
        let mut bad = vec![good.clone(); 5];
        bad[0].kernel = "/nonexistent/vmlinux".into();
        bad[1].initramfs = good.kernel.with_file_name("none");
        bad[2].root_image = Some("/dev/null".into());
        bad[3].vcpus = 32;
        // Too large for the guest's memory, which is found late.
        let large = good.kernel.with_file_name("large");
        std::fs::File::create(&large).unwrap().set_len(100 << 20).unwrap();
        bad[4].initramfs = large;
        let launch_all = || {
            for spec in &bad {
                assert!(host.monitor.launch(spec).is_err());
            }
        };
        launch_all();
        settle();
        let before = Holdings::now();
        for _ in 0..20 {
            launch_all();
        }
        settle();
        Holdings::now().check_against(&before);
    });
}

/// Out of descriptors half-way through: an error, nothing left, and all is well when there are some again.
#[test]
fn a_launch_without_descriptors_is_an_error_and_no_more() {
    alone("leaks::a_launch_without_descriptors_is_an_error_and_no_more", || {
        let Some(host) = Host::new() else { return };
        let spec = host.spec("kernel", &Script::saying("up", &[Act::Halt]));
        drop(host.launch(&spec));
        settle();
        let before = Holdings::now();
        let mut failed = 0;
        // A machine takes some 25 of them.
        for free in (0..60).step_by(or_in_rig(1, 6)) {
            let mut taken = Vec::new();
            let limit = before.descriptors + free;
            crate::host::unsafe_process::limit_descriptors(Some(limit as u64));
            while let Ok(file) = std::fs::File::open("/dev/null") {
                taken.push(file);
            }
            taken.truncate(taken.len().saturating_sub(free));
            match host.monitor.launch(&spec) {
                Ok(mut machine) => {
                    assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
                }
                Err(error) => {
                    failed += 1;
                    assert!(!error.remedy().is_empty(), "{error}");
                }
            }
            crate::host::unsafe_process::limit_descriptors(None);
            drop(taken);
            settle();
        }
        println!("{failed} launches failed");
        assert!((3..60).contains(&failed), "{failed}");
        Holdings::now().check_against(&before);
        let machine = host.launch(&spec);
        wait_for(PATIENCE, "its word", || machine.console_tail() == "up");
    });
}

#[test]
fn threads_have_names_and_go() {
    alone("leaks::threads_have_names_and_go", || {
        let Some(host) = Host::new() else { return };
        let mut spec = host.spec("kernel", &Script::of([Act::Halt]));
        spec.vcpus = 2;
        let before = thread_names();
        let machine = host.launch(&spec);
        let mut expected = before.clone();
        expected.extend(["hayfork-devices", "hayfork-vcpu0", "hayfork-vcpu1"].map(str::to_owned));
        expected.sort();
        // A thread has its maker's name at first.
        wait_for(PATIENCE, "the threads", || thread_names() == expected);
        drop(machine);
        settle();
        wait_for(PATIENCE, "the reaper's end", || thread_names() == before);
    });
}
