//! Renewing a guest through the whole agent, with a driver that keeps the seeds it got. The machine itself is left alone
//! here: it is the developer's.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use hayfork_protocol::message::{Execute, FailureCode, Renew, Request};
use support::{Host, execute, is, shell};

fn renew() -> Request {
    Request::Renew(Renew { seed: [7; 32], machine_id: [1; 16], hostname: "sandbox-1".into() })
}

fn seeds(host: &mut Host, context: u32) -> Vec<String> {
    let code = "echo $SEEDS";
    let outcome = host.run(&Request::Execute(Execute { context, ..execute(code) }));
    outcome.out().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn every_idle_driver_gets_a_seed_of_its_own() {
    let mut host = Host::start();
    assert_eq!(host.run(&renew()).done(), 0, "no context yet");
    for context in 1..=3 {
        assert_eq!(seeds(&mut host, context), Vec::<String>::new());
    }
    assert_eq!(host.run(&renew()).done(), 0);
    assert_eq!(host.run(&renew()).done(), 0);
    let mut all: Vec<String> = (1..=4).flat_map(|context| seeds(&mut host, context)).collect();
    assert_eq!(all.len(), 6, "two for each, and none for the context that began later");
    assert!(all.iter().all(|seed| seed.len() == 64));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 6);
}

#[test]
fn a_driver_at_work_is_not_waited_for_and_renews_before_its_next_execution() {
    let mut host = Host::start();
    let stream = host.open(&shell("echo go; read -r line < <(sleep 1; echo); echo [$SEEDS]"));
    host.wait(stream, "the start", |outcome| outcome.out() == "go\n");
    for _ in 0..20 {
        assert_eq!(host.run(&renew()).done(), 0);
    }
    assert!(!host.outcome(stream).closed);
    let next = host.open(&shell("echo $SEEDS"));
    assert_eq!(host.end(stream).out(), "go\n[]\n");
    // All of them at once: the last one counts.
    assert_eq!(host.end(next).out().split_whitespace().count(), 1);
}

#[test]
fn a_driver_that_does_not_answer_fails_the_renewal_and_still_takes_work() {
    let mut host = Host::start();
    host.sh("true");
    std::fs::write(host.folder.path().join("deaf"), "").unwrap();
    let began = Instant::now();
    let outcome = host.run(&renew());
    is(FailureCode::Io, &outcome);
    assert!(outcome.failure().message.contains("context 1"), "{:?}", outcome.failure());
    assert!((10_000..14_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!(seeds(&mut host, 1).len(), 1);
    // However many the host asks for, there is room for an execution's line.
    let streams: Vec<_> = (0..30).map(|_| host.open(&renew())).collect();
    for stream in streams {
        is(FailureCode::Io, &host.end(stream));
    }
    std::fs::remove_file(host.folder.path().join("deaf")).unwrap();
    assert!(seeds(&mut host, 1).len() > 1);
}

#[test]
fn a_driver_that_dies_meanwhile_is_not_waited_for() {
    let mut host = Host::start();
    host.sh("(sleep 0.5; kill -9 $$) &");
    std::fs::write(host.folder.path().join("deaf"), "").unwrap();
    let began = Instant::now();
    assert_eq!(host.run(&renew()).done(), 0);
    assert!(began.elapsed() < Duration::from_millis(1900), "{:?}", began.elapsed());
    assert!(host.sh("true").finished().state_reset);
}

#[test]
fn a_renewal_can_be_abandoned_and_a_wrong_one_is_refused() {
    let mut host = Host::start();
    host.sh("true");
    std::fs::write(host.folder.path().join("deaf"), "").unwrap();
    let stream = host.open(&renew());
    host.turn(Duration::from_millis(100));
    host.reset(stream);
    is(FailureCode::Cancelled, &host.end(stream));
    host.open(&renew());
    host.turn(Duration::from_millis(100));
    host.handshake(); // a new host; the old one's requests are gone
    std::fs::remove_file(host.folder.path().join("deaf")).unwrap();
    let bad = Renew { seed: [7; 32], machine_id: [1; 16], hostname: "no name".into() };
    is(FailureCode::BadRequest, &host.run(&Request::Renew(bad)));
    assert_eq!(seeds(&mut host, 1).len(), 2);
}
