//! What the tests do to their own process: children made by `fork`.

#![allow(unsafe_code)]

use crate::guest::{BOOT_TIME, wait_until};

/// Runs `child` in a child made by `fork` and gives its exit code; fails if that takes long.
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
            wait_until(BOOT_TIME, "the end of the child", || {
                // SAFETY: `status` has room for the answer; the child is ours and nobody else waits for it.
                (unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) }) == pid
            });
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}
