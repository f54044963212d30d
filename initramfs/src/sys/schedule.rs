//! Who runs when several may, and how long: scheduling policies of processes, sched(7).

use rustix::io::Errno;

/// How the kernel chooses between this process and others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// As every process, but one that runs has [`SLICE_NS`] until another one's turn comes.
    Normal,
    /// Its share of the processor is the same, but to be woken is no reason to interrupt the process that runs.
    Batch,
}

/// Of processes that run user code, in nanoseconds: as long as the kernel's tick, which is when others get their turn at the latest.
/// The kernel's own measure, 0.75 ms on one processor, ends in the middle of an interpreter's short piece of work.
const SLICE_NS: u64 = 4_000_000;

/// `struct sched_attr` of linux/sched/types.h in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Of a normal process, its slice (Linux 6.12).
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Sets the calling process's policy, and its nice value. Its children inherit both.
///
/// # Errors
/// The kernel's errno.
pub fn set(policy: Policy, nice: i32) -> Result<(), Errno> {
    let (number, runtime) = match policy {
        Policy::Normal => (libc::SCHED_OTHER, SLICE_NS),
        Policy::Batch => (libc::SCHED_BATCH, 0),
    };
    let attributes = Attributes {
        size: u32::try_from(size_of::<Attributes>()).unwrap_or_default(),
        policy: number.unsigned_abs(),
        nice,
        runtime,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads `size` bytes behind the pointer, which is the whole of a struct that outlives the call.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current() -> Attributes {
        let mut found = Attributes::default();
        let size = u32::try_from(size_of::<Attributes>()).unwrap();
        // SAFETY: the kernel writes at most `size` bytes behind the pointer.
        assert_eq!(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, size, 0) }, 0);
        found
    }

    #[test]
    fn a_policy_is_set_and_set_back() {
        // Of this test's thread alone, which is all that the kernel means by "the calling process".
        set(Policy::Batch, 5).unwrap();
        let batch = current();
        assert_eq!((batch.policy, batch.nice), (libc::SCHED_BATCH.unsigned_abs(), 5));
        set(Policy::Normal, 5).unwrap();
        let normal = current();
        assert_eq!((normal.policy, normal.nice), (libc::SCHED_OTHER.unsigned_abs(), 5));
        // Older kernels know no slices, and say 0.
        assert!([0, SLICE_NS].contains(&normal.runtime), "{}", normal.runtime);
    }
}
