//! Commands through the whole agent.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use hayfork_protocol::Channel;
use hayfork_protocol::message::{Command, Control, FailureCode, Keep, Request, Status};
use support::{Host, command, is, limit};

fn run(host: &mut Host, text: &str) -> support::Outcome {
    host.run(&Request::Command(command(text)))
}

#[test]
fn argv_arrives_exactly() {
    let mut host = Host::start();
    let argv = ["printf", "%s|", "a b", "", "*", "$HOME", "é\n"].map(str::to_owned).to_vec();
    let outcome = host.run(&Request::Command(Command { argv, ..command("") }));
    assert_eq!(outcome.out(), "a b||*|$HOME|é\n|");
    assert_eq!(outcome.finished().exit_code, 0);
}

#[test]
fn exit_codes_and_signals() {
    let mut host = Host::start();
    for code in [0, 1, 77, 255] {
        assert_eq!(run(&mut host, &format!("exit {code}")).finished().exit_code, code);
    }
    assert_eq!(run(&mut host, "kill -KILL $$").finished().exit_code, 137);
    assert_eq!(run(&mut host, "kill -TERM $$").finished().exit_code, 143);
}

#[test]
fn environment_and_working_folder() {
    let mut host = Host::start();
    let env = vec![("A".to_owned(), "x=y z".to_owned()), ("HOME".to_owned(), "/elsewhere".to_owned())];
    let request = Command { env, ..command("printf '%s|%s|%s|' \"$A\" \"$HOME\" \"$USER\"; pwd") };
    let home = host.home().to_string_lossy().into_owned();
    assert_eq!(host.run(&Request::Command(request)).out(), format!("x=y z|/elsewhere|user|{home}\n"));
    std::fs::create_dir(host.home().join("sub folder")).unwrap();
    let request = Command { cwd: Some("sub folder".into()), ..command("pwd") };
    assert_eq!(host.run(&Request::Command(request)).out(), format!("{home}/sub folder\n"));
    let request = Command { cwd: Some("none".into()), ..command("pwd") };
    is(FailureCode::NotFound, &host.run(&Request::Command(request)));
}

#[test]
fn programs_that_cannot_be_started() {
    let mut host = Host::start();
    let with = |program: &str| Request::Command(Command { argv: vec![program.to_owned()], ..command("") });
    is(FailureCode::NotFound, &host.run(&with("no-such-program-anywhere")));
    is(FailureCode::NotFound, &host.run(&with("/no/such/program")));
    std::fs::write(host.home().join("plain"), "text").unwrap();
    let plain = host.home().join("plain").to_string_lossy().into_owned();
    is(FailureCode::PermissionDenied, &host.run(&with(&plain)));
    is(FailureCode::BadRequest, &host.run(&with("")));
}

#[test]
fn standard_input() {
    let mut host = Host::start();
    assert_eq!(run(&mut host, "cat; echo end").out(), "end\n");
    let stream = host.open(&Request::Command(Command { stdin: true, ..command("wc -c") }));
    host.send(stream, Channel::Stdin, &vec![0; 2_000_000]);
    assert_eq!(host.end(stream).out().trim(), "2000000");
    let stream = host.open(&Request::Command(Command { stdin: true, ..command("exit 3") }));
    host.send(stream, Channel::Stdin, &vec![0; 2_000_000]);
    assert_eq!(host.end(stream).finished().exit_code, 3);
}

#[test]
fn a_command_leads_a_session_and_a_group_of_its_own() {
    let mut host = Host::start();
    let outcome = run(
        &mut host,
        "read -r pid name state ppid group session rest < /proc/$$/stat; echo $((pid-group)) $((pid-session))",
    );
    assert_eq!(outcome.out(), "0 0\n");
}

#[test]
fn only_the_standard_descriptors_are_open() {
    let mut host = Host::start();
    // Without a pipeline: a shell still holds the ends of its pipes when the first program in it runs. And not as the last
    // command, which a shell may become instead of waiting for it.
    let outcome = run(&mut host, "ls /proc/$$/fd; exit 0");
    assert_eq!(outcome.out(), "0\n1\n2\n");
}

