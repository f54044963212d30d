//! Memory whose pages are mapped one by one as they are touched, so that it can be told which were.
//!
//! A page fault in a mapping of a file brings the pages around it as well, up to 16. Not where userfaultfd watches (Linux,
//! `uffd_disable_fault_around`), even if it watches for nothing that ever happens: write protection, of which there is none
//! here. So this registers ranges for it, takes no notice ever, and gets page-wise faults. An unprivileged process may do so
//! (UFFD_USER_MODE_ONLY), unless a container's filter forbids the call.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use vm_memory::{GuestMemoryRegion, GuestRegionMmap};

/// Watches memory of this process; it does so until it is dropped.
#[derive(Debug)]
pub(super) struct Observer {
    _fd: OwnedFd,
}

/// linux/userfaultfd.h.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xaa;
/// Write protection of pages that a file is behind, and of pages that are not there.
const UFFD_FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const UFFDIO_REGISTER_MODE_WP: u64 = 2;
/// `_IOWR(0xaa, 0x3f, struct uffdio_api)`
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// `_IOWR(0xaa, 0x00, struct uffdio_register)`
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;

#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Observer {
    /// Has the pages of these regions mapped one by one.
    ///
    /// # Errors
    /// The kernel has no such thing (before 5.19), or does not let this process use it.
    pub(super) fn of<'a>(regions: impl IntoIterator<Item = &'a GuestRegionMmap>) -> io::Result<Self> {
        // SAFETY: The call takes flags only, and makes a descriptor.
        let fd = check(unsafe {
            libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY)
        })?;
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: The descriptor was just made, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = Api { version: UFFD_API, features: UFFD_FEATURE_WP_HUGETLBFS_SHMEM, ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes one such structure.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &raw mut api) }.into())?;
        for region in regions {
            let mut register = Register {
                start: region.as_ptr() as u64,
                len: region.len(),
                mode: UFFDIO_REGISTER_MODE_WP,
                ioctls: 0,
            };
            // SAFETY: UFFDIO_REGISTER reads and writes one such structure. The range is the region's own mapping; no page of
            // it is ever write-protected, so no access to it waits for anybody.
            check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) }.into())?;
        }
        Ok(Self { _fd: fd })
    }
}
