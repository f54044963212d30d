//! The unsafe steps around starting a process: what the child does between fork and exec, and signal masks.
//!
//! Between fork and exec the child of a program with many threads may only call what is async-signal-safe: no
//! allocation, no lock. Everything it needs is therefore prepared before the fork.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, getppid, setrlimit, setsid};

/// Makes the child of `command`
/// * the leader of a session of its own, so that Ctrl-C in the user's terminal is not for it,
/// * die by SIGKILL when the thread that started it ends, which is when this process ends (see [`super::spawn`]),
/// * start with no signal blocked,
/// * inherit no descriptor but the three standard ones and `keep`, whatever this process has open,
/// * leave no core file, which would hold the memory of a guest.
///
/// To be called in the process that starts the child, since the child checks that it is still its parent. The
/// descriptors in `keep` must stay open until the child has been started; they keep their numbers.
pub(super) fn prepare(command: &mut Command, keep: Vec<RawFd>) {
    let parent = rustix::process::getpid();
    // SAFETY: the closure runs between fork and exec. It makes system calls only and touches memory that was allocated
    // before the fork; making an io::Error from an errno does not allocate.
    unsafe {
        command.pre_exec(move || in_child(parent, &keep));
    }
}

/// The closure of [`prepare`].
fn in_child(parent: Pid, keep: &[RawFd]) -> io::Result<()> {
    setsid()?;
    // The standard library hands on the mask of the thread that starts the process, and ours blocks everything.
    set_mask(libc::sigemptyset);
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above took effect; then this is the child of somebody else by now.
    if getppid() != Some(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // ENOSYS and the like cannot happen to RLIMIT_CORE; if they did, a core file would be no reason not to run.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    close_on_exec_from(3);
    for &fd in keep {
        // SAFETY: F_SETFD takes an integer and touches no memory; the number is that of an open descriptor.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Marks every descriptor from `first` on close-on-exec. They are not closed here, since the standard library has one
/// through which it reports a failed exec.
fn close_on_exec_from(first: RawFd) {
    // SAFETY: close_range takes three integers and touches no memory.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return;
    }
    // Linux before 5.11 does not know the flag or the call: one by one, up to the highest number possible.
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    for fd in first..RawFd::try_from(limit).unwrap_or(RawFd::MAX) {
        // SAFETY: F_SETFD takes an integer and touches no memory; a number that is not open gives EBADF.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Blocks every signal in the calling thread, so that the handlers of the program that hayfork lives in never run there.
pub fn block_signals() {
    set_mask(libc::sigfillset);
}

/// Sets the calling thread's signal mask to the one that `fill` makes. Async-signal-safe.
fn set_mask(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> libc::c_int) {
    let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset and sigemptyset initialise the set they are given; pthread_sigmask reads it and, with a null
    // third argument, writes nothing. It concerns the calling thread only.
    unsafe {
        fill(mask.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
    }
}
