//! The little that the agent reads about processes in `/proc`.

use rustix::process::Pid;

/// Nanoseconds of a clock tick as `/proc` counts them: USER_HZ is 100 on every architecture that this runs on.
const TICK_NS: u64 = 10_000_000;

/// A time since boot in ticks, to compare with [`start_tick`].
pub fn tick_of(uptime_ns: u64) -> u64 {
    uptime_ns / TICK_NS
}

/// When the process was started, in ticks since boot; `None` if it is gone.
pub fn start_tick(pid: Pid) -> Option<u64> {
    parse_start_tick(&read(pid, "stat")?)
}

/// The process's id in the innermost namespace that it lives in; its own if `/proc` does not say.
pub fn inner_pid(pid: Pid) -> u32 {
    read(pid, "status")
        .and_then(|status| parse_inner_pid(&status))
        .unwrap_or_else(|| pid.as_raw_nonzero().get().unsigned_abs())
}

/// Proportional set size of the process, in bytes; `None` if it is gone or the kernel does not say.
pub fn pss(pid: Pid) -> Option<u64> {
    parse_pss(&read(pid, "smaps_rollup")?)
}

fn read(pid: Pid, file: &str) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Field 22 of `/proc/<pid>/stat`. The command in field 2 may hold anything, so counting starts behind its last parenthesis.
fn parse_start_tick(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn parse_inner_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

fn parse_pss(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_hostile_stat_line() {
        let stat = "42 (a) b) 7 (c) S 1 42 42 0 -1 4194560 108 0 0 0 0 0 0 0 20 0 1 0 5711 2846720 220 18446744073709551615";
        assert_eq!(parse_start_tick(stat), Some(5711));
        assert_eq!(parse_start_tick("42 (x"), None);
    }

    #[test]
    fn reads_pid_and_pss() {
        assert_eq!(parse_inner_pid("Name:\tx\nNSpid:\t123\t7\n"), Some(7));
        assert_eq!(parse_inner_pid("Name:\tx\n"), None);
        assert_eq!(
            parse_pss("00400000-7fff ---p [rollup]\nRss: 900 kB\nPss:     512 kB\n"),
            Some(512 * 1024)
        );
    }

    #[test]
    fn knows_this_very_process() {
        let me = rustix::process::getpid();
        assert!(start_tick(me).unwrap() <= tick_of(crate::clock::uptime_ns()));
        assert!(inner_pid(me) > 0);
    }
}
