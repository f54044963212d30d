//! The system calls of a worker (seccomp(2)). What is not on the lists kills the process.
//!
//! They were found by running whole lives of machines: boot, capture, restore, ends of each kind, with one and several
//! processors, with each message. A call that a C library or kernel of another version makes in their place kills as well,
//! and the owner's error names the signal; the test of all lives would find it.

use std::collections::BTreeMap;
use std::mem::size_of;

use kvm_bindings as kvm;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// The filter could not be made or set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The lists do not make a filter: a fault of this program, found by its tests.
    #[error("the system call filter cannot be compiled: {0}")]
    Compile(#[from] seccompiler::BackendError),
    /// The kernel refuses it.
    #[error("the system call filter cannot be set: {0}")]
    Apply(#[source] seccompiler::Error),
}

/// When a filter holds. Each later one is part of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A machine can be made.
    Making,
    /// The machine runs.
    Running,
}

/// Allowed whatever the arguments. None of them takes a path, an address, or a process.
const PLAIN: &[i64] = &[
    // Descriptors that are there.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_dup,
    libc::SYS_shutdown,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    // New ones without a name.
    libc::SYS_memfd_create,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Waiting.
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Threads and signals of their own.
    // A thread that was made a moment ago may still be at its first steps.
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getrandom,
];

/// Direction, size, type and number of an `ioctl` (Linux, include/uapi/asm-generic/ioctl.h).
const fn command(direction: u32, size: usize, number: u32) -> u32 {
    assert!(size < 1 << 14, "the field has 14 bits");
    #[allow(clippy::cast_possible_truncation)] // just checked
    let size = size as u32;
    direction << 30 | size << 16 | kvm::KVMIO << 8 | number
}
const fn io(number: u32) -> u32 {
    command(0, 0, number)
}
const fn iow<T>(number: u32) -> u32 {
    command(1, size_of::<T>(), number)
}
const fn ior<T>(number: u32) -> u32 {
    command(2, size_of::<T>(), number)
}
const fn iowr<T>(number: u32) -> u32 {
    command(3, size_of::<T>(), number)
}

/// Calls of KVM on a machine that runs (KVM API, by number).
const KVM_RUNNING: &[u32] = &[
    io(0x80),                          // KVM_RUN
    iow::<kvm::kvm_irq_level>(0x61),   // KVM_IRQ_LINE
    ior::<kvm::kvm_regs>(0x81),        // KVM_GET_REGS
    ior::<kvm::kvm_sregs>(0x83),       // KVM_GET_SREGS
    iowr::<kvm::kvm_msrs>(0x88),       // KVM_GET_MSRS
    iowr::<kvm::kvm_cpuid2>(0x91),     // KVM_GET_CPUID2
    ior::<kvm::kvm_lapic_state>(0x8e), // KVM_GET_LAPIC
    ior::<kvm::kvm_mp_state>(0x98),    // KVM_GET_MP_STATE
    ior::<kvm::kvm_vcpu_events>(0x9f), // KVM_GET_VCPU_EVENTS
    ior::<kvm::kvm_debugregs>(0xa1),   // KVM_GET_DEBUGREGS
    io(0xa3),                          // KVM_GET_TSC_KHZ
    ior::<kvm::kvm_xsave>(0xa4),       // KVM_GET_XSAVE
    ior::<kvm::kvm_xsave>(0xcf),       // KVM_GET_XSAVE2
    ior::<kvm::kvm_xcrs>(0xa6),        // KVM_GET_XCRS
    iowr::<kvm::kvm_irqchip>(0x62),    // KVM_GET_IRQCHIP
    ior::<kvm::kvm_clock_data>(0x7c),  // KVM_GET_CLOCK
    io(0xad),                          // KVM_KVMCLOCK_CTRL
    io(0x03),                          // KVM_CHECK_EXTENSION
];

/// Those that make one.
const KVM_MAKING: &[u32] = &[
    io(0x01),                                      // KVM_CREATE_VM
    io(0x04),                                      // KVM_GET_VCPU_MMAP_SIZE
    io(0x41),                                      // KVM_CREATE_VCPU
    iow::<kvm::kvm_userspace_memory_region>(0x46), // KVM_SET_USER_MEMORY_REGION
    io(0x47),                                      // KVM_SET_TSS_ADDR
    iow::<u64>(0x48),                              // KVM_SET_IDENTITY_MAP_ADDR
    io(0x60),                                      // KVM_CREATE_IRQCHIP
    ior::<kvm::kvm_irqchip>(0x63),                 // KVM_SET_IRQCHIP
    iow::<kvm::kvm_ioeventfd>(0x79),               // KVM_IOEVENTFD
    iow::<kvm::kvm_clock_data>(0x7b),              // KVM_SET_CLOCK
    iow::<kvm::kvm_regs>(0x82),                    // KVM_SET_REGS
    iow::<kvm::kvm_sregs>(0x84),                   // KVM_SET_SREGS
    iow::<kvm::kvm_msrs>(0x89),                    // KVM_SET_MSRS
    iow::<kvm::kvm_cpuid2>(0x90),                  // KVM_SET_CPUID2
    iow::<kvm::kvm_lapic_state>(0x8f),             // KVM_SET_LAPIC
    iow::<kvm::kvm_mp_state>(0x99),                // KVM_SET_MP_STATE
    iow::<kvm::kvm_vcpu_events>(0xa0),             // KVM_SET_VCPU_EVENTS
    iow::<kvm::kvm_debugregs>(0xa2),               // KVM_SET_DEBUGREGS
    io(0xa2),                                      // KVM_SET_TSC_KHZ
    iow::<kvm::kvm_xsave>(0xa5),                   // KVM_SET_XSAVE
    iow::<kvm::kvm_xcrs>(0xa7),                    // KVM_SET_XCRS
];

