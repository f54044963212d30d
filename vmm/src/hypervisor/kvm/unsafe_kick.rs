//! The kick signal: its handler, and sending it to the thread of a virtual CPU.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::hypervisor::HypervisorError;

/// Which real-time signal: counted from the first that the C library leaves free. The lowest ones are what most programs
/// take for themselves.
const SIGNAL_OFFSET: i32 = 10;

/// The signal's number.
pub(super) fn signal() -> i32 {
    libc::SIGRTMIN() + SIGNAL_OFFSET
}

/// Does nothing: that the system call ends is all.
extern "C" fn ignore(_: libc::c_int) {}

/// Sets the handler, unless it is there already.
pub(super) fn install() -> Result<(), HypervisorError> {
    /// Between looking and setting, no other thread of ours may do the same.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _guard = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let failed = || HypervisorError::Call { call: "sigaction", source: std::io::Error::last_os_error() };
    let signal = signal();
    let ours = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;

    let mut present = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; `present` has room for the answer.
    if unsafe { libc::sigaction(signal, ptr::null(), present.as_mut_ptr()) } != 0 {
        return Err(failed());
    }
    // SAFETY: zeroed is a valid value of it, and the call has filled it besides.
    let present = unsafe { present.assume_init() };
    if present.sa_sigaction == ours {
        return Ok(());
    }
    // Ignored counts as free: that is inherited from the process that started this one, and nobody's handler.
    if present.sa_sigaction != libc::SIG_DFL && present.sa_sigaction != libc::SIG_IGN {
        return Err(HypervisorError::KickSignalTaken { signal });
    }
    // SAFETY: all of its fields are integers, for which zero is a value: no flags, an empty mask.
    let mut wanted: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    wanted.sa_sigaction = ours;
    // On the alternate stack where a thread has one, since its own may be small (Go's are). No SA_RESTART: KVM_RUN is to
    // end.
    wanted.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler is a function of the right signature that does nothing, which is safe at any point of any
    // thread.
    if unsafe { libc::sigaction(signal, &raw const wanted, ptr::null_mut()) } != 0 {
        return Err(failed());
    }
    Ok(())
}

/// Lets the signal through to the calling thread, whatever else that blocks.
pub(super) fn unblock_on_this_thread() -> Result<(), HypervisorError> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `set` is a set for the calls to write, and initialised by the first before the others read it.
    let result = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        let source = std::io::Error::from_raw_os_error(result);
        Err(HypervisorError::Call { call: "pthread_sigmask", source })
    }
}

/// The thread that is to get the signal.
#[derive(Debug)]
pub(super) struct Target(Mutex<Option<libc::pid_t>>);

impl Target {
    /// The calling thread, until [`Self::clear`].
    pub(super) fn this_thread() -> Self {
        Self(Mutex::new(Some(rustix::thread::gettid().as_raw_nonzero().get())))
    }

    /// From here on there is nobody to signal. The lock makes sure of it: once this returns, no signal is under way to a
    /// thread number that may be somebody else's soon.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sends the signal.
    pub(super) fn send(&self) {
        if let Some(thread) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: no memory is involved. The thread is alive, see `clear`. In a child made by `fork` the process has
            // no such thread, and the call fails, which is right.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal()) };
        }
    }
}
