//! Starting user code: a child in the user's namespaces, with the rights of uid 1000 and nothing else.
//!
//! The parent prepares everything that needs memory ([`Plan`]), forks straight into the cgroup, and goes on at once: the
//! child could be stopped by other user code before it execs, so nobody waits for it. The child reports through a pipe that
//! exec closes: an end without a word means that the program runs, otherwise the pipe holds the step that failed and its
//! errno ([`Start`]).
//!
//! What the child does, in order: session, namespaces, descriptors, limits, working folder, rights, signals, seccomp
//! filter, exec. The rights go last but for what needs none.

mod child;
pub mod filter;
mod limits;

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::boot::user_root::UserRoot;
use crate::error::{During, OsError, Result};
use crate::sys::fork;

pub(crate) use child::{become_user, fair_game};

/// User id of all user code.
pub const UID: u32 = 1000;
/// Group id of all user code.
pub const GID: u32 = 1000;
/// The user's home folder.
pub const HOME: &str = "/home/user";

/// Where programs are searched.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Environment of every user process, before anything is added.
pub const ENVIRONMENT: [(&str, &str); 7] = [
    ("HOME", HOME),
    ("USER", "user"),
    ("LOGNAME", "user"),
    ("SHELL", "/bin/bash"),
    ("PATH", PATH),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
];

/// Whose rights a process gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// uid 1000, no capabilities.
    User,
    /// uid 0 with the capabilities that act on files and processes of the sandbox, and none that act on
    /// the machine. Same namespaces and seccomp filter as the user.
    Root,
}

/// The walls around user code.
#[derive(Debug)]
pub struct Walls {
    /// Namespaces.
    pub root: UserRoot,
    /// Compiled seccomp filters, applied in order.
    pub filters: filter::Filters,
}

/// A process to start.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Namespaces and filter; `None` only in tests on a development machine, which then runs the program
    /// with the caller's rights.
    pub walls: Option<&'a Walls>,
    /// The group that the process is born into.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Program and arguments. A program without a slash is searched in [`PATH`].
    pub argv: &'a [String],
    /// The whole environment.
    pub env: &'a [(String, String)],
    /// Working folder.
    pub cwd: &'a str,
    /// Whose rights.
    pub rights: Rights,
    /// Descriptors 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
}

/// The parts of a [`Plan`] that the child uses, ready as C strings.
struct Ready<'a> {
    walls: Option<&'a Walls>,
    paths: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
    rights: Rights,
    stdio: [BorrowedFd<'a>; 3],
}

/// A process that is about to run a program.
#[derive(Debug)]
pub struct Started {
    /// In the agent's numbering. It leads a session and a process group of its own.
    pub pid: Pid,
    /// Tells whether the program runs; see [`Start::read`]. Non-blocking.
    pub report: OwnedFd,
}

/// What the report pipe said.
#[derive(Debug)]
pub enum Start {
    /// Nothing yet.
    Pending,
    /// The program runs.
    Running,
    /// The program could not be started; the process ends by itself.
    Failed(OsError),
}

impl Start {
    /// Reads a report pipe.
    pub fn read(report: impl AsFd) -> Self {
        let mut record = [0; child::RECORD];
        match rustix::io::read(report, &mut record) {
            Ok(0) => Self::Running,
            Ok(n) if n == record.len() => Self::Failed(child::decode(record)),
            Ok(_) => Self::Failed(OsError::new("start the program", Errno::IO)),
            Err(Errno::AGAIN | Errno::INTR) => Self::Pending,
            Err(errno) => Self::Failed(OsError::new("start the program", errno)),
        }
    }
}

/// Default environment with `more` over it; the last of several entries of one name counts.
pub fn environment<'a>(more: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> =
        ENVIRONMENT.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    for (name, value) in more {
        match env.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => value.clone_into(old),
            None => env.push((name.to_owned(), value.to_owned())),
        }
    }
    env
}

fn c_string(text: impl Into<Vec<u8>>) -> Result<CString> {
    CString::new(text)
        .map_err(|_| OsError::new("start a program with a NUL character in its words", Errno::INVAL))
}

/// Where a program of that name may be, in order.
fn candidates(program: &str) -> Result<Vec<CString>> {
    if program.contains('/') {
        return Ok(vec![c_string(program)?]);
    }
    PATH.split(':').map(|folder| c_string(format!("{folder}/{program}"))).collect()
}

/// Starts a process.
///
/// # Errors
/// It could not even be forked: `EAGAIN` when the limit on processes is reached, for instance.
pub fn spawn(plan: &Plan<'_>) -> Result<Started> {
    let program = plan.argv.first().ok_or_else(|| OsError::new("start an empty command", Errno::INVAL))?;
    let ready = Ready {
        walls: plan.walls,
        paths: candidates(program)?,
        argv: plan.argv.iter().map(|word| c_string(word.as_str())).collect::<Result<_>>()?,
        env: plan
            .env
            .iter()
            .map(|(name, value)| c_string(format!("{name}={value}")))
            .collect::<Result<_>>()?,
        cwd: c_string(plan.cwd)?,
        rights: plan.rights,
        stdio: plan.stdio,
    };
    let (report, tell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).during("make a pipe")?;
    if let Some(walls) = plan.walls {
        into_namespace(walls.root.pids.as_fd())?;
    }
    let side = fork::fork_into(plan.cgroup);
    match side {
        Ok(fork::Side::Child) => child::run(&ready, &tell),
        Ok(fork::Side::Parent(pid)) => Ok(Started { pid, report }),
        Err(errno) => Err(OsError::new("start a process", errno)),
    }
}

/// Forks a child that goes on running the agent's code, outside the user's PID namespace so that user
/// code can neither see nor signal it. The caller's child has to take up [`become_user`] itself.
///
/// # Errors
/// Whatever the kernel refused.
pub fn fork_unseen(walls: &Walls) -> Result<fork::Side> {
    into_namespace(walls.root.own_pids.as_fd())?;
    fork::fork().during("start a worker")
}

/// Chooses the PID namespace of the next child.
fn into_namespace(pids: BorrowedFd<'_>) -> Result<()> {
    move_into_link_name_space(pids, Some(LinkNameSpaceType::ProcessID)).during("choose a PID namespace")
}

#[cfg(test)]
mod tests;
