//! Landlock (Linux, Documentation/userspace-api/landlock.rst), as far as it takes to deny everything: a rule set without
//! rules.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// `struct landlock_ruleset_attr` of version 6.
#[repr(C)]
#[derive(Debug, Default)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

const CREATE_RULESET_VERSION: libc::c_uint = 1;

/// Every right to files that a version knows: the number of bits.
fn file_rights(version: u32) -> u32 {
    match version {
        0 | 1 => 13,
        2 => 14,     // LANDLOCK_ACCESS_FS_REFER
        3 | 4 => 15, // LANDLOCK_ACCESS_FS_TRUNCATE
        _ => 16,     // LANDLOCK_ACCESS_FS_IOCTL_DEV
    }
}

/// Denies this thread, and those that it makes, everything that Landlock can deny. Gives the kernel's version of Landlock; `None`
/// if it has none, has it switched off, or a filter of the process's surroundings keeps it from being asked.
pub(super) fn deny_all() -> io::Result<Option<u32>> {
    // SAFETY: with this flag the call takes no memory, and gives a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttributes>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    let Ok(version) = u32::try_from(version) else {
        let error = io::Error::last_os_error();
        return match Errno::from_io_error(&error) {
            // The last where a container's filter answers in the kernel's place: then there is none here.
            Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
            _ => Err(error),
        };
    };
    let attributes = RulesetAttributes {
        handled_access_fs: (1 << file_rights(version)) - 1,
        // Binding and connecting TCP.
        handled_access_net: if version >= 4 { 0b11 } else { 0 },
        // Abstract sockets and signals of others.
        scoped: if version >= 6 { 0b11 } else { 0 },
    };
    let size = match version {
        0..=3 => size_of::<u64>(),
        4..=5 => 2 * size_of::<u64>(),
        _ => size_of::<RulesetAttributes>(),
    };
    // SAFETY: the call reads `size` bytes of `attributes`, which has as many.
    let ruleset = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size, 0) };
    let ruleset = match i32::try_from(ruleset) {
        // SAFETY: the call has just made the descriptor, and nobody else knows it.
        Ok(number) if number >= 0 => unsafe { OwnedFd::from_raw_fd(number) },
        _ => return Err(io::Error::last_os_error()),
    };
    // SAFETY: the call takes two integers.
    if unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Some(version))
}
