//! Starts child processes that die with this process, SIGKILL included.
//!
//! Linux can send a child a signal when its parent dies (`PR_SET_PDEATHSIG`), but "parent" there means the *thread* that
//! forked: a child started from a thread of a pool is killed when the pool shrinks. So one thread does all the starting
//! and lives as long as the process does: it is made at the first use and waits for work for ever.
//!
//! A process made by `fork` without `exec` has a copy of the static below but not the thread; it gets a thread of its own
//! at its first use, told apart by the process id.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

use super::{Process, unsafe_setup};

/// What the thread is asked: start this, answer there.
type Request = (Command, SyncSender<io::Result<Process>>);

/// The thread of this process, with the id of the process that made it.
static SPAWNER: Mutex<Option<(u32, Sender<Request>)>> = Mutex::new(None);

/// Starts `command` with its standard output and error as pipes and nothing to read, so that it dies with this process. It
/// inherits the descriptors in `keep`, with their numbers, and no others.
///
/// # Errors
/// Why the process could not be started: the program is missing or not executable, or a limit was reached.
pub fn spawn(command: Command, keep: &[BorrowedFd<'_>]) -> io::Result<Process> {
    start(command, Stdio::null(), keep)
}

/// The same with `input` as its standard input, and no other descriptors.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with_input(command: Command, input: OwnedFd) -> io::Result<Process> {
    start(command, input.into(), &[])
}

fn start(mut command: Command, input: Stdio, keep: &[BorrowedFd<'_>]) -> io::Result<Process> {
    command.stdin(input);
    unsafe_setup::prepare(&mut command, keep.iter().map(AsRawFd::as_raw_fd).collect());
    let (answer, answered) = sync_channel(1);
    requests()?.send((command, answer)).map_err(|_| spawner_gone())?;
    answered.recv().map_err(|_| spawner_gone())?
}

/// The way to the spawner thread, which is started if this process has none.
fn requests() -> io::Result<Sender<Request>> {
    // The lock guards a plain assignment, so a panic cannot have left it half done.
    let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((owner, sender)) = &*spawner
        && *owner == process
    {
        return Ok(sender.clone());
    }
    let (sender, requests) = channel::<Request>();
    std::thread::Builder::new().name("hayfork-spawn".into()).stack_size(256 * 1024).spawn(move || {
        unsafe_setup::block_signals();
        for (command, answer) in requests {
            // If the one who asked has gone, its process is dropped here, and with that killed.
            let _ = answer.send(Process::start(command));
        }
    })?;
    *spawner = Some((process, sender.clone()));
    Ok(sender)
}

/// The thread never ends by itself, so this is for a panic in it.
fn spawner_gone() -> io::Error {
    io::Error::other("the thread that starts processes has ended")
}
