//! Control groups (version 2): how memory, processes and life of user code are bounded.
//!
//! ```text
//!  /sys/fs/cgroup
//!   ├─ agent        agent and reaper; memory.min keeps their pages
//!   └─ user         memory.max and pids.max of all user code together
//!       ├─ ctx-N    one driver and all it started; memory.oom.group: it dies as a whole
//!       ├─ cmd-N    one command and all it started
//!       └─ files    the workers for file operations, so that what they write counts as the user's
//! ```
//! `cgroup.kill` ends a group whatever its processes do. A group is removed when its last process is gone; until then it
//! waits in [`Graveyard`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::boot::budget::Budget;
use crate::error::{During, Result};

const BASE: &str = "/sys/fs/cgroup";

/// Memory that reclaim leaves to agent and reaper, in bytes.
const AGENT_MIN: &str = "8388608";

/// Processes that one context or command cannot take from the others.
const PROCESS_MARGIN: u64 = 64;

/// The `user` group.
#[derive(Debug)]
pub struct Cgroups {
    user: OwnedFd,
    processes: u64,
}

/// One group below `user`.
#[derive(Debug)]
pub struct Cgroup {
    name: String,
    folder: OwnedFd,
    /// `memory.events`, open: it is read when a process of the group has died.
    events: Option<OwnedFd>,
}

/// How often the kernel killed in a group for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OomCount(u64);

fn write(folder: BorrowedFd<'_>, file: &str, value: &str) -> std::result::Result<(), Errno> {
    let fd = openat(folder, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&fd, value.as_bytes()).map(|_| ())
}

fn read(folder: BorrowedFd<'_>, file: &str) -> std::result::Result<String, Errno> {
    let fd = openat(folder, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    std::io::read_to_string(std::fs::File::from(fd)).map_err(|error| crate::error::errno_of(&error))
}

fn open_folder(at: BorrowedFd<'_>, name: &str) -> std::result::Result<OwnedFd, Errno> {
    match mkdirat(at, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

impl Cgroups {
    /// Makes the tree, sets the limits, and moves the agent into its own group.
    ///
    /// # Errors
    /// Whatever the kernel refused: a guest without limits must not run user code.
    pub fn make(budget: &Budget) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, BASE, flags, Mode::empty()).during("open the cgroup file system")?;
        let agent = open_folder(base.as_fd(), "agent").during("make the agent's cgroup")?;
        write(agent.as_fd(), "cgroup.procs", "0").during("enter the agent's cgroup")?;
        write(base.as_fd(), "cgroup.subtree_control", "+memory +pids")
            .during("switch on the memory and pids controllers")?;
        // Fair shares of the processor between contexts, where the kernel has them.
        let cpu = write(base.as_fd(), "cgroup.subtree_control", "+cpu").is_ok();
        write(agent.as_fd(), "memory.min", AGENT_MIN).during("keep memory for the agent")?;
        let user = open_folder(base.as_fd(), "user").during("make the user's cgroup")?;
        write(user.as_fd(), "memory.max", &budget.user.to_string()).during("limit the user's memory")?;
        write(user.as_fd(), "pids.max", &budget.processes.to_string())
            .during("limit the user's processes")?;
        write(user.as_fd(), "cgroup.subtree_control", "+memory +pids")
            .during("switch on the controllers below user")?;
        if cpu {
            // Best effort: the agent's own share is secured by its nice value as well.
            let _ = write(agent.as_fd(), "cpu.weight", "1000");
            let _ = write(user.as_fd(), "cgroup.subtree_control", "+cpu");
        }
        Ok(Self { user, processes: budget.processes })
    }

    /// Makes a group below `user`.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn create(&self, name: String) -> Result<Cgroup> {
        let folder =
            open_folder(self.user.as_fd(), &name).during_with(|| format!("make the cgroup {name}"))?;
        let processes = self.processes.saturating_sub(PROCESS_MARGIN).max(16);
        write(folder.as_fd(), "pids.max", &processes.to_string())
            .during("limit the processes of a cgroup")?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = openat(&folder, "memory.events", flags, Mode::empty()).ok();
        Ok(Cgroup { name, folder, events })
    }

    /// Memory in use by user code, in bytes; 0 if the kernel does not say.
    pub fn memory(&self) -> u64 {
        number(self.user.as_fd(), "memory.current")
    }

    /// The part of it that the kernel cannot take back without ending something, in bytes.
    pub fn held_memory(&self) -> u64 {
        held(self.user.as_fd())
    }

    /// Memory that user code may use, in bytes; 0 if the kernel does not say.
    pub fn memory_limit(&self) -> u64 {
        number(self.user.as_fd(), "memory.max")
    }

    /// Processes and threads of user code; 0 if the kernel does not say.
    pub fn processes(&self) -> u32 {
        u32::try_from(number(self.user.as_fd(), "pids.current")).unwrap_or(u32::MAX)
    }

    /// A descriptor that becomes readable with priority (`EPOLLPRI`) when all user code stood still for
    /// want of memory for half of a second: the sign of thrashing, which the kernel itself would let go
    /// on for minutes. `None` without pressure stall information.
    pub fn pressure(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(&self.user, "memory.pressure", flags, Mode::empty()).ok()?;
        // "full" stall, microseconds, window; see Documentation/accounting/psi.rst.
        rustix::io::write(&fd, b"full 500000 1000000\0").ok()?;
        Some(fd)
    }
}

