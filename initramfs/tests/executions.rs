//! Executions through the whole agent, with a driver that runs bash: order, ends, limits, and user code that lies.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use hayfork_protocol::message::{
    BundleKind, Control, Execute, FailureCode, Keep, Language, Part, Request, Status,
};
use hayfork_protocol::{Channel, Event};
use support::{Host, PATIENCE, execute, is, limit, shell};

#[test]
fn state_survives_and_exit_codes_arrive() {
    let mut host = Host::start();
    assert_eq!(host.hello.languages, ["shell"]);
    assert_eq!(host.sh("x=5; echo out; echo err >&2").finished().exit_code, 0);
    let second = host.sh("echo $x; (exit 3)");
    assert_eq!((second.out().as_str(), second.finished().exit_code), ("5\n", 3));
    assert!(!second.finished().state_reset);
    assert_eq!(second.finished().status, Status::Exited);
}

#[test]
fn the_streams_are_kept_apart_and_byte_exact() {
    let mut host = Host::start();
    let outcome = host.sh(r"printf 'a\0b\r\n\377'; printf 'e\033[0m' >&2");
    assert_eq!(outcome.stdout, b"a\0b\r\n\xff");
    assert_eq!(outcome.stderr, b"e\x1b[0m");
}

#[test]
fn large_output_arrives_whole_and_at_once() {
    let mut host = Host::start();
    let code = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; head -c 500000 /dev/zero";
    let outcome = host.sh(code);
    let mut want: Vec<u8> = (0..20_000).flat_map(|i| format!("line {i}\n").into_bytes()).collect();
    want.extend(vec![0; 500_000]);
    assert_eq!(outcome.stdout.len(), want.len());
    assert_eq!(outcome.stdout, want);
}

#[test]
fn lines_that_follow_each_other_closely_are_gathered() {
    let mut host = Host::start();
    host.sh("true");
    let began = Instant::now();
    let outcome = host.sh("for ((i = 0; i < 20000; i++)); do echo $i; done");
    let took = began.elapsed();
    assert_eq!(outcome.out().lines().count(), 20_000);
    // One message in 8 ms, and a few at the ends.
    assert!(
        outcome.pieces * Duration::from_millis(8) < took + Duration::from_millis(50),
        "{} in {took:?}",
        outcome.pieces
    );
}

#[test]
fn the_first_output_comes_while_the_code_runs() {
    let mut host = Host::start();
    let stream = host.open(&shell("echo first; read -t 20 line < <(sleep 20)"));
    host.wait(stream, "the first line", |outcome| outcome.out() == "first\n");
    assert!(!host.outcome(stream).closed);
    host.control(stream, Control::Kill);
    assert_eq!(host.end(stream).finished().status, Status::Killed);
}

#[test]
fn limits_keep_head_or_head_and_tail() {
    let mut host = Host::start();
    let code = "head -c 3000000 /dev/zero | tr '\\0' a; printf END";
    let run = |host: &mut Host, keep| {
        host.run(&Request::Execute(Execute { stdout: limit(1000, keep), ..execute(code) }))
    };
    let head = run(&mut host, Keep::Head);
    assert_eq!(head.stdout, [b'a'; 1000]);
    assert!(head.events.contains(&Event::Omitted { stderr: false, bytes: 3_000_003 - 1000 }));
    let both = run(&mut host, Keep::HeadAndTail);
    assert_eq!(both.stdout.len(), 1000);
    assert!(both.stdout.ends_with(b"aEND"));
    assert!(both.events.contains(&Event::Omitted { stderr: false, bytes: 3_000_003 - 1000 }));
    assert_eq!(both.finished().exit_code, 0);
}

#[test]
fn a_driver_that_dies_is_replaced_and_the_host_is_told() {
    let mut host = Host::start();
    host.sh("x=1");
    let dead = host.sh("echo last; exit 42");
    assert_eq!((dead.out().as_str(), dead.finished().exit_code), ("last\n", 42));
    assert!(dead.finished().state_reset);
    let next = host.sh("echo [$x]");
    assert_eq!(next.out(), "[]\n");
    assert!(!next.finished().state_reset);
    let signalled = host.sh("kill -SEGV $$");
    assert_eq!(signalled.finished().exit_code, 139);
    assert!(signalled.finished().state_reset);
}

