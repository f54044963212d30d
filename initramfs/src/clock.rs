//! The machine's clocks.

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};

const NS: u64 = 1_000_000_000;

/// Nanoseconds since the kernel started, sleep included.
pub fn uptime_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs().saturating_mul(NS).saturating_add(time.tv_nsec.unsigned_abs())
}

/// Steps the wall clock. Monotonic time goes on undisturbed.
///
/// # Errors
/// The kernel's errno; EINVAL for a time before the guest's start, for instance.
pub fn set_wall_clock(ns: u64) -> Result<(), rustix::io::Errno> {
    let time = Timespec {
        tv_sec: (ns / NS).try_into().unwrap_or(i64::MAX),
        tv_nsec: (ns % NS).try_into().unwrap_or(0),
    };
    clock_settime(ClockId::Realtime, time)
}
