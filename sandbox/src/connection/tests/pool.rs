//! Machines that are kept ready, and those that are made of templates.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hayfork_protocol::message::{Event, Request};
use hayfork_vmm::backend::ExitKind;

use super::{TestEngine, block_on, create, python};
use crate::connection::fake_guest::FakeBackend;
use crate::connection::lock;
use crate::{ExecuteOptions, Language, Sandbox, SandboxOptions, StartedFrom, WarmOptions};

const LIMIT: Duration = Duration::from_secs(10);

/// A guest that ends every execution and renews whatever is to be renewed; what it was asked is written down.
fn worker(asked: &Arc<Mutex<Vec<String>>>) -> FakeBackend {
    let asked = Arc::clone(asked);
    FakeBackend::new(move |mut guest| {
        guest.meet()?;
        let mut mine = Vec::new();
        loop {
            let (id, request) = guest.open()?;
            match request {
                Request::Execute(execute) if execute.code == "die" => return Some(ExitKind::Panic),
                Request::Execute(execute) => {
                    mine.push(execute.code.clone());
                    lock(&asked).push(mine.join(" "));
                    guest.finish(id);
                }
                Request::Renew(_) => {
                    mine.push("renew".into());
                    guest.end(id, &Event::Done { bytes: 0 });
                }
                _ => guest.end(id, &Event::Done { bytes: 0 }),
            }
        }
    })
}

fn keep(engine: &TestEngine, count: usize) {
    let options = WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count };
    engine.keep_warm(options).unwrap();
}

async fn run(sandbox: &Sandbox, code: &str) {
    sandbox.execute(ExecuteOptions::new(code)).collect().await.unwrap();
}

#[test]
fn machines_that_are_kept_ready_are_warm_renewed_and_made_up_for() {
    let asked = Arc::default();
    let backend = worker(&asked).with_templates();
    let engine = backend.engine();
    block_on(&engine, async {
        keep(&engine, 3);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        for number in 0..10 {
            let sandbox = create(&engine).await;
            assert_eq!(sandbox.boot_timings().from, StartedFrom::Pool, "{number}");
            run(&sandbox, "mine").await;
            let with_mine: Vec<_> =
                lock(&asked).iter().filter(|all| all.ends_with("mine")).cloned().collect();
            assert_eq!(with_mine, vec!["renew print() mine"; number + 1], "nobody else was in it");
            assert!(engine.wait_warm(LIMIT).await.unwrap());
        }
        // One machine became the template.
        assert_eq!(backend.launched.load(Ordering::SeqCst), 1);
        // What differs from those in stock is honoured.
        let options = SandboxOptions { memory_mib: Some(512), ..python() };
        let larger = engine.create(options).await.unwrap();
        assert_eq!((larger.memory_mib(), larger.boot_timings().from), (512, StartedFrom::Boot));
        let booted = engine.create(SandboxOptions { fresh_boot: true, ..python() }).await.unwrap();
        assert_eq!(booted.boot_timings().from, StartedFrom::Boot);
    });
}