#[test]
fn a_driver_that_dies_while_idle_is_told_to_the_next() {
    let mut host = Host::start();
    host.sh("(sleep 0.1; kill -9 $$) &");
    std::thread::sleep(Duration::from_millis(500));
    let next = host.sh("echo new");
    assert_eq!(next.out(), "new\n");
    assert!(next.finished().state_reset);
    assert!(!host.sh("true").finished().state_reset);
}

#[test]
fn a_timeout_interrupts_first_and_keeps_state() {
    let mut host = Host::start();
    let code = "y=7; echo part; sleep 30";
    let outcome = host.run(&Request::Execute(Execute { timeout_ms: Some(300), ..execute(code) }));
    assert_eq!((outcome.finished().status, outcome.out().as_str()), (Status::Timeout, "part\n"));
    assert!(!outcome.finished().state_reset);
    assert_eq!(host.sh("echo $y").out(), "7\n");
}

#[test]
fn a_timeout_ends_what_does_not_listen() {
    let mut host = Host::start();
    let code = "trap '' INT TERM; echo deaf; while true; do sleep 1; done";
    let began = Instant::now();
    let outcome = host.run(&Request::Execute(Execute { timeout_ms: Some(200), ..execute(code) }));
    let finished = outcome.finished();
    assert_eq!((finished.status, finished.exit_code, finished.state_reset), (Status::Timeout, 137, true));
    assert_eq!(outcome.out(), "deaf\n");
    assert!(began.elapsed() >= Duration::from_millis(2200), "both graces are given");
    assert_eq!(host.sh("echo alive").out(), "alive\n");
}

#[test]
fn a_term_handler_gets_its_grace() {
    let mut host = Host::start();
    let code = "trap '' INT; trap 'echo bye; exit 9' TERM; while true; do sleep 0.1; done";
    let outcome = host.run(&Request::Execute(Execute { timeout_ms: Some(200), ..execute(code) }));
    assert_eq!(outcome.out(), "bye\n");
    assert_eq!((outcome.finished().status, outcome.finished().exit_code), (Status::Timeout, 9));
}

#[test]
fn an_interrupt_is_a_ctrl_c() {
    let mut host = Host::start();
    let stream = host.open(&shell("z=3; echo go; sleep 30"));
    host.wait(stream, "the start", |outcome| outcome.out() == "go\n");
    host.control(stream, Control::Interrupt);
    let outcome = host.end(stream);
    assert_eq!((outcome.finished().status, outcome.finished().exit_code), (Status::Exited, 130));
    assert_eq!(host.sh("echo $z").out(), "3\n");
}

#[test]
fn an_early_interrupt_is_not_lost() {
    let mut host = Host::start();
    host.sh("true");
    let stream = host.open(&shell("sleep 20"));
    host.control(stream, Control::Interrupt);
    let began = Instant::now();
    assert_eq!(host.end(stream).finished().exit_code, 130);
    assert!(began.elapsed() < Duration::from_secs(15));
}

#[test]
fn executions_of_one_context_run_in_order_and_are_never_mixed() {
    let mut host = Host::start();
    let streams: Vec<_> = (0..20)
        .map(|i| host.open(&shell(&format!("echo {i}; order=\"$order {i}\"; echo e{i} >&2"))))
        .collect();
    for (i, stream) in streams.into_iter().enumerate() {
        let outcome = host.end(stream);
        assert_eq!((outcome.out(), outcome.err()), (format!("{i}\n"), format!("e{i}\n")));
    }
    let want = (0..20).fold(String::new(), |want, i| want + " " + &i.to_string());
    assert_eq!(host.sh("echo \"$order\"").out(), format!("{want}\n"));
}

