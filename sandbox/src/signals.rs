//! Threads of the engine take no signals: those are for the program that it lives in, which may be Python and runs
//! handlers wherever the kernel delivers. Signals that a thread causes by a fault of its own stay open, so that crash
//! handlers work.

use nix::sys::signal::{SigSet, Signal};

/// Blocks every signal in the calling thread, apart from those that faults raise.
pub(crate) fn block_all() {
    let mut signals = SigSet::all();
    for fault in
        [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGABRT, Signal::SIGTRAP]
    {
        signals.remove(fault);
    }
    if let Err(error) = signals.thread_block() {
        tracing::warn!(%error, "signals cannot be blocked");
    }
}
