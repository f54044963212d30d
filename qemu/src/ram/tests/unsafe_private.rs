//! A private mapping of a file.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

pub(super) struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    pub(super) fn of(file: &File, len: usize) -> Self {
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self { at, len }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is that long, and borrowed with this.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference to it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
