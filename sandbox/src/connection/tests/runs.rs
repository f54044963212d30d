//! Executions and commands.

use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use hayfork_protocol::frame::Channel;
use hayfork_protocol::limits::WINDOW;
use hayfork_protocol::message::Control;
use hayfork_protocol::message::{BundleKind, Event, Exception, Failure, FailureCode, Part, Request};
use hayfork_protocol::mux::Incoming;

use super::{block_on, create, python};
use crate::connection::fake_guest::{FakeBackend, Guest, finished};
use crate::connection::task::QUEUE;
use crate::{
    CommandOptions, ExecuteOptions, Keep, Language, OutputLimit, RunEvent, SandboxOptions, StdinMode, User,
};

fn code(text: &str) -> ExecuteOptions {
    ExecuteOptions::new(text)
}

#[test]
fn an_execution_gives_everything_in_order() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, request) = guest.open()?;
        let Request::Execute(execute) = request else { panic!("{request:?}") };
        assert_eq!((execute.code.as_str(), execute.language, execute.context), ("f()", Language::Python, 7));
        assert_eq!(execute.env, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "own".to_owned())]);
        assert_eq!(execute.timeout_ms, Some(1500));
        guest.event(id, &Event::Started { pid: 9 });
        guest.data(id, Channel::Stdout, b"out");
        guest.data(id, Channel::Stderr, b"err");
        let parts =
            vec![Part { mime: "text/plain".into(), bytes: 2 }, Part { mime: "image/png".into(), bytes: 3 }];
        guest.event(id, &Event::Bundle { kind: BundleKind::Display, parts });
        guest.data(id, Channel::Bundle, b"ab");
        guest.data(id, Channel::Stdout, b" more");
        guest.data(id, Channel::Bundle, b"png");
        guest.event(id, &Event::Omitted { stderr: false, bytes: 5 });
        guest.event(
            id,
            &Event::Exception(Exception { name: "E".into(), value: "v".into(), traceback: "t".into() }),
        );
        guest.end(id, &finished(1));
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect::<Vec<_>>()
        };
        let options = SandboxOptions { env: env(&[("A", "1"), ("B", "2")]), ..python() };
        let sandbox = engine.create(options).await.unwrap();
        let run = sandbox.execute(ExecuteOptions {
            context: 7,
            env: env(&[("B", "own")]),
            timeout: Some(Duration::from_millis(1500)),
            ..code("f()")
        });
        let execution = run.collect().await.unwrap();
        assert_eq!((&execution.stdout[..], &execution.stderr[..]), (&b"out more"[..], &b"err"[..]));
        let parts = vec![
            ("text/plain".to_owned(), Bytes::from_static(b"ab")),
            ("image/png".to_owned(), Bytes::from_static(b"png")),
        ];
        assert_eq!(execution.bundles, [(BundleKind::Display, parts)]);
        assert_eq!(execution.exception.unwrap().name, "E");
        assert_eq!((execution.stdout_omitted, execution.stderr_omitted), (5, 0));
        assert_eq!(execution.outcome.exit_code, 1);
        let timings = execution.outcome.timings;
        assert_eq!((timings.spawn, timings.run), (Duration::from_micros(10), Duration::from_micros(20)));
        assert!(timings.total >= timings.queued);
    });
}