fn number(folder: BorrowedFd<'_>, file: &str) -> u64 {
    read(folder, file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

impl Cgroup {
    /// The group's folder, to start a process in it.
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Makes an out-of-memory kill take the whole group.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn die_as_a_whole(&self) -> Result<()> {
        write(self.folder(), "memory.oom.group", "1").during("set memory.oom.group")
    }

    /// Moves the calling process into the group.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn enter(&self) -> Result<()> {
        write(self.folder(), "cgroup.procs", "0").during("enter a cgroup")
    }

    /// Ends every process in the group.
    pub fn kill(&self) {
        if let Err(errno) = write(self.folder(), "cgroup.kill", "1") {
            crate::warning!("kill the cgroup {}: {errno}", self.name);
        }
    }

    /// The group's processes, in the agent's numbering.
    pub fn processes(&self) -> Vec<Pid> {
        let text = read(self.folder(), "cgroup.procs").unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw).collect()
    }

    /// Whether any process is left in it.
    pub fn is_empty(&self) -> bool {
        read(self.folder(), "cgroup.events").is_ok_and(|text| text.lines().any(|line| line == "populated 0"))
    }

    /// Kills for want of memory so far.
    pub fn oom_count(&self) -> OomCount {
        let mut text = [0; 512];
        let read = self.events.as_ref().map_or(Ok(0), |events| rustix::io::pread(events, &mut text, 0));
        OomCount(parse_oom(&String::from_utf8_lossy(&text[..read.unwrap_or(0)])))
    }

    /// Memory that goes with the group's processes and files, in bytes.
    pub fn held_memory(&self) -> u64 {
        held(self.folder())
    }
}

fn held(folder: BorrowedFd<'_>) -> u64 {
    parse_held(&read(folder, "memory.stat").unwrap_or_default())
}

/// What the text of `memory.stat` counts that is no page cache of a file on disk and no cache of the kernel's, in bytes.
/// There is no swap, so memory of processes (`anon`) and of tmpfs (`shmem`) stays.
fn parse_held(stat: &str) -> u64 {
    let value = |name: &str| {
        stat.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    value("anon") + value("shmem") + value("kernel").saturating_sub(value("slab_reclaimable"))
}

/// `oom_kill` + `oom_group_kill` of the text of `memory.events`.
fn parse_oom(events: &str) -> u64 {
    events
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| matches!(*name, "oom_kill" | "oom_group_kill"))
        .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
        .sum()
}

/// Groups that are to go away as soon as their last process is gone.
#[derive(Debug, Default)]
pub struct Graveyard {
    groups: Vec<Cgroup>,
}

impl Graveyard {
    /// Takes a group whose processes may live on until they end by themselves.
    pub fn leave(&mut self, cgroup: Cgroup) {
        self.groups.push(cgroup);
    }

    /// Takes a group in which nothing was started, if there is one.
    pub fn leave_all(&mut self, cgroup: Option<Cgroup>) {
        self.groups.extend(cgroup);
    }

    /// Ends a group and takes it.
    pub fn bury(&mut self, cgroup: Cgroup) {
        cgroup.kill();
        self.groups.push(cgroup);
    }

    /// Removes the groups that are empty now. Call after children ended.
    pub fn sweep(&mut self, cgroups: &Cgroups) {
        self.groups.retain(|cgroup| {
            !(cgroup.is_empty() && unlinkat(&cgroups.user, cgroup.name.as_str(), AtFlags::REMOVEDIR).is_ok())
        });
    }

    /// Whether any group still waits.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_cannot_be_taken_back() {
        let stat = "anon 100\nfile 5000\nkernel 50\nshmem 1000\nslab_reclaimable 20\nslab_unreclaimable 9\n";
        assert_eq!(parse_held(stat), 1130);
        assert_eq!(parse_held("anon x\n"), 0);
    }

    #[test]
    fn counts_single_and_group_kills() {
        let text = "low 0\nhigh 0\nmax 31\noom 2\noom_kill 4\noom_group_kill 1\n";
        assert_eq!(parse_oom(text), 5);
        assert_eq!(parse_oom(""), 0);
        assert_eq!(parse_oom("oom_kill x\nnonsense"), 0);
    }
}