#[test]
fn contexts_run_side_by_side() {
    let mut host = Host::start();
    let one = host.open(&shell("sleep 20"));
    let other = Request::Execute(Execute { context: 2, ..execute("echo other") });
    assert_eq!(host.run(&other).out(), "other\n");
    assert!(!host.outcome(one).closed);
    host.reset(one);
    host.end(one);
}

#[test]
fn what_waits_can_be_interrupted_killed_and_abandoned() {
    let mut host = Host::start();
    let first = host.open(&shell("sleep 20"));
    let waiting = [0, 1, 2].map(|_| host.open(&shell("echo never")));
    host.wait(first, "the start", support::Outcome::is_started);
    host.control(waiting[0], Control::Interrupt);
    host.control(waiting[1], Control::Kill);
    host.reset(waiting[2]);
    let outcomes = waiting.map(|stream| host.end(stream));
    assert_eq!(outcomes[0].finished().exit_code, 130);
    assert_eq!(outcomes[1].finished().status, Status::Killed);
    is(FailureCode::Cancelled, &outcomes[2]);
    assert!(outcomes.iter().all(|outcome| outcome.stdout.is_empty() && !outcome.is_started()));
    host.control(first, Control::Kill);
    assert!(host.end(first).finished().state_reset);
}

#[test]
fn a_reset_stops_the_code_and_keeps_the_context() {
    let mut host = Host::start();
    let stream = host.open(&shell("kept=yes; echo go; sleep 30; echo not reached"));
    host.wait(stream, "the start", |outcome| outcome.out() == "go\n");
    host.reset(stream);
    let outcome = host.end(stream);
    is(FailureCode::Cancelled, &outcome);
    assert_eq!(outcome.out(), "go\n");
    assert_eq!(host.sh("echo $kept").out(), "yes\n");
}

#[test]
fn standard_input_is_a_stream_or_an_end() {
    let mut host = Host::start();
    assert_eq!(host.sh("read -r x || echo eof").out(), "eof\n");
    let with_stdin = Request::Execute(Execute { stdin: true, ..execute("wc -c; read -r x || echo eof") });
    let stream = host.open(&with_stdin);
    host.send(stream, Channel::Stdin, &vec![b'x'; 700_001]);
    assert_eq!(host.end(stream).out(), "700001\neof\n");
    // Nothing but an end, said before the driver runs.
    let stream = host.open(&with_stdin);
    host.send(stream, Channel::Stdin, b"");
    assert_eq!(host.end(stream).out(), "0\neof\n");
    // Code that does not read gets the host's bytes off its hands all the same.
    let stream =
        host.open(&Request::Execute(Execute { stdin: true, ..execute("exec < /dev/null; sleep 0.3") }));
    host.send(stream, Channel::Stdin, &vec![b'x'; 1_000_000]);
    assert_eq!(host.end(stream).finished().exit_code, 0);
}

#[test]
fn standard_input_for_one_that_waits_is_kept() {
    let mut host = Host::start();
    let first = host.open(&shell("sleep 0.5"));
    let second = host.open(&Request::Execute(Execute { stdin: true, ..execute("cat") }));
    host.send(second, Channel::Stdin, b"early");
    assert_eq!(host.end(second).out(), "early");
    host.end(first);
}

#[test]
fn the_environment_holds_for_one_execution() {
    let mut host = Host::start();
    let env =
        vec![("GREETING".to_owned(), "a b\n'\"$x\u{e9}".to_owned()), ("EMPTY".to_owned(), String::new())];
    let request =
        Request::Execute(Execute { env, ..execute("printf '%s|%s' \"$GREETING\" \"${EMPTY-unset}\"") });
    assert_eq!(host.run(&request).out(), "a b\n'\"$x\u{e9}|");
    assert_eq!(host.sh("printf '%s' \"${GREETING-unset}\"").out(), "unset");
    let bad = vec![("LD_PRELOAD".to_owned(), "x".to_owned())];
    is(FailureCode::BadEnv, &host.run(&Request::Execute(Execute { env: bad, ..execute("echo no") })));
}

