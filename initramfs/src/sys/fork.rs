//! Making processes: fork, fork straight into a cgroup, exec, new namespaces.

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// linux/sched.h; libc's constant of that name does not fit its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The process that called, with the child's id in its own PID namespace.
    Parent(Pid),
    /// The new process.
    Child,
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `fork()` by libc, for children that go on running this program.
///
/// # Errors
/// The kernel's errno.
pub fn fork() -> Result<Side, Errno> {
    // SAFETY: the agent has one thread, so the child inherits no lock that a lost thread holds.
    match unsafe { libc::fork() } {
        -1 => Err(errno()),
        0 => Ok(Side::Child),
        pid => Pid::from_raw(pid).map(Side::Parent).ok_or(Errno::IO),
    }
}

/// A fork whose child begins its life in `cgroup` (a directory of the cgroup file system), for
/// children that exec soon. Without a cgroup it is [`fork`].
///
/// `CLONE_INTO_CGROUP` spares the child a migration, which waits for an RCU grace period.
///
/// # Errors
/// The kernel's errno; `EAGAIN` when the cgroup's `pids.max` is reached.
pub fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> Result<Side, Errno> {
    let Some(cgroup) = cgroup else {
        return fork();
    };
    // SAFETY: an all-zero clone_args is valid: it asks for nothing.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    // SAFETY: clone3 without CLONE_VM and without a stack behaves like fork: the child runs on a copy
    // of this stack. libc's own fork handlers are bypassed, which matters to programs with threads or
    // atfork handlers; the agent has neither, and the child only makes system calls until it execs.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(errno()),
        0 => Ok(Side::Child),
        pid => i32::try_from(pid).ok().and_then(Pid::from_raw).map(Side::Parent).ok_or(Errno::IO),
    }
}

/// Replaces this process by a program. Returns only on failure.
pub fn exec(path: &CString, argv: &[CString], env: &[CString]) -> Errno {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end with a null pointer and hold pointers to NUL-terminated strings that
    // outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    errno()
}

/// Ends this process at once, without running destructors or exit handlers: for children of a fork,
/// which must not flush or undo anything of their parent's.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit takes any status and does not return.
    unsafe { libc::_exit(status) }
}

/// Makes later children live in a new PID namespace; the first of them becomes its process 1.
///
/// # Errors
/// The kernel's errno.
pub fn new_pid_namespace_for_children() -> Result<(), Errno> {
    // SAFETY: rustix calls unshare unsafe for CLONE_FILES alone, which is not asked for.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWPID) }
}

/// Gives this process a mount namespace of its own.
///
/// # Errors
/// The kernel's errno.
pub fn new_mount_namespace() -> Result<(), Errno> {
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
}

/// Closes every descriptor from `first` on.
pub fn close_from(first: u32) {
    // SAFETY: the callers are children of a fork that keep no owner of a descriptor in that range:
    // they never return to the parent's code.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0u32) };
}

/// Closes every descriptor but the given one, which comes back under the number 3.
///
/// For children of a fork that keep nothing of their parent's: whatever else still owns a descriptor in their memory must
/// not be used, nor dropped, afterwards.
///
/// # Errors
/// The kernel's errno.
pub fn keep_only(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let kept = if fd.as_raw_fd() == 3 {
        fd
    } else {
        // SAFETY: the number is open, and whoever owned 3 in the parent's code is never used again.
        let three = unsafe { libc::dup3(fd.as_raw_fd(), 3, libc::O_CLOEXEC) };
        if three < 0 {
            return Err(errno());
        }
        // Closed below with all the others.
        std::mem::forget(fd);
        // SAFETY: dup3 just made it, and nobody else owns it now.
        unsafe { OwnedFd::from_raw_fd(three) }
    };
    close_from(4);
    Ok(kept)
}

/// Marks every descriptor from `first` on close-on-exec.
pub fn close_on_exec_from(first: u32) {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: changes descriptor flags only; no memory is touched.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) };
}

/// Puts `source` over the descriptor numbered `target`, which stays open across exec.
///
/// # Errors
/// The kernel's errno.
pub fn put_over(source: BorrowedFd<'_>, target: i32) -> Result<(), Errno> {
    if source.as_raw_fd() == target {
        // dup2 onto itself would leave close-on-exec set.
        return rustix::io::fcntl_setfd(source, rustix::io::FdFlags::empty());
    }
    // SAFETY: the callers are children of a fork that exec or keep only raw numbers: replacing
    // 0, 1 or 2 invalidates no owner.
    if unsafe { libc::dup2(source.as_raw_fd(), target) } < 0 { Err(errno()) } else { Ok(()) }
}
