//! Threads that live in somebody else's process.
//!
//! The process may be a Python interpreter with its own ideas about signals: it expects them on the main thread, where they
//! interrupt system calls. So a thread of ours takes none: it is born with every signal blocked, and only a virtual CPU's
//! thread lets one through, the kick. The exceptions are those that a thread sends itself by a fault (SIGSEGV, SIGBUS,
//! SIGFPE, SIGILL): to block these is undefined (POSIX, `pthread_sigmask`), and takes the handlers that report crashes
//! (Rust's for a stack overflow, Python's faulthandler) their chance.

mod unsafe_signals;

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that takes no signals. Linux cuts names of more than 15 bytes.
///
/// # Errors
/// The process may have no more threads.
pub fn spawn<F>(builder: Builder, run: F) -> io::Result<JoinHandle<()>>
where
    F: FnOnce() + Send + 'static,
{
    // Blocked here, so that the thread starts with them blocked: doing it there would leave a gap at its start.
    let _blocked = unsafe_signals::block_all()?;
    builder.spawn(run)
}

#[cfg(test)]
mod tests;
