//! The hook that runs in a child.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::{FREE, TABLE};

/// What descriptors are replaced by; opened once and never closed.
static NOTHING: OnceLock<Option<File>> = OnceLock::new();

/// Installs the hook, once for the process and its children; false if that cannot be.
pub(super) fn install() -> bool {
    let nothing = NOTHING.get_or_init(|| {
        let file = File::open("/dev/null").ok()?;
        // SAFETY: the function may run in a child of a process with threads: it calls only what may be called there, and
        // lives as long as the process, since this library is never unloaded while it has machines.
        (unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0).then_some(file)
    });
    nothing.is_some()
}

/// Replaces every registered descriptor.
extern "C" fn in_child() {
    // No initialisation can be under way here: what is registered was so after it.
    let Some(Some(nothing)) = NOTHING.get() else { return };
    for place in &TABLE {
        let descriptor = place.swap(FREE, Ordering::SeqCst);
        if descriptor != FREE {
            replace(nothing.as_raw_fd(), descriptor);
        }
    }
}

fn replace(nothing: RawFd, descriptor: RawFd) {
    // SAFETY: a plain system call, which may be made here. The number belongs to an object that was inherited and is never used
    // again but to be closed; it stays one that can be.
    unsafe { libc::dup3(nothing, descriptor, libc::O_CLOEXEC) };
}
