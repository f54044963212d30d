//! The agent's one error shape: what was attempted, and the errno that the kernel gave.
//!
//! Nearly everything the agent does is a system call, so an error is a sentence of context plus an [`Errno`]. Errors that
//! have to cross to the host are turned into the protocol's typed errors where they are reported.

use std::borrow::Cow;

use rustix::io::Errno;

/// A system call that failed, with the action that it was part of.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{action}: {errno}")]
pub struct OsError {
    /// What the agent was doing, as in "mount /proc".
    pub action: Cow<'static, str>,
    /// The kernel's answer.
    pub errno: Errno,
}

/// Result of agent code that talks to the kernel.
pub type Result<T> = std::result::Result<T, OsError>;

impl OsError {
    /// An error for `action`.
    pub fn new(action: impl Into<Cow<'static, str>>, errno: Errno) -> Self {
        Self { action: action.into(), errno }
    }
}

/// Adds the action to a bare errno or I/O error.
pub trait During<T> {
    /// Says what was being done when it failed; the text is a verb phrase.
    ///
    /// # Errors
    /// The error of `self` with the action added.
    fn during(self, action: &'static str) -> Result<T>;

    /// As [`During::during`], for a text that has to be put together; only called on failure.
    ///
    /// # Errors
    /// The error of `self` with the action added.
    fn during_with(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T> During<T> for std::result::Result<T, Errno> {
    fn during(self, action: &'static str) -> Result<T> {
        self.map_err(|errno| OsError::new(action, errno))
    }

    fn during_with(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| OsError::new(action(), errno))
    }
}

impl<T> During<T> for std::io::Result<T> {
    fn during(self, action: &'static str) -> Result<T> {
        self.map_err(|error| OsError::new(action, errno_of(&error)))
    }

    fn during_with(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| OsError::new(action(), errno_of(&error)))
    }
}

/// The errno inside an I/O error; errors that std made up itself count as EIO.
pub fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
