//! What must work on every machine that hayfork is used on: each language runs code, keeps its state and tells of errors, and one
//! guest after the other boots.
//!
//! Made small, since it runs in the nested rig too (`tests/rig/`), where a guest's instructions take 30 times as long. It
//! prints what it ran on: backend, kernel, and digests of the files that are in the guest, computed anew.
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{block_on, create, engine, err, out, run};
use hayfork_sandbox::images::Lookup;
use hayfork_sandbox::{
    CommandOptions, Engine, EngineOptions, Execution, KernelFlavour, Language, Sandbox, SandboxOptions,
    Status,
};

/// A sandbox, after saying where it runs.
async fn sandbox(engine: &Engine, language: Language) -> Sandbox {
    let sandbox = create(engine, language).await;
    let boot = sandbox.boot_timings();
    println!(
        "{} on {} ({}), {} kernel, {boot:?}",
        language.name(),
        boot.backend,
        boot.accelerator,
        boot.kernel
    );
    if in_the_rig() {
        assert_eq!((boot.backend.as_str(), boot.kernel), ("monitor", KernelFlavour::Plain));
    }
    sandbox
}

fn in_the_rig() -> bool {
    std::env::var_os("HAYFORK_RIG").is_some()
}

/// Whether an execution ended well, with that output.
#[track_caller]
fn assert_printed(execution: &Execution, expected: &str) {
    let outcome = &execution.outcome;
    assert_eq!(out(execution), expected, "{}", err(execution));
    assert_eq!((outcome.status, outcome.exit_code, outcome.state_reset), (Status::Exited, 0, false));
}

#[test]
#[ignore = "needs the image set"]
fn python() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = sandbox(&engine, Language::Python).await;
        assert_printed(
            &run(&sandbox, "squares = [n * n for n in range(1000)]\nprint(sum(squares))").await,
            "332833500\n",
        );
        assert_printed(
            &run(&sandbox, "squares.append(1)\nprint(len(squares), squares[-2])").await,
            "1001 998001\n",
        );
        let failed = run(&sandbox, "def f(n):\n    return 1 / n\nf(0)").await;
        assert_eq!(failed.outcome.exit_code, 1);
        assert_eq!(
            failed.exception.as_ref().map(|e| e.name.as_str()),
            Some("ZeroDivisionError"),
            "{failed:?}"
        );
        assert!(err(&failed).contains("division by zero"), "{}", err(&failed));
        assert_printed(&run(&sandbox, "print(len(squares))").await, "1001\n");
        sandbox.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs the image set"]
fn javascript() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = sandbox(&engine, Language::JavaScript).await;
        let first = "const squares = Array.from({ length: 1000 }, (_, n: number) => n * n)\n\
                     console.log(squares.reduce((a, b) => a + b))";
        assert_printed(&run(&sandbox, first).await, "332833500\n");
        assert_printed(&run(&sandbox, "squares.push(1)\nconsole.log(squares.length)").await, "1001\n");
        let failed = run(&sandbox, "null.length").await;
        assert_eq!(failed.outcome.exit_code, 1);
        assert_eq!(failed.exception.as_ref().map(|e| e.name.as_str()), Some("TypeError"), "{failed:?}");
        assert_printed(&run(&sandbox, "console.log(squares.length)").await, "1001\n");
        sandbox.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs the image set"]
fn shell() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = sandbox(&engine, Language::Shell).await;
        assert_printed(
            &run(&sandbox, "sum=0; for n in {1..100}; do ((sum += n)); done; echo $sum").await,
            "5050\n",
        );
        assert_printed(
            &run(&sandbox, "cd /tmp && echo \"$((sum + 1))\" > f && sort f && pwd").await,
            "5051\n/tmp\n",
        );
        let failed = run(&sandbox, "ls /missing").await;
        assert_eq!(failed.outcome.exit_code, 2, "{failed:?}");
        assert!(err(&failed).contains("No such file or directory"), "{}", err(&failed));
        assert_printed(&run(&sandbox, "cat \"$PWD/f\"").await, "5051\n");
        sandbox.close().await.unwrap();
    });
}

/// The files that the guests of the other tests are made of are those of the manifest, on every backend.
#[test]
#[ignore = "needs the image set"]
fn digests() {
    let set = Lookup::from_environment().open().unwrap();
    for (file, digest, bytes) in set.manifest().files() {
        println!("{file} blake3 {digest}, {bytes} bytes");
    }
    set.verify().unwrap();
}

/// Boots in a row; in the rig so many that one in ten that fails would show.
#[test]
#[ignore = "needs the image set"]
fn boots_in_a_row() {
    const LIMIT: Duration = Duration::from_secs(30);
    // What an idle host carries out in that time for the rig, whose clock counts instructions; a busy one takes longer.
    const LIMIT_IN_THE_RIG: Duration = Duration::from_secs(1);
    let boots = if in_the_rig() { 20 } else { 3 };
    let engine = Engine::new(EngineOptions { boot_timeout: LIMIT, ..common::options() }).unwrap();
    let languages = [Language::Python, Language::JavaScript, Language::Shell];
    block_on(&engine, async {
        for (number, language) in (1..=boots).zip(languages.into_iter().cycle()) {
            let (start, by_the_host) = (Instant::now(), wall_clock());
            let sandbox = engine.create(SandboxOptions::new(language)).await.unwrap();
            let (ready, ready_by_the_host) = (start.elapsed(), wall_clock() - by_the_host);
            println!(
                "boot {number} of {boots} ({}): {ready:?}, {ready_by_the_host} s outside",
                language.name()
            );
            assert!(ready < LIMIT_IN_THE_RIG || ready < LIMIT && ready_by_the_host < LIMIT.as_secs());
            let echo = sandbox.command(CommandOptions::new(["echo", "hello"])).collect().await.unwrap();
            assert_eq!(out(&echo), "hello\n");
            sandbox.close().await.unwrap();
        }
    });
}

/// Seconds by the clock that a processor which is emulated slowly does not slow down: the one of the board.
fn wall_clock() -> u64 {
    let clock = Path::new("/sys/class/rtc/rtc0/since_epoch");
    match fs::read_to_string(clock) {
        Ok(text) => text.trim().parse().unwrap(),
        Err(error) if in_the_rig() => panic!("{}: {error}", clock.display()),
        Err(_) => 0,
    }
}
