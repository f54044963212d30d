//! What can be told without QEMU; the rest is in the crate's `tests/`.

use super::*;

const NOTHING: LastWords = LastWords { panic: false, reboot: false };
const PANIC: LastWords = LastWords { panic: true, reboot: false };
const REBOOT: LastWords = LastWords { panic: false, reboot: true };

#[test]
fn ends_are_told_apart() {
    use ExitKind::{Crashed, Killed, Panic, PowerOff};
    use ProcessStatus::{Code, Signal, Unknown};
    for (status, words, killed, kind) in [
        (Code(0), REBOOT, false, PowerOff),
        (Code(0), NOTHING, false, PowerOff),
        (Code(0), PANIC, false, Panic),
        // It ended by itself before the signal came.
        (Code(0), REBOOT, true, PowerOff),
        (Code(0), PANIC, true, Panic),
        (Code(1), NOTHING, false, Crashed),
        (Code(1), PANIC, false, Crashed),
        (Signal(9), NOTHING, true, Killed),
        (Signal(9), PANIC, true, Killed),
        // The host's out-of-memory killer.
        (Signal(9), NOTHING, false, Crashed),
        (Signal(11), NOTHING, false, Crashed),
        (Signal(11), NOTHING, true, Crashed),
        (Unknown, NOTHING, true, Killed),
        (Unknown, PANIC, false, Panic),
        (Unknown, REBOOT, false, PowerOff),
        (Unknown, NOTHING, false, Crashed),
    ] {
        assert_eq!(classify(status, words, killed), kind, "{status:?} {words:?} {killed}");
    }
}
