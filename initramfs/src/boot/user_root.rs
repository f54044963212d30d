//! The root that user code sees, in namespaces of its own.
//!
//! The agent stays where the kernel started it, in the initramfs. For user code there are a PID
//! namespace and a mount namespace, both made around one process, the *reaper*:
//!
//! ```text
//!  agent (PID 1 of the machine, initramfs)
//!   └─ reaper (PID 1 of the PID namespace; root, no capabilities; makes the mounts, then only reaps)
//!      drivers, commands: children of the agent, born into the reaper's namespaces
//! ```
//!
//! Since children are the agent's own, it learns their exit status from the kernel directly; what they
//! leave behind falls to the reaper, whose ignored SIGCHLD makes the kernel bury it.
//!
//! Mounts, all nosuid:
//!
//! | where | what |
//! |---|---|
//! | `/` | the root image, EROFS, read-only, nodev |
//! | `/home/user`, `/tmp`, `/var/tmp`, `/dev/shm` | folders of one tmpfs with a limit on bytes and inodes |
//! | `/run` | small tmpfs that only root writes to: the drivers' FIFOs; `/run/state` is a folder of the big one |
//! | `/proc` | of the PID namespace, other users' processes hidden; `/proc/sys` and the like read-only |
//! | `/sys` | read-only |
//! | `/dev` | tmpfs with nine nodes and links, read-only; `/dev/pts` |
//! | `/usr/lib/hayfork` | the language drivers, read-only |
//! | `/etc/machine-id`, `hostname`, `hosts` | files of `/run`, read-only |
//!
//! The initramfs is detached from the namespace after `pivot_root`, so nothing leads there.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, chown, makedev, mknodat, open, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Pid, chdir, pivot_root, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::budget::Budget;
use super::mounts::folder;
use crate::error::{During, OsError, Result};
use crate::renew::{FILES, FOLDER};
use crate::spawn::{GID, UID};
use crate::sys::fork;

/// Where the root image is put together before it becomes the root.
const NEW: &str = "/newroot";

/// Handles to the user's namespaces.
#[derive(Debug)]
pub struct UserRoot {
    /// The reaper, in the agent's numbering.
    pub reaper: Pid,
    /// The root directory that user code sees.
    pub root: OwnedFd,
    /// The mount namespace.
    pub mounts: OwnedFd,
    /// The PID namespace of user code.
    pub pids: OwnedFd,
    /// The agent's own PID namespace.
    pub own_pids: OwnedFd,
}

impl UserRoot {
    /// Makes namespaces, mounts and reaper.
    ///
    /// # Errors
    /// Whatever the kernel refused, in the agent or in the reaper.
    pub fn make(device: &str, budget: &Budget) -> Result<Self> {
        let own_pids = namespace("/proc/self/ns/pid")?;
        fork::new_pid_namespace_for_children().during("make a PID namespace")?;
        let (report, to_agent) = pipe_with(PipeFlags::CLOEXEC).during("make a pipe to the reaper")?;
        let reaper = match fork::fork().during("start the reaper")? {
            fork::Side::Child => {
                drop(report);
                run_reaper(to_agent, device, budget)
            }
            fork::Side::Parent(pid) => pid,
        };
        drop(to_agent);
        let mut text = String::new();
        std::fs::File::from(report).read_to_string(&mut text).during("hear from the reaper")?;
        if text != "ready" {
            return Err(OsError::new(format!("make the user's root: {text}"), Errno::IO));
        }
        let of = |what: &str| namespace(&format!("/proc/{}/{what}", reaper.as_raw_nonzero()));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(format!("/proc/{}/root", reaper.as_raw_nonzero()), flags, Mode::empty())
            .during("open the user's root")?;
        Ok(Self { reaper, root, mounts: of("ns/mnt")?, pids: of("ns/pid")?, own_pids })
    }
}

fn namespace(path: &str) -> Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).during_with(|| format!("open {path}"))
}

/// The reaper's life. It reports `ready` or what went wrong through the pipe.
fn run_reaper(to_agent: OwnedFd, device: &str, budget: &Budget) -> ! {
    crate::panic::in_child();
    let result = make_mounts(device, budget).and_then(|()| give_up_rights());
    let mut to_agent = std::fs::File::from(to_agent);
    let text = result.as_ref().map_or_else(ToString::to_string, |()| "ready".to_owned());
    let reported = to_agent.write_all(text.as_bytes());
    drop(to_agent);
    if result.is_err() || reported.is_err() {
        fork::exit_now(1);
    }
    fork::close_from(0);
    crate::sys::signals::reap_for_ever()
}

fn give_up_rights() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).during("hide the reaper's memory")?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .during("drop the reaper's capabilities")
}

fn make_mounts(device: &str, budget: &Budget) -> Result<()> {
    fork::new_mount_namespace().during("make a mount namespace")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .during("make mounts private")?;
    let read_only = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    mount(device, NEW, "erofs", read_only, None).during_with(|| format!("mount the root image {device}"))?;
    scratch(budget)?;
    let run = c"mode=0755,size=16m,nr_inodes=8192";
    let closed = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", at("run"), "tmpfs", closed, Some(run)).during("mount /run")?;
    // What drivers keep goes where the user's limits hold, so that it cannot fill /run.
    for name in ["hayfork", "state"] {
        folder(&at(&format!("run/{name}")))?;
    }
    folder("/run/scratch/state")?;
    mount_bind("/run/scratch/state", at("run/state")).during("bind /run/state")?;
    proc()?;
    mount("sysfs", at("sys"), "sysfs", closed | MountFlags::RDONLY, None).during("mount /sys")?;
    devices()?;
    bind_read_only("/drivers", &at("usr/lib/hayfork"), MountFlags::NOSUID | MountFlags::NODEV)?;
    identity()?;
    chdir(NEW).during("enter the user's root")?;
    pivot_root(".", ".").during("pivot to the user's root")?;
    // The old root is mounted over the new one now; this takes it away.
    unmount(".", UnmountFlags::DETACH).during("detach the initramfs")?;
    chdir("/").during("enter /")
}

