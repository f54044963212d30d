//! What happens when the agent meets a fault of its own: a line on the console and the end of the guest, never a hang.
//!
//! The profile aborts on panic. Process 1 that aborts makes the kernel panic, and `panic=-1` reboots; this hook comes
//! before that, so that the reason is on the console and the guest ends in order. A child of a fork that still runs the
//! agent's code only ends itself.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::system::{RebootCommand, reboot};

use crate::log::Level;

static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// Tells the hook that this process is a child of the agent.
pub fn in_child() {
    IN_CHILD.store(true, Ordering::Relaxed);
}

/// Installs the hook.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        crate::log::write(Level::Critical, format_args!("fault in the agent: {info}"));
        if !IN_CHILD.load(Ordering::Relaxed) {
            restart();
        }
    }));
}

/// Ends the guest. QEMU runs with `-no-reboot`, and the monitor likewise takes a reset for the end, so
/// a restart is the way out that needs no ACPI.
pub fn restart() -> ! {
    rustix::fs::sync();
    // Only returns when refused; process 1 that then ends makes the kernel panic, which reboots too.
    let error = reboot(RebootCommand::Restart);
    crate::log::write(Level::Critical, format_args!("the kernel refused to restart: {error:?}"));
    crate::sys::fork::exit_now(1)
}
