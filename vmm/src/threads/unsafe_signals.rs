//! The calling thread's signal mask.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Signals that a thread gets for a fault of its own.
const FAULTS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// All signals but those of faults are blocked on the thread that made this, until it is dropped.
pub(super) struct Blocked {
    before: libc::sigset_t,
    /// Not `Send`: the mask is a thread's.
    _thread: std::marker::PhantomData<*const ()>,
}

/// Blocks all signals but those of faults on the calling thread.
pub(super) fn block_all() -> io::Result<Blocked> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both are sets for the calls to write; `all` is filled before it is read. Numbers are of signals.
    let result = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in FAULTS {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
    };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    // SAFETY: the call succeeded, so it has written the set.
    let before = unsafe { before.assume_init() };
    Ok(Blocked { before, _thread: std::marker::PhantomData })
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: `before` is a set that the kernel gave for this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}
