//! Where sandboxes are if nobody has said so: in this process up to a bound, beyond it each in a worker; however they are made.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::time::Duration;

use common::{block_on, create, out, program, run};
use hayfork_sandbox::{
    Engine, EngineOptions, Error, Language, Place, ResumeOptions, Sandbox, StartedFrom, TemplateStore,
    WarmOptions,
};
use rustix::process::{Pid, Signal, kill_process};

const BOUND: usize = 3;

/// An engine on the monitor with a small bound; `None`, having said so, where there is no monitor, or QEMU or workers are to be tested.
fn engine(options: EngineOptions) -> Option<Engine> {
    let named = |variable: &str, fitting: &[&str]| {
        let wanted = std::env::var(variable).unwrap_or_default();
        fitting.contains(&wanted.as_str()) || {
            println!("skipped: {variable} is {wanted}");
            false
        }
    };
    if !named("HAYFORK_BACKEND", &["", "auto", "monitor"])
        || !named("HAYFORK_ISOLATION", &["", "auto", "process"])
    {
        return None;
    }
    let engine = Engine::new(EngineOptions {
        backend: Some("monitor".into()),
        machines_in_process: Some(BOUND),
        template_store: TemplateStore::Off,
        ..options
    });
    let engine = engine.unwrap();
    let report = engine.runtime().block_on(engine.doctor());
    if let Some(check) = report.checks.iter().find(|check| check.name == "backend")
        && !report.usable
    {
        println!("skipped: {}", check.message);
        return None;
    }
    Some(engine)
}

fn with_workers() -> EngineOptions {
    EngineOptions { worker: Some(program::worker()), ..EngineOptions::default() }
}

/// How many of them are in this process; the others are in workers, whose processes are others.
fn here(sandboxes: &[Sandbox]) -> usize {
    let mut pids: Vec<_> = sandboxes.iter().filter_map(Sandbox::process_id).collect();
    pids.sort_unstable();
    pids.dedup();
    for sandbox in sandboxes {
        let place = sandbox.boot_timings().place;
        assert_eq!(sandbox.process_id().is_some(), place == Place::Worker, "{place:?}");
    }
    sandboxes.len() - pids.len()
}

/// Each of them runs code, and remembers what it was told.
async fn all_work(sandboxes: &[Sandbox], known: &str) {
    for (number, sandbox) in sandboxes.iter().enumerate() {
        run(sandbox, &format!("mine = {number}")).await;
    }
    for (number, sandbox) in sandboxes.iter().enumerate() {
        let said = out(&run(sandbox, &format!("print(mine, {known})")).await);
        assert!(said.starts_with(&format!("{number} ")), "{said}");
    }
}

async fn close(sandboxes: impl IntoIterator<Item = Sandbox>) -> Result<(), Error> {
    for sandbox in sandboxes {
        sandbox.close().await?;
    }
    Ok(())
}

