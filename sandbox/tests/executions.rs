//! Code and commands in real guests.
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{block_on, create, engine, err, out, run, shell};
use hayfork_sandbox::{
    CommandOptions, ExecuteOptions, Language, RunEvent, SandboxOptions, Status, StdinMode, User,
};

#[test]
#[ignore = "needs the image set"]
fn python_prints() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let execution =
            run(&sandbox, "import sys\nprint('hello', 6 * 7)\nprint('and', file=sys.stderr)").await;
        assert_eq!((out(&execution).as_str(), err(&execution).as_str()), ("hello 42\n", "and\n"));
        assert_eq!((execution.outcome.status, execution.outcome.exit_code), (Status::Exited, 0));
        assert!(!execution.outcome.state_reset);
    });
}

#[test]
#[ignore = "needs the image set"]
fn javascript_and_shell_print() {
    let engine = engine();
    block_on(&engine, async {
        let javascript = create(&engine, Language::JavaScript).await;
        let execution = run(&javascript, "console.log([1, 2].map((x: number) => x * 2))").await;
        assert_eq!(out(&execution), "[ 2, 4 ]\n", "{}", err(&execution));
        let shell = create(&engine, Language::Shell).await;
        let execution = run(&shell, "id -u; pwd").await;
        assert_eq!(out(&execution), "1000\n/home/user\n", "{}", err(&execution));
    });
}

#[test]
#[ignore = "needs the image set"]
fn state_lives_over_a_hundred_executions_and_an_exception_is_told() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        run(&sandbox, "n = 0").await;
        for _ in 0..100 {
            run(&sandbox, "n += 1").await;
        }
        assert_eq!(out(&run(&sandbox, "print(n)").await), "100\n");

        let failed = run(&sandbox, "def f():\n    return 1 / 0\nf()").await;
        assert_eq!(failed.outcome.exit_code, 1);
        assert_eq!(failed.exception.as_ref().map(|e| e.name.as_str()), Some("ZeroDivisionError"));
        assert!(err(&failed).contains("ZeroDivisionError"), "{}", err(&failed));
        assert_eq!(out(&run(&sandbox, "print(n)").await), "100\n");

        let value = run(&sandbox, "n + 1").await;
        let (_, parts) = value.bundles.first().expect("the value of the last expression");
        assert_eq!(
            parts.first().map(|(mime, text)| (mime.as_str(), &text[..])),
            Some(("text/plain", &b"101"[..]))
        );
    });
}

#[test]
#[ignore = "needs the image set"]
fn two_sandboxes_at_once_do_not_mix() {
    let engine = engine();
    block_on(&engine, async {
        let (one, two) = tokio::join!(create(&engine, Language::Python), create(&engine, Language::Python));
        for round in 0..10 {
            let (one_code, two_code) = (format!("x = 'one {round}'"), format!("x = 'two {round}'"));
            tokio::join!(run(&one, &one_code), run(&two, &two_code));
            let (from_one, from_two) = tokio::join!(run(&one, "print(x)"), run(&two, "print(x)"));
            assert_eq!(out(&from_one), format!("one {round}\n"));
            assert_eq!(out(&from_two), format!("two {round}\n"));
        }
        let write = "open('f', 'w').write(x)";
        tokio::join!(run(&one, write), run(&two, write));
        assert_eq!(out(&shell(&one, "cat f").await), "one 9");
        assert_eq!(out(&shell(&two, "cat f").await), "two 9");
    });
}

#[test]
#[ignore = "needs the image set"]
fn calls_on_one_context_run_in_order_of_arrival_and_contexts_are_apart() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let runs: Vec<_> = (0..20)
            .map(|n| {
                let code = format!("s = globals().get('s', '') + '{n} '\nprint(s, end='')");
                tokio::spawn(sandbox.execute(ExecuteOptions::new(code)).collect())
            })
            .collect();
        let mut expected = String::new();
        for (n, run) in runs.into_iter().enumerate() {
            let _ = write!(expected, "{n} ");
            assert_eq!(out(&run.await.unwrap().unwrap()), expected);
        }
        let other =
            sandbox.execute(ExecuteOptions { context: 1, ..ExecuteOptions::new("print('s' in globals())") });
        assert_eq!(out(&other.collect().await.unwrap()), "False\n");
        sandbox.close_context(1).await.unwrap();
        assert_eq!(sandbox.close_context(1).await.unwrap_err().code(), "not_found");
    });
}

