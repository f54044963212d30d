//! What owner and worker say to each other.
//!
//! ```text
//!  owner                                            worker
//!    │  ◄──────────────────────────────── Hello      confined, waits for its machine
//!    │  Request::Launch | Request::Restore ──────►   with the worker's ends of the agent's stream and of the end
//!    │  ◄───────────────────────── Answer::Started
//!    │  Request::… ──────────────────────────────►   one at a time, each is answered
//!    │  ◄──────────────────────── Answer | Failed
//! ```
//! The socket for the end has one message, [`End`], and is closed by the worker's own end.
//!
//! All pairs of sockets are made by the owner. Who makes a pair has both ends in its hands, and may keep the other's: it could
//! then read what is meant for the other, or take `O_NONBLOCK` from a descriptor on which the owner's event loop relies. So a
//! worker sends descriptors with a template only, and these are not used before they are known as sealed memory.
//!
//! Neither trusts the other's lengths and numbers: messages are bounded by [`super::packet`], lists as they are read, and what
//! they hold is checked before it is used. The worker is the one that may be in a guest's hands.

use std::ops::Range;

use hayfork_devices::bounded::at_most;
use serde::{Deserialize, Deserializer, Serialize};

use crate::backend::{
    BackendError, ExitKind, ExitReport, HostMemory, MAX_COMMAND_LINE, MAX_CONSOLE_BYTES, MAX_MEMORY_MIB,
    MAX_VCPUS, ProcessStatus,
};
use crate::machine::MachineState;
use crate::memory::{MAX_LAYERS, end_of};

/// Most extents of an image: those of RAM of which every other page was written would be more, and are not made.
const MAX_EXTENTS: usize = 1 << 20;

/// The worker is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its version of hayfork: messages are those of one version only.
    pub version: String,
    /// What confines it.
    pub confinement: Confinement,
}

/// How far a worker is confined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// The version of Landlock that keeps it from files; `None` where the kernel has none.
    pub landlock: Option<u32>,
}

/// What the owner asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Make a machine and let it run. Descriptors: the device's end of the agent's stream, the worker's of
    /// the socket for the end, kernel, initramfs, and the root image if there is one.
    Launch(Launch),
    /// Make a machine that goes on where another stood. Descriptors: the same two ends, as many layers as are named,
    /// and the root image.
    Restore(Restore),
    /// [`Machine::console_tail`](crate::backend::Machine::console_tail)
    ConsoleTail,
    /// [`Machine::host_memory`](crate::backend::Machine::host_memory)
    HostMemory,
    /// [`Machine::capture`](crate::backend::Machine::capture)
    Capture,
    /// [`Machine::working_set`](crate::backend::Machine::working_set)
    WorkingSet,
}

/// A machine to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Bytes of RAM.
    pub ram: u64,
    /// Virtual CPUs.
    pub vcpus: u8,
    /// Where the kernel has content.
    #[serde(deserialize_with = "at_most::<MAX_EXTENTS, _, _>")]
    pub kernel: Vec<Range<u64>>,
    /// Its first instruction.
    pub kernel_entry: u64,
    /// Its end.
    pub kernel_end: u64,
    /// Where the initramfs has content.
    #[serde(deserialize_with = "at_most::<MAX_EXTENTS, _, _>")]
    pub initramfs: Vec<Range<u64>>,
    /// Bytes of the initramfs.
    pub initramfs_len: u64,
    /// Whether there is a root image.
    pub root: bool,
    /// Kernel parameters.
    pub command_line: String,
    /// Bytes of console output to keep.
    pub console_bytes: u64,
}

/// A machine at rest but for the content of its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Processors and devices.
    pub state: MachineState,
    /// Bytes of RAM.
    pub ram: u64,
    /// The layers of its memory, lowest first: where each has content.
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<Vec<Range<u64>>>,
    /// Whether there is a root image.
    pub root: bool,
    /// Bytes of console output to keep.
    pub console_bytes: u64,
}

/// One layer's extents.
#[derive(Deserialize)]
struct Extents(#[serde(deserialize_with = "at_most::<MAX_EXTENTS, _, _>")] Vec<Range<u64>>);

fn layers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<Range<u64>>>, D::Error> {
    let layers = at_most::<MAX_LAYERS, Extents, _>(deserializer)?;
    Ok(layers.into_iter().map(|layer| layer.0).collect())
}

/// A machine to be made of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restore {
    /// [`Saved`], as bytes: owners hand on what they got.
    pub saved: Vec<u8>,
    /// Pages to be made ahead.
    #[serde(deserialize_with = "at_most::<MAX_EXTENTS, _, _>")]
    pub working_set: Vec<Range<u64>>,
}

/// What the worker answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The machine runs.
    Started,
    /// The newest console output.
    ConsoleTail(String),
    /// Host memory, in bytes: overhead, guest, cached.
    HostMemory(Option<(u64, u64, u64)>),
    /// [`Saved`], as bytes. Descriptors: the layers, and the root image if there is one.
    Captured(Vec<u8>),
    /// Guest addresses.
    WorkingSet(#[serde(deserialize_with = "at_most::<MAX_EXTENTS, _, _>")] Vec<Range<u64>>),
    /// It failed.
    Failed(Failure),
}

/// An error of the worker's backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// [`BackendError::code`]
    pub code: String,
    /// What happened, with its causes.
    pub message: String,
    /// [`BackendError::remedy`]
    pub remedy: String,
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Why.
    pub kind: EndKind,
    /// [`ExitReport::console_tail`]
    pub console_tail: String,
    /// [`ExitReport::stderr_tail`]
    pub detail: String,
}

