//! Masks of the threads, as the kernel shows them.

use std::sync::mpsc::channel;

/// The blocked signals of the calling thread, a bit each, that of signal 1 lowest.
fn blocked() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[test]
fn a_thread_of_ours_takes_no_signals_and_its_maker_keeps_its_own() {
    let before = blocked();
    let (sender, receiver) = channel();
    super::spawn(std::thread::Builder::new().name("hayfork-test".into()), move || {
        sender.send((blocked(), std::thread::current().name().map(str::to_owned))).unwrap();
    })
    .unwrap()
    .join()
    .unwrap();
    let (mask, name) = receiver.recv().unwrap();
    for signal in
        [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGCHLD, libc::SIGRTMIN(), libc::SIGRTMAX()]
    {
        assert_ne!(mask & bit(signal), 0, "signal {signal} must be blocked");
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
        assert_eq!(mask & bit(signal), 0, "signal {signal} must not be blocked");
    }
    assert_eq!(name.as_deref(), Some("hayfork-test"));
    assert_eq!(blocked(), before);
}
