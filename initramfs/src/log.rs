//! Messages for the host's console, through the kernel's log.
//!
//! `/dev/kmsg` puts them on the console with everything else the kernel says, in order, and rate-limits them. With
//! `quiet` on the command line only errors and worse reach the console. Before `/dev` is mounted, and in tests on a
//! development machine, messages go to standard error.

use std::fmt::Arguments;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest message; the kernel cuts records at about 1,000 bytes.
const MAX_MESSAGE: usize = 900;

static KMSG: OnceLock<File> = OnceLock::new();

/// Set in children whose descriptor for the log is closed; its number may mean something else by then.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Kernel log levels that the agent uses (syslog numbering).
#[derive(Debug, Clone, Copy)]
pub enum Level {
    /// The agent cannot go on.
    Critical = 2,
    /// Something failed that should not have.
    Error = 3,
    /// Worth a look; the agent works on. Not on the console under `quiet`.
    Warning = 4,
    /// Progress; not on the console under `quiet`.
    Info = 6,
}

/// Sends later messages to `/dev/kmsg`; call once it exists.
pub fn use_kernel_log() {
    if let Ok(file) = OpenOptions::new().write(true).open("/dev/kmsg") {
        // A second call keeps the first file, which is as good.
        let _ = KMSG.set(file);
    }
}

/// Drops later messages of this process.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Writes one message. Failures are ignored: there is no better place to report them.
pub fn write(level: Level, message: Arguments<'_>) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    let mut line = format!("<{}>hayfork: {message}", level as u8);
    if line.len() > MAX_MESSAGE {
        let mut end = MAX_MESSAGE;
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
    }
    match KMSG.get() {
        // One write is one record.
        Some(mut kmsg) => {
            let _ = kmsg.write_all(line.as_bytes());
        }
        None => {
            let _ = writeln!(std::io::stderr(), "{}", &line[3..]);
        }
    }
}

/// Logs at [`Level::Info`].
#[macro_export]
macro_rules! info {
    ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!($($arg)*)) };
}

/// Logs at [`Level::Warning`].
#[macro_export]
macro_rules! warning {
    ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Warning, format_args!($($arg)*)) };
}

/// Logs at [`Level::Error`].
#[macro_export]
macro_rules! error {
    ($($arg:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($arg)*)) };
}
