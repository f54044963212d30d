//! Typed messages: what the host asks for ([`Request`], [`Control`]) and what the guest reports
//! ([`Event`]), encoded with postcard.
//!
//! A stream is one operation. Its life, seen from the host:
//!
//! | Request | the host may send | the guest sends, in this order |
//! |---|---|---|
//! | `Execute` | stdin data, `Control` | `Started`, output data, `Bundle`, `Exception`, `Omitted`, `Finished` |
//! | `Command` | stdin data, `Control` | `Started`, output data, `Omitted`, `Finished` |
//! | `WriteFile` | file data, then its end | `Done` |
//! | `ReadFile` | credit | `File`, file data, its end, `Done` |
//! | `List` | | `Entries` (several), `Done` |
//! | `Stat` | | `File` |
//! | `MakeDir`, `Remove`, `Rename`, `CloseContext`, `Shutdown`, `Renew`, `SetClock` | | `Done` |
//! | `IdleOutput` | credit | output data, `Omitted`, `Done` |
//! | `Watch` | credit, `Control` | `Watching`, file data ([`crate::change`]), `Done` when there is nothing left to watch |
//! | `Stats` | | `Stats` |
//!
//! Every one of them may end with `Failed` instead. The guest closes the stream after the last
//! event; there is always exactly one of `Finished`, `Done`, `File` (of `Stat`), `Stats`, `Failed`.

use serde::{Deserialize, Serialize};

use crate::frame::Channel;

/// A language with a driver in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Language {
    /// CPython.
    Python,
    /// JavaScript and TypeScript.
    JavaScript,
    /// GNU bash.
    Shell,
}

impl Language {
    /// All languages.
    pub const ALL: [Self; 3] = [Self::Python, Self::JavaScript, Self::Shell];

    /// The name used in images, drivers and the public API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::Shell => "shell",
        }
    }

    /// The language of that [`Language::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.name() == name)
    }
}

/// What the guest keeps of an output stream that is longer than its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// The first bytes; the rest is read and dropped.
    Head,
    /// The first half of the bound as it comes, and the last half at the end.
    HeadAndTail,
}

/// Bound on one output stream of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputLimit {
    /// Bytes that reach the host at most.
    pub bytes: u64,
    /// Which ones.
    pub keep: Keep,
}

/// Environment entries, in order.
pub type Env = Vec<(String, String)>;

/// Runs source text in a persistent context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execute {
    /// The context's number, chosen by the host. A context begins with the first execution that
    /// names it; its language never changes. Executions of one context run in order of arrival.
    pub context: u32,
    /// Language of the source text.
    pub language: Language,
    /// The source text, at most [`crate::limits::MAX_CODE`] bytes.
    pub code: String,
    /// Environment for this execution alone.
    pub env: Env,
    /// Whether stdin data follows; otherwise user code reads an end at once.
    pub stdin: bool,
    /// Whether the interpreter ends with it, in the way in which a program of the language does: what the code has left
    /// to do (timers, threads, exit handlers) belongs to the execution. A later one in the context begins in a fresh
    /// interpreter.
    pub last: bool,
    /// Time that the code may take, in milliseconds, counted from its start in the guest.
    pub timeout_ms: Option<u64>,
    /// Bound on standard output.
    pub stdout: OutputLimit,
    /// Bound on standard error.
    pub stderr: OutputLimit,
}

/// Whose rights a command has in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum User {
    /// uid and gid 1000, as all user code.
    Sandbox,
    /// uid 0 inside the guest: an exception that the host grants explicitly.
    Root,
}

/// Runs a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program and its arguments; the program is searched in `PATH`.
    pub argv: Vec<String>,
    /// Working folder; the home folder if `None`.
    pub cwd: Option<String>,
    /// Environment for this command, over the guest's default one.
    pub env: Env,
    /// Whose rights it has.
    pub user: User,
    /// Whether stdin data follows; otherwise the program reads an end at once.
    pub stdin: bool,
    /// Time that it may take, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Bound on standard output.
    pub stdout: OutputLimit,
    /// Bound on standard error.
    pub stderr: OutputLimit,
}

