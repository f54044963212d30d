//! Machines that go on where another stood.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{BackendError, Machine, Template};

use crate::guest::{BOOT_TIME, Client};
use crate::setup::{Setup, on_backends};

on_backends! {
    a_clone_knows_what_the_original_knew_and_neither_disturbs_the_other: monitor monitor_2_vcpus;
    many_clones_live_at_once: monitor;
    no_time_has_passed_for_a_clone: monitor monitor_2_vcpus;
    generations_of_clones: monitor monitor_2_vcpus;
    a_guest_is_kept_in_the_midst_of_its_work: monitor monitor_2_vcpus;
    a_machine_that_has_ended_cannot_be_kept: monitor;
    pages_that_are_made_ahead_are_those_that_a_clone_writes: monitor;
}

fn restore(template: &Arc<dyn Template>) -> (Box<dyn Machine>, Client) {
    let mut machine = template.restore().unwrap();
    let client = Client::connect(&mut *machine);
    (machine, client)
}

fn a_clone_knows_what_the_original_knew_and_neither_disturbs_the_other(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep the secret");
    let template = original.capture().unwrap();
    assert_eq!(client.text("kept"), "the secret");
    client.text("keep something else");

    let (_one, mut first) = restore(&template);
    assert_eq!(first.text("kept"), "the secret");
    first.text("keep mine");
    let (_two, mut second) = restore(&template);
    assert_eq!(second.text("kept"), "the secret");
    // Devices work on: a lot over vsock both ways, the disk's absence, the console's sink.
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| u8::try_from(n % 249).unwrap()).collect();
    let sum: u64 = bytes.iter().copied().map(u64::from).sum();
    assert_eq!(first.put(&bytes), sum.to_string());
    assert_eq!(first.ask("get 2000000").unwrap().len(), 2_000_000);
    assert_eq!(first.text("kept"), "mine");
    assert_eq!(client.text("kept"), "something else");
    // The template needs the original no more.
    drop((client, original));
    let (_three, mut third) = restore(&template);
    assert_eq!(third.text("kept"), "the secret");
}

fn many_clones_live_at_once(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep root");
    let template = original.capture().unwrap();
    let mut clones: Vec<_> = (0..20).map(|_| restore(&template)).collect();
    for (number, (_, client)) in clones.iter_mut().enumerate() {
        assert_eq!(client.text("kept"), "root");
        client.text(&format!("keep {number}"));
    }
    for (number, (_, client)) in clones.iter_mut().enumerate() {
        assert_eq!(client.text("kept"), number.to_string());
    }
}

fn no_time_has_passed_for_a_clone(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    let at: u64 = client.text("monotonic").parse().unwrap();
    let template = original.capture().unwrap();
    let pause = Duration::from_millis(2500);
    std::thread::sleep(pause);
    for _ in 0..3 {
        let (_machine, mut clone) = restore(&template);
        let now: u64 = clone.text("monotonic").parse().unwrap();
        let passed = Duration::from_nanos(now.checked_sub(at).expect("it never goes back"));
        assert!(passed < pause / 2, "{passed:?}");
        // Timers that are set afterwards run at the right pace.
        let (start, slept) = (Instant::now(), clone.text("clock 300"));
        let slept = Duration::from_micros(slept.parse().unwrap());
        let real = start.elapsed();
        assert!(
            slept >= Duration::from_millis(300) && real >= Duration::from_millis(300),
            "{slept:?} {real:?}"
        );
        assert!(real.abs_diff(slept) < Duration::from_millis(200), "{slept:?} {real:?}");
    }
    // The original has gone on.
    let now: u64 = client.text("monotonic").parse().unwrap();
    assert!(now - at > 2_500_000_000);
}

fn generations_of_clones(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep 0");
    let mut template = original.capture().unwrap();
    for generation in 0..7u32 {
        let (machine, mut clone) = restore(&template);
        assert_eq!(clone.text("kept"), generation.to_string());
        clone.text(&format!("keep {}", generation + 1));
        template = machine.capture().unwrap();
    }
    let (_machine, mut last) = restore(&template);
    assert_eq!(last.text("kept"), "7");
}

fn a_guest_is_kept_in_the_midst_of_its_work(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    client.text("keep it");
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut client = client;
            for round in 0..10 {
                let bytes = client.ask("get 3000000").unwrap();
                assert!((0u32..).zip(&bytes).all(|(at, byte)| u32::from(*byte) == at % 251), "round {round}");
                assert_eq!(client.put(&bytes).len(), "374997876".len());
            }
        });
        let mut kept = 0;
        while !worker.is_finished() {
            let template = original.capture().unwrap();
            kept += 1;
            if kept % 4 == 1 {
                let (_machine, mut clone) = restore(&template);
                assert_eq!(clone.text("kept"), "it");
            }
        }
        println!("kept {kept} times");
        assert!(kept > 2);
    });
}

fn a_machine_that_has_ended_cannot_be_kept(on: &Setup) {
    let machine = on.start("power-off");
    machine.wait(Some(BOOT_TIME)).expect("it ends");
    assert!(matches!(machine.capture().err(), Some(BackendError::PoweredOff { .. })));
}

fn pages_that_are_made_ahead_are_those_that_a_clone_writes(on: &Setup) {
    let mut original = on.start("serve");
    Client::connect(&mut *original);
    let template = original.capture().unwrap();
    let (machine, mut client) = restore(&template);
    client.text("keep it");
    let set = machine.written();
    let bytes: u64 = set.iter().map(|range| range.end - range.start).sum();
    assert!((64 << 10..16 << 20).contains(&bytes), "{bytes} {set:?}");
    let ahead = template.with_working_set(set.clone());
    let machine = ahead.restore().unwrap();
    let there: u64 = machine.written().iter().map(|range| range.end - range.start).sum();
    assert!(there >= bytes, "{there} of {bytes}");
    println!("working set {} KiB in {} ranges", bytes >> 10, set.len());
}