/// Flags with which the C library makes a thread, and nothing else is made.
const THREAD: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A rule of conditions on whole arguments, low 32 bits: (number, allowed bits under a mask).
fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = conditions
        .iter()
        .map(|(number, operation, value)| {
            SeccompCondition::new(*number, SeccompCmpArgLen::Dword, operation.clone(), *value)
        })
        .collect::<Result<_, _>>()?;
    SeccompRule::new(conditions)
}

fn number(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

/// One rule for each value of an argument.
fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| rule(&[(argument, SeccompCmpOp::Eq, *value)])).collect()
}

/// Constants that C libraries give different types; all are small.
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)]
const FIONBIO: u64 = libc::FIONBIO as u64;
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)]
const RLIMIT_AS: u64 = libc::RLIMIT_AS as u64;
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)]
const RLIMIT_FSIZE: u64 = libc::RLIMIT_FSIZE as u64;

fn rules(stage: Stage) -> Result<Rules, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let mut rules: Rules = PLAIN.iter().map(|call| (*call, Vec::new())).collect();
    let mut commands: Vec<u64> = KVM_RUNNING.iter().copied().map(u64::from).collect();
    commands.push(FIONBIO);
    // Memory that is not executable; private, or shared of a descriptor that is there.
    let not_executable = |argument| rule(&[(argument, MaskedEq(number(libc::PROT_EXEC)), 0)]);
    rules.insert(libc::SYS_mmap, vec![not_executable(2)?]);
    rules.insert(libc::SYS_mprotect, vec![not_executable(2)?]);
    let file_commands = [
        libc::F_DUPFD_CLOEXEC,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_ADD_SEALS,
        libc::F_GET_SEALS,
    ];
    rules.insert(libc::SYS_fcntl, one_of(1, &file_commands.map(number))?);
    // Signals to threads of its own.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![rule(&[(0, Eq, own)])?]);
    let mut process_commands = vec![number(libc::PR_SET_NAME)];
    if stage == Stage::Making {
        commands.extend(KVM_MAKING.iter().copied().map(u64::from));
        rules.insert(libc::SYS_clone, vec![rule(&[(0, Eq, number(THREAD))])?]);
        // Answered by another filter: see `apply`.
        rules.insert(libc::SYS_clone3, Vec::new());
        // The next stage's.
        process_commands.push(number(libc::PR_SET_NO_NEW_PRIVS));
        rules.insert(libc::SYS_seccomp, one_of(0, &[u64::from(libc::SECCOMP_SET_MODE_FILTER)])?);
        // The bounds on memory, of this process.
        let bound = |resource| rule(&[(0, Eq, 0), (1, Eq, resource)]);
        rules.insert(libc::SYS_prlimit64, vec![bound(RLIMIT_AS)?, bound(RLIMIT_FSIZE)?]);
    }
    rules.insert(libc::SYS_prctl, one_of(0, &process_commands)?);
    rules.insert(libc::SYS_ioctl, one_of(1, &commands)?);
    Ok(rules)
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    then: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, then, architecture)?.try_into()
}

/// Puts all threads of this process under a stage's list, for good.
///
/// # Errors
/// [`FilterError`]
pub fn apply(stage: Stage) -> Result<(), FilterError> {
    if stage == Stage::Making {
        // `clone3` has its flags behind a pointer, where no filter sees them. Told that there is none, C libraries take
        // `clone`. Of two filters the stricter answer counts, so the list must let it pass.
        let missing = Rules::from([(libc::SYS_clone3, Vec::new())]);
        let answer = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let program = compile(missing, SeccompAction::Allow, answer)?;
        seccompiler::apply_filter_all_threads(&program).map_err(FilterError::Apply)?;
    }
    let program = compile(rules(stage)?, SeccompAction::KillProcess, SeccompAction::Allow)?;
    seccompiler::apply_filter_all_threads(&program).map_err(FilterError::Apply)
}
