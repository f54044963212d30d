//! The clocks of machines that go on where another stood: no time has passed for them, whatever age the snapshot has, and
//! time goes on at its pace. A guest's readings are compared with what its host knows at the same moments, so a loaded host fails
//! nothing. Wall clocks are the agent's to set: see `tests/clocks.rs`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hayfork_vmm::backend::{Machine, Template};
use hayfork_vmm::hypervisor::x86_64::msr;
use hayfork_vmm::monitor::testing::rewrite;

use crate::ages::{ACCURACY, Bracket, ages, wait_for_age};
use crate::guest::Client;
use crate::setup::{Setup, on_backends};
use crate::snapshot::{load, restore, start_named};

on_backends! {
    time_goes_on_in_clones_of_any_age: qemu qemu_2_vcpus monitor monitor_2_vcpus worker;
    timers_of_an_old_snapshot_run_out_one_after_the_other: qemu qemu_2_vcpus monitor monitor_2_vcpus worker;
    a_counter_that_is_ahead_of_the_host_s_disturbs_nothing: monitor monitor_2_vcpus worker;
    a_snapshot_of_another_boot_is_refused_where_its_clock_cannot_be_set: monitor worker;
}

/// A machine at rest whose guest has said what time it is, just before.
struct Kept {
    template: Arc<dyn Template>,
    at: Duration,
    /// The guest has lived no longer than this after it said so.
    most: Duration,
    since: Instant,
}

fn monotonic(client: &mut Client) -> (Duration, (Instant, Instant)) {
    let asked = Instant::now();
    let nanoseconds = client.text("monotonic").parse().unwrap();
    (Duration::from_nanos(nanoseconds), (asked, Instant::now()))
}

fn keep(machine: &dyn Machine, client: &mut Client) -> Kept {
    let (at, (asked, _)) = monotonic(client);
    let template = machine.capture().unwrap();
    Kept { template, at, most: asked.elapsed(), since: Instant::now() }
}

/// A clone, whose time must have gone on from there.
fn go_on(template: &Arc<dyn Template>, kept: &Kept) -> (Box<dyn Machine>, Client) {
    let start = Instant::now();
    let (machine, mut clone) = restore(template);
    let (now, _) = monotonic(&mut clone);
    let passed = now.checked_sub(kept.at).expect("it never goes back");
    let most = kept.most + start.elapsed();
    assert!(passed <= most + ACCURACY, "{passed:?} have passed for a clone, at most {most:?} did");
    (machine, clone)
}

/// Sleeps of a second last one, and clocks show it.
fn keeps_pace(client: &mut Client) {
    let (before, first) = monotonic(client);
    let asked = Instant::now();
    let slept: u64 = client.text("clock 1000").parse().unwrap();
    let (slept, real) = (Duration::from_micros(slept), asked.elapsed());
    // Both measure with clocks that are adjusted to the true second.
    let second = Duration::from_millis(999);
    assert!(slept >= second && real >= second, "{slept:?} in the guest, {real:?} outside");
    assert!(slept <= real + ACCURACY, "{slept:?} in the guest, {real:?} outside");
    assert!(real < Duration::from_secs(4), "a second took {real:?}");
    let (after, second) = monotonic(client);
    Bracket::between(first, second).check(after.checked_sub(before).unwrap(), "a second");
}

fn time_goes_on_in_clones_of_any_age(on: &Setup) {
    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    let kept = keep(&*original, &mut client);
    for age in ages() {
        wait_for_age(kept.since, age);
        let (machine, mut clone) = go_on(&kept.template, &kept);
        keeps_pace(&mut clone);
        // A clone of the clone goes on from there.
        let again = keep(&*machine, &mut clone);
        std::thread::sleep(Duration::from_millis(500));
        let (_machine, mut clone) = go_on(&again.template, &again);
        keeps_pace(&mut clone);
    }
    keeps_pace(&mut client);
}