#[test]
#[ignore = "needs the image set"]
fn a_timeout_is_a_result_with_what_was_printed() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        // The exception loads what shows a traceback, which takes seconds where the guest is translated on a busy host.
        run(&sandbox, "kept = 1\n1 / 0").await;
        let started = Instant::now();
        let code = "print('begun', flush=True)\nimport time\ntime.sleep(60)";
        let timeout = Some(Duration::from_secs(2));
        let execution =
            sandbox.execute(ExecuteOptions { timeout, ..ExecuteOptions::new(code) }).collect().await.unwrap();
        assert_eq!((execution.outcome.status, out(&execution).as_str()), (Status::Timeout, "begun\n"));
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        // The interrupt came first, so the state is still there.
        assert!(!execution.outcome.state_reset);
        assert_eq!(out(&run(&sandbox, "print(kept)").await), "1\n");

        // What ignores the interrupt is killed.
        let code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
        let execution =
            sandbox.execute(ExecuteOptions { timeout, ..ExecuteOptions::new(code) }).collect().await.unwrap();
        assert_eq!(execution.outcome.status, Status::Timeout);
        assert!(execution.outcome.state_reset);
        assert_eq!(out(&run(&sandbox, "print('kept' in globals())").await), "False\n");
    });
}

#[test]
#[ignore = "needs the image set"]
fn interrupt_and_kill() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        run(&sandbox, "kept = 1").await;
        let code = "print('begun', flush=True)\nwhile True: pass";
        for kill in [false, true] {
            let mut running = sandbox.execute(ExecuteOptions::new(code));
            let handle = running.handle();
            loop {
                match running.next().await.expect("it runs") {
                    RunEvent::Stdout(_) => break,
                    RunEvent::Started { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            if kill {
                handle.kill();
            } else {
                handle.interrupt();
            }
            let execution = running.collect().await.unwrap();
            let expected = if kill { Status::Killed } else { Status::Exited };
            assert_eq!(execution.outcome.status, expected);
            let alive = out(&run(&sandbox, "print('kept' in globals())").await);
            assert_eq!(alive, if kill { "False\n" } else { "True\n" });
        }
    });
}

#[test]
#[ignore = "needs the image set"]
fn dropping_an_execution_ends_it_in_the_guest() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let mut running = sandbox.command(CommandOptions::new(["sleep", "12345"]));
        assert!(matches!(running.next().await, Some(RunEvent::Started { .. })));
        // The shell that looks must not find its own command line.
        let look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 1234[5]'";
        assert_eq!(out(&shell(&sandbox, look).await), "1\n");
        drop(running);
        let until = Instant::now() + Duration::from_secs(5);
        while out(&shell(&sandbox, look).await) != "0\n" {
            assert!(Instant::now() < until, "it still runs");
        }
    });
}

#[test]
#[ignore = "needs the image set"]
fn exit_codes_and_refusals_of_commands() {
    let engine = engine();
    block_on(&engine, async {
        let options = SandboxOptions { grant_root: true, ..SandboxOptions::new(Language::Shell) };
        let sandbox = engine.create(options).await.unwrap();
        let failed = shell(&sandbox, "echo no >&2; exit 3").await;
        assert_eq!((failed.outcome.exit_code, err(&failed).as_str()), (3, "no\n"));
        let error = sandbox.command(CommandOptions::new(["no-such-program"])).collect().await.unwrap_err();
        assert_eq!(error.code(), "not_found", "{error}");
        let root = CommandOptions { user: User::Root, ..CommandOptions::new(["id", "-u"]) };
        assert_eq!(out(&sandbox.command(root).collect().await.unwrap()), "0\n");
        let elsewhere = CommandOptions { cwd: Some("/tmp".into()), ..CommandOptions::new(["pwd"]) };
        assert_eq!(out(&sandbox.command(elsewhere).collect().await.unwrap()), "/tmp\n");
        let killed = shell(&sandbox, "kill -SEGV $$").await;
        assert_eq!(killed.outcome.exit_code, 139);
    });
}

