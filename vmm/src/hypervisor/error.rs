//! What can go wrong in a hypervisor.

use std::io;

/// Why a call of the seam failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HypervisorError {
    /// The hypervisor's device cannot be opened; [`probe`](super::probe) says what that means and what to do.
    #[error("{device} cannot be opened: {source}")]
    NotOpened {
        /// Its path.
        device: String,
        /// What `open` said.
        source: io::Error,
    },
    /// A call of the hypervisor failed.
    #[error("{call}: {source}")]
    Call {
        /// Its name, as the hypervisor's documentation has it.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The hypervisor cannot do something that is needed.
    #[error("this hypervisor lacks {what}")]
    Lacks {
        /// What.
        what: &'static str,
    },
    /// A region of memory cannot be given to the guest.
    #[error("memory slot {slot} at {guest_address:#x}: {what}")]
    Memory {
        /// The slot.
        slot: u32,
        /// The guest-physical address.
        guest_address: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Other code in this process handles the signal that interrupts virtual CPUs.
    #[error(
        "signal {signal}, which hayfork interrupts virtual CPUs with, is handled by other code in this process"
    )]
    KickSignalTaken {
        /// Its number.
        signal: i32,
    },
    /// The guest's memory cannot be reached: its mapping is gone, or the file behind it is shorter than it was.
    #[error("the guest's memory{} cannot be accessed", address.map(|a| format!(" at {a:#x}")).unwrap_or_default())]
    GuestMemoryGone {
        /// The guest-physical address, where the hypervisor says it.
        address: Option<u64>,
    },
    /// A saved state is not one that this hypervisor can take.
    #[error("this state cannot be restored: {what}")]
    BadState {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The hypervisor refuses a model-specific register, and it does not have that value already.
    #[error("the hypervisor refuses the value {value:#x} for the model-specific register {index:#x}")]
    MsrRefused {
        /// The register.
        index: u32,
        /// The value.
        value: u64,
    },
}

impl HypervisorError {
    /// The operating system's error number, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::NotOpened { source, .. } | Self::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}
