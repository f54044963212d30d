//! Watches: what a guest reports, and what it must not.

use std::time::Duration;

use hayfork_protocol::change::{Change, ChangeKind, Record, encode};
use hayfork_protocol::frame::Channel;
use hayfork_protocol::message::{Control, Event, Failure, FailureCode, Request};
use hayfork_protocol::mux::{Incoming, StreamId};
use hayfork_vmm::backend::ExitKind;

use super::{block_on, create, python};
use crate::SandboxOptions;
use crate::connection::fake_guest::{FakeBackend, Guest};

fn change(path: &str) -> Change {
    Change { kind: ChangeKind::Created, path: path.into(), to: None, directory: false }
}

fn bytes(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        encode(record, &mut bytes).unwrap();
    }
    bytes
}

/// Begins the first watch that the host asks for.
fn begin(guest: &mut Guest) -> Option<StreamId> {
    guest.meet()?;
    let (id, request) = guest.open()?;
    assert_eq!(request, Request::Watch { path: "d".into(), recursive: true });
    guest.event(id, &Event::Watching);
    Some(id)
}

/// Sends all of it, as there is credit.
fn send(guest: &mut Guest, id: StreamId, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let sent = guest.data(id, Channel::File, bytes);
        bytes = &bytes[sent..];
        if !bytes.is_empty() {
            guest.next()?;
        }
    }
    Some(())
}

fn flush(guest: &mut Guest) -> Option<()> {
    loop {
        if let Incoming::Control(_, control) = guest.next()? {
            assert_eq!(control, Control::Flush);
            return Some(());
        }
    }
}

fn paths(changes: Vec<Change>) -> Vec<String> {
    changes.into_iter().map(|change| change.path).collect()
}

#[test]
fn changes_come_in_order_cut_anywhere_and_a_flush_tells_of_all_before_it() {
    let backend = FakeBackend::new(|mut guest| {
        let id = begin(&mut guest)?;
        let all = bytes(&[Record::Change(change("a")), Record::Change(change("b"))]);
        for byte in &all {
            send(&mut guest, id, &[*byte])?;
        }
        flush(&mut guest)?;
        send(&mut guest, id, &bytes(&[Record::Change(change("c")), Record::Flushed]))?;
        flush(&mut guest)?;
        send(&mut guest, id, &bytes(&[Record::Flushed, Record::Change(change("d"))]))?;
        guest.end(id, &Event::Done { bytes: 0 });
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let watch = create(&engine).await.watch("d", true).await.unwrap();
        assert!(watch.wait().await.unwrap());
        assert_eq!(paths(watch.take(1)), ["a"]);
        assert!(watch.wait().await.unwrap());
        watch.flush().await.unwrap();
        assert_eq!(paths(watch.take(9)), ["b", "c"]);
        // A flush lets one who waits for changes wait on, and needs no turn of his.
        let (waited, flushed) = tokio::join!(watch.wait(), watch.flush());
        assert!(waited.unwrap());
        flushed.unwrap();
        assert_eq!(paths(watch.take(9)), ["d"]);
        assert!(!watch.wait().await.unwrap() && watch.is_over());
        watch.flush().await.unwrap();
    });
}

