//! Feeding randomness into the kernel's pool.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// `RNDADDENTROPY`, `_IOW('R', 0x03, int [2])` of linux/random.h.
const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
/// `RNDRESEEDCRNG`, `_IO('R', 0x07)` of linux/random.h.
const RNDRESEEDCRNG: libc::c_ulong = 0x5207;

/// linux/random.h's `rand_pool_info` with room for 32 bytes.
#[repr(C)]
struct PoolInfo {
    entropy_count: libc::c_int,
    buf_size: libc::c_int,
    buf: [u8; 32],
}

fn check(result: libc::c_int) -> Result<(), Errno> {
    if result < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(())
    }
}

/// Mixes 32 random bytes into the pool, credits them in full, and makes the generator use them at
/// once.
///
/// # Errors
/// The kernel's errno. Needs CAP_SYS_ADMIN.
pub fn add(bytes: &[u8; 32]) -> Result<(), Errno> {
    let random = std::fs::File::open("/dev/urandom").map_err(|e| crate::error::errno_of(&e))?;
    let info = PoolInfo { entropy_count: 256, buf_size: 32, buf: *bytes };
    let fd = random.as_fd().as_raw_fd();
    // SAFETY: RNDADDENTROPY reads the two integers and then `buf_size` bytes behind them, all within
    // `info`.
    check(unsafe { libc::ioctl(fd, RNDADDENTROPY as _, &raw const info) })?;
    // SAFETY: RNDRESEEDCRNG takes no argument.
    check(unsafe { libc::ioctl(fd, RNDRESEEDCRNG as _) })
}