#[test]
fn bad_requests_are_refused_and_the_context_lives() {
    let mut host = Host::start();
    host.sh("x=1");
    for code in ["", "  \n", "\u{feff}", "a\0b"] {
        is(FailureCode::BadRequest, &host.sh(code));
    }
    let python = Request::Execute(Execute { language: Language::Python, context: 9, ..execute("1") });
    is(FailureCode::NoSuchLanguage, &host.run(&python));
    let other = Request::Execute(Execute { language: Language::Python, ..execute("1") });
    is(FailureCode::BadRequest, &host.run(&other));
    is(FailureCode::NotFound, &host.run(&Request::CloseContext { context: 77 }));
    is(FailureCode::NotFound, &host.run(&Request::IdleOutput { context: 77 }));
    assert_eq!(host.sh("echo $x").out(), "1\n");
}

#[test]
fn output_of_background_work_is_kept_apart() {
    let mut host = Host::start();
    let outcome = host.sh("(sleep 0.3; echo late; echo late-err >&2; sleep 0.3; echo later) & echo now");
    assert_eq!(outcome.out(), "now\n");
    std::thread::sleep(Duration::from_secs(1));
    let next = host.sh("echo next");
    assert_eq!((next.out().as_str(), next.err().as_str()), ("next\n", ""));
    let idle = host.run(&Request::IdleOutput { context: 1 });
    assert_eq!((idle.out().as_str(), idle.err().as_str(), idle.done()), ("late\nlater\n", "late-err\n", 20));
    assert_eq!(host.run(&Request::IdleOutput { context: 1 }).done(), 0);
}

#[test]
fn background_work_that_never_stops_printing_holds_nobody_up() {
    let mut host = Host::start();
    let began = Instant::now();
    let outcome = host.sh("yes & echo started >&2");
    assert_eq!(outcome.err(), "started\n");
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(host.sh("echo next").out(), "next\n");
    // More is printed than is kept, as soon as the machine has time for it.
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let idle = host.run(&Request::IdleOutput { context: 1 });
        assert!(idle.stdout.len() <= 256 * 1024);
        if matches!(idle.events.first(), Some(Event::Omitted { stderr: false, .. })) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", idle.events);
    }
    host.sh("kill $!");
}