#[test]
fn a_refusal_of_the_guest_is_the_end() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        let failure = Failure { code: FailureCode::CannotStart, message: "no such program: x".into() };
        guest.end(id, &Event::Failed(failure));
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let mut run = create(&engine).await.command(CommandOptions::new(["x"]));
        let Some(RunEvent::Failed(error)) = run.next().await else { panic!("not refused") };
        assert_eq!((error.code(), error.to_string().as_str()), ("cannot_start", "no such program: x"));
        assert!(run.next().await.is_none() && run.next().await.is_none());
    });
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_sent() {
    let (saw, sent) = mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        while let Some(incoming) = guest.next() {
            let _ = saw.send(incoming);
        }
        None
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let root = CommandOptions { user: User::Root, ..CommandOptions::new(["id"]) };
        let none: [&str; 0] = [];
        let runs = [
            (sandbox.execute(code(" \n\t")), "code_invalid"),
            (sandbox.execute(code("a\0")), "code_invalid"),
            (
                sandbox.execute(ExecuteOptions { language: Some(Language::Shell), ..code("ls") }),
                "image_language_missing",
            ),
            (sandbox.execute(ExecuteOptions { timeout: Some(Duration::ZERO), ..code("x") }), "bad_option"),
            (
                sandbox.execute(ExecuteOptions { env: vec![("LD_A".into(), String::new())], ..code("x") }),
                "env_invalid",
            ),
            (sandbox.command(root), "root_not_granted"),
            (sandbox.command(CommandOptions::new(none)), "bad_option"),
            (sandbox.command(CommandOptions::new(vec!["x".repeat(200_000); 20])), "bad_option"),
        ];
        for (run, expected) in runs {
            let error = run.collect().await.unwrap_err();
            assert_eq!(error.code(), expected, "{error}");
        }
        for path in ["a\0b", &"n".repeat(256)] {
            assert_eq!(sandbox.stat(path).await.unwrap_err().code(), "bad_path");
        }
        assert!(!sandbox.is_closed());
        sandbox.close().await.unwrap();
    });
    assert_eq!(sent.try_iter().collect::<Vec<_>>(), []);
}

#[test]
fn requests_arrive_in_the_order_of_the_calls_and_files_pass_waiting_executions() {
    let (order, seen) = mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        loop {
            match guest.next()? {
                Incoming::Open(id, Request::MakeDir { .. }) => guest.end(id, &Event::Done { bytes: 0 }),
                Incoming::Open(_, Request::Execute(execute)) => order.send(execute.code).unwrap(),
                Incoming::Control(id, Control::Kill) => guest.finish(id),
                other => panic!("{other:?}"),
            }
        }
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let runs: Vec<_> = (0..QUEUE).map(|n| sandbox.execute(code(&n.to_string()))).collect();
        // More executions wait than there are streams.
        tokio::time::timeout(Duration::from_secs(5), sandbox.make_dir("d")).await.unwrap().unwrap();
        for run in runs {
            run.handle().kill();
            run.collect().await.unwrap();
        }
    });
    let seen: Vec<String> = seen.try_iter().collect();
    assert_eq!(seen, (0..QUEUE).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_full_queue_is_an_error_and_not_a_wait() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        // Those that fit the queue, those that are open, and some.
        let mut runs: Vec<_> = (0..2 * QUEUE).map(|_| sandbox.execute(code("x"))).collect();
        let last = runs.pop().unwrap().collect().await.unwrap_err();
        assert_eq!(last.code(), "capacity");
    });
}

fn unbounded() -> OutputLimit {
    OutputLimit { bytes: u64::MAX, keep: Keep::Head }
}

