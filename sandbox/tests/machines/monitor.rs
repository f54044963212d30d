//! Linux guests in this process: what they take, and what disturbs them.

use std::time::{Duration, Instant};

use hayfork_vmm::backend::ExitKind;
use hayfork_vmm::monitor::settle;

use crate::guest::{BOOT_TIME, Client};
use crate::host::unsafe_process::Storm;
use crate::host::{Holdings, alone, thread_names, wait_for};
use crate::setup::{Setup, on_backends};
use crate::snapshot::restore;
use crate::tiny::{self, hostile};

on_backends! {
    a_guest_is_killed_at_any_point_of_its_boot: monitor monitor_2_vcpus;
}

fn a_guest_is_killed_at_any_point_of_its_boot(on: &Setup) {
    let spec = on.spec("serve");
    let start = Instant::now();
    let mut machine = on.launch(&spec);
    drop(Client::connect(&mut *machine));
    let boot = start.elapsed();
    drop(machine);
    for part in 0..12 {
        let machine = on.launch(&spec);
        std::thread::sleep(boot * part / 12);
        let mut machine = machine;
        let start = Instant::now();
        let report = machine.kill().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(report.kind, ExitKind::Killed, "{report:?}");
    }
}

#[test]
#[ignore = "needs the image set"]
fn what_was_begun_ahead_is_what_a_restore_gives() {
    alone("monitor::what_was_begun_ahead_is_what_a_restore_gives", || {
        let Some(on) = Setup::monitor() else { return };
        let mut original = on.start("serve");
        let mut client = Client::connect(&mut *original);
        client.text("keep it");
        let template = original.capture().unwrap();
        let before = Holdings::now();
        template.prepare().unwrap();
        let begun = Holdings::now();
        assert!(begun.threads >= before.threads + 2, "{before:?} then {begun:?}");
        assert!(begun.descriptors > before.descriptors + 10, "{before:?} then {begun:?}");
        let mut machine = template.restore().unwrap();
        let after = Holdings::now();
        assert_eq!((after.threads, after.descriptors), (begun.threads, begun.descriptors));
        assert_eq!(Client::connect(&mut *machine).text("kept"), "it");
    });
}

#[test]
#[ignore = "needs the image set"]
fn linux_guests_leave_nothing_behind() {
    alone("monitor::linux_guests_leave_nothing_behind", || {
        let Some(on) = Setup::monitor() else { return };
        let one_life = |number: u8| {
            let mut spec = on.spec(["serve", "power-off", "silent", "die"][usize::from(number) % 4]);
            spec.vcpus = 1 + number % 3 / 2;
            let mut machine = on.launch(&spec);
            match number % 4 {
                0 => {
                    let mut client = Client::connect(&mut *machine);
                    assert_eq!(client.text("ping x"), "x");
                    // What is made ahead for nobody, and used.
                    let template = machine.capture().unwrap();
                    template.prepare().unwrap();
                    if number.is_multiple_of(8) {
                        assert_eq!(restore(&template).1.text("ping y"), "y");
                    }
                    drop(machine);
                    // It notices on its own.
                }
                2 => assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed),
                _ => {
                    let report = machine.wait(Some(BOOT_TIME)).expect("it ends");
                    assert!(matches!(report.kind, ExitKind::PowerOff | ExitKind::Panic), "{report:?}");
                }
            }
        };
        // All kinds once: each thread that there is at the same time may have memory of the allocator's for good.
        (0..12).for_each(one_life);
        settle();
        let before = Holdings::now();
        assert_eq!(before.of_guests, 0);
        (0..12).for_each(one_life);
        settle();
        let after = Holdings::now();
        println!("{before:?} then {after:?}");
        after.check_against(&before);
        wait_for(BOOT_TIME, "the end of all threads", || {
            !thread_names().iter().any(|name| name.starts_with("hayfork"))
        });
    });
}

/// Asks a guest for a while; gives how many answers came, and what the slowest took.
fn pings(client: &mut Client, time: Duration) -> (u32, Duration) {
    let (start, mut count, mut slowest) = (Instant::now(), 0, Duration::ZERO);
    while start.elapsed() < time {
        let asked = Instant::now();
        let question = format!("ping {count}");
        assert_eq!(format!("ping {}", client.text(&question)), question);
        slowest = slowest.max(asked.elapsed());
        count += 1;
    }
    (count, slowest)
}

#[test]
#[ignore = "needs the image set"]
fn storms_of_signals_do_not_disturb_guests() {
    alone("monitor::storms_of_signals_do_not_disturb_guests", || {
        let Some(on) = Setup::monitor() else { return };
        let storm = Storm::of(Duration::from_micros(500));
        for vcpus in [1, 2] {
            let mut spec = on.spec("serve");
            spec.vcpus = vcpus;
            let mut machine = on.launch(&spec);
            let mut client = Client::connect(&mut *machine);
            let found = pings(&mut client, Duration::from_secs(2));
            let sum: u64 = (0..1_000_000u64).map(|at| at % 251).sum();
            let pattern: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
            assert_eq!(client.put(&pattern), sum.to_string());
            assert!(client.ask("get 1000000").unwrap() == pattern);
            println!("{vcpus} virtual CPUs: {found:?}");
            assert_eq!(machine.kill().unwrap().kind, ExitKind::Killed);
        }
        let weather = storm.weather();
        println!("{weather:?}");
        assert!(weather.handled > 1000, "{weather:?}");
        assert_eq!(weather.misdirected, 0, "{weather:?}");
    });
}

#[test]
#[ignore = "needs the image set"]
fn hostile_guests_do_not_keep_linux_from_answering() {
    alone("monitor::hostile_guests_do_not_keep_linux_from_answering", || {
        let Some(on) = Setup::monitor() else { return };
        let Some(host) = tiny::Host::new() else { return };
        let mut bystander = on.start("serve");
        let mut client = Client::connect(&mut *bystander);
        println!("alone: {:?}", pings(&mut client, Duration::from_secs(1)));
        let before = Holdings::now();
        for (name, script) in hostile::all() {
            let mut machine = host.start(&script);
            let (count, slowest) = pings(&mut client, Duration::from_secs(1));
            let report = machine.kill().unwrap();
            println!("{name}: {count} answers, the slowest after {slowest:?}; {:?}", report.kind);
        }
        // All of them at once.
        let mut machines: Vec<_> = hostile::all().iter().map(|(_, script)| host.start(script)).collect();
        println!("all at once: {:?}", pings(&mut client, Duration::from_secs(5)));
        for machine in &mut machines {
            machine.kill().unwrap();
        }
        drop(machines);
        settle();
        let after = Holdings::now();
        println!("{before:?} then {after:?}");
        assert_eq!((after.threads, after.of_guests), (before.threads, before.of_guests));
        // A little for what Linux itself has touched since.
        assert!(after.resident < before.resident + (32 << 20), "{before:?} then {after:?}");
        assert_eq!(bystander.kill().unwrap().kind, ExitKind::Killed);
    });
}