#[test]
fn completion_is_reported_at_once() {
    let mut host = Host::start();
    host.sh("true");
    let began = Instant::now();
    for _ in 0..50 {
        host.sh(":");
    }
    // A fixed wait of 20 ms alone would take a second. Ten times what this takes on an idle machine.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

fn last(code: &str) -> Request {
    Request::Execute(Execute { last: true, ..execute(code) })
}

#[test]
fn the_last_execution_lasts_until_its_interpreter_ends() {
    let mut host = Host::start();
    host.sh("x=5");
    let code = r#"
        bye() {
            sleep 0.3
            printf '{"token":"%s","kind":"display","parts":[["text/plain",4]]}\nlate' $TOKEN > $FOLDER/results
            head -c 200000 /dev/zero
            echo bye >&2
        }
        trap bye EXIT
        printf $x
        (exit 3)"#;
    let outcome = host.run(&last(code));
    assert_eq!(outcome.stdout.len(), 1 + 200_000);
    assert_eq!((outcome.err(), outcome.bundle.as_slice()), ("bye\n".to_owned(), &b"late"[..]));
    let finished = outcome.finished();
    assert_eq!((finished.status, finished.exit_code, finished.state_reset), (Status::Exited, 3, true));
    assert!(finished.run_us >= 300_000, "the end counts: {} µs", finished.run_us);
    let next = host.sh("echo [$x]");
    assert_eq!((next.out().as_str(), next.finished().state_reset), ("[]\n", false));
}

#[test]
fn the_end_of_the_last_execution_can_be_interrupted_and_takes_no_longer_than_it_may() {
    let mut host = Host::start();
    let interrupted = host.open(&last("trap 'echo ending; sleep 60' EXIT"));
    host.wait(interrupted, "the trap", |outcome| outcome.out() == "ending\n");
    let began = Instant::now();
    host.control(interrupted, Control::Interrupt);
    let finished = host.end(interrupted).finished();
    assert_eq!((finished.status, finished.exit_code), (Status::Exited, 130));
    let code = "trap 'trap \"\" INT TERM; echo ending; while true; do sleep 1; done' EXIT";
    let deaf = Request::Execute(Execute { last: true, timeout_ms: Some(300), ..execute(code) });
    let outcome = host.run(&deaf);
    assert_eq!(outcome.out(), "ending\n");
    assert_eq!((outcome.finished().status, outcome.finished().exit_code), (Status::Timeout, 137));
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

#[test]
fn forged_ends_and_results_are_ignored() {
    let mut host = Host::start();
    let code = r#"
        echo "0123456789abcdef0123456789abcdef done 7" > $D/events
        printf 'no newline, then the true line: ' > $D/events
        echo ready > $D/events
        head -c 200000 /dev/zero > $D/events
        printf '{"token":"0123456789abcdef0123456789abcdef","kind":"result","parts":[["text/plain",4]]}\nfake' > $FOLDER/results
        printf 'garbage' > $FOLDER/results
        sleep 0.2
        echo end"#;
    let outcome = host.sh(code);
    assert_eq!((outcome.out().as_str(), outcome.finished().exit_code), ("end\n", 0));
    assert!(outcome.bundle.is_empty());
    assert_eq!(host.sh("echo next").out(), "next\n");
}

#[test]
fn an_execution_may_even_end_itself_but_only_itself() {
    let mut host = Host::start();
    // Code that reads its own token out of its interpreter: it may lie about its own end and nothing else.
    let outcome = host.sh("echo \"$TOKEN done 5\" > $D/events; sleep 0.5; echo afterwards");
    assert_eq!(outcome.finished().exit_code, 5);
    let next = host.sh("echo next");
    assert_eq!(next.out(), "next\n");
    assert_eq!(next.finished().exit_code, 0);
}

#[test]
fn results_arrive_as_bundles() {
    let mut host = Host::start();
    let code = r#"
        printf '{"token":"%s","kind":"display","parts":[["text/plain",3],["image/png",300000]]}\nabc' $TOKEN > $FOLDER/results
        head -c 300000 /dev/zero > $FOLDER/results
        printf '{"token":"%s","kind":"error","name":"E","value":"v","traceback":"t"}\n' $TOKEN > $FOLDER/results"#;
    let outcome = host.sh(code);
    let part = |mime: &str, bytes| Part { mime: mime.into(), bytes };
    assert_eq!(
        outcome.events[1],
        Event::Bundle {
            kind: BundleKind::Display,
            parts: vec![part("text/plain", 3), part("image/png", 300_000)]
        }
    );
    assert!(matches!(&outcome.events[2], Event::Exception(exception) if exception.name == "E"));
    assert_eq!(outcome.bundle.len(), 300_003);
    assert!(outcome.ends.is_empty());
}

#[test]
fn a_result_that_is_cut_off_is_known_by_the_end_of_its_channel() {
    let mut host = Host::start();
    let code = r#"printf '{"token":"%s","kind":"result","parts":[["text/plain",10]]}\nhalf' $TOKEN > $FOLDER/results; exit 1"#;
    let outcome = host.sh(code);
    assert_eq!(outcome.bundle, b"half");
    assert_eq!(outcome.ends, [Channel::Bundle]);
    assert_eq!(outcome.finished().exit_code, 1);
}

#[test]
fn a_host_that_takes_nothing_holds_back_its_own_stream_only() {
    let mut host = Host::start();
    host.stingy = true;
    let code = "head -c 900000 /dev/zero";
    let stuck =
        host.open(&Request::Execute(Execute { stdout: limit(u64::MAX, Keep::Head), ..execute(code) }));
    host.wait(stuck, "a window of output", |o| o.stdout.len() >= hayfork_protocol::limits::WINDOW as usize);
    let other = Request::Execute(Execute { context: 2, ..execute("echo free") });
    assert_eq!(host.run(&other).out(), "free\n");
    assert!(!host.outcome(stuck).closed);
    host.stingy = false;
    host.mux.consumed(stuck, Channel::Stdout, hayfork_protocol::limits::WINDOW as usize);
    assert_eq!(host.end(stuck).stdout.len(), 900_000);
}

#[test]
fn closing_a_context_ends_it_and_what_runs_in_it() {
    let mut host = Host::start();
    let stream = host.open(&shell("echo go; sleep 30"));
    host.wait(stream, "the start", |outcome| outcome.out() == "go\n");
    assert_eq!(host.run(&Request::CloseContext { context: 1 }).done(), 0);
    assert_eq!(host.end(stream).finished().status, Status::Killed);
    let fresh = host.sh("echo fresh");
    assert_eq!((fresh.out().as_str(), fresh.finished().state_reset), ("fresh\n", false));
    let left = std::fs::read_dir(host.folder.path().join("drivers")).unwrap().count();
    assert_eq!(left, 1, "only the living driver has a folder");
}

#[test]
fn an_interpreter_that_cannot_start_is_an_error_for_each_execution() {
    use hayfork_agent::languages::Launch;
    let broken = Launch::parse("/does/not/exist\n{dir}\n", "");
    let sick = Launch::parse("/bin/sh\n-c\necho I am ill >&2; exit 3\n", "");
    let mut host = Host::with_drivers(vec![(Language::Shell, broken), (Language::Python, sick)]);
    let streams = [host.open(&shell("echo 1")), host.open(&shell("echo 2"))];
    for stream in streams {
        let outcome = host.end(stream);
        is(FailureCode::CannotStart, &outcome);
        assert!(outcome.failure().message.contains("run the program"), "{:?}", outcome.failure());
    }
    let python = Request::Execute(Execute { language: Language::Python, context: 5, ..execute("1") });
    let outcome = host.run(&python);
    is(FailureCode::CannotStart, &outcome);
    assert!(outcome.failure().message.contains("I am ill"), "{:?}", outcome.failure());
}

/// What tells the execution's folder from any other (numbers are given again, birthdays are not), and what is in it.
fn place(host: &mut Host, more: &str) -> (String, String) {
    let outcome = host.sh(&format!("{more} stat -c '%i %w' \"$FOLDER\"; ls \"$FOLDER\""));
    let out = outcome.out();
    let (inode, files) = out.split_once('\n').unwrap();
    (inode.to_owned(), files.replace('\n', " ").trim_end().to_owned())
}

#[test]
fn a_place_that_nobody_uses_any_more_is_used_again() {
    let mut host = Host::start();
    let (first, files) = place(&mut host, "");
    assert_eq!(files, "code err out results");
    for round in 0..20 {
        let env = vec![("A".to_owned(), "b".to_owned())];
        let code = format!("echo out; echo $A {round} >&2");
        let outcome = host.run(&Request::Execute(Execute { env, ..execute(&code) }));
        assert_eq!((outcome.out(), outcome.err()), ("out\n".to_owned(), format!("b {round}\n")));
    }
    // Nothing of the others is left in it, and nothing of their output comes again.
    let (again, files) = place(&mut host, "");
    assert_eq!((again, files.as_str()), (first, "code err out results"));
    // One with a standard input is not: the agent waits for its driver to open that.
    for _ in 0..3 {
        let stream = host.open(&Request::Execute(Execute { stdin: true, ..execute("cat") }));
        host.send(stream, Channel::Stdin, b"in");
        assert_eq!(host.end(stream).out(), "in");
    }
}

#[test]
fn a_place_that_somebody_still_writes_to_is_not_used_again() {
    let mut host = Host::start();
    let (first, _) = place(&mut host, "(sleep 1; echo late) &");
    let (second, _) = place(&mut host, "");
    assert_ne!(second, first);
    let (third, _) = place(&mut host, "");
    assert_eq!(third, second);
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(host.run(&Request::IdleOutput { context: 1 }).out(), "late\n");
}

#[test]
fn a_place_whose_results_somebody_holds_is_not_used_again() {
    let mut host = Host::start();
    let (first, _) = place(&mut host, "sleep 5 8> \"$FOLDER/results\" > /dev/null 2>&1 &");
    let (second, _) = place(&mut host, "");
    assert_ne!(second, first);
}
