//! Sessions: beginning, being replaced, being broken, and ending.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use hayfork_protocol::Event;
use hayfork_protocol::message::Request;
use support::{Host, command, shell};

#[test]
fn a_new_host_finds_contexts_but_not_what_ran_for_the_old_one() {
    let mut host = Host::start();
    host.sh("kept=5");
    let pid_file = host.home().join("pid");
    host.open(&Request::Command(command("echo $$ > pid; exec sleep 60")));
    let code = host.open(&shell("echo go; sleep 30"));
    host.wait(code, "the start", |outcome| outcome.out() == "go\n");
    while std::fs::read_to_string(&pid_file).unwrap_or_default().is_empty() {
        host.turn(Duration::from_millis(20));
    }
    let pid = std::fs::read_to_string(&pid_file).unwrap().trim().to_owned();
    host.handshake();
    assert_eq!(host.sh("echo $kept").out(), "5\n", "stopped as by Ctrl-C, so the state is there");
    let give_up = std::time::Instant::now() + support::PATIENCE;
    while std::path::Path::new(&format!("/proc/{pid}")).exists() {
        assert!(std::time::Instant::now() < give_up, "the old host's command still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn broken_frames_end_the_session_and_a_handshake_begins_the_next() {
    let mut host = Host::start();
    host.sh("kept=6");
    let junk: [&[u8]; 4] = [
        &[0; 64],
        &[0xff; 64],
        b"\xffhayfork and then nothing of the kind, for a good while........",
        b"GET / HTTP/1.1\r\n\r\n",
    ];
    for bytes in junk {
        host.send_raw(bytes);
        host.handshake();
        assert_eq!(host.sh("echo $kept").out(), "6\n");
    }
}

#[test]
fn a_host_that_vanished_within_a_frame_is_pushed_out_by_zeros() {
    let mut host = Host::start();
    // The header of a data frame of 60,000 bytes, and a few of them.
    let mut frame = vec![0x60, 0xea, 0, 0, 3, 1, 0, 0, 1, 0, 0, 0];
    frame.extend([7; 100]);
    host.send_raw(&frame);
    host.send_raw(&vec![0; hayfork_protocol::limits::MAX_CONTROL + hayfork_protocol::frame::HEADER]);
    host.handshake();
    assert_eq!(host.sh("echo fine").out(), "fine\n");
}

#[test]
fn figures_are_given() {
    let mut host = Host::start();
    let Some(Event::Stats(stats)) = host.run(&Request::Stats).events.pop() else { panic!() };
    assert!(stats.agent_pss_bytes > 0 && stats.uptime_ns > 0);
}

#[test]
fn shutdown_is_answered_before_the_end() {
    let mut host = Host::start();
    assert_eq!(host.run(&Request::Shutdown).done(), 0);
}

#[test]
fn a_retry_that_crosses_with_the_answer_is_not_answered_twice() {
    let mut host = Host::start();
    host.sh("kept=7");
    host.handshake_with_retry();
    assert_eq!(host.sh("echo $kept").out(), "7\n", "frames follow the one answer");
}