#[test]
#[ignore = "needs the image set"]
fn those_beyond_the_bound_have_workers_and_room_is_used_again() {
    // Those that templates are made with have seats too, while they live.
    let Some(engine) = engine(EngineOptions { templates: false, ..with_workers() }) else { return };
    block_on(&engine, async {
        let mut all = Vec::new();
        for number in 0..BOUND + 3 {
            all.push(create(&engine, Language::Python).await);
            assert_eq!(here(&all), BOUND.min(number + 1));
        }
        all_work(&all, "1").await;
        // Two of this process are closed, and a worker is killed.
        let crashed = all.pop().unwrap();
        let pid = i32::try_from(crashed.process_id().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        while !crashed.is_closed() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        close(all.drain(..2)).await.unwrap();
        assert_eq!(here(&all), BOUND - 2);
        for _ in 0..3 {
            all.push(create(&engine, Language::Python).await);
        }
        assert_eq!(here(&all), BOUND);
        all_work(&all, "2").await;
        close(all).await.unwrap();
        let last = [create(&engine, Language::Python).await];
        assert_eq!(here(&last), 1);
    });
}

#[test]
#[ignore = "needs the image set"]
fn those_of_a_template_made_on_the_way_are_in_both_places() {
    let Some(engine) = engine(with_workers()) else { return };
    block_on(&engine, async {
        // Until the template is there and the machines that it was made with are gone.
        let mut all = Vec::new();
        while !(all.len() > BOUND && all.iter().any(is_of_template)) {
            all.push(create(&engine, Language::Python).await);
            assert!(here(&all) <= BOUND);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        all_work(&all, "1").await;
        close(all).await.unwrap();
        // One after the other, each with what was made ahead for it in this process.
        for _ in 0..3 {
            let one = [create(&engine, Language::Python).await];
            assert_eq!((here(&one), is_of_template(&one[0])), (1, true));
            close(one).await.unwrap();
        }
        let mut all = Vec::new();
        for _ in 0..BOUND + 2 {
            all.push(create(&engine, Language::Python).await);
        }
        assert_eq!(here(&all), BOUND);
        assert!(all.iter().all(is_of_template));
        all_work(&all, "2").await;
    });
}

fn is_of_template(sandbox: &Sandbox) -> bool {
    sandbox.boot_timings().from == StartedFrom::Template
}

#[test]
#[ignore = "needs the image set"]
fn forks_snapshots_and_paused_ones_go_on_in_either_place() {
    let folder = tempfile::tempdir().unwrap();
    let Some(engine) =
        engine(EngineOptions { paused: Some(folder.path().into()), templates: false, ..with_workers() })
    else {
        return;
    };
    block_on(&engine, async {
        let mut all = Vec::new();
        for number in 0..=BOUND {
            let sandbox = create(&engine, Language::Python).await;
            run(&sandbox, &format!("told = {number}")).await;
            all.push(sandbox);
        }
        // One of this process and one of a worker, with all seats taken.
        for (number, place) in [(0, Place::ThisProcess), (BOUND, Place::Worker)] {
            assert_eq!(all[number].boot_timings().place, place);
            let forks = all[number].fork(2).await.unwrap();
            assert_eq!(here(&forks), 0);
            all_work(&forks, "told").await;
            assert_eq!(out(&run(&forks[1], "print(told)").await), format!("{number}\n"));
            // A fork of a fork.
            let snapshot = forks[0].snapshot().await.unwrap();
            close(forks).await.unwrap();
            let again = [snapshot.restore().await.unwrap()];
            assert_eq!((here(&again), out(&run(&again[0], "print(told)").await)), (0, format!("{number}\n")));
        }
        // And with seats that are free.
        close(all.drain(1..BOUND)).await.unwrap();
        let mut ids = Vec::new();
        for sandbox in &all {
            let forks = sandbox.fork(2).await.unwrap();
            assert_eq!(here(&forks), 2);
            all_work(&forks, "told").await;
            close(forks).await.unwrap();
            ids.push(sandbox.pause("").await.unwrap());
        }
        // Both are paused, so all seats are free: they go on in this process, and in workers if it is full.
        let keep = ResumeOptions { keep: true };
        let mut resumed = Vec::new();
        for _ in 0..2 {
            for (id, number) in ids.iter().zip([0, BOUND]) {
                let sandbox = engine.resume(id, keep).await.unwrap().sandbox;
                assert_eq!(out(&run(&sandbox, "print(told)").await), format!("{number}\n"));
                resumed.push(sandbox);
            }
        }
        assert_eq!(here(&resumed), BOUND);
        all_work(&resumed, "told").await;
    });
}

#[test]
#[ignore = "needs the image set"]
fn a_stock_beyond_the_bound_is_kept_in_workers() {
    let Some(engine) = engine(with_workers()) else { return };
    let warm = |count| {
        engine.keep_warm(WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count })
    };
    block_on(&engine, async {
        warm(BOUND + 2).unwrap();
        assert!(engine.wait_warm(Duration::from_secs(120)).await.unwrap());
        let mut all = Vec::new();
        for _ in 0..BOUND + 2 {
            all.push(create(&engine, Language::Python).await);
        }
        warm(0).unwrap();
        assert!(all.iter().all(|sandbox| sandbox.boot_timings().from == StartedFrom::Pool));
        assert_eq!(here(&all), BOUND);
        all_work(&all, "1").await;
    });
}

#[test]
#[ignore = "needs the image set"]
fn without_a_worker_program_all_are_in_this_process() {
    let Some(engine) =
        engine(EngineOptions { worker: Some("/nonexistent".into()), ..EngineOptions::default() })
    else {
        return;
    };
    block_on(&engine, async {
        let mut all = Vec::new();
        for _ in 0..BOUND + 2 {
            all.push(create(&engine, Language::Python).await);
        }
        assert_eq!(here(&all), BOUND + 2);
        all_work(&all, "1").await;
    });
}
