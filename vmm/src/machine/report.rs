//! What is told of a machine's end.

use super::console::Console;
use crate::backend::{ExitKind, ExitReport, ProcessStatus};
use crate::hypervisor::SystemEvent;
use crate::vcpu::{End, EndCause, StopCause};

/// The report of a machine whose processors have come to `end`. `killed`: its owner had stopped it by then.
///
/// A kernel that panics resets the machine, or cannot even do that: its last words on the console tell.
pub(super) fn report(end: &End, killed: bool, console: &Console) -> ExitReport {
    let panic = console.heard().panic;
    let kind = match &end.cause {
        _ if killed => ExitKind::Killed,
        EndCause::Stopped => ExitKind::Killed,
        _ if panic => ExitKind::Panic,
        EndCause::Requested(StopCause::Reset | StopCause::PowerOff)
        | EndCause::SystemEvent(SystemEvent::Shutdown | SystemEvent::Reset) => ExitKind::PowerOff,
        _ => ExitKind::Crashed,
    };
    ExitReport {
        kind,
        status: ProcessStatus::None,
        console_tail: console.tail(),
        stderr_tail: if kind == ExitKind::Crashed { end.to_string() } else { String::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart() {
        const PANIC: &[u8] = b"[    0.1] Kernel panic - not syncing: no init\n";
        let reset = || EndCause::Requested(StopCause::Reset);
        for (said, killed, cause, kind) in [
            (&b"bye\n"[..], false, reset(), ExitKind::PowerOff),
            (b"", false, EndCause::SystemEvent(SystemEvent::Shutdown), ExitKind::PowerOff),
            (PANIC, false, reset(), ExitKind::Panic),
            (PANIC, false, EndCause::TripleFault, ExitKind::Panic),
            (b"", false, EndCause::TripleFault, ExitKind::Crashed),
            (b"", false, EndCause::InternalError { suberror: 1, data: vec![7] }, ExitKind::Crashed),
            (b"", false, EndCause::Requested(StopCause::Crash), ExitKind::Crashed),
            (PANIC, false, EndCause::Stopped, ExitKind::Killed),
            (b"", true, EndCause::TripleFault, ExitKind::Killed),
        ] {
            let console = Console::new(4096);
            console.push(said);
            let end = End { vcpu: Some(0), cause, program_counter: Some(0x1000) };
            let report = report(&end, killed, &console);
            assert_eq!(report.kind, kind, "{end}");
            assert_eq!(report.console_tail.as_bytes(), said);
            assert_eq!(report.stderr_tail.contains("virtual CPU 0, at 0x1000"), kind == ExitKind::Crashed);
        }
    }
}