#[test]
fn signals_are_as_a_program_expects_them() {
    let mut host = Host::start();
    let outcome = run(&mut host, "cat /proc/self/status");
    for name in ["SigBlk:", "SigIgn:", "SigCgt:"] {
        let out = outcome.out();
        let line = out.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line.split_whitespace().last(), Some("0000000000000000"), "{line}");
    }
}

#[test]
fn a_timeout_gives_grace_and_ends_the_group() {
    let mut host = Host::start();
    let text = "trap '' INT; trap 'echo bye; exit 5' TERM; echo go; while true; do sleep 0.05; done";
    let outcome = host.run(&Request::Command(Command { timeout_ms: Some(300), ..command(text) }));
    assert_eq!(outcome.out(), "go\nbye\n");
    assert_eq!((outcome.finished().status, outcome.finished().exit_code), (Status::Timeout, 5));
}

#[test]
fn a_signal_that_comes_before_the_program_runs_is_not_lost() {
    let mut host = Host::start();
    for signal in [2, 15] {
        let control = if signal == 2 { Control::Interrupt } else { Control::Signal(signal) };
        let stream = host.open(&Request::Command(command("exec sleep 1000")));
        host.control(stream, control);
        assert_eq!(host.end(stream).finished().exit_code, 128 + signal);
    }
}

#[test]
fn signals_and_kills_from_the_host() {
    let mut host = Host::start();
    let stream = host
        .open(&Request::Command(command("trap 'echo usr1' USR1; echo go; while true; do sleep 0.05; done")));
    host.wait(stream, "the start", |outcome| outcome.out() == "go\n");
    host.control(stream, Control::Signal(10));
    host.wait(stream, "the handler", |outcome| outcome.out() == "go\nusr1\n");
    host.control(stream, Control::Signal(99));
    host.control(stream, Control::Kill);
    let finished = host.end(stream).finished();
    assert_eq!((finished.status, finished.exit_code), (Status::Killed, 137));
}

#[test]
fn what_a_command_leaves_running_does_not_hold_it_up() {
    let mut host = Host::start();
    let began = Instant::now();
    let outcome = run(&mut host, "(sleep 3; echo late) & echo now");
    assert_eq!(outcome.out(), "now\n");
    assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
    assert_eq!(run(&mut host, "echo next").out(), "next\n");
}

#[test]
fn left_behind_work_is_not_ended_by_a_broken_pipe() {
    let mut host = Host::start();
    let text = "(for i in 1 2 3 4 5; do echo tick; sleep 0.1; done; touch finished) > /dev/stdout & echo now";
    assert!(run(&mut host, text).out().contains("now\n"));
    let give_up = Instant::now() + support::PATIENCE;
    while !host.home().join("finished").exists() {
        assert!(Instant::now() < give_up);
        host.turn(Duration::from_millis(50));
    }
}

#[test]
fn several_at_once() {
    let mut host = Host::start();
    let streams: Vec<_> =
        (0..30).map(|i| host.open(&Request::Command(command(&format!("sleep 0.2; echo {i}"))))).collect();
    for (i, stream) in streams.into_iter().enumerate() {
        assert_eq!(host.end(stream).out(), format!("{i}\n"));
    }
}

#[test]
fn a_reset_ends_it() {
    let mut host = Host::start();
    let stream = host.open(&Request::Command(command("echo $$; sleep 60")));
    host.wait(stream, "the start", |outcome| !outcome.stdout.is_empty());
    let pid = host.outcome(stream).out().trim().to_owned();
    host.reset(stream);
    is(FailureCode::Cancelled, &host.end(stream));
    let give_up = Instant::now() + support::PATIENCE;
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        assert!(Instant::now() < give_up);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn output_is_bounded() {
    let mut host = Host::start();
    let request = Command { stdout: limit(100, Keep::HeadAndTail), ..command("seq 1 100000") };
    let outcome = host.run(&Request::Command(request));
    assert_eq!(outcome.stdout.len(), 100);
    assert!(outcome.out().starts_with("1\n2\n") && outcome.out().ends_with("\n100000\n"));
}
