//! One virtual CPU's thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::control::{Control, Counters, Next};
use super::{End, EndCause, Exits, Flow};
use crate::hypervisor::{Exit, HypervisorError, Vcpu, Vm};

/// Whether a virtual CPU goes on.
enum Step {
    Continue,
    /// The virtual CPU came out of the guest with nothing in hand.
    Out,
}

/// Runs a virtual CPU until its machine ends.
pub(super) fn run<V: Vm, E: Exits>(
    control: &Control<V>,
    index: u8,
    vcpu: &mut V::Vcpu,
    exits: &E,
    counters: &Counters,
) {
    // A panic must not leave the others waiting for this thread.
    let result = catch_unwind(AssertUnwindSafe(|| run_until_end(control, index, vcpu, exits, counters)));
    let cause = match result {
        Ok(None) => return,
        Ok(Some(cause)) => cause,
        Err(panic) => EndCause::Panicked { message: message_of(&*panic) },
    };
    control.end(End { vcpu: Some(index), cause, program_counter: vcpu.program_counter().ok() });
}

/// The state machine of the [module above](super). The cause if this virtual CPU ends the machine, `None` if another or the
/// owner has.
fn run_until_end<V: Vm, E: Exits>(
    control: &Control<V>,
    index: u8,
    vcpu: &mut V::Vcpu,
    exits: &E,
    counters: &Counters,
) -> Option<EndCause> {
    let mut has_run = false;
    let mut was_parked = false;
    loop {
        match control.park(index, was_parked) {
            Next::Leave => return None,
            Next::Job(job) => {
                job(index, vcpu);
                was_parked = true;
            }
            Next::Run => {
                was_parked = false;
                if has_run {
                    // A courtesy to the guest's watchdogs, which at worst complain.
                    let _ = vcpu.tell_paused();
                }
                has_run = true;
                if let Some(cause) = in_guest(control, vcpu, exits, counters) {
                    return Some(cause);
                }
            }
        }
    }
}

/// Executes the guest until the owner wants something else, and finishes what is half done then.
fn in_guest<V: Vm, E: Exits>(
    control: &Control<V>,
    vcpu: &mut V::Vcpu,
    exits: &E,
    counters: &Counters,
) -> Option<EndCause> {
    loop {
        match step(vcpu.run(), exits, counters) {
            Ok(Step::Continue) => {}
            Ok(Step::Out) if control.wants_run() => {}
            Ok(Step::Out) => break,
            Err(cause) => return Some(cause),
        }
    }
    // A kick mostly finds the last access finished. If it did not, or the access has further parts, that is done now.
    loop {
        match step(vcpu.settle(), exits, counters) {
            Ok(Step::Continue) => {}
            Ok(Step::Out) => return None,
            Err(cause) => return Some(cause),
        }
    }
}

/// Handles one exit.
fn step<E: Exits>(
    exit: Result<Exit<'_>, HypervisorError>,
    exits: &E,
    counters: &Counters,
) -> Result<Step, EndCause> {
    let exit = exit.map_err(EndCause::Failed)?;
    Counters::count(match &exit {
        Exit::MmioRead { .. } | Exit::MmioWrite { .. } => &counters.mmio,
        Exit::PortIn { .. } | Exit::PortOut { .. } => &counters.ports,
        _ => &counters.others,
    });
    let flow = match exit {
        Exit::MmioRead { addr, data } => exits.mmio_read(addr, data),
        Exit::MmioWrite { addr, data } => exits.mmio_write(addr, data),
        Exit::PortIn { port, size, data } => match usize::from(size.max(1)) {
            size if data.len() == size => exits.port_in(port, data),
            size => exits.port_in_string(port, size, data),
        },
        Exit::PortOut { port, size, data } => match usize::from(size.max(1)) {
            size if data.len() == size => exits.port_out(port, data),
            size => exits.port_out_string(port, size, data),
        },
        Exit::Kicked => return Ok(Step::Out),
        Exit::Retry => return Ok(Step::Continue),
        Exit::Halt => return Err(EndCause::Halted),
        Exit::TripleFault => return Err(EndCause::TripleFault),
        Exit::SystemEvent { kind } => return Err(EndCause::SystemEvent(kind)),
        Exit::InternalError { suberror, data } => return Err(EndCause::InternalError { suberror, data }),
        Exit::FailedEntry { reason, cpu } => return Err(EndCause::FailedEntry { reason, cpu }),
        Exit::Other { reason } => return Err(EndCause::UnknownExit { reason }),
    };
    match flow {
        Flow::Continue(()) => Ok(Step::Continue),
        Flow::Break(cause) => Err(EndCause::Requested(cause)),
    }
}

/// What a panic said.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
