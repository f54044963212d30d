//! Errnos of file operations, as the host is told of them.

use hayfork_protocol::message::{Failure, FailureCode};
use rustix::io::Errno;

/// Result of a file operation.
pub type Outcome<T> = Result<T, Failure>;

/// A failure in words.
pub fn failure(code: FailureCode, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into() }
}

/// Says which path an errno is about.
pub trait About<T> {
    /// Turns an errno into a [`Failure`] that names the path.
    ///
    /// # Errors
    /// That failure.
    fn about(self, path: &str) -> Outcome<T>;
}

impl<T> About<T> for Result<T, Errno> {
    fn about(self, path: &str) -> Outcome<T> {
        self.map_err(|errno| from_errno(errno, path))
    }
}

/// The failure for an errno of an operation on `path`.
pub fn from_errno(errno: Errno, path: &str) -> Failure {
    let (code, words) = match errno {
        Errno::NOENT => (FailureCode::NotFound, "there is no such file or folder"),
        Errno::NOTDIR => (FailureCode::WrongType, "a part of the path is no folder"),
        Errno::ISDIR => (FailureCode::WrongType, "it is a folder"),
        Errno::EXIST => (FailureCode::WrongType, "it exists already"),
        Errno::NOTEMPTY => (FailureCode::WrongType, "the folder is not empty"),
        Errno::XDEV => (FailureCode::BadPath, "it leads out of the folder that it must stay in"),
        Errno::LOOP => {
            (FailureCode::BadPath, "it leads through too many symbolic links, or one that is not allowed")
        }
        Errno::NAMETOOLONG => (FailureCode::BadPath, "the path or a name in it is too long"),
        Errno::INVAL => (FailureCode::BadPath, "the path or its use is not possible"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            (FailureCode::PermissionDenied, "the sandbox's user may not do that")
        }
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            (FailureCode::NoSpace, "the sandbox's file system is full: remove files or give it more memory")
        }
        Errno::NOMEM => (FailureCode::NoSpace, "the sandbox is out of memory"),
        _ => return failure(FailureCode::Io, format!("{path:?}: {errno}")),
    };
    failure(code, format!("{path:?}: {words}"))
}
