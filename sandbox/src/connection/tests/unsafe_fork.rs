//! Handles in a child made by `fork`, which has none of the engine's threads.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::{block_on, create, python};
use crate::connection::fake_guest::FakeBackend;
use crate::{CommandOptions, Error, ExecuteOptions, RunEvent, StdinMode};

/// The result of a future that must not wait for anything.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn a_forked_child_is_told_and_touches_nothing() {
    let backend = FakeBackend::new(|mut guest| {
        guest.meet()?;
        while let Some((id, _)) = guest.open() {
            guest.finish(id);
        }
        None
    });
    let engine = backend.engine();
    let sandbox = block_on(&engine, create(&engine));
    let with_stdin = CommandOptions { stdin: StdinMode::Stream, ..CommandOptions::new(["cat"]) };
    let mut running = sandbox.command(with_stdin);
    let handle = running.handle();

    // SAFETY: the child calls only what is under test, which takes no lock that another thread may hold here, and
    // allocates, which the C library allows after a fork; then it exits.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let forked = |error: &Error| error.code() == "forked_process";
            let fine = forked(&at_once(engine.create(python())).unwrap_err())
                && forked(&engine.images().unwrap_err())
                && !at_once(engine.doctor()).usable
                && sandbox.is_closed()
                && sandbox.console_tail().is_empty()
                && forked(&at_once(sandbox.close()).unwrap_err())
                && forked(&at_once(sandbox.stats()).unwrap_err())
                && forked(&at_once(sandbox.execute(ExecuteOptions::new("x")).collect()).unwrap_err())
                && matches!(at_once(running.next()), Some(RunEvent::Failed(error)) if forked(&error))
                && forked(&at_once(handle.write_stdin(Bytes::from_static(b"x"))).unwrap_err());
            sandbox.interrupt();
            handle.kill();
            engine.shutdown();
            // Every handle but the image folder's, which is the parent's to remove.
            drop((running, handle, sandbox, engine.engine.clone()));
            // SAFETY: ends the process without the cleaning up that is the parent's.
            unsafe { nix::libc::_exit(i32::from(!fine)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    // The child's drops and kills did nothing here.
    block_on(&engine, async {
        running.collect().await.unwrap();
        sandbox.execute(ExecuteOptions::new("x")).collect().await.unwrap();
    });
}