#[test]
#[ignore = "needs the image set"]
fn environment_holds_for_one_execution_and_the_host_has_none_of_it() {
    let engine = engine();
    block_on(&engine, async {
        let env = vec![("OURS".to_owned(), "of the sandbox = ü".to_owned())];
        let sandbox =
            engine.create(SandboxOptions { env, ..SandboxOptions::new(Language::Python) }).await.unwrap();
        let code = "import os\nprint(os.environ.get('OURS'), os.environ.get('OWN'), os.environ.get('CARGO_MANIFEST_DIR'))";
        let env = vec![("OWN".to_owned(), "1".to_owned())];
        let with =
            sandbox.execute(ExecuteOptions { env, ..ExecuteOptions::new(code) }).collect().await.unwrap();
        assert_eq!(out(&with), "of the sandbox = ü 1 None\n");
        assert_eq!(out(&run(&sandbox, code).await), "of the sandbox = ü None None\n");
        assert!(std::env::var_os("PATH").is_some());
    });
}

#[test]
#[ignore = "needs the image set"]
fn stdin_as_a_stream_and_none() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let code = "import sys\ndata = sys.stdin.read()\nprint(len(data), data[:5])";
        let running =
            sandbox.execute(ExecuteOptions { stdin: StdinMode::Stream, ..ExecuteOptions::new(code) });
        let handle = running.handle();
        let collect = tokio::spawn(running.collect());
        for _ in 0..10 {
            handle.write_stdin(Bytes::from("x".repeat(100_000))).await.unwrap();
        }
        handle.close_stdin();
        assert_eq!(out(&collect.await.unwrap().unwrap()), "1000000 xxxxx\n");
        let none = run(&sandbox, "try:\n    input()\nexcept EOFError as e:\n    print('end')").await;
        assert_eq!(out(&none), "end\n");
    });
}

#[test]
#[ignore = "needs the image set"]
fn ten_megabytes_of_output_are_limited_and_counted() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let code = "import sys\nfor i in range(10_000):\n    sys.stdout.write(f'{i:0999d}\\n')\nx = 1";
        let execution = run(&sandbox, code).await;
        let total = execution.stdout.len() as u64 + execution.stdout_omitted;
        assert_eq!(total, 10_000_000);
        assert!(execution.stdout.len() <= 1_000_000, "{}", execution.stdout.len());
        assert!(execution.stdout.starts_with(format!("{:0999}\n", 0).as_bytes()), "the head is there");
        assert!(execution.stdout.ends_with(format!("{:0999}\n", 9_999).as_bytes()), "the tail is there");
        assert_eq!(out(&run(&sandbox, "print(x)").await), "1\n");
    });
}

#[test]
#[ignore = "needs the image set"]
fn output_arrives_while_the_code_runs_and_a_slow_reader_stalls_nobody_else() {
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        let code = "import time\nprint('first', flush=True)\ntime.sleep(1)\nprint('second')";
        let mut running = sandbox.execute(ExecuteOptions::new(code));
        let mut first = None;
        let started = Instant::now();
        while let Some(event) = running.next().await {
            match event {
                RunEvent::Stdout(_) if first.is_none() => first = Some(started.elapsed()),
                RunEvent::Finished(outcome) => {
                    assert!(
                        outcome.timings.total > first.unwrap() + Duration::from_millis(800),
                        "{outcome:?} {first:?}"
                    );
                }
                RunEvent::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        // 4 MB that nobody reads; another context goes on.
        let stdout = hayfork_sandbox::OutputLimit { bytes: 1 << 30, keep: hayfork_sandbox::Keep::Head };
        let flood =
            ExecuteOptions { stdout, ..ExecuteOptions::new("for _ in range(4000): print('x' * 999)") };
        let slow = sandbox.execute(flood);
        let other = ExecuteOptions { context: 1, ..ExecuteOptions::new("print('quick')") };
        assert_eq!(out(&sandbox.execute(other).collect().await.unwrap()), "quick\n");
        assert_eq!(slow.collect().await.unwrap().stdout.len(), 4_000_000);
    });
}
