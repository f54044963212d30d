//! What a confined process may do, call by call.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use hayfork_vmm::worker::confine::filter::{self, Stage};

use crate::unsafe_calls::{call, end_of_child};

/// Calls that are allowed with some arguments at least; written down here once more, so that a new one is a decision.
const ALLOWED: &[i64] = &[
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
    libc::SYS_memfd_create,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
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
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
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
    // With some arguments.
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_fcntl,
    libc::SYS_tgkill,
    libc::SYS_prctl,
    libc::SYS_ioctl,
    libc::SYS_clone3, // answered: there is none
];

/// Allowed, with some arguments, only until the machine runs.
const ONLY_MAKING: &[i64] = &[libc::SYS_clone, libc::SYS_seccomp, libc::SYS_prlimit64];

/// Linux lets these pass every filter: they belong to its probes, and do nothing but where it has put them itself.
const PROBES: [i64; 2] = [335, 336];

/// Beyond the highest number of any kernel so far.
const NUMBERS: std::ops::Range<i64> = 0..512;

/// Makes the call in a child under the filter of that stage.
fn under(stage: Stage, number: i64, arguments: [u64; 6]) -> ExitStatus {
    end_of_child(|| {
        rustix::thread::set_no_new_privs(true).unwrap();
        filter::apply(Stage::Making).unwrap();
        if stage == Stage::Running {
            filter::apply(Stage::Running).unwrap();
        }
        call(number, arguments);
    })
}

fn is_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGSYS)
}

fn arg(number: libc::c_int) -> u64 {
    i64::from(number).cast_unsigned()
}

#[test]
fn every_call_that_is_not_on_the_list_kills() {
    for stage in [Stage::Making, Stage::Running] {
        let mut killed = 0;
        for number in NUMBERS {
            let making = ONLY_MAKING.contains(&number);
            if ALLOWED.contains(&number) || PROBES.contains(&number) || making && stage == Stage::Making {
                continue;
            }
            // Nothing that could be meant: the filter comes before any look at the arguments.
            let status = under(stage, number, [u64::MAX; 6]);
            assert!(is_killed(status), "{stage:?}: system call {number} ended with {status}");
            killed += 1;
        }
        assert!(killed > 400, "{killed}");
        // Those of the other ABI of the same processor (x32).
        let status = under(stage, 0x4000_0000 | libc::SYS_getpid, [0; 6]);
        assert!(is_killed(status), "{status}");
    }
}

/// ioctl_tty(2). C libraries differ in its type.
const TIOCSTI: u64 = 0x5412;

#[test]
fn calls_with_other_arguments_kill() {
    let clone_process = arg(libc::SIGCHLD);
    let clone_with_namespace = 0x003d_0f00 | arg(libc::CLONE_NEWUSER);
    let cases: &[(&str, i64, [u64; 6])] = &[
        ("executable memory", libc::SYS_mmap, [0, 4096, 5, 0x22, u64::MAX, 0]),
        ("writable and executable memory", libc::SYS_mmap, [0, 4096, 7, 0x22, u64::MAX, 0]),
        ("memory made executable", libc::SYS_mprotect, [0, 4096, 5, 0, 0, 0]),
        ("a process", libc::SYS_clone, [clone_process, 0, 0, 0, 0, 0]),
        ("a user namespace", libc::SYS_clone, [clone_with_namespace, 0, 0, 0, 0, 0]),
        ("a signal to another process", libc::SYS_tgkill, [1, 1, 0, 0, 0, 0]),
        ("becoming dumpable", libc::SYS_prctl, [arg(libc::PR_SET_DUMPABLE), 1, 0, 0, 0, 0]),
        ("outliving the parent", libc::SYS_prctl, [arg(libc::PR_SET_PDEATHSIG), 0, 0, 0, 0, 0]),
        ("typing into a terminal", libc::SYS_ioctl, [0, TIOCSTI, 0, 0, 0, 0]),
        ("a device of KVM", libc::SYS_ioctl, [9, 0xc00c_aee0, 0, 0, 0, 0]),
        ("a capability of KVM", libc::SYS_ioctl, [9, 0x4068_aea3, 0, 0, 0, 0]),
        ("nested guests' state", libc::SYS_ioctl, [9, 0x4080_aebf, 0, 0, 0, 0]),
        ("the owner of a descriptor", libc::SYS_fcntl, [0, arg(libc::F_SETOWN), 1, 0, 0, 0]),
        ("a lease", libc::SYS_fcntl, [0, arg(libc::F_SETLEASE), 0, 0, 0, 0]),
        ("a notification of a filter", libc::SYS_seccomp, [3, 0, 0, 0, 0, 0]),
        ("more descriptors", libc::SYS_prlimit64, [0, arg(7), 0, 0, 0, 0]),
        ("another's limits", libc::SYS_prlimit64, [1, arg(9), 0, 0, 0, 0]),
    ];
    for stage in [Stage::Making, Stage::Running] {
        for (what, number, arguments) in cases {
            let status = under(stage, *number, *arguments);
            assert!(is_killed(status), "{stage:?}: {what} ended with {status}");
        }
    }
}

#[test]
fn what_only_making_needs_kills_a_machine_that_runs() {
    let cases: &[(&str, i64, [u64; 6])] = &[
        ("a thread", libc::SYS_clone, [0x003d_0f00, 0, 0, 0, 0, 0]),
        ("a machine", libc::SYS_ioctl, [900, 0xae01, 0, 0, 0, 0]),
        ("a processor", libc::SYS_ioctl, [900, 0xae41, 0, 0, 0, 0]),
        ("memory of a machine", libc::SYS_ioctl, [900, 0x4020_ae46, 0, 0, 0, 0]),
        ("another doorbell", libc::SYS_ioctl, [900, 0x4040_ae79, 0, 0, 0, 0]),
        ("registers", libc::SYS_ioctl, [900, 0x4090_ae82, 0, 0, 0, 0]),
        ("another filter", libc::SYS_seccomp, [1, 0, 0, 0, 0, 0]),
        ("more memory", libc::SYS_prlimit64, [0, arg(9), 0, 0, 0, 0]),
    ];
    for (what, number, arguments) in cases {
        // The kernel refuses these for their arguments: no such descriptor, no stack, no filter.
        if *number != libc::SYS_clone {
            let status = under(Stage::Making, *number, *arguments);
            assert!(status.success(), "{what} ended with {status}");
        }
        let status = under(Stage::Running, *number, *arguments);
        assert!(is_killed(status), "{what} ended with {status}");
    }
}

#[test]
fn what_a_worker_needs_works() {
    for stage in [Stage::Making, Stage::Running] {
        let status = end_of_child(|| {
            let (mut here, mut there) = std::os::unix::net::UnixStream::pair().unwrap();
            rustix::thread::set_no_new_privs(true).unwrap();
            filter::apply(Stage::Making).unwrap();
            // The C library is told that there is no `clone3`.
            assert_eq!(std::thread::spawn(|| 5).join().unwrap(), 5);
            if stage == Stage::Running {
                filter::apply(Stage::Running).unwrap();
            }
            let mut all: Vec<Vec<u8>> = (0..64).map(|n| vec![n; 1 << 20]).collect();
            for some in &mut all {
                some.resize(3 << 20, 1);
            }
            std::io::Write::write_all(&mut here, b"x").unwrap();
            std::io::Read::read_exact(&mut there, &mut [0]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        });
        assert!(status.success(), "{stage:?}: {status}");
    }
}
