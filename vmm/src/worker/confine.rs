//! What a worker may still do once it is ready, which is next to nothing.
//!
//! | what | how |
//! |---|---|
//! | no file, device or socket can be opened or even looked at | no such call is [on the list](filter); Landlock without any rule, where the kernel has it |
//! | no program can be started, no process made or signalled | the list |
//! | no memory can be made executable | the list |
//! | no call of KVM but those that a machine takes | the list |
//! | no machine, processor or thread beyond those of the one machine | a [second list](filter::Stage::Running), when it runs |
//! | no rights | no new privileges; no capability, also where the owner is root |
//! | nobody else looks into it, and no core file | not dumpable |
//! | few descriptors, no locked memory, an address space not much larger than its guest, no file larger than its RAM | resource limits |
//!
//! A call that is not on the list ends the process by SIGSYS. What a worker needs of the outside is in its hands before: KVM,
//! two files of `/proc/self`, and its socket; everything else comes by that.

pub mod filter;
mod unsafe_landlock;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit, umask};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use self::filter::{FilterError, Stage};
use super::packet;
use super::wire::Confinement;
use crate::memory;

/// Descriptors that a worker may have: a machine of 8 processors takes some 50.
const DESCRIPTORS: u64 = 256;

/// Address space beside the guest's RAM: the program, the allocator's arenas (64 MiB for each thread, mostly not there),
/// stacks, and messages.
const ADDRESS_SPACE: u64 = 4 << 30;

/// Why a worker could not be confined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// A call failed.
    #[error("{what}: {source}")]
    Call {
        /// What was being done.
        what: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

fn failed<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> ConfineError {
    move |error| ConfineError::Call { what, source: error.into() }
}

/// What can be done before anything is open.
///
/// # Errors
/// The kernel refuses.
pub fn prepare() -> Result<(), ConfineError> {
    umask(rustix::fs::Mode::from_raw_mode(0o077));
    std::env::set_current_dir("/").map_err(failed("leaving the folder"))?;
    let limit = |resource, most: u64| {
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
            .map_err(failed("setting a resource limit"))
    };
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, DESCRIPTORS)?;
    limit(Resource::Memlock, 0)
}

/// Confines the process. Nothing can be opened afterwards.
///
/// # Errors
/// The kernel refuses a part of it. A kernel without Landlock is no error: the list alone keeps the worker from files.
pub fn confine() -> Result<Confinement, ConfineError> {
    let all = CapabilitySet::empty();
    let none = CapabilitySets { effective: all, permitted: all, inheritable: all };
    set_capabilities(None, none).map_err(failed("giving up capabilities"))?;
    set_no_new_privs(true).map_err(failed("giving up new privileges"))?;
    // After what is opened in /proc/self, which is nobody's to open from here on.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("becoming undumpable"))?;
    let landlock = unsafe_landlock::deny_all().map_err(failed("denying all files"))?;
    filter::apply(Stage::Making)?;
    Ok(Confinement { landlock })
}

/// Bounds the address space of a worker with a guest of that much RAM, and the length of its files. It has none but memory
/// without a name: a template as long as the RAM reaches, and messages. Whoever would write beyond that is ended (SIGXFSZ).
///
/// # Errors
/// The kernel refuses.
pub fn bound_memory(ram: u64) -> Result<(), ConfineError> {
    let bound = |resource, most| {
        let most = Some(most);
        setrlimit(resource, Rlimit { current: most, maximum: most }).map_err(failed("bounding memory"))
    };
    bound(Resource::Fsize, memory::end_of(ram).max(packet::MOST as u64))?;
    bound(Resource::As, ram.saturating_add(ADDRESS_SPACE))
}

/// The machine runs: takes away what only making it needed.
///
/// # Errors
/// The kernel refuses.
pub fn confine_running() -> Result<(), ConfineError> {
    Ok(filter::apply(Stage::Running)?)
}
