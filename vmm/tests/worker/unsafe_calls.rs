//! System calls by number, in children that are confined as workers are.

#![allow(unsafe_code)]

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Does `child` in a child made by `fork`, and gives how that ended. What comes back from it ends with code 0.
pub(crate) fn end_of_child(child: impl FnOnce()) -> ExitStatus {
    // SAFETY: the child allocates, which the C library allows after a fork, takes no lock that another thread of the parent may
    // hold, and leaves without running the parent's exit handlers.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: ends this process.
            unsafe { libc::_exit(if result.is_ok() { 0 } else { 99 }) }
        }
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        pid => {
            let mut status = 0;
            // SAFETY: `status` has room for the answer; the child is ours and nobody else waits for it.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!(waited, pid);
            ExitStatus::from_raw(status)
        }
    }
}

/// A system call with these arguments.
///
/// It is for calls that the kernel does not get to see, or that touch no memory of this process with such arguments.
pub(crate) fn call(number: i64, arguments: [u64; 6]) -> i64 {
    // SAFETY: in a child that ends right afterwards; see above.
    unsafe {
        libc::syscall(
            number,
            arguments[0],
            arguments[1],
            arguments[2],
            arguments[3],
            arguments[4],
            arguments[5],
        )
    }
}
