//! How sandboxes and engines end, and what is left then: nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hayfork_protocol::frame::Channel;
use hayfork_protocol::message::{Event, Request};
use hayfork_vmm::backend::ExitKind;

use super::{block_on, create, python};
use crate::connection::fake_guest::{FakeBackend, finished};
use crate::{ExecuteOptions, RunEvent, SandboxOptions};

/// A guest that answers and then does nothing.
fn sleeper() -> FakeBackend {
    FakeBackend::new(|mut guest| {
        guest.meet()?;
        guest.idle()
    })
}

/// A guest that ends every execution at once.
fn worker() -> FakeBackend {
    FakeBackend::new(|mut guest| {
        guest.meet()?;
        loop {
            let (id, _) = guest.open()?;
            guest.finish(id);
        }
    })
}

fn code() -> ExecuteOptions {
    ExecuteOptions::new("x")
}

#[test]
fn a_machine_that_dies_leaves_the_outcome_of_what_ran_unknown() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        guest.event(id, &Event::Started { pid: 1 });
        guest.data(id, Channel::Stdout, b"so far");
        Some(ExitKind::Panic)
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let mut run = sandbox.execute(code());
        let mut said = Vec::new();
        let error = loop {
            match run.next().await.unwrap() {
                RunEvent::Stdout(bytes) => said.extend_from_slice(&bytes),
                RunEvent::Failed(error) => break error,
                _ => {}
            }
        };
        assert_eq!(said, b"so far", "what was printed before counts");
        assert_eq!(error.code(), "outcome_unknown");
        assert!(error.to_string().contains("the guest kernel panicked"), "{error}");
        assert!(error.to_string().contains("the last words of the console"), "{error}");
        assert!(sandbox.is_closed());
        let later = sandbox.execute(code()).collect().await.unwrap_err();
        assert_eq!(later.code(), "session_closed");
        assert!(later.to_string().contains("panicked"), "{later}");
        sandbox.close().await.unwrap();
        assert_eq!(sandbox.console_tail(), "the last words of the console");
    });
    backend.wait_until_killed(1);
}

#[test]
fn a_machine_that_dies_while_it_is_kept_says_of_what() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        std::thread::sleep(Duration::from_millis(200));
        Some(ExitKind::Panic)
    });
    let mut backend = backend.with_templates();
    backend.keeping = Duration::from_millis(600);
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        // Whether something was kept is not the question here.
        let (_, run) = tokio::join!(sandbox.snapshot(), sandbox.execute(code()).collect());
        let error = run.unwrap_err();
        assert!(error.to_string().contains("the guest kernel panicked"), "{error}");
    });
}

#[test]
fn an_end_that_was_sent_before_the_death_counts() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        guest.event(id, &finished(3));
        Some(ExitKind::PowerOff)
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let execution = create(&engine).await.execute(code()).collect().await.unwrap();
        assert_eq!(execution.outcome.exit_code, 3);
    });
}

#[test]
fn closing_ends_what_runs_and_waits_for_the_machine() {
    let backend = sleeper();
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let run = tokio::spawn(sandbox.execute(code()).collect());
        let other = sandbox.clone();
        let stat = tokio::spawn(async move { other.stat("x").await });
        tokio::time::sleep(Duration::from_millis(30)).await;
        sandbox.close().await.unwrap();
        assert_eq!(backend.killed.load(Ordering::SeqCst), 1, "dead when close returns");
        assert_eq!(run.await.unwrap().unwrap_err().code(), "session_closed");
        assert_eq!(stat.await.unwrap().unwrap_err().code(), "session_closed");
        sandbox.close().await.unwrap();
        assert!(sandbox.is_closed());
        assert_eq!(sandbox.stats().await.unwrap_err().code(), "session_closed");
    });
    assert_eq!(backend.killed.load(Ordering::SeqCst), 1);
}

#[test]
fn closing_works_on_any_executor() {
    let backend = sleeper();
    let engine = backend.engine();
    let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
    other.block_on(async {
        let sandbox = engine.create(python()).await.unwrap();
        sandbox.close().await.unwrap();
    });
    assert_eq!(backend.killed.load(Ordering::SeqCst), 1);
}

#[test]
fn the_last_handle_takes_the_machine_with_it_and_a_run_is_a_handle() {
    let backend = sleeper();
    let engine = backend.engine();
    let sandbox = block_on(&engine, create(&engine));
    let clone = sandbox.clone();
    drop(sandbox);
    let run = {
        let _inside = engine.runtime().enter();
        clone.execute(code())
    };
    drop(clone);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(backend.killed.load(Ordering::SeqCst), 0);
    drop(run);
    backend.wait_until_killed(1);
}

