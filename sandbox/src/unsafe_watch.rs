//! The one unsafe step of this crate: registering a descriptor with the async runtime.
//!
//! tokio cannot know that a descriptor stays open while it is registered, so it asks the caller to promise that. Here
//! the watch owns the descriptor.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches `descriptor` for becoming readable. To be called inside the runtime.
///
/// # Errors
/// It cannot be polled (a regular file, for one), or the process may watch no more.
#[allow(unsafe_code)]
pub(crate) fn watch_readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor stays open and the same while registered: AsyncFd owns the OwnedFd, gives out no way to
    // replace it in this crate, and deregisters before it drops it.
    let watch = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    watch.map_err(Into::into)
}
