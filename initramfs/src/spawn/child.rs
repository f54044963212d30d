//! The child's side of a start, between fork and exec.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, chdir, set_dumpable_behavior, setsid, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, LinkNameSpaceType, Uid, clear_ambient_capability_set,
    move_into_link_name_space, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::{GID, Ready, Rights, UID, Walls, limits};
use crate::error::OsError;
use crate::sys::{fork, schedule, signals};

/// Bytes of a report: the step's number and the errno.
pub(super) const RECORD: usize = 5;

/// What can fail, in order of the numbers in a report.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Step {
    Session,
    Namespace,
    Descriptors,
    Limits,
    Folder,
    Rights,
    Filter,
    Program,
}

const STEPS: [(Step, &str); 8] = [
    (Step::Session, "begin a session"),
    (Step::Namespace, "enter the sandbox's namespaces"),
    (Step::Descriptors, "set up standard input and output"),
    (Step::Limits, "set resource limits"),
    (Step::Folder, "enter the working folder"),
    (Step::Rights, "give up rights"),
    (Step::Filter, "install the system call filter"),
    (Step::Program, "run the program"),
];

pub(super) fn decode(record: [u8; RECORD]) -> OsError {
    let [step, errno @ ..] = record;
    let action = STEPS.iter().find(|(s, _)| *s as u8 == step).map_or("start the program", |(_, text)| text);
    OsError::new(action, Errno::from_raw_os_error(i32::from_le_bytes(errno)))
}

/// Does all the steps. Does not return.
pub(super) fn run(ready: &Ready<'_>, tell: &OwnedFd) -> ! {
    crate::panic::in_child();
    let (step, errno) = steps(ready);
    let mut record = [0; RECORD];
    record[0] = step as u8;
    record[1..].copy_from_slice(&errno.raw_os_error().to_le_bytes());
    let _ = rustix::io::write(tell, &record);
    fork::exit_now(127)
}

fn steps(ready: &Ready<'_>) -> (Step, Errno) {
    match prepare(ready) {
        Ok(()) => (Step::Program, exec(ready)),
        Err(failed) => failed,
    }
}

fn prepare(ready: &Ready<'_>) -> Result<(), (Step, Errno)> {
    let at = |step| move |errno| (step, errno);
    setsid().map_err(at(Step::Session))?;
    if let Some(walls) = ready.walls {
        enter_mounts(walls).map_err(at(Step::Namespace))?;
    }
    descriptors(ready).map_err(at(Step::Descriptors))?;
    if let Some(walls) = ready.walls {
        limits::set().map_err(at(Step::Limits))?;
        fair_game().map_err(at(Step::Limits))?;
        match ready.rights {
            Rights::User => become_user().map_err(at(Step::Rights))?,
            Rights::Root => become_bounded_root().map_err(at(Step::Rights))?,
        }
        // With the rights that the program will have, so that a closed folder stays closed.
        chdir(&ready.cwd).map_err(at(Step::Folder))?;
        set_no_new_privs(true).map_err(at(Step::Rights))?;
        signals::reset_for_exec();
        walls.filters.apply().map_err(at(Step::Filter))?;
    } else {
        chdir(&ready.cwd).map_err(at(Step::Folder))?;
        signals::reset_for_exec();
    }
    umask(Mode::from_raw_mode(0o022));
    Ok(())
}

fn enter_mounts(walls: &Walls) -> Result<(), Errno> {
    // This sets root and working folder to those of the namespace, which is the user's root.
    move_into_link_name_space(walls.root.mounts.as_fd(), Some(LinkNameSpaceType::Mount))
}

fn descriptors(ready: &Ready<'_>) -> Result<(), Errno> {
    // A source below 3 could be overwritten before its turn: lift all of them first.
    let mut lifted = Vec::with_capacity(3);
    for fd in ready.stdio {
        lifted.push(rustix::io::fcntl_dupfd_cloexec(fd, 3)?);
    }
    for (target, fd) in (0..).zip(&lifted) {
        fork::put_over(fd.as_fd(), target)?;
    }
    fork::close_on_exec_from(3);
    Ok(())
}

/// Undoes what sets the agent apart: user code is preferred when memory is short, and has normal priority and policy.
pub(crate) fn fair_game() -> Result<(), Errno> {
    schedule::set(schedule::Policy::Normal, 0)?;
    let path = "/proc/self/oom_score_adj";
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    // Written with CAP_SYS_RESOURCE, so that this is also the lowest that the user can set later.
    rustix::io::write(&file, b"0").map(|_| ())
}

/// Turns the calling process into uid 1000 without any capability, now or later.
pub(crate) fn become_user() -> Result<(), Errno> {
    drop_bounding_set(CapabilitySet::empty())?;
    clear_ambient_capability_set()?;
    let (uid, gid) = (Uid::from_raw(UID), Gid::from_raw(GID));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    // Leaving uid 0 clears the effective and permitted sets (capabilities(7)).
    set_thread_res_uid(uid, uid, uid)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

fn become_bounded_root() -> Result<(), Errno> {
    let kept = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID
        | CapabilitySet::SETPCAP
        | CapabilitySet::NET_BIND_SERVICE;
    drop_bounding_set(kept)?;
    clear_ambient_capability_set()?;
    set_thread_groups(&[])?;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )
}

fn drop_bounding_set(kept: CapabilitySet) -> Result<(), Errno> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel has no capability of that number, nor any higher one.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Tries each place; as execvp(3), a place that is not there does not hide a later one, and a file that
/// may not be executed is reported if nothing better follows.
fn exec(ready: &Ready<'_>) -> Errno {
    let mut result = Errno::NOENT;
    for path in &ready.paths {
        match fork::exec(path, &ready.argv, &ready.env) {
            Errno::NOENT | Errno::NOTDIR => {}
            Errno::ACCESS => result = Errno::ACCESS,
            errno => return errno,
        }
    }
    result
}
