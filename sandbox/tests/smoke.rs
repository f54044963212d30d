//! What must work on every machine that hayfork is used on: each language runs code, keeps its state and tells of errors, one
//! guest after the other boots, and guests that were kept go on in others, which are nobody's twins.
//!
//! Made small, since it runs in the nested rig too (`tests/rig/`), where a guest's instructions take 30 times as long. It
//! prints what it ran on: backend, kernel, and digests of the files that are in the guest, computed anew.
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{block_on, create, engine, err, out, run};
use hayfork_sandbox::images::Lookup;
use hayfork_sandbox::{
    CommandOptions, Engine, EngineOptions, Execution, KernelFlavour, Language, Sandbox, SandboxOptions,
    StartedFrom, Status, WarmOptions,
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

/// What a guest says that no two may say alike: numbers of its language's generators, then its machine id and host name.
fn draw(language: Language) -> &'static str {
    match language {
        Language::Python => {
            "import os, random, socket, uuid\n\
             print(random.random(), os.urandom(8).hex(), uuid.uuid4())\n\
             print(open('/etc/machine-id').read().strip(), socket.gethostname())"
        }
        Language::JavaScript => {
            "console.log(Math.random(), crypto.randomUUID())\n\
             console.log(require('fs').readFileSync('/etc/machine-id', 'utf8').trim(), require('os').hostname())"
        }
        Language::Shell => {
            "echo $RANDOM$RANDOM$RANDOM $SRANDOM\n\
             cat /etc/machine-id /proc/sys/kernel/hostname"
        }
    }
}

/// What guests have said of themselves, each word once.
#[derive(Default)]
struct Nobodies(HashSet<String>);

impl Nobodies {
    /// Has a guest say who it is, and compares it with all before it.
    async fn meet(&mut self, guest: &Sandbox) {
        let said = out(&run(guest, draw(guest.language())).await);
        assert!(said.split_whitespace().count() >= 4, "{said}");
        for word in said.split_whitespace() {
            if word == "sandbox" {
                // The images' host name.
                assert_eq!(guest.boot_timings().from, StartedFrom::Boot, "{said}");
                continue;
            }
            assert!(self.0.insert(word.to_owned()), "two guests say {word}: {said}");
        }
        assert!(self.0.insert(guest.id().to_owned()));
    }
}

fn seconds_since_the_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A warm python is kept, ends, and goes on in others, which live at the same time, after a while.
#[test]
#[ignore = "needs the image set"]
fn clones() {
    const CLOCK_MARGIN: f64 = 0.05;
    const PASSED: Duration = Duration::from_secs(2);
    let engine = engine();
    block_on(&engine, async {
        let original = sandbox(&engine, Language::Python).await;
        let mut nobodies = Nobodies::default();
        nobodies.meet(&original).await;
        let kept =
            "import time; random.seed(7); x = [40]; open('f', 'w').write('kept'); before = time.monotonic()";
        assert_printed(&run(&original, kept).await, "");
        let start = Instant::now();
        let snapshot = original.snapshot().await.unwrap();
        println!("kept in {:?}", start.elapsed());
        original.close().await.unwrap();
        tokio::time::sleep(PASSED).await;

        let mut alive = Vec::new();
        for number in 0..3 {
            let clone = snapshot.restore().await.unwrap();
            println!("clone {number}: {:?}", clone.boot_timings());
            assert_eq!(clone.boot_timings().from, StartedFrom::Template);
            let earliest = seconds_since_the_epoch();
            let clocks = out(&run(&clone, "print(time.time(), time.monotonic() - before)").await);
            let latest = seconds_since_the_epoch();
            let (wall, monotonic) = clocks.trim().split_once(' ').unwrap();
            let (wall, monotonic) = (wall.parse::<f64>().unwrap(), monotonic.parse::<f64>().unwrap());
            assert!(
                (earliest - CLOCK_MARGIN..=latest + CLOCK_MARGIN).contains(&wall),
                "{earliest} {wall} {latest}"
            );
            assert!((0.0..PASSED.as_secs_f64()).contains(&monotonic), "{monotonic}");
            nobodies.meet(&clone).await;
            assert_printed(&run(&clone, "print(sum(x), open('f').read())").await, "40 kept\n");
            let own = format!("x.append({number}); print(sum(x), open('f', 'a').write('!'))");
            assert_printed(&run(&clone, &own).await, &format!("{} 1\n", 40 + number));
            let slept = "t = time.monotonic(); time.sleep(0.2); print(0.2 <= time.monotonic() - t)";
            assert_printed(&run(&clone, slept).await, "True\n");
            alive.push((number, clone));
        }
        for (number, clone) in alive {
            let expected = format!("{} kept!\n", 40 + number);
            assert_printed(&run(&clone, "print(sum(x), open('f').read())").await, &expected);
            clone.close().await.unwrap();
        }
    });
}

/// Running sandboxes of each language, forked while they live, and forks of forks.
#[test]
#[ignore = "needs the image set"]
fn forks() {
    let engine = engine();
    block_on(&engine, async {
        let mut nobodies = Nobodies::default();
        for (language, set, add) in [
            (Language::Python, "n = [40]", "n.append(1); print(sum(n))"),
            (
                Language::JavaScript,
                "const n = [40]",
                "n.push(1); console.log(n.reduce((a: number, b: number) => a + b))",
            ),
            (Language::Shell, "n=40; RANDOM=7", "echo $((n += 1))"),
        ] {
            let original = sandbox(&engine, language).await;
            assert_printed(&run(&original, set).await, "");
            let start = Instant::now();
            let forks = original.fork(2).await.unwrap();
            println!("two forks in {:?}", start.elapsed());
            assert_printed(&run(&forks[0], add).await, "41\n");
            let second = forks[0].fork(1).await.unwrap().pop().unwrap();
            for (guest, expected) in [(&second, 42), (&forks[0], 42), (&forks[1], 41), (&original, 41)] {
                assert_printed(&run(guest, add).await, &format!("{expected}\n"));
                nobodies.meet(guest).await;
            }
            for guest in forks.iter().chain([&second, &original]) {
                guest.close().await.unwrap();
            }
        }
    });
}

/// Guests that are kept ready: nobody was in them before, and they are made up for.
#[test]
#[ignore = "needs the image set"]
fn fresh_ones_of_the_pool() {
    const SECRET: &str = "import os\n\
                          print('secret' in globals(), os.path.exists('/tmp/secret'))\n\
                          secret = open('/tmp/secret', 'w').write('mine')";
    let engine = engine();
    block_on(&engine, async {
        let warm = |count| WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count };
        engine.keep_warm(warm(2)).unwrap();
        let mut nobodies = Nobodies::default();
        for round in 0..4 {
            assert!(engine.wait_warm(Duration::from_secs(120)).await.unwrap(), "the pool does not fill up");
            let start = Instant::now();
            let guest = create(&engine, Language::Python).await;
            let printed = run(&guest, "print(1)").await;
            println!("round {round}: printed after {:?}", start.elapsed());
            assert_printed(&printed, "1\n");
            assert_eq!(guest.boot_timings().from, StartedFrom::Pool);
            assert_printed(&run(&guest, SECRET).await, "False False\n");
            nobodies.meet(&guest).await;
            guest.close().await.unwrap();
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