#[test]
fn who_wants_a_third_one_finds_it_begun_unless_a_stock_is_kept() {
    let backend = worker(&Arc::default()).with_templates();
    let prepared = || backend.prepared.load(Ordering::SeqCst);
    let wait_for = async |count| {
        let until = Instant::now() + LIMIT;
        while prepared() < count {
            assert!(Instant::now() < until, "{} of {count}", prepared());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let engine = backend.engine();
    block_on(&engine, async {
        let first = create(&engine).await;
        assert_eq!(prepared(), 0);
        // The second one has the template made, and what the third one needs.
        let second = create(&engine).await;
        wait_for(1).await;
        let third = create(&engine).await;
        assert_eq!(third.boot_timings().from, StartedFrom::Template);
        wait_for(2).await;
        drop((first, second, third));
        keep(&engine, 1);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        for _ in 0..5 {
            create(&engine).await;
        }
        assert!(engine.wait_warm(LIMIT).await.unwrap());
    });
    drop(engine);
    assert_eq!(prepared(), 2);
}

#[test]
fn who_comes_when_the_stock_is_empty_gets_another_one() {
    let backend = worker(&Arc::default()).with_templates();
    let engine = backend.engine();
    block_on(&engine, async {
        keep(&engine, 2);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        let mut from = Vec::new();
        let mut all = Vec::new();
        for _ in 0..20 {
            let sandbox = create(&engine).await;
            run(&sandbox, "x").await;
            from.push(sandbox.boot_timings().from);
            all.push(sandbox);
        }
        assert_eq!(from[0], StartedFrom::Pool);
        assert!(!from.contains(&StartedFrom::Boot), "there is a template: {from:?}");
        keep(&engine, 0);
        assert!(engine.wait_warm(LIMIT).await.unwrap(), "none is wanted");
        let last = create(&engine).await;
        assert_eq!(last.boot_timings().from, StartedFrom::Template);
    });
}

#[test]
fn a_machine_that_died_in_stock_is_never_handed_out() {
    let lives = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lives);
    // The third machine (after the template's and the one that it is learned from) dies as soon as it is warm.
    let backend = FakeBackend::new(move |mut guest| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        guest.meet()?;
        loop {
            let (id, request) = guest.open()?;
            match request {
                Request::Execute(_) => {
                    guest.finish(id);
                    if number == 2 {
                        std::thread::sleep(Duration::from_millis(50));
                        return Some(ExitKind::Panic);
                    }
                }
                _ => guest.end(id, &Event::Done { bytes: 0 }),
            }
        }
    })
    .with_templates();
    let engine = backend.engine();
    block_on(&engine, async {
        keep(&engine, 1);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        tokio::time::sleep(Duration::from_millis(300)).await;
        let sandbox = create(&engine).await;
        run(&sandbox, "x").await;
        assert!(lives.load(Ordering::SeqCst) > 3);
        assert!(engine.wait_warm(LIMIT).await.unwrap(), "it is made up for");
    });
}

#[test]
fn a_panic_while_a_machine_is_made_does_not_end_the_stock() {
    let mut backend = worker(&Arc::default()).with_templates();
    // The first one is for the working set. As many fail as there are tasks, and more.
    backend.panics_at = 2..8;
    let engine = backend.engine();
    block_on(&engine, async {
        keep(&engine, 2);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        let sandbox = create(&engine).await;
        assert_eq!(sandbox.boot_timings().from, StartedFrom::Pool);
        run(&sandbox, "x").await;
    });
}