#[test]
fn waiting_may_be_given_up_at_any_moment() {
    let backend = FakeBackend::new(|mut guest| {
        let id = begin(&mut guest)?;
        for n in 0..200 {
            send(&mut guest, id, &bytes(&[Record::Change(change(&n.to_string()))]))?;
            std::thread::sleep(Duration::from_micros(200));
        }
        guest.end(id, &Event::Done { bytes: 0 });
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let watch = create(&engine).await.watch("d", true).await.unwrap();
        let mut all = Vec::new();
        while all.len() < 200 {
            let _ = tokio::time::timeout(Duration::from_micros(50), watch.wait()).await;
            all.extend(paths(watch.take(3)));
        }
        assert_eq!(all, (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
    });
}

#[test]
fn a_slow_reader_holds_the_guest_back_and_a_flush_gathers_no_more_than_its_bound() {
    let backend = FakeBackend::new(|mut guest| {
        let id = begin(&mut guest)?;
        let piece = bytes(&vec![Record::Change(change(&"x".repeat(4000))); 8]);
        // Never the end that was asked for.
        loop {
            send(&mut guest, id, &piece)?;
        }
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let watch = create(&engine).await.watch("d", true).await.unwrap();
        watch.flush().await.unwrap();
        let held: usize = watch.take(usize::MAX).iter().map(|change| change.path.len()).sum();
        assert!((8_000_000..9_000_000).contains(&held), "{held}");
        watch.stop();
        assert!(watch.is_over());
    });
}

#[test]
fn stopping_and_dropping_end_it_in_the_guest() {
    let (report, saw) = std::sync::mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        loop {
            match guest.next()? {
                Incoming::Open(id, _) => guest.event(id, &Event::Watching),
                Incoming::Reset(id) => {
                    report.send(()).unwrap();
                    guest.close(id);
                }
                _ => {}
            }
        }
    });
    let engine = backend.engine();
    // Kept: without it the machine would end first.
    let _sandbox = block_on(&engine, async {
        let sandbox = create(&engine).await;
        let watch = sandbox.watch("d", true).await.unwrap();
        let (waited, ()) = tokio::join!(watch.wait(), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            watch.stop();
            watch.stop();
        });
        assert!(!waited.unwrap() && !watch.wait().await.unwrap());
        drop(sandbox.watch("d", true).await.unwrap());
        sandbox
    });
    for _ in 0..2 {
        saw.recv_timeout(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn a_refusal_is_the_error_of_the_call_and_a_failure_that_of_the_next_wait() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let fail = |guest: &mut Guest, id, code| {
            guest.end(id, &Event::Failed(Failure { code, message: "so it is".into() }));
        };
        let (id, _) = guest.open()?;
        fail(&mut guest, id, FailureCode::TooMany);
        let (id, _) = guest.open()?;
        guest.event(id, &Event::Watching);
        send(&mut guest, id, &bytes(&[Record::Change(change("a"))]))?;
        fail(&mut guest, id, FailureCode::NoSpace);
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        assert_eq!(sandbox.watch("d", true).await.unwrap_err().code(), "too_many");
        let watch = sandbox.watch("d", true).await.unwrap();
        assert!(watch.wait().await.unwrap());
        assert_eq!(paths(watch.take(9)), ["a"]);
        assert_eq!(watch.wait().await.unwrap_err().code(), "no_space");
        assert_eq!(watch.flush().await.unwrap_err().code(), "no_space");
        sandbox.close().await.unwrap();
        assert_eq!(sandbox.watch("d", true).await.unwrap_err().code(), "session_closed");
    });
}

#[test]
fn a_guest_that_breaks_the_rules_is_told_apart() {
    fn hostile(then: impl Fn(&mut Guest, StreamId) -> Option<()> + Send + Sync + 'static) -> String {
        let backend = FakeBackend::new(move |mut guest| {
            let id = begin(&mut guest)?;
            then(&mut guest, id)?;
            guest.idle() as Option<ExitKind>
        });
        let engine = backend.engine();
        block_on(&engine, async {
            let watch = create(&engine).await.watch("d", true).await.unwrap();
            let error = watch.wait().await.unwrap_err();
            assert_eq!(error.code(), "protocol", "{error}");
            error.to_string()
        })
    }
    assert!(hostile(|guest, id| send(guest, id, &[0, 0])).contains("0 bytes"));
    assert!(hostile(|guest, id| send(guest, id, &[1, 0, 99])).contains("decode"));
    assert!(hostile(|guest, id| send(guest, id, &bytes(&[Record::Flushed]))).contains("flush"));
    let twice = hostile(|guest, id| {
        guest.event(id, &Event::Watching);
        Some(())
    });
    assert!(twice.contains("twice"), "{twice}");
    let other = hostile(|guest, id| {
        guest.event(id, &Event::Entries(vec![]));
        Some(())
    });
    assert!(other.contains("listing"), "{other}");
    // Data before the begin.
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        send(&mut guest, id, &bytes(&[Record::Change(change("a"))]))?;
        guest.idle()
    });
    let engine = backend.engine();
    let error = block_on(&engine, async { create(&engine).await.watch("d", true).await.unwrap_err() });
    assert_eq!(error.code(), "protocol");
}

#[test]
fn a_watch_does_not_keep_an_idle_sandbox() {
    let backend = FakeBackend::new(|mut guest| {
        begin(&mut guest)?;
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let idle_timeout = Some(Duration::from_millis(300));
        let sandbox = engine.create(SandboxOptions { idle_timeout, ..python() }).await.unwrap();
        let watch = sandbox.watch("d", true).await.unwrap();
        let error = watch.wait().await.unwrap_err();
        assert_eq!(error.code(), "session_closed");
        assert!(error.to_string().contains("idle timeout"), "{error}");
    });
}
