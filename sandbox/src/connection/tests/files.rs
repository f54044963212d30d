//! Transfers and the other small operations.

use std::io;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};

use hayfork_protocol::frame::Channel;
use hayfork_protocol::limits::WINDOW;
use hayfork_protocol::message::{Event, Failure, FailureCode, FileInfo, FileKind, Request, Stats};
use hayfork_protocol::mux::Incoming;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use super::{block_on, create};
use crate::connection::fake_guest::FakeBackend;

fn info(name: &str, bytes: u64) -> FileInfo {
    FileInfo { name: name.into(), kind: FileKind::File, bytes, mode: 0o644, modified_ns: 0 }
}

/// A guest with one file, which it takes and gives.
fn store() -> FakeBackend {
    FakeBackend::new(|mut guest| {
        guest.meet()?;
        let mut file: Vec<u8> = Vec::new();
        loop {
            let (id, request) = guest.open()?;
            match request {
                Request::WriteFile { mode, .. } => {
                    assert_eq!(mode, 0o600);
                    file.clear();
                    loop {
                        match guest.next()? {
                            Incoming::Data(_, Channel::File, bytes) => {
                                guest.mux.consumed(id, Channel::File, bytes.len());
                                file.extend(bytes);
                            }
                            Incoming::Eof(..) => break,
                            other => panic!("{other:?}"),
                        }
                    }
                    guest.end(id, &Event::Done { bytes: file.len() as u64 });
                }
                Request::ReadFile { .. } => {
                    guest.event(id, &Event::File(info("f", file.len() as u64)));
                    let mut sent = 0;
                    while sent < file.len() {
                        sent += guest.data(id, Channel::File, &file[sent..]);
                        if sent < file.len() {
                            assert!(matches!(guest.next()?, Incoming::Writable(..)));
                        }
                    }
                    guest.mux.eof(id, Channel::File);
                    guest.end(id, &Event::Done { bytes: file.len() as u64 });
                }
                Request::List { .. } => {
                    guest.event(id, &Event::Entries(vec![info("a", 1)]));
                    guest.event(id, &Event::Entries(vec![info("b", 2)]));
                    guest.end(id, &Event::Done { bytes: 0 });
                }
                Request::Stat { .. } => guest.end(id, &Event::File(info("a", 1))),
                Request::Stats => {
                    guest.end(id, &Event::Stats(Stats { user_processes: 3, ..Stats::default() }));
                }
                Request::IdleOutput { context: 0 } => {
                    guest.data(id, Channel::Stdout, b"out");
                    guest.data(id, Channel::Stderr, b"err");
                    guest.event(id, &Event::Omitted { stderr: true, bytes: 4 });
                    guest.end(id, &Event::Done { bytes: 6 });
                }
                Request::Rename { .. } | Request::MakeDir { .. } => guest.end(id, &Event::Done { bytes: 0 }),
                _ => {
                    let failure = Failure { code: FailureCode::NotFound, message: "there is none".into() };
                    guest.end(id, &Event::Failed(failure));
                }
            }
        }
    })
}

#[test]
fn files_of_any_size_come_back_as_they_went() {
    let backend = store();
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let window = WINDOW as usize;
        for size in [0, 1, 65_535, 65_536, 65_537, window - 1, window, window + 1, 5_000_000] {
            let content: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
            assert_eq!(sandbox.write_file("f", 0o600, &content[..]).await.unwrap(), size as u64);
            let mut back = Vec::new();
            assert_eq!(sandbox.read_file("f", &mut back).await.unwrap(), size as u64);
            assert!(back == content, "{size} bytes");
        }
    });
}

#[test]
fn the_small_operations() {
    let backend = store();
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        assert_eq!(sandbox.list(".").await.unwrap(), [info("a", 1), info("b", 2)]);
        assert_eq!(sandbox.stat("a").await.unwrap(), info("a", 1));
        assert_eq!(sandbox.stats().await.unwrap().user_processes, 3);
        sandbox.rename("a", "b").await.unwrap();
        sandbox.make_dir("d").await.unwrap();
        let idle = sandbox.idle_output(0).await.unwrap();
        assert_eq!((&idle.stdout[..], &idle.stderr[..]), (&b"out"[..], &b"err"[..]));
        assert_eq!((idle.stdout_omitted, idle.stderr_omitted), (0, 4));
        for error in [
            sandbox.remove("x").await.unwrap_err(),
            sandbox.close_context(9).await.unwrap_err(),
            sandbox.idle_output(9).await.unwrap_err(),
        ] {
            assert_eq!((error.code(), error.to_string().as_str()), ("not_found", "there is none"));
        }
    });
}

/// Gives some bytes, then an error or nothing for ever.
struct Broken {
    left: usize,
    fails: bool,
}

impl AsyncRead for Broken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return if self.fails { Poll::Ready(Err(io::Error::other("broken"))) } else { Poll::Pending };
        }
        let size = self.left.min(buffer.remaining());
        buffer.put_slice(&vec![1; size]);
        self.left -= size;
        Poll::Ready(Ok(()))
    }
}

#[test]
fn an_upload_whose_source_breaks_is_abandoned_and_confirmed() {
    let (report, saw) = mpsc::channel();
    let backend = FakeBackend::new(move |mut guest| {
        guest.meet()?;
        loop {
            match guest.next()? {
                Incoming::Reset(id) => {
                    report.send(()).unwrap();
                    guest.close(id);
                }
                Incoming::Eof(..) => panic!("an end that makes the file complete"),
                _ => {}
            }
        }
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        // More than the outbox takes, so that it breaks when the guest has the beginning.
        let source = Broken { left: 400_000, fails: true };
        let error = sandbox.write_file("f", 0o600, source).await.unwrap_err();
        assert_eq!(error.code(), "io");
        assert_eq!(saw.try_iter().count(), 1, "the guest had cleaned up when the call returned");
    });
}

#[test]
fn a_refusal_ends_an_upload_whose_source_still_waits() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        let failure = Failure { code: FailureCode::NoSpace, message: "no room".into() };
        guest.end(id, &Event::Failed(failure));
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        // One source that has no more for now, one that has far more than the guest will take.
        let error = sandbox.write_file("f", 0o600, Broken { left: 10, fails: false }).await.unwrap_err();
        assert_eq!(error.code(), "no_space");
    });
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        let mut got = 0;
        while got < WINDOW as usize {
            if let Incoming::Data(_, _, bytes) = guest.next()? {
                got += bytes.len();
            }
        }
        let failure = Failure { code: FailureCode::NoSpace, message: "no room".into() };
        guest.end(id, &Event::Failed(failure));
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let sandbox = create(&engine).await;
        let endless = tokio::io::repeat(1).take(1 << 40);
        assert_eq!(sandbox.write_file("f", 0o600, endless).await.unwrap_err().code(), "no_space");
    });
}

#[test]
fn a_download_that_is_shorter_than_the_guest_says_is_an_error() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        let (id, _) = guest.open()?;
        guest.event(id, &Event::File(info("f", 4)));
        guest.data(id, Channel::File, b"abc");
        guest.end(id, &Event::Done { bytes: 4 });
        guest.idle()
    });
    let engine = backend.engine();
    block_on(&engine, async {
        let mut got = Vec::new();
        let error = create(&engine).await.read_file("f", &mut got).await.unwrap_err();
        assert_eq!(error.code(), "protocol");
    });
}