#[test]
fn a_backend_without_templates_has_booted_machines_in_stock() {
    let asked = Arc::default();
    let backend = worker(&asked);
    let engine = backend.engine();
    block_on(&engine, async {
        keep(&engine, 2);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        let sandbox = create(&engine).await;
        assert_eq!(sandbox.boot_timings().from, StartedFrom::Pool);
        run(&sandbox, "mine").await;
        assert!(lock(&asked).contains(&"print() mine".to_owned()));
        assert_eq!(backend.restored.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn who_wants_two_gets_the_third_from_a_template() {
    let backend = worker(&Arc::default()).with_templates();
    let engine = backend.engine();
    block_on(&engine, async {
        let first = create(&engine).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(backend.launched.load(Ordering::SeqCst), 1, "one is not worth a template");
        let second = create(&engine).await;
        for sandbox in [&first, &second] {
            assert_eq!(sandbox.boot_timings().from, StartedFrom::Boot);
        }
        let until = Instant::now() + LIMIT;
        loop {
            let more = create(&engine).await;
            if more.boot_timings().from == StartedFrom::Template {
                run(&more, "x").await;
                break;
            }
            assert!(Instant::now() < until, "no template is made");
        }
    });
}

#[test]
fn the_pool_ends_with_the_engine_and_sandboxes_live_on() {
    let backend = worker(&Arc::default()).with_templates();
    let engine = backend.engine();
    let sandbox = block_on(&engine, async {
        keep(&engine, 3);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        let sandbox = create(&engine).await;
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        sandbox
    });
    let handle = engine.runtime().clone();
    let all = backend.launched.load(Ordering::SeqCst) + backend.restored.load(Ordering::SeqCst);
    drop(engine);
    backend.wait_until_killed(all - 1);
    handle.block_on(run(&sandbox, "x"));
    drop(sandbox);
    backend.wait_until_killed(all);
}

#[test]
fn the_idle_time_of_a_machine_in_stock_begins_when_it_is_handed_out() {
    let backend = worker(&Arc::default()).with_templates();
    let engine = backend.engine();
    block_on(&engine, async {
        keep(&engine, 1);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        tokio::time::sleep(Duration::from_millis(600)).await;
        let options = SandboxOptions { idle_timeout: Some(Duration::from_millis(400)), ..python() };
        let sandbox = engine.create(options).await.unwrap();
        assert_eq!(sandbox.boot_timings().from, StartedFrom::Pool);
        tokio::time::sleep(Duration::from_millis(100)).await;
        run(&sandbox, "x").await;
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(sandbox.is_closed());
    });
}

#[test]
fn machines_in_stock_make_room_for_those_that_are_wanted() {
    let backend = worker(&Arc::default()).with_templates();
    let engine = backend.engine_of(|options| options.max_machines = Some(3));
    block_on(&engine, async {
        keep(&engine, 3);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        let mut all = Vec::new();
        for memory_mib in [300, 400, 500] {
            let options = SandboxOptions { memory_mib: Some(memory_mib), ..python() };
            let sandbox = engine.create(options).await.unwrap();
            run(&sandbox, "x").await;
            all.push(sandbox);
        }
        let more = tokio::time::timeout(Duration::from_millis(800), engine.create(python())).await;
        assert!(more.is_err(), "three are the most, and all of them are in use");
        all.pop();
        let last = engine.create(python()).await.unwrap();
        run(&last, "x").await;
        assert!(!engine.wait_warm(Duration::from_millis(300)).await.unwrap(), "there is no room for a stock");
        drop((last, all));
        assert!(engine.wait_warm(LIMIT).await.unwrap(), "now there is");
    });
}

#[test]
fn one_place_is_enough_for_a_template_and_a_stock_of_one() {
    let backend = worker(&Arc::default()).with_templates();
    let engine = backend.engine_of(|options| options.max_machines = Some(1));
    block_on(&engine, async {
        keep(&engine, 1);
        assert!(engine.wait_warm(LIMIT).await.unwrap());
        assert_eq!(backend.launched.load(Ordering::SeqCst), 1, "the first one was not for nothing");
    });
}

#[test]
fn more_forks_than_there_is_room_for_are_refused_and_none_is_left() {
    let backend = worker(&Arc::default()).with_templates();
    let engine = backend.engine_of(|options| options.max_machines = Some(3));
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let error = sandbox.fork(3).await.unwrap_err();
        assert_eq!(error.code(), "capacity", "{error}");
        assert_eq!(sandbox.fork(2).await.unwrap().len(), 2);
        backend.wait_until_killed(2);
        run(&sandbox, "x").await;
    });
}

#[test]
fn a_clone_that_does_not_renew_itself_holds_nobody_up() {
    let lives = Arc::new(AtomicUsize::new(0));
    let backend = FakeBackend::new(move |mut guest| {
        let is_clone = lives.fetch_add(1, Ordering::SeqCst) > 0;
        guest.meet()?;
        loop {
            let (id, request) = guest.open()?;
            match request {
                Request::Execute(_) => guest.finish(id),
                Request::Renew(_) if is_clone => {}
                _ => guest.end(id, &Event::Done { bytes: 0 }),
            }
        }
    })
    .with_templates();
    let engine = backend.engine_of(|options| options.boot_timeout = Duration::from_millis(300));
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let kept = sandbox.snapshot().await.unwrap();
        let error = kept.restore().await.unwrap_err();
        assert!(error.to_string().contains("did not within"), "{error}");
        drop((sandbox, kept));
        backend.wait_until_killed(2);
    });
}

#[test]
fn impossible_wishes_are_refused() {
    let engine = worker(&Arc::default()).engine();
    let good = WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count: 1 };
    for bad in [
        WarmOptions { count: usize::MAX, ..good },
        WarmOptions { cpus: Some(0), ..good },
        WarmOptions { memory_mib: Some(1), ..good },
    ] {
        let error = engine.keep_warm(bad).unwrap_err();
        assert!(matches!(error.code(), "bad_option" | "memory_too_small"), "{error}");
    }
}
