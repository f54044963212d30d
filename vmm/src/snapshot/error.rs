//! Why a snapshot file cannot be read or written.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

/// What is wrong with a snapshot file, or with writing one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file is not there, or cannot be read.
    #[error("the snapshot {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not a snapshot of hayfork's", path.display())]
    NotASnapshot {
        /// The file.
        path: PathBuf,
    },
    /// It has a format that this version does not know.
    #[error("the snapshot {} has format {found}, and this version of hayfork reads format {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// Its end is missing.
    #[error("the snapshot {} is cut off: it has {found} bytes instead of {expected}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that it says it has; those of a header, where it has none.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Its content is not what was written.
    #[error("the snapshot {} is damaged: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// It belongs to another host, other images, or another version of hayfork.
    #[error(
        "the snapshot {} does not belong here: its {part} is {}, and here it is {}",
        path.display(),
        saved.as_deref().unwrap_or("not named"),
        here.as_deref().unwrap_or("not named")
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The part of the identity that differs.
        part: String,
        /// As it was saved.
        saved: Option<String>,
        /// As it is here.
        here: Option<String>,
    },
    /// What should be saved is too long.
    #[error("{given} bytes of {what} are more than the {most} that a snapshot holds")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its length, in bytes.
        given: u64,
        /// The most, in bytes.
        most: u64,
    },
    /// It cannot be written.
    #[error("the snapshot {} cannot be written: {what}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The host has no memory for its content.
    #[error("there is no memory for the snapshot's content: {source}")]
    NoMemory {
        /// The cause.
        source: io::Error,
    },
}

impl SnapshotError {
    /// A short name that never changes, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "snapshot_unreadable",
            Self::NotASnapshot { .. } => "not_a_snapshot",
            Self::Newer { .. } => "snapshot_newer",
            Self::Truncated { .. } => "snapshot_truncated",
            Self::Corrupt { .. } => "snapshot_corrupt",
            Self::Foreign { .. } => "snapshot_foreign",
            Self::TooLong { .. } => "snapshot_too_long",
            Self::Unwritable { .. } => "snapshot_unwritable",
            Self::NoMemory { .. } => "snapshot_no_memory",
        }
    }

    /// What to do about it, in one or two sentences.
    pub fn remedy(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Unreadable { .. } => "Check that the file is there and that this user may read it.",
            Self::NotASnapshot { .. } => "Name a file that hayfork has written.",
            Self::Newer { .. } => {
                "Use the version of hayfork that wrote it, or a newer one; or make the snapshot again."
            }
            Self::Truncated { .. } | Self::Corrupt { .. } => {
                "Remove the file and make the snapshot again; if that happens often, check the disk."
            }
            Self::Foreign { .. } => {
                "Use it where it was made, with the same images and the same version of hayfork; or make the snapshot again here."
            }
            Self::TooLong { .. } => "Keep less with the snapshot.",
            Self::Unwritable { .. } => {
                "Look at the cause: the folder must be writable by this user and have room for the machine's memory."
            }
            Self::NoMemory { .. } => {
                "Look at the cause: usually a limit on memory or open files of this user (ulimit -a) or of its cgroup."
            }
        })
    }
}
