//! The seccomp filter of user code.
//!
//! It names what is refused, since the sandbox's promise is that ordinary programs run. What it refuses is either
//! reachable only with capabilities that user code does not have (a second lock on the same door) or has a long history of
//! kernel faults that unprivileged code could use. Refused calls fail with EPERM; `clone3` fails with ENOSYS, because its
//! flags are behind a pointer where no filter can look, and C libraries fall back to `clone`, whose flags it can see.

use std::collections::BTreeMap;

use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// Refused whatever the arguments.
const REFUSED: &[i64] = &[
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_open_by_handle_at,
    // Namespaces of others.
    libc::SYS_setns,
    // Code in the kernel, and other kernels.
    libc::SYS_bpf,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    // Interfaces that programs in a sandbox can do without, with a history of faults.
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_fanotify_init,
    libc::SYS_process_madvise,
    libc::SYS_move_pages,
    // The machine's clock, log, accounting and ports.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    // The length of its turns on the processor, by which it could have the agent wait (`sys::schedule`).
    libc::SYS_sched_setattr,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Flags of `clone` and `unshare` that make namespaces.
const NAMESPACE_FLAGS: [libc::c_int; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    // CLONE_NEWTIME
    0x80,
];

/// Address families that a socket may have. In particular not AF_VSOCK, by which code could speak to the
/// host in the agent's place, nor AF_PACKET, AF_ALG and the many others that nobody uses here.
const SOCKET_FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Compiled filters.
#[derive(Debug)]
pub struct Filters(Vec<BpfProgram>);

/// The filter could not be compiled: a fault of this program, found by its tests.
#[derive(Debug, thiserror::Error)]
#[error("compile the system call filter: {0}")]
pub struct FilterError(#[from] seccompiler::BackendError);

impl Filters {
    /// Compiles the filters.
    ///
    /// # Errors
    /// [`FilterError`], which does not happen with the tables of this file.
    pub fn compile() -> Result<Self, FilterError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let errno = |errno: Errno| SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
        let mut refused: BTreeMap<i64, Vec<SeccompRule>> =
            REFUSED.iter().map(|number| (*number, Vec::new())).collect();
        // unshare's flag CLONE_NEWTIME shares its bit with clone's exit signal, where it cannot occur.
        refused.insert(libc::SYS_unshare, any_of(&NAMESPACE_FLAGS)?);
        refused.insert(libc::SYS_clone, any_of(&NAMESPACE_FLAGS[..7])?);
        refused.insert(libc::SYS_socket, vec![none_of(&SOCKET_FAMILIES)?]);
        refused.insert(libc::SYS_socketpair, vec![none_of(&SOCKET_FAMILIES)?]);
        let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let compile = |rules, action| -> Result<BpfProgram, FilterError> {
            Ok(SeccompFilter::new(rules, SeccompAction::Allow, action, arch)?.try_into()?)
        };
        Ok(Self(vec![compile(refused, errno(Errno::PERM))?, compile(missing, errno(Errno::NOSYS))?]))
    }

    /// Puts the calling process under the filters, for good.
    ///
    /// # Errors
    /// The kernel's errno; EINVAL if it has no seccomp filters.
    pub fn apply(&self) -> Result<(), Errno> {
        for program in &self.0 {
            apply_filter(program).map_err(|error| match error {
                seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => {
                    crate::error::errno_of(&error)
                }
                _ => Errno::INVAL,
            })?;
        }
        Ok(())
    }
}

/// Rules that match when any of the flags is set in the first argument.
fn any_of(flags: &[libc::c_int]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    flags
        .iter()
        .map(|flag| {
            let flag = u64::from(flag.unsigned_abs());
            let condition =
                SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
            SeccompRule::new(vec![condition])
        })
        .collect()
}

/// A rule that matches when the first argument is none of the values.
fn none_of(values: &[libc::c_int]) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = values
        .iter()
        .map(|value| {
            let value = u64::from(value.unsigned_abs());
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
        })
        .collect::<Result<Vec<_>, _>>()?;
    SeccompRule::new(conditions)
}

#[cfg(test)]
mod tests;
