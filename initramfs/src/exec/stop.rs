//! The ladder from Ctrl-C to the end of everything, for executions and commands alike.
//!
//! ```text
//!  SIGINT to the process group ──5 s──► SIGTERM to all of the cgroup ──2 s──► cgroup.kill
//! ```
//! Whoever ends on a lower rung keeps what it has: an interpreter its state, a program its clean-up.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::Cgroup;
use crate::sys::signals::signal_group;

/// Time to yield to an interrupt. An interpreter that does so imports what it prints a traceback with first, which takes some
/// seconds where the CPU is translated; without that time, its state would be lost just there.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// Time for the handlers of SIGTERM.
const TERMINATE_GRACE: Duration = Duration::from_secs(2);

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// Why something is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its time is over.
    Timeout,
    /// The host abandoned its stream, or went away.
    Cancelled,
    /// The host ended it.
    Killed,
    /// It made the machine stand still for want of memory.
    OutOfMemory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rung {
    Interrupted,
    Terminated,
    Killed,
}

/// Who is stopped.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The process group of the driver or command.
    pub group: Pid,
    /// Everything that it started; `None` only in tests.
    pub cgroup: Option<&'a Cgroup>,
}

impl Target<'_> {
    /// As Ctrl-C.
    pub fn interrupt(&self) {
        signal_group(self.group, SIGINT);
    }

    /// Any signal.
    pub fn signal(&self, signal: i32) {
        signal_group(self.group, signal);
    }

    fn terminate(&self) {
        match self.cgroup {
            Some(cgroup) => {
                for pid in cgroup.processes() {
                    // One that is gone already is fine.
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            None => signal_group(self.group, 15),
        }
    }

    /// Ends everything at once.
    pub fn kill(&self) {
        match self.cgroup {
            Some(cgroup) => cgroup.kill(),
            None => signal_group(self.group, SIGKILL),
        }
    }
}

/// Where on the ladder something stands.
#[derive(Debug)]
pub struct Ladder {
    /// Why.
    pub reason: Reason,
    rung: Rung,
    next: Option<Instant>,
}

impl Ladder {
    /// Steps on the first rung.
    pub fn begin(reason: Reason, target: Target<'_>, now: Instant) -> Self {
        target.interrupt();
        Self { reason, rung: Rung::Interrupted, next: Some(now + INTERRUPT_GRACE) }
    }

    /// Goes straight to the top.
    pub fn kill(reason: Reason, target: Target<'_>) -> Self {
        target.kill();
        Self { reason, rung: Rung::Killed, next: None }
    }

    /// When [`Ladder::climb`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Goes one rung up if it is time.
    pub fn climb(&mut self, target: Target<'_>, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        (self.rung, self.next) = match self.rung {
            Rung::Interrupted => {
                target.terminate();
                (Rung::Terminated, Some(now + TERMINATE_GRACE))
            }
            Rung::Terminated | Rung::Killed => {
                target.kill();
                (Rung::Killed, None)
            }
        };
    }
}
