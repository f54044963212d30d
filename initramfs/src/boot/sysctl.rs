//! Kernel settings that narrow what user code can reach.
//!
//! A setting that this kernel does not have is skipped: what is compiled out needs no switch. One that
//! is there and refuses the value is reported and does not stop the boot, since every one of them is a
//! second line behind permissions and the seccomp filter.

use std::io::ErrorKind;

/// Path below `/proc/sys`, value, in groups by reason.
const SETTINGS: &[(&str, &str)] = &[
    // The kernel's addresses and messages are nobody's business.
    ("kernel/kptr_restrict", "2"),
    ("kernel/dmesg_restrict", "1"),
    ("kernel/perf_event_paranoid", "3"),
    ("kernel/unprivileged_bpf_disabled", "2"),
    ("kernel/yama/ptrace_scope", "1"),
    ("kernel/sysrq", "0"),
    ("kernel/modules_disabled", "1"),
    ("kernel/kexec_load_disabled", "1"),
    ("kernel/io_uring_disabled", "2"),
    ("vm/unprivileged_userfaultfd", "0"),
    ("user/max_user_namespaces", "0"),
    ("dev/tty/ldisc_autoload", "0"),
    // A crash leaves no core file, and no program is started for one.
    ("kernel/core_pattern", ""),
    ("fs/suid_dumpable", "0"),
    // Tricks with links and FIFOs in shared folders.
    ("fs/protected_symlinks", "1"),
    ("fs/protected_hardlinks", "1"),
    ("fs/protected_fifos", "2"),
    ("fs/protected_regular", "2"),
    // Raw and privileged network access.
    ("net/ipv4/ping_group_range", "1 0"),
    ("net/ipv4/ip_unprivileged_port_start", "1024"),
    // A guest that fails must end, not linger: the host notices at once.
    ("kernel/panic", "-1"),
    ("kernel/panic_on_oops", "1"),
    // Memory: give out what is there, fail early rather than thrash, keep a little for the agent.
    ("vm/overcommit_memory", "0"),
    ("vm/oom_kill_allocating_task", "0"),
    ("vm/panic_on_oom", "0"),
];

/// Applies all settings and returns those that were refused, as text for the log.
pub fn apply() -> Vec<String> {
    let mut refused = Vec::new();
    for (name, value) in SETTINGS {
        match std::fs::write(format!("/proc/sys/{name}"), value) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => refused.push(format!("{name}={value:?}: {error}")),
        }
    }
    refused
}
