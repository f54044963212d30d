//! Guests that break the rules or do not obey: the machine is killed, and callers hear why.

use std::time::Duration;

use hayfork_protocol::frame::{self, Channel, Kind};
use hayfork_protocol::limits::{MAX_DATA, WINDOW};
use hayfork_protocol::message::{BundleKind, Event, Exception, FileInfo, FileKind, Finished, Part, Status};
use hayfork_protocol::mux::StreamId;

use super::{block_on, create};
use crate::connection::fake_guest::{FakeBackend, Guest, finished};
use crate::{Error, ExecuteOptions, Keep, OutputLimit, RunEvent};

/// Runs one execution, with a limit of 10 bytes on its output, against a guest that misbehaves; gives its error.
fn misbehaving(script: impl Fn(&mut Guest, StreamId) + Send + Sync + 'static) -> Error {
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        script(&mut guest, id);
        guest.idle()
    });
    let engine = backend.engine();
    let limit = OutputLimit { bytes: 10, keep: Keep::Head };
    let error = block_on(&engine, async {
        let sandbox = create(&engine).await;
        let options = ExecuteOptions { stdout: limit, stderr: limit, ..ExecuteOptions::new("x") };
        let mut run = sandbox.execute(options);
        // Nothing is taken before the guest has done its worst.
        while !sandbox.is_closed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let error = loop {
            match run.next().await {
                Some(RunEvent::Failed(error)) => break error,
                Some(RunEvent::Finished(_)) | None => panic!("it has ended well"),
                Some(_) => {}
            }
        };
        let later = sandbox.stats().await.unwrap_err();
        assert_eq!(later.code(), "session_closed", "{later}");
        error
    });
    backend.wait_until_killed(1);
    error
}

fn raw(kind: Kind, channel: Option<Channel>, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, kind, channel, stream, payload);
    bytes
}

#[test]
fn whatever_breaks_the_protocol_ends_the_sandbox() {
    type Misdeed = Box<dyn Fn(&mut Guest, StreamId) + Send + Sync>;
    let event = |event: Event| -> Misdeed { Box::new(move |guest, id| guest.event(id, &event)) };
    let twice = |event: Event| -> Misdeed {
        Box::new(move |guest, id| {
            guest.event(id, &event);
            guest.event(id, &event);
        })
    };
    let misdeeds: Vec<(&str, Misdeed)> = vec![
        ("garbage", Box::new(|guest, _| guest.write(b"this is no frame at all"))),
        ("more output than asked for", Box::new(|guest, id| _ = guest.data(id, Channel::Stdout, &[0; 11]))),
        (
            "more errors than asked for",
            Box::new(|guest, id| {
                guest.data(id, Channel::Stderr, &[0; 10]);
                guest.data(id, Channel::Stderr, &[0; 1]);
            }),
        ),
        ("data where none belongs", Box::new(|guest, id| _ = guest.data(id, Channel::Bundle, b"x"))),
        ("a file nobody asked for", Box::new(|guest, id| _ = guest.data(id, Channel::File, b"x"))),
        ("input", Box::new(|guest, id| _ = guest.data(id, Channel::Stdin, b"x"))),
        (
            "more than credit",
            Box::new(|guest, id| {
                for _ in 0..=WINDOW as usize / MAX_DATA {
                    let bytes = raw(Kind::Data, Some(Channel::Stdout), id.0, &[0; MAX_DATA]);
                    guest.write(&bytes);
                }
            }),
        ),
        (
            "an unknown stream",
            Box::new(|guest, _| guest.write(&raw(Kind::Eof, Some(Channel::Stdout), 77, &[]))),
        ),
        ("a close without an end", Box::new(Guest::close)),
        ("an event of another request", event(Event::Done { bytes: 0 })),
        ("another one", event(Event::Entries(vec![]))),
        ("an impossible exit code", event(finished(256))),
        ("a negative exit code", event(finished(-1))),
        ("two starts", twice(Event::Started { pid: 1 })),
        (
            "two exceptions",
            twice(Event::Exception(Exception {
                name: String::new(),
                value: String::new(),
                traceback: String::new(),
            })),
        ),
        (
            "an incomplete bundle before the next",
            twice(Event::Bundle {
                kind: BundleKind::Result,
                parts: vec![Part { mime: "a".into(), bytes: 1 }],
            }),
        ),
        (
            "a huge bundle",
            event(Event::Bundle {
                kind: BundleKind::Result,
                parts: vec![
                    Part { mime: "a".into(), bytes: u32::MAX },
                    Part { mime: "b".into(), bytes: u32::MAX },
                ],
            }),
        ),
        (
            "a bundle of too many parts",
            event(Event::Bundle {
                kind: BundleKind::Result,
                parts: vec![Part { mime: "a".into(), bytes: 0 }; 99],
            }),
        ),
        (
            "gaps without end",
            Box::new(|guest, id| {
                for _ in 0..9 {
                    guest.event(id, &Event::Omitted { stderr: true, bytes: 1 });
                }
            }),
        ),
    ];
    for (name, misdeed) in misdeeds {
        println!("{name}");
        let error = misbehaving(misdeed);
        assert_eq!(error.code(), "protocol", "{name}: {error}");
    }
}