/// What makes a guest that was restored from a snapshot different from every other one that was.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// Random bytes that no other guest has had; not all zero.
    pub seed: [u8; 32],
    /// The machine's identity, machine-id(5); not all zero.
    pub machine_id: [u8; 16],
    /// The machine's name, hostname(7): labels of letters, digits and inner hyphens, with dots between them, at most
    /// [`crate::limits::MAX_HOSTNAME`] bytes.
    pub hostname: String,
}

impl std::fmt::Debug for Renew {
    /// Without the seed, which belongs into no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed: _, machine_id, hostname } = self;
        f.debug_struct("Renew")
            .field("machine_id", machine_id)
            .field("hostname", hostname)
            .finish_non_exhaustive()
    }
}

/// Begins a stream. Paths are relative to the home folder unless absolute, and at most
/// [`crate::limits::MAX_PATH`] bytes long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Runs source text in a persistent context.
    Execute(Execute),
    /// Runs a program.
    Command(Command),
    /// Writes a file from the `File` channel, all of it or nothing; parents are made as needed.
    WriteFile {
        /// Where.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// Reads a file to the `File` channel.
    ReadFile {
        /// Which.
        path: String,
    },
    /// Lists a folder, sorted by name.
    List {
        /// Which.
        path: String,
    },
    /// Describes one entry without following a final symbolic link.
    Stat {
        /// Which.
        path: String,
    },
    /// Makes a folder and its parents; one that exists is fine.
    MakeDir {
        /// Where.
        path: String,
    },
    /// Removes a file, link, or folder with all it holds.
    Remove {
        /// Which.
        path: String,
    },
    /// Renames, replacing a file that stands there.
    Rename {
        /// From where.
        from: String,
        /// To where.
        to: String,
    },
    /// Takes what background work of a context printed while nothing ran.
    IdleOutput {
        /// The context's number.
        context: u32,
    },
    /// Ends a context and everything that it started.
    CloseContext {
        /// The context's number.
        context: u32,
    },
    /// Asks for the guest's own figures.
    Stats,
    /// Ends the guest.
    Shutdown,
    /// Gives the guest randomness and an identity of its own. `Done` means that the kernel's generator and the
    /// interpreter of every idle context are renewed; one that runs code is renewed before its next execution.
    Renew(Renew),
    /// Steps the wall clock, as the preamble's time does: for a guest that has stood still and does not know.
    SetClock {
        /// Nanoseconds since 1970, UTC.
        wall_clock_ns: u64,
    },
    /// Reports changes in a folder until the host abandons it, or the folder is no longer there.
    Watch {
        /// Which.
        path: String,
        /// Whether the folders below it are watched too, those made later among them.
        recursive: bool,
    },
}

/// What the host says on a stream that already runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// As Ctrl-C: the code may catch it, and its state survives.
    Interrupt,
    /// Ends the execution or command and everything that it started, at once.
    Kill,
    /// Sends a signal to a command's process group.
    Signal(i32),
    /// Asks a watch to say [`crate::change::Record::Flushed`] behind everything that has happened. One at a time.
    Flush,
}

/// How an execution or command came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// By itself, with `exit_code`.
    Exited,
    /// Its time was over.
    Timeout,
    /// It needed more memory than the guest has.
    OutOfMemory,
    /// The host ended it.
    Killed,
}

/// The end of an execution or command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// How it ended.
    pub status: Status,
    /// 0 to 255; 128 + n after signal n.
    pub exit_code: i32,
    /// Whether the context lost its variables, so that the next execution begins in a fresh one.
    pub state_reset: bool,
    /// Microseconds spent on starting an interpreter for it; 0 if one was there.
    pub spawn_us: u64,
    /// Microseconds from the start of the code to its end.
    pub run_us: u64,
}

