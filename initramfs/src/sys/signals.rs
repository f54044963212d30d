//! Signals: the agent takes its own through a descriptor; children start with a clean slate.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// The signal that says that a child ended.
pub const CHILD: i32 = libc::SIGCHLD;

/// Signals that the agent waits for: children that ended, and the two that the kernel sends to
/// process 1 (Ctrl-Alt-Del and power failure).
const AWAITED: [libc::c_int; 4] = [libc::SIGCHLD, libc::SIGINT, libc::SIGTERM, libc::SIGPWR];

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Blocks the signals that the agent waits for and returns a non-blocking signalfd that delivers them.
///
/// # Errors
/// The kernel's errno.
pub fn descriptor() -> Result<OwnedFd, Errno> {
    // SAFETY: sigset_t is plain data and sigemptyset initialises it; the pointers are to locals.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in AWAITED {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    };
    // SAFETY: `set` is initialised; a null old set is allowed.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } < 0 {
        return Err(errno());
    }
    // SAFETY: `set` is initialised; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(errno());
    }
    // SAFETY: the kernel just returned it and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads the number of the next pending signal, or `None` if there is none.
pub fn next(descriptor: &OwnedFd) -> Option<i32> {
    // SAFETY: signalfd_siginfo is plain data for which all zeroes are valid.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer is a local of exactly `size` bytes.
    let got = unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut info).cast(), size) };
    (usize::try_from(got) == Ok(size)).then(|| i32::try_from(info.ssi_signo).unwrap_or(0))
}

/// The kernel's `struct sigaction`: handler, flags, restorer, mask. All zeroes stands for the default action.
#[repr(C)]
struct KernelAction([u64; 4]);

/// Gives every signal its default action and unblocks all, as a program expects to be started.
pub fn reset_for_exec() {
    let default = KernelAction([0; 4]);
    for signal in 1..=64 {
        // The C library's own call refuses the signals that it keeps for itself, which may have been inherited as ignored.
        // SAFETY: the action is a whole kernel sigaction, the old one is not asked for, and 8 is the size of the kernel's
        // signal set. SIGKILL and SIGSTOP are refused without effect.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                std::ptr::null_mut::<u8>(),
                8usize,
            );
        }
    }
    // SAFETY: sigemptyset initialises the set before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Sends the numbered signal to a process group; a group that is gone already is fine.
pub fn signal_group(group: rustix::process::Pid, signal: i32) {
    // SAFETY: kill touches no memory; a wrong number is refused with EINVAL.
    unsafe { libc::kill(-group.as_raw_nonzero().get(), signal) };
}

/// Sleeps for ever while the kernel buries children by itself (an ignored SIGCHLD, waitpid(2)).
pub fn reap_for_ever() -> ! {
    // SAFETY: SIG_IGN is a valid action for SIGCHLD.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    loop {
        // SAFETY: pause only waits.
        unsafe { libc::pause() };
    }
}