/// [`ExitKind`]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum EndKind {
    PowerOff,
    Panic,
    Killed,
    Crashed,
}

/// Something in a message is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("impossible: {0}")]
pub struct Impossible(pub &'static str);

fn check(holds: bool, what: &'static str) -> Result<(), Impossible> {
    if holds { Ok(()) } else { Err(Impossible(what)) }
}

fn check_ram(ram: u64) -> Result<(), Impossible> {
    let most = u64::from(MAX_MEMORY_MIB) << 20;
    check(ram > 0 && ram <= most && ram.is_multiple_of(crate::memory::PAGE), "bytes of memory")
}

fn check_console(bytes: u64) -> Result<(), Impossible> {
    check((1..=MAX_CONSOLE_BYTES as u64).contains(&bytes), "bytes of console output")
}

/// Ranges of whole pages, in order, below `end`.
fn check_ranges(ranges: &[Range<u64>], end: u64) -> Result<(), Impossible> {
    check(ranges.len() <= MAX_EXTENTS, "number of ranges")?;
    let mut last = 0;
    for range in ranges {
        let whole = [range.start, range.end].iter().all(|at| at.is_multiple_of(crate::memory::PAGE));
        check(
            whole && last <= range.start && range.start < range.end && range.end <= end,
            "ranges of pages",
        )?;
        last = range.end;
    }
    Ok(())
}

impl Launch {
    /// Checks everything that does not need the descriptors.
    ///
    /// # Errors
    /// [`Impossible`]
    pub fn validate(&self) -> Result<(), Impossible> {
        check_ram(self.ram)?;
        check((1..=MAX_VCPUS).contains(&self.vcpus), "virtual CPUs")?;
        check_ranges(&self.kernel, crate::boot::kernel::KERNEL_LIMIT)?;
        check(
            self.kernel_entry < self.kernel_end && self.kernel_end <= crate::boot::kernel::KERNEL_LIMIT,
            "the kernel's entry and end",
        )?;
        check_ranges(&self.initramfs, self.ram)?;
        check(self.initramfs_len <= self.ram, "bytes of the initramfs")?;
        check(self.command_line.len() <= 2 * MAX_COMMAND_LINE, "the kernel's parameters")?;
        check_console(self.console_bytes)
    }
}

impl Saved {
    /// Checks everything that does not need the descriptors; state is checked by the devices that take it.
    ///
    /// # Errors
    /// [`Impossible`]
    pub fn validate(&self) -> Result<(), Impossible> {
        check_ram(self.ram)?;
        self.state.check().map_err(Impossible)?;
        check((1..=MAX_LAYERS).contains(&self.layers.len()), "number of layers")?;
        self.layers.iter().try_for_each(|layer| check_ranges(layer, end_of(self.ram)))?;
        check_console(self.console_bytes)
    }
}

impl Restore {
    /// Checks the working set of a machine of that much RAM.
    ///
    /// # Errors
    /// [`Impossible`]
    pub fn validate(&self, ram: u64) -> Result<(), Impossible> {
        check_ranges(&self.working_set, end_of(ram))
    }
}

impl Answer {
    /// Checks what the owner would rely on, of a machine of that much RAM.
    ///
    /// # Errors
    /// [`Impossible`]
    pub fn validate(&self, ram: u64) -> Result<(), Impossible> {
        match self {
            Self::WorkingSet(ranges) => check_ranges(ranges, end_of(ram)),
            _ => Ok(()),
        }
    }
}

impl Failure {
    pub(super) fn of(error: &BackendError) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Some messages have their cause in them.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = error.source();
        }
        Self { code: error.code().to_owned(), message, remedy: error.remedy().into_owned() }
    }

    pub(super) fn into_error(self) -> BackendError {
        let show = |text: String| -> String {
            text.chars().filter(|c| !c.is_control() || *c == '\n').take(4000).collect()
        };
        BackendError::InWorker {
            code: BackendError::known_code(&self.code).unwrap_or("worker_failed"),
            message: show(self.message),
            remedy: show(self.remedy),
        }
    }
}

impl End {
    pub(super) fn of(report: ExitReport) -> Self {
        let kind = match report.kind {
            ExitKind::PowerOff => EndKind::PowerOff,
            ExitKind::Panic => EndKind::Panic,
            ExitKind::Killed => EndKind::Killed,
            ExitKind::Crashed => EndKind::Crashed,
        };
        Self { kind, console_tail: report.console_tail, detail: report.stderr_tail }
    }

    pub(super) fn into_report(self) -> ExitReport {
        let kind = match self.kind {
            EndKind::PowerOff => ExitKind::PowerOff,
            EndKind::Panic => ExitKind::Panic,
            EndKind::Killed => ExitKind::Killed,
            EndKind::Crashed => ExitKind::Crashed,
        };
        ExitReport {
            kind,
            // The process is there still: it is the machine that has ended.
            status: ProcessStatus::None,
            console_tail: safe(&self.console_tail),
            stderr_tail: safe(&self.detail),
        }
    }
}

/// Text from a worker, with nothing in it that a terminal would obey. An honest one has done that already.
pub(super) fn safe(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

pub(super) fn host_memory((overhead, guest, cached): (u64, u64, u64)) -> HostMemory {
    HostMemory { overhead, guest, cached }
}

#[cfg(test)]
mod tests;