#[test]
fn dropping_everything_inside_the_runtime_neither_blocks_nor_panics() {
    let backend = sleeper();
    let engine = backend.engine();
    let sandbox = block_on(&engine, create(&engine));
    let handle = engine.runtime().clone();
    drop(engine);
    // The sandbox is the last to hold the runtime, and goes on one of its threads.
    let task = handle.spawn(async move { drop(sandbox) });
    backend.wait_until_killed(1);
    drop(task);
}

#[test]
fn a_runtime_that_ends_takes_its_machines_with_it() {
    let backend = sleeper();
    let engine = backend.engine();
    let sandbox = block_on(&engine, create(&engine));
    let started = Instant::now();
    drop((engine, sandbox));
    assert!(started.elapsed() < Duration::from_secs(1));
    backend.wait_until_killed(1);
}

#[test]
fn a_shutdown_kills_all_and_refuses_from_then_on() {
    let backend = sleeper();
    let engine = backend.engine();
    block_on(&engine, async {
        let sandboxes = [create(&engine).await, create(&engine).await, create(&engine).await];
        let run = sandboxes[0].execute(code());
        engine.shutdown();
        assert_eq!(backend.killed.load(Ordering::SeqCst), 3);
        engine.shutdown();
        let error = run.collect().await.unwrap_err();
        assert_eq!(error.code(), "session_closed", "{error}");
        for sandbox in &sandboxes {
            assert!(sandbox.is_closed());
            sandbox.close().await.unwrap();
        }
        assert_eq!(engine.create(python()).await.unwrap_err().code(), "session_closed");
    });
    assert_eq!(backend.launched.load(Ordering::SeqCst), 3);
}

#[test]
fn an_idle_sandbox_closes_itself_and_an_execution_puts_that_off() {
    let backend = worker();
    let engine = backend.engine();
    block_on(&engine, async {
        let idle_timeout = Some(Duration::from_millis(1500));
        let sandbox = engine.create(SandboxOptions { idle_timeout, ..python() }).await.unwrap();
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            sandbox.execute(code()).collect().await.unwrap();
        }
        let last = Instant::now();
        while !sandbox.is_closed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The timer begins at the end of the execution in the task, a moment before this test hears of it.
        assert!(last.elapsed() > Duration::from_secs(1), "{:?}", last.elapsed());
        let error = sandbox.execute(code()).collect().await.unwrap_err();
        assert_eq!(error.code(), "session_closed");
        assert!(error.to_string().contains("idle timeout"), "{error}");
    });
    backend.wait_until_killed(1);
}

#[test]
fn what_runs_for_long_is_not_idle() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, request) = guest.open()?;
        assert!(matches!(request, Request::Execute(_)));
        std::thread::sleep(Duration::from_millis(1200));
        guest.finish(id);
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let idle_timeout = Some(Duration::from_millis(600));
        let sandbox = engine.create(SandboxOptions { idle_timeout, ..python() }).await.unwrap();
        sandbox.execute(code()).collect().await.unwrap();
    });
}

#[test]
fn threads_and_descriptors_are_back_where_they_were() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let backend = worker();
    let engine = backend.engine();
    let most = Arc::new(AtomicUsize::new(0));
    block_on(&engine, async {
        create(&engine).await.close().await.unwrap();
        for round in 0..30 {
            let sandbox = create(&engine).await;
            sandbox.execute(code()).collect().await.unwrap();
            sandbox.close().await.unwrap();
            if round == 0 {
                most.store(descriptors(), Ordering::SeqCst);
            }
        }
    });
    // Other tests of this process open some at the same time; 30 rounds would leak at least 60.
    assert!(descriptors() < most.load(Ordering::SeqCst) + 30, "{} {most:?}", descriptors());
}

#[test]
fn the_threads_of_the_engine_take_no_signals() {
    let backend = sleeper();
    let engine = backend.engine();
    let _sandbox = block_on(&engine, create(&engine));
    let mut seen = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        if ["hayfork", "hayfork-reaper"].contains(&field("Name:")) {
            let blocked = u64::from_str_radix(field("SigBlk:"), 16).unwrap();
            let bit = |signal: i32| blocked >> (signal - 1) & 1;
            assert_eq!([bit(2), bit(15), bit(10), bit(17), bit(11)], [1, 1, 1, 1, 0], "{status}");
            seen += 1;
        }
    }
    assert!(seen >= 3, "two workers and the reaper, not {seen}");
}
