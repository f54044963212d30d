//! How the virtual CPUs of a machine came to their end.

use super::StopCause;
use crate::hypervisor::{HypervisorError, SystemEvent};

/// The end of a machine's virtual CPUs: one for all of them, since none runs on when one has ended.
#[derive(Debug)]
pub struct End {
    /// The virtual CPU that ended first; `None` if it was the host's doing.
    pub vcpu: Option<u8>,
    /// Why.
    pub cause: EndCause,
    /// Where in the guest that was, if the hypervisor says.
    pub program_counter: Option<u64>,
}

/// Why virtual CPUs ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum EndCause {
    /// The host stopped them.
    Stopped,
    /// A handler of the guest's accesses did.
    Requested(StopCause),
    /// The guest's processor gave up.
    TripleFault,
    /// The guest asked the firmware that the hypervisor plays.
    SystemEvent(SystemEvent),
    /// The guest waits for interrupts, and there is no interrupt chip to send one.
    Halted,
    /// The hypervisor could not go on.
    InternalError {
        /// Its number for what it met.
        suberror: u32,
        /// What it added.
        data: Vec<u64>,
    },
    /// The processor refused the guest's state.
    FailedEntry {
        /// The hardware's reason.
        reason: u64,
        /// The host's processor.
        cpu: u32,
    },
    /// An exit that nobody asked for.
    UnknownExit {
        /// The hypervisor's number for it.
        reason: u32,
    },
    /// A call of the hypervisor failed.
    Failed(HypervisorError),
    /// A handler of the guest's accesses panicked.
    Panicked {
        /// What it said.
        message: String,
    },
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.cause {
            EndCause::Stopped => f.write_str("stopped by the host"),
            EndCause::Requested(StopCause::Reset) => f.write_str("the guest asked for a reset"),
            EndCause::Requested(StopCause::PowerOff) => f.write_str("the guest powered off"),
            EndCause::Requested(StopCause::Crash) => f.write_str("the guest reported a crash"),
            EndCause::Requested(StopCause::Other(why)) => f.write_str(why),
            EndCause::TripleFault => f.write_str("triple fault"),
            EndCause::SystemEvent(event) => write!(f, "system event: {event:?}"),
            EndCause::Halted => f.write_str("halted for good"),
            EndCause::InternalError { suberror: 1, data } => {
                write!(f, "the hypervisor cannot emulate an instruction of the guest ({data:x?})")
            }
            EndCause::InternalError { suberror, data } => {
                write!(f, "internal error {suberror} of the hypervisor ({data:x?})")
            }
            EndCause::FailedEntry { reason, cpu } => {
                write!(f, "the processor (number {cpu}) refuses to enter the guest: {reason:#x}")
            }
            EndCause::UnknownExit { reason } => {
                write!(f, "the hypervisor left the guest for reason {reason}")
            }
            EndCause::Failed(error) => error.fmt(f),
            EndCause::Panicked { message } => write!(f, "a device panicked: {message}"),
        }?;
        if let Some(vcpu) = self.vcpu {
            write!(f, ", virtual CPU {vcpu}")?;
        }
        if let Some(address) = self.program_counter {
            write!(f, ", at {address:#x}")?;
        }
        Ok(())
    }
}
