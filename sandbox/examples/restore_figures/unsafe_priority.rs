//! A thread that the others of its process do not interrupt.

#![allow(unsafe_code)]

use std::io;

/// Lets this thread go on until it waits, whoever else could run: it is of a real-time class from here on (sched(7)), and threads
/// that it starts are not. For a machine that is nobody else's, like the nested rig's.
///
/// # Errors
/// The kernel does not allow it.
pub(crate) fn first() -> io::Result<()> {
    #[repr(C)]
    struct Parameters {
        priority: libc::c_int,
    }
    let parameters = Parameters { priority: 1 };
    // musl's function of that name refuses in any case.
    // SAFETY: the kernel reads the parameters, which live until it returns; 0 is this thread.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const parameters,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
