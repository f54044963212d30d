//! Who runs when several may: scheduling policies of processes, sched(7).

use rustix::io::Errno;

/// How the kernel chooses between this process and others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// As every process.
    Normal,
    /// Its share of the processor is the same, but to be woken is no reason to interrupt the process that runs.
    Batch,
}

/// Sets the calling process's policy. Its children inherit it.
///
/// # Errors
/// The kernel's errno.
pub fn set(policy: Policy) -> Result<(), Errno> {
    let number = match policy {
        Policy::Normal => libc::SCHED_OTHER,
        Policy::Batch => libc::SCHED_BATCH,
    };
    // These policies know no other priority than 0. All of the kernel's struct sched_param is this number.
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads one int behind the pointer, which outlives the call. It is called directly because musl's
    // own function of that name only returns ENOSYS.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, number, &raw const priority) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> i64 {
        // SAFETY: the call takes no pointer.
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) }
    }

    #[test]
    fn a_policy_is_set_and_set_back() {
        // Of this test's thread alone, which is all that the kernel means by "the calling process".
        set(Policy::Batch).unwrap();
        assert_eq!(current(), i64::from(libc::SCHED_BATCH));
        set(Policy::Normal).unwrap();
        assert_eq!(current(), i64::from(libc::SCHED_OTHER));
    }
}