fn at(path: &str) -> String {
    format!("{NEW}/{path}")
}

/// One tmpfs for everything that user code may write to, so that one limit holds for all of it.
fn scratch(budget: &Budget) -> Result<()> {
    const BASE: &str = "/run/scratch";
    folder(BASE)?;
    let options = format!("mode=0755,size={},nr_inodes={}\0", budget.scratch, budget.inodes);
    let options = std::ffi::CStr::from_bytes_until_nul(options.as_bytes())
        .map_err(|_| OsError::new("write the options of the scratch tmpfs", Errno::INVAL))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", BASE, "tmpfs", flags, Some(options)).during("mount the scratch tmpfs")?;
    for (name, target, mode) in
        [("home", "home/user", 0o755), ("tmp", "tmp", 0o1777), ("var-tmp", "var/tmp", 0o1777)]
    {
        let source = format!("{BASE}/{name}");
        folder(&source)?;
        rustix::fs::chmod(&source, Mode::from_raw_mode(mode))
            .during_with(|| format!("set the mode of {name}"))?;
        if name == "home" {
            let (uid, gid) = (Uid::from_raw(UID), Gid::from_raw(GID));
            chown(&source, Some(uid), Some(gid)).during("give the home folder to the user")?;
        }
        mount_bind(&source, at(target)).during_with(|| format!("bind /{target}"))?;
    }
    let shm = format!("{BASE}/shm");
    folder(&shm)?;
    rustix::fs::chmod(&shm, Mode::from_raw_mode(0o1777)).during("set the mode of /dev/shm")
}

/// The PID namespace's `/proc`, with the parts that change or show the kernel taken away even from a
/// root command.
fn proc() -> Result<()> {
    let closed = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", at("proc"), "proc", closed, Some(c"hidepid=invisible")).during("mount /proc")?;
    for path in [
        "sys",
        "sysrq-trigger",
        "irq",
        "bus",
        "fs",
        "timer_list",
        "kcore",
        "kallsyms",
        "kpagecount",
        "kpageflags",
    ] {
        let path = at(&format!("proc/{path}"));
        match bind_read_only(&path, &path, closed) {
            Ok(()) => {}
            // This kernel does not have it.
            Err(error) if error.errno == Errno::NOENT => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn bind_read_only(source: &str, target: &str, flags: MountFlags) -> Result<()> {
    mount_bind_recursive(source, target).during_with(|| format!("bind {source} to {target}"))?;
    mount_remount(target, MountFlags::BIND | MountFlags::RDONLY | flags, c"")
        .during_with(|| format!("make {target} read-only"))
}

/// `/dev` with what programs expect and nothing that reaches hardware.
fn devices() -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("tmpfs", at("dev"), "tmpfs", flags, Some(c"mode=0755,size=64k,nr_inodes=64"))
        .during("mount /dev")?;
    for (name, major, minor) in
        [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)]
    {
        let path = at(&format!("dev/{name}"));
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor))
            .during_with(|| format!("make /dev/{name}"))?;
        rustix::fs::chmod(&path, mode).during_with(|| format!("set the mode of /dev/{name}"))?;
    }
    for (target, name) in [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ] {
        symlinkat(target, CWD, at(&format!("dev/{name}"))).during_with(|| format!("link /dev/{name}"))?;
    }
    for name in ["dev/pts", "dev/shm"] {
        folder(&at(name))?;
    }
    let options = c"newinstance,ptmxmode=0666,mode=0620,gid=5,max=64";
    mount("devpts", at("dev/pts"), "devpts", flags, Some(options)).during("mount /dev/pts")?;
    mount_bind("/run/scratch/shm", at("dev/shm")).during("bind /dev/shm")?;
    mount_remount(at("dev"), MountFlags::BIND | MountFlags::RDONLY | flags, c"").during("make /dev read-only")
}

/// Gives the machine an identity of its own, as far as the image has places for one: files of `/run`, bound to those of
/// `/etc`, where [`crate::renew`] changes them.
fn identity() -> Result<()> {
    for name in FILES {
        let place = at(&format!("etc/{name}"));
        let text = match std::fs::read(&place) {
            Ok(_) if name == "machine-id" => {
                let id =
                    std::fs::read_to_string("/proc/sys/kernel/random/uuid").during("make a machine id")?;
                id.replace('-', "").into_bytes()
            }
            Ok(text) => text,
            Err(_) => continue,
        };
        let source = at(&format!("{FOLDER}/{name}"));
        std::fs::write(&source, text).during_with(|| format!("write {source}"))?;
        let file = open(&source, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .during_with(|| format!("open {source}"))?;
        rustix::fs::fchmod(file.as_fd(), Mode::from_raw_mode(0o444))
            .during_with(|| format!("set the mode of {source}"))?;
        bind_read_only(&source, &place, MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC)?;
    }
    Ok(())
}