#[test]
fn the_first_of_two_ends_counts() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        guest.event(id, &finished(0));
        guest.event(id, &finished(1));
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let execution = sandbox.execute(ExecuteOptions::new("x")).collect().await.unwrap();
        assert_eq!(execution.outcome.exit_code, 0);
        while !sandbox.is_closed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    backend.wait_until_killed(1);
}

#[test]
fn a_flood_of_events_that_nobody_takes_is_bounded() {
    let error = misbehaving(|guest, id| {
        let empty = Event::Bundle { kind: BundleKind::Display, parts: vec![] };
        for _ in 0..600_000 {
            if guest.mux.event(id, &empty).is_err() {
                return;
            }
            if guest.mux.output().len() > 1 << 20 {
                guest.event(id, &empty);
            }
        }
    });
    assert_eq!(error.code(), "protocol");
    assert!(error.to_string().contains("nobody"), "{error}");
}

#[test]
fn a_listing_without_end_is_bounded() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        let info =
            FileInfo { name: "n".repeat(255), kind: FileKind::File, bytes: 0, mode: 0, modified_ns: 0 };
        let entries = Event::Entries(vec![info; 512]);
        for _ in 0..1000 {
            guest.event(id, &entries);
        }
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let error = create(&engine).await.list("/").await.unwrap_err();
        assert_eq!(error.code(), "protocol", "{error}");
    });
    backend.wait_until_killed(1);
}

/// An execution with a timeout that the guest does not keep.
fn disobedient(script: impl Fn(&mut Guest, StreamId) + Send + Sync + 'static) -> Error {
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        script(&mut guest, id);
        guest.idle()
    });
    let engine = backend.engine();
    let error = block_on(&engine, async {
        let timeout = Some(Duration::from_millis(20));
        let run = create(&engine).await.execute(ExecuteOptions { timeout, ..ExecuteOptions::new("x") });
        run.collect().await.unwrap_err()
    });
    backend.wait_until_killed(1);
    error
}

#[test]
fn a_guest_that_ignores_a_timeout_is_killed() {
    let error = disobedient(|guest, id| guest.event(id, &Event::Started { pid: 1 }));
    assert_eq!(error.code(), "outcome_unknown", "{error}");
    let error = disobedient(|_, _| {});
    assert_eq!(error.code(), "outcome_unknown", "{error}");
}

#[test]
fn a_guest_that_ignores_a_reset_or_does_not_close_is_killed() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        guest.event(id, &Event::Started { pid: 1 });
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let mut run = sandbox.execute(ExecuteOptions::new("x"));
        assert!(matches!(run.next().await, Some(RunEvent::Started { .. })));
        drop(run);
        let waiting = sandbox.stats().await.unwrap_err();
        assert_eq!(waiting.code(), "outcome_unknown", "{waiting}");
    });
    backend.wait_until_killed(1);

    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        guest.event(id, &finished(0));
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        sandbox.execute(ExecuteOptions::new("x")).collect().await.unwrap();
        assert_eq!(sandbox.stats().await.unwrap_err().code(), "outcome_unknown");
    });
    backend.wait_until_killed(1);
}

#[test]
fn executions_that_wait_for_their_turn_have_no_deadline() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (first, _) = guest.open()?;
        let (second, _) = guest.open()?;
        guest.event(first, &Event::Started { pid: 1 });
        // Longer than timeout and patience of the second together.
        std::thread::sleep(Duration::from_millis(1500));
        guest.finish(first);
        guest.event(second, &Event::Started { pid: 1 });
        let end =
            Finished { status: Status::Timeout, exit_code: 124, state_reset: false, spawn_us: 0, run_us: 0 };
        guest.end(second, &Event::Finished(end));
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let first = sandbox.execute(ExecuteOptions::new("1"));
        let timeout = Some(Duration::from_millis(20));
        let second = sandbox.execute(ExecuteOptions { timeout, ..ExecuteOptions::new("2") });
        first.collect().await.unwrap();
        assert_eq!(second.collect().await.unwrap().outcome.status, Status::Timeout);
    });
}
