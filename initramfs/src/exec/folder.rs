//! The files and FIFOs by which the agent and a driver meet.
//!
//! All of them lie in folders that only root can write to, so that user code can neither replace nor remove them. Each FIFO
//! belongs to uid 1000 with the one right that the driver needs.
//!
//! ```text
//!  D/                      one driver
//!   ├─ control  0400       agent → driver, one line for each execution
//!   ├─ events   0200       driver → agent
//!   ├─ idle.out, idle.err  0200
//!   ├─ state               link to a folder of the user's that outlives the driver
//!   └─ <id>/               one execution
//!       ├─ code, env       0444 regular files; no `env` if there are no variables
//!       ├─ out, err        0200
//!       ├─ results         0200
//!       ├─ in              0400, only with standard input
//!       └─ interrupted     0444, empty, from the first interrupt on
//! ```

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, mkdirat, mknodat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{During, Result};
use crate::spawn::{GID, UID};

const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
const BOTH: OFlags = OFlags::RDWR.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Who the files belong to; `None` where the agent itself runs as that user, in tests.
pub type Owner = Option<(Uid, Gid)>;

/// uid and gid 1000.
pub fn user() -> Owner {
    Some((Uid::from_raw(UID), Gid::from_raw(GID)))
}

/// A folder that was made for one purpose and goes away with it.
#[derive(Debug)]
pub struct Folder {
    parent: OwnedFd,
    name: String,
    fd: OwnedFd,
    /// What was made in it.
    files: RefCell<Vec<&'static str>>,
    owner: Owner,
}

impl Folder {
    fn make(parent: BorrowedFd<'_>, name: String, owner: Owner) -> Result<Self> {
        let parent = parent.try_clone_to_owned().during("duplicate a folder's descriptor")?;
        mkdirat(&parent, name.as_str(), Mode::from_raw_mode(0o755))
            .during_with(|| format!("make the folder {name}"))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = openat(&parent, name.as_str(), flags, Mode::empty())
            .during_with(|| format!("open the folder {name}"))?;
        Ok(Self { parent, name, fd, files: RefCell::default(), owner })
    }

    fn own(&self, name: &str) -> Result<()> {
        let Some((uid, gid)) = self.owner else { return Ok(()) };
        chownat(&self.fd, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            .during_with(|| format!("give {name} to the user"))
    }

    /// Notes a name that goes away with the folder.
    fn holds(&self, name: &'static str) {
        let mut files = self.files.borrow_mut();
        // A file is made once, also where it is made sure of again.
        if !files.contains(&name) {
            files.push(name);
        }
    }

    fn fifo(&self, name: &'static str, mode: u32) -> Result<()> {
        mknodat(&self.fd, name, FileType::Fifo, Mode::from_raw_mode(mode), 0)
            .during_with(|| format!("make the FIFO {name}"))?;
        self.holds(name);
        self.own(name)
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        openat(&self.fd, name, flags, Mode::empty()).during_with(|| format!("open {name}"))
    }

    fn file(&self, name: &'static str, content: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::from_raw_mode(0o444))
            .during_with(|| format!("make {name}"))?;
        self.holds(name);
        let mut rest = content;
        while !rest.is_empty() {
            match rustix::io::write(&fd, rest) {
                Ok(0) => return Err(Errno::NOSPC).during_with(|| format!("write {name}")),
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).during_with(|| format!("write {name}")),
            }
        }
        Ok(())
    }
}

/// What every execution has, in any case: those that stay when its folder becomes another one's.
const LASTING: [&str; 3] = ["out", "err", "results"];

impl Folder {
    /// Whether that was made in it.
    pub fn has(&self, name: &str) -> bool {
        self.files.borrow().contains(&name)
    }

    /// Whether a FIFO that drivers write to still is what it was when it was made: its rights, its owner, its one name.
    pub fn is_as_made(&self, fifo: impl AsFd) -> bool {
        rustix::fs::fstat(fifo).is_ok_and(|now| {
            let is_owned =
                self.owner.is_none_or(|(uid, gid)| (now.st_uid, now.st_gid) == (uid.as_raw(), gid.as_raw()));
            now.st_mode & 0o7777 == 0o200 && now.st_nlink == 1 && is_owned
        })
    }