#[test]
fn a_slow_reader_stalls_its_own_stream_only() {
    let total = 4 * WINDOW as usize;
    let (report, stalled) = mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        let (slow, _) = guest.open()?;
        let flood = vec![7; total];
        let mut sent = guest.data(slow, Channel::Stdout, &flood);
        loop {
            match guest.next()? {
                Incoming::Open(id, _) => {
                    report.send(sent).unwrap();
                    guest.data(id, Channel::Stdout, b"quick");
                    guest.finish(id);
                }
                Incoming::Writable(..) => {
                    sent += guest.data(slow, Channel::Stdout, &flood[sent..]);
                    if sent == total {
                        guest.finish(slow);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let mut slow = sandbox.execute(ExecuteOptions { stdout: unbounded(), ..code("slow") });
        for _ in 0..3 {
            let quick =
                sandbox.execute(ExecuteOptions { context: 1, ..code("quick") }).collect().await.unwrap();
            assert_eq!(quick.stdout, b"quick");
        }
        assert_eq!(
            stalled.try_iter().collect::<Vec<_>>(),
            [WINDOW as usize; 3],
            "no credit without a reader"
        );
        let mut got = 0;
        loop {
            match slow.next().await.unwrap() {
                RunEvent::Stdout(bytes) => got += bytes.len(),
                RunEvent::Finished(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got, total);
    });
}

#[test]
fn dropping_a_run_resets_it_and_the_sandbox_lives() {
    let (report, saw) = mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        loop {
            match guest.next()? {
                Incoming::Open(id, Request::Execute(execute)) if execute.code == "quick" => guest.finish(id),
                Incoming::Open(id, _) => guest.event(id, &Event::Started { pid: 1 }),
                Incoming::Reset(id) => {
                    // Things that were on their way.
                    guest.data(id, Channel::Stdout, b"late");
                    guest.end(id, &finished(137));
                    report.send("reset").unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let mut run = sandbox.execute(code("while True: pass"));
        assert!(matches!(run.next().await, Some(RunEvent::Started { pid: 1 })));
        let handle = run.handle();
        drop(run);
        handle.interrupt(); // nothing to interrupt any more
        sandbox.execute(code("quick")).collect().await.unwrap();
        // Dropping something that has ended abandons nothing.
        let mut run = sandbox.execute(code("quick"));
        assert!(matches!(run.next().await, Some(RunEvent::Finished(_))));
        drop(run);
        sandbox.execute(code("quick")).collect().await.unwrap();
    });
    assert_eq!(saw.try_iter().count(), 1);
}

/// Sends what it is told as standard output.
fn echo(guest: &mut Guest) -> Option<()> {
    let (id, _) = guest.open()?;
    let (mut backlog, mut ended) = (Vec::new(), false);
    while !(ended && backlog.is_empty()) {
        match guest.next()? {
            Incoming::Data(_, Channel::Stdin, bytes) => {
                guest.mux.consumed(id, Channel::Stdin, bytes.len());
                backlog.extend(bytes);
            }
            Incoming::Eof(_, Channel::Stdin) => ended = true,
            Incoming::Writable(..) => {}
            other => panic!("{other:?}"),
        }
        let sent = guest.data(id, Channel::Stdout, &backlog);
        backlog.drain(..sent);
    }
    guest.finish(id);
    Some(())
}

#[test]
fn stdin_and_control_reach_the_program_until_its_end() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        echo(&mut guest)?;
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let run = sandbox.command(CommandOptions {
            stdin: StdinMode::Stream,
            stdout: unbounded(),
            ..CommandOptions::new(["cat"])
        });
        let handle = run.handle();
        let reader = tokio::spawn(run.collect());
        let big = Bytes::from((0..3_000_000_u32).map(|n| (n % 251) as u8).collect::<Vec<_>>());
        handle.write_stdin(Bytes::from_static(b"first ")).await.unwrap();
        handle.write_stdin(big.clone()).await.unwrap();
        handle.close_stdin();
        let error = handle.write_stdin(Bytes::from_static(b"x")).await.unwrap_err();
        assert_eq!(error.code(), "stdin_closed");
        let execution = reader.await.unwrap().unwrap();
        assert_eq!(execution.stdout, [&b"first "[..], &big[..]].concat());
        assert_eq!(handle.write_stdin(Bytes::from_static(b"x")).await.unwrap_err().code(), "stdin_closed");
        handle.kill();
    });
}

#[test]
fn a_program_without_a_stdin_stream_takes_none() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let run = create(&engine).await.execute(code("x"));
        let error = run.handle().write_stdin(Bytes::from_static(b"x")).await.unwrap_err();
        assert_eq!(error.code(), "stdin_closed");
    });
}

#[test]
fn interrupts_and_signals_arrive_in_order_and_also_for_the_whole_sandbox() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        let mut controls = Vec::new();
        while controls.len() < 4 {
            if let Incoming::Control(_, control) = guest.next()? {
                controls.push(control);
            }
        }
        guest.data(id, Channel::Stdout, format!("{controls:?}").as_bytes());
        guest.finish(id);
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let run = sandbox.command(CommandOptions::new(["sleep", "9"]));
        let handle = run.handle();
        handle.interrupt();
        handle.signal(15);
        handle.signal(10);
        let collected = tokio::spawn(run.collect());
        loop {
            sandbox.interrupt();
            tokio::time::sleep(Duration::from_millis(5)).await;
            if collected.is_finished() {
                break;
            }
        }
        let said = String::from_utf8(collected.await.unwrap().unwrap().stdout).unwrap();
        assert!(
            said == "[Interrupt, Signal(15), Signal(10), Interrupt]"
                || said.starts_with("[Interrupt, Interrupt"),
            "{said}"
        );
    });
}
