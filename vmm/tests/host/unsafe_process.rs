//! Children made by `fork`, and storms of signals.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::wait_for;

/// How long a child may take.
const CHILD_TIME: Duration = Duration::from_secs(30);

/// Runs `child` in a child made by `fork` and gives its exit code; fails if that takes long.
pub(crate) fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls only `child`, which may allocate (the C library allows that after a fork) and takes no lock
    // that another thread of the parent may hold, and leaves without running the parent's exit handlers.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: ends this process.
            unsafe { libc::_exit(code) }
        }
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        pid => {
            let mut status = 0;
            wait_for(CHILD_TIME, "the end of the child", || {
                // SAFETY: `status` has room for the answer; the child is ours and nobody else waits for it.
                (unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) }) == pid
            });
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

/// Signals that were handled, and those of them that were handled on a thread whose name begins with `hayfork`.
static HANDLED: AtomicU64 = AtomicU64::new(0);
static MISDIRECTED: AtomicU64 = AtomicU64::new(0);

/// A handler as programs have: it takes a little while.
extern "C" fn handler(_: libc::c_int) {
    let mut name = [0u8; 16];
    // SAFETY: the call writes at most 16 bytes, and is a plain system call, which handlers may make.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    HANDLED.fetch_add(1, Ordering::Relaxed);
    if name.starts_with(b"hayfork") {
        MISDIRECTED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Signals to this process all the time: timers of real time and of processor time, and SIGUSR1 to the process and to each
/// of its threads. Handlers do not restart system calls. Ends when it is dropped.
pub(crate) struct Storm {
    before: Weather,
    over: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

/// What a storm has done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Signals that were handled.
    pub(crate) handled: u64,
    /// Those of them that a thread of the monitor handled.
    pub(crate) misdirected: u64,
}

impl Weather {
    fn now() -> Self {
        Self { handled: HANDLED.load(Ordering::Relaxed), misdirected: MISDIRECTED.load(Ordering::Relaxed) }
    }
}

impl Storm {
    /// Sets timers of this period, and sends other signals ten times as rarely.
    pub(crate) fn of(period: Duration) -> Self {
        let before = Weather::now();
        for signal in [libc::SIGALRM, libc::SIGPROF, libc::SIGUSR1] {
            // SAFETY: all of its fields are integers, for which zero is a value: no flags, an empty mask.
            let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            action.sa_sigaction = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // SAFETY: the handler does only what handlers may do.
            assert_eq!(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) }, 0);
        }
        set_timers(period);
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let sender = std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                std::thread::sleep(period * 10);
                // SAFETY: sends a signal that is handled.
                unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) };
                for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
                    let Some(thread) = task.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
                    else {
                        continue;
                    };
                    // SAFETY: sends a signal that is handled; to a thread that has ended, it is an error.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
                }
            }
        });
        Self { before, over, sender: Some(sender) }
    }

    /// What it has done so far.
    pub(crate) fn weather(&self) -> Weather {
        let now = Weather::now();
        Weather {
            handled: now.handled - self.before.handled,
            misdirected: now.misdirected - self.before.misdirected,
        }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        set_timers(Duration::ZERO);
        self.over.store(true, Ordering::SeqCst);
        if let Some(sender) = self.sender.take() {
            sender.join().unwrap();
        }
    }
}

fn set_timers(period: Duration) {
    let time = libc::timeval { tv_sec: 0, tv_usec: i64::from(period.subsec_micros()) };
    let value = libc::itimerval { it_interval: time, it_value: time };
    for timer in [libc::ITIMER_REAL, libc::ITIMER_PROF] {
        // SAFETY: `value` is one; the signals that come of it are handled.
        assert_eq!(unsafe { libc::setitimer(timer, &raw const value, ptr::null_mut()) }, 0);
    }
}

/// Limits the descriptors of this process to this many, or to what they were at first.
pub(crate) fn limit_descriptors(limit: Option<u64>) {
    static FIRST: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` has room for the answer.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) }, 0);
    let first = *FIRST.get_or_init(|| limits.rlim_cur);
    limits.rlim_cur = limit.unwrap_or(first).min(limits.rlim_max);
    // SAFETY: reads the limits, which are this process's.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits) }, 0);
}