    /// Makes it the folder of another execution: it gets that name, and what only the last one has brought is taken out.
    ///
    /// # Errors
    /// Whatever the kernel refused. It is of no use then.
    pub fn rename(&mut self, name: String) -> Result<()> {
        let (lasting, brought) = self.files.take().into_iter().partition(|file| LASTING.contains(file));
        self.files = RefCell::new(lasting);
        for file in brought {
            unlinkat(&self.fd, file, AtFlags::empty()).during_with(|| format!("remove {file}"))?;
        }
        renameat(&self.parent, self.name.as_str(), &self.parent, name.as_str())
            .during_with(|| format!("rename the folder {}", self.name))?;
        self.name = name;
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for name in self.files.take() {
            let _ = unlinkat(&self.fd, name, AtFlags::empty());
        }
        if let Err(errno) = unlinkat(&self.parent, self.name.as_str(), AtFlags::REMOVEDIR) {
            crate::warning!("remove the folder {}: {errno}", self.name);
        }
    }
}

/// D: a driver's folder, and the agent's ends of its FIFOs.
#[derive(Debug)]
pub struct DriverFolder {
    /// Where the agent writes control lines. Open for both, so that the driver's opening never waits for the agent's.
    pub control: OwnedFd,
    /// The driver's lines. Open for both, so that it never ends.
    pub events: OwnedFd,
    /// Reading ends of what is printed while idle.
    pub idle: [OwnedFd; 2],
    /// Writing ends of the same, blocking, for the driver to start with.
    pub idle_write: [OwnedFd; 2],
    folder: Folder,
}

impl DriverFolder {
    /// Makes `name` in `parent`. `state` is the place that D/state leads to.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn make(parent: BorrowedFd<'_>, name: String, owner: Owner, state: Option<&str>) -> Result<Self> {
        let folder = Folder::make(parent, name, owner)?;
        folder.fifo("control", 0o400)?;
        for name in ["events", "idle.out", "idle.err"] {
            folder.fifo(name, 0o200)?;
        }
        if let Some(state) = state {
            rustix::fs::symlinkat(state, &folder.fd, "state").during("link the state folder")?;
            folder.holds("state");
        }
        let idle = [folder.open("idle.out", READ)?, folder.open("idle.err", READ)?];
        let write = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(Self {
            control: folder.open("control", BOTH)?,
            events: folder.open("events", BOTH)?,
            idle_write: [folder.open("idle.out", write)?, folder.open("idle.err", write)?],
            idle,
            folder,
        })
    }

    /// Makes the folder of an execution in it, with what is the same for all of them.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn execution(&self, id: u64) -> Result<ExecutionFolder> {
        let folder = Folder::make(self.folder.fd.as_fd(), id.to_string(), self.folder.owner)?;
        for name in ["out", "err", "results"] {
            folder.fifo(name, 0o200)?;
        }
        Ok(ExecutionFolder {
            out: folder.open("out", READ)?,
            err: folder.open("err", READ)?,
            results: folder.open("results", READ)?,
            folder,
        })
    }
}

/// E: an execution's folder, and the agent's ends of its FIFOs.
#[derive(Debug)]
pub struct ExecutionFolder {
    /// Standard output.
    pub out: OwnedFd,
    /// Standard error.
    pub err: OwnedFd,
    /// Structured results.
    pub results: OwnedFd,
    /// The folder itself, to be kept as long as the execution lives.
    pub folder: Folder,
}

impl Folder {
    /// Puts in what one execution brings; its code and variables.
    ///
    /// # Errors
    /// Whatever the kernel refused; `ENOSPC` if the code is too large for the place.
    pub fn fill(&self, code: &str, env: &[(String, String)]) -> Result<()> {
        self.file("code", code.as_bytes())?;
        if env.is_empty() {
            return Ok(());
        }
        let records =
            env.iter().fold(String::new(), |records, (name, value)| records + name + "=" + value + "\0");
        self.file("env", records.as_bytes())
    }

    /// The agent's end of a standard input. Writing before the driver opened it would fail with `EPIPE`.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn stdin(&self) -> Result<OwnedFd> {
        self.fifo("in", 0o400)?;
        // Opening for writing needs a reader or fails; so there is one until the writer is open. From then on the
        // driver's opening succeeds at once, since there is a writer.
        let both = self.open("in", BOTH)?;
        let write = self.open("in", OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?;
        drop(both);
        Ok(write)
    }

    /// Leaves the file that tells a driver of an interrupt, for runtimes that may lose a signal.
    pub fn mark_interrupted(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if let Err(errno) = openat(&self.fd, "interrupted", flags, Mode::from_raw_mode(0o444)) {
            crate::warning!("note an interrupt: {errno}"); // the signal itself most likely suffices
        } else {
            self.holds("interrupted");
        }
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes a folder of the user's own in `parent`; one that exists is fine.
///
/// # Errors
/// Whatever the kernel refused.
pub fn user_folder(parent: BorrowedFd<'_>, name: &str, owner: Owner) -> Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(errno).during_with(|| format!("make the folder {name}")),
    }
    let Some((uid, gid)) = owner else { return Ok(()) };
    chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
        .during_with(|| format!("give {name} to the user"))
}