/// An uncaught exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    /// Its type, for instance `ValueError`.
    pub name: String,
    /// Its message.
    pub value: String,
    /// As the language prints it, from the user's first line on.
    pub traceback: String,
}

/// What a bundle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BundleKind {
    /// The value of the last expression.
    Result,
    /// Shown by the code with a display hook.
    Display,
}

/// One representation within a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// MIME type.
    pub mime: String,
    /// Its size, in bytes.
    pub bytes: u32,
}

/// Type of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Folder.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Socket, FIFO or device.
    Other,
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its name; what is not UTF-8 in it is replaced.
    pub name: String,
    /// Its type.
    pub kind: FileKind,
    /// Size in bytes; 0 for a folder.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// Time of the last change, nanoseconds since 1970-01-01 UTC.
    pub modified_ns: u64,
}

/// Why the guest could not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCode {
    /// The request itself is wrong (empty code, NUL, a limit exceeded).
    BadRequest,
    /// An environment name or value is not allowed.
    BadEnv,
    /// The image has no driver for that language.
    NoSuchLanguage,
    /// No such file, folder or context.
    NotFound,
    /// It exists already, or is of the wrong type for this.
    WrongType,
    /// A path leads out of where it may, or its name is not possible.
    BadPath,
    /// The user's rights do not suffice.
    PermissionDenied,
    /// No room for it.
    NoSpace,
    /// The program could not be started.
    CannotStart,
    /// Anything else that the guest's kernel refused.
    Io,
    /// The host abandoned the stream.
    Cancelled,
    /// As many of these as there may be are there already.
    TooMany,
}

/// Why the guest could not do what it was asked, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind.
    pub code: FailureCode,
    /// What happened, and with what.
    pub message: String,
}

/// The guest's own figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Proportional set size of init and agent together, in bytes.
    pub agent_pss_bytes: u64,
    /// Memory in use by user code, in bytes.
    pub user_memory_bytes: u64,
    /// Memory that user code may use, in bytes.
    pub user_memory_limit_bytes: u64,
    /// Processes of user code.
    pub user_processes: u32,
    /// Nanoseconds since the guest's kernel started.
    pub uptime_ns: u64,
}

/// What the guest reports on a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The code or program runs now.
    Started {
        /// Process id inside the guest.
        pid: u32,
    },
    /// A bundle; its parts follow one after the other on the `Bundle` channel.
    Bundle {
        /// What it is.
        kind: BundleKind,
        /// The parts, together at most [`crate::limits::MAX_BUNDLE`] bytes.
        parts: Vec<Part>,
    },
    /// The code ended with an uncaught exception.
    Exception(Exception),
    /// At this place of the stream, output was left out.
    Omitted {
        /// Whether standard error, not standard output.
        stderr: bool,
        /// How much, in bytes.
        bytes: u64,
    },
    /// The end of an execution or command.
    Finished(Finished),
    /// A directory entry.
    File(FileInfo),
    /// A part of a listing.
    Entries(Vec<FileInfo>),
    /// The operation is complete.
    Done {
        /// Bytes that were transferred.
        bytes: u64,
    },
    /// The guest's own figures.
    Stats(Stats),
    /// The operation failed.
    Failed(Failure),
    /// The folder is watched: whatever happens from here on is reported.
    Watching,
}

impl Event {
    /// Whether nothing follows this event on its stream, apart from its close.
    /// (`File` ends a `Stat` but begins a `ReadFile`, so it is not among them.)
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Done { .. } | Self::Stats(_) | Self::Failed(_))
    }
}

impl Request {
    /// Channels on which the guest takes data for this request.
    pub const fn takes(&self, channel: Channel) -> bool {
        match self {
            Self::Execute(Execute { stdin, .. }) | Self::Command(Command { stdin, .. }) => {
                *stdin && matches!(channel, Channel::Stdin)
            }
            Self::WriteFile { .. } => matches!(channel, Channel::File),
            _ => false,
        }
    }
}

mod validate;

pub use validate::{validate_code, validate_env, validate_path};

#[cfg(test)]
mod tests;