fn timers_of_an_old_snapshot_run_out_one_after_the_other(on: &Setup) {
    const TIMERS: u32 = 10;
    const APART: Duration = Duration::from_millis(300);

    let mut original = on.start("serve");
    let mut client = Client::connect(&mut *original);
    let (at, (asked, _)) = monotonic(&mut client);
    assert_eq!(client.text(&format!("timers {TIMERS} {}", APART.as_millis())), "");
    let template = original.capture().unwrap();
    let lived = asked.elapsed();
    // All of them are overdue by the host's clock.
    std::thread::sleep(APART * (TIMERS + 4));
    let start = Instant::now();
    let (_machine, mut clone) = restore(&template);
    let fired = loop {
        let fired = clone.text("fired");
        if fired.lines().count() == TIMERS as usize {
            break fired;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "not all timers run out: {fired:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let took = start.elapsed();
    let times: Vec<(Duration, Duration)> = fired
        .lines()
        .map(|line| {
            let (due, fired) = line.split_once(' ').unwrap();
            let time = |text: &str| Duration::from_nanos(text.parse().unwrap());
            (time(due), time(fired))
        })
        .collect();
    assert!(times.iter().all(|(due, fired)| fired >= due), "early: {times:?}");
    let last = times.iter().map(|(due, _)| *due).max().unwrap();
    assert!(took + lived + ACCURACY >= last.saturating_sub(at), "all within {took:?}: {times:?}");
    // How late is the host's affair, for one; not for most of them.
    let mut late: Vec<Duration> = times.iter().map(|(due, fired)| fired.saturating_sub(*due)).collect();
    late.sort();
    println!("late by {late:?}");
    assert!(late[late.len() / 2] < APART, "{late:?}");
}

/// Saves a machine, changes what the file says as if its processors' counters were so many seconds further, as after a new start of
/// a host, and loads it.
fn kept_with_counters_ahead(on: &Setup, folder: &Path, seconds: u64) -> Kept {
    let (original, mut client) = start_named(on);
    let kept = keep(&*original, &mut client);
    let (saved, changed) = (folder.join("saved"), folder.join("changed"));
    kept.template.save(&saved, &[]).unwrap();
    let mut moved = 0;
    rewrite(&saved, &changed, |identity, machine| {
        for vcpu in &mut machine.vcpus {
            let ticks = u64::from(vcpu.tsc_khz) * 1000 * seconds;
            for register in &mut vcpu.msrs {
                // A deadline that is armed is one of the same counter.
                let is_deadline = register.index == msr::IA32_TSC_DEADLINE && register.value != 0;
                if register.index == msr::IA32_TSC || is_deadline {
                    register.value += ticks;
                    moved += u32::from(!is_deadline);
                }
            }
        }
        identity
    })
    .unwrap();
    assert!(moved > 0, "no processor has a counter");
    let (template, _) = load(on, &changed).unwrap();
    Kept { template, ..kept }
}

fn a_counter_that_is_ahead_of_the_host_s_disturbs_nothing(on: &Setup) {
    let folder = tempfile::tempdir().unwrap();
    for seconds in [3, 30 * 60] {
        let kept = kept_with_counters_ahead(on, folder.path(), seconds);
        for _ in 0..2 {
            let (machine, mut clone) = go_on(&kept.template, &kept);
            keeps_pace(&mut clone);
            let again = keep(&*machine, &mut clone);
            let (_machine, mut clone) = go_on(&again.template, &again);
            keeps_pace(&mut clone);
        }
    }
}

fn a_snapshot_of_another_boot_is_refused_where_its_clock_cannot_be_set(on: &Setup) {
    const BOOT: &str = "boot of the host";

    let folder = tempfile::tempdir().unwrap();
    let (saved, changed) = (folder.path().join("saved"), folder.path().join("changed"));
    let (original, _client) = start_named(on);
    original.capture().unwrap().save(&saved, &[]).unwrap();
    let mut depends = false;
    rewrite(&saved, &changed, |identity, _| {
        depends = identity.get(BOOT).is_some();
        if depends { identity.with(BOOT, "another") } else { identity }
    })
    .unwrap();
    let result = load(on, &changed);
    if depends {
        let error = result.map(drop).expect_err("its time cannot go on");
        assert_eq!(error.code(), "snapshot_foreign");
        assert!(error.to_string().contains(BOOT), "{error}");
    } else {
        let (_machine, mut clone) = restore(&result.unwrap().0);
        keeps_pace(&mut clone);
    }
}
