//! What the tests do to their own process: signal handlers, and children made by `fork`.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Handles a signal, as other code of a process may.
extern "C" fn handler(_: libc::c_int) {}

/// Sets a handler for the signal, or its default action.
pub(crate) fn handle(signal: i32, is_handled: bool) {
    // SAFETY: all of its fields are integers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction =
        if is_handled { handler as extern "C" fn(libc::c_int) as libc::sighandler_t } else { libc::SIG_DFL };
    // SAFETY: the handler does nothing, and no signal of this kind is sent before it is taken away again.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Runs `child` in a child made by `fork` and gives its exit code; fails if it takes more than 10 seconds.
pub(crate) fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls only `child`, which may allocate (the C library allows that after a fork) and takes no lock
    // that another thread of the parent may hold, and leaves without running the parent's exit handlers.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: ends this process.
            unsafe { libc::_exit(code) }
        }
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        pid => {
            let mut status = 0;
            crate::machine::wait_until("the child", || {
                // SAFETY: `status` has room for the answer; the child is ours and nobody else waits for it.
                (unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) }) == pid
            });
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}
