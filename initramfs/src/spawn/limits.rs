//! Resource limits of user processes. Memory and processes are bounded by cgroups, not here.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: u64 = 1024 * 1024;

/// Sets the limits of the calling process.
pub(super) fn set() -> Result<(), Errno> {
    let both = |value| Rlimit { current: Some(value), maximum: Some(value) };
    let table = [
        (Resource::Core, both(0)),
        (Resource::Nofile, Rlimit { current: Some(1024), maximum: Some(4096) }),
        (Resource::Stack, Rlimit { current: Some(8 * MIB), maximum: Some(64 * MIB) }),
        (Resource::Memlock, both(8 * MIB)),
        (Resource::Sigpending, both(1024)),
        (Resource::Msgqueue, both(256 * 1024)),
        (Resource::Nice, both(0)),
        (Resource::Rtprio, both(0)),
    ];
    for (resource, limit) in table {
        setrlimit(resource, limit)?;
    }
    Ok(())
}
