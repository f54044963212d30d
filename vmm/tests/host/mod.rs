//! What tests see of their own process, and do to it. Part of test programs in several packages, which include this file by
//! its path.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod program;
pub(crate) mod unsafe_process;

use std::process::Command;
use std::time::{Duration, Instant};

/// What this process has of everything that a machine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) descriptors: usize,
    /// Without the one that takes machines apart, which stays for a while.
    pub(crate) threads: usize,
    pub(crate) mappings: usize,
    /// Bytes of mappings that a child made by `fork` does not get: memory of guests, and the pages that virtual CPUs share
    /// with KVM.
    pub(crate) of_guests: u64,
    /// Bytes of memory that is really there.
    pub(crate) resident: u64,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let threads = thread_names().iter().filter(|name| *name != "hayfork-reaper").count();
        // The folder is open while it is counted.
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count() - 1;
        let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).map_or(0, kib);
        Self { descriptors, threads, mappings, of_guests: of_guests(), resident }
    }

    /// Fails if there is more than `before` of anything that is exactly countable, or noticeably more of the rest: where the
    /// allocator's memory ends up is not the same each time.
    pub(crate) fn check_against(&self, before: &Self) {
        assert_eq!(
            (self.descriptors, self.threads, self.of_guests),
            (before.descriptors, before.threads, before.of_guests),
            "{before:?} then {self:?}"
        );
        assert!(self.mappings <= before.mappings + 5, "{before:?} then {self:?}");
        assert!(self.resident <= before.resident + (8 << 20), "{before:?} then {self:?}");
    }
}

/// Names of this process's threads, sorted; without those that the host's kernel keeps for each machine.
pub(crate) fn thread_names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let mut names: Vec<_> =
        names.map(|name| name.trim().to_owned()).filter(|name| !name.starts_with("kvm-")).collect();
    names.sort();
    names
}

fn of_guests() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut sum, mut size) = (0, 0);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Size:") {
            size = kib(rest);
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|flag| flag == "dc")
        {
            sum += size;
        }
    }
    sum
}

/// What open descriptors of this process are, as the kernel names it, as far as that contains `part`.
pub(crate) fn open_descriptors(part: &str) -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.contains(part)).collect()
}

/// Bytes, of a text like ` 12 kB`.
fn kib(text: &str) -> u64 {
    text.trim().strip_suffix(" kB").and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The one or the other number: the latter in the nested rig, whose processor is translated and executes some 30 million
/// instructions a second.
pub(crate) fn or_in_rig<T>(number: T, in_rig: T) -> T {
    if std::env::var_os("HAYFORK_RIG").is_some() { in_rig } else { number }
}

/// Bytes that are resident now.
pub(crate) fn resident() -> u64 {
    Holdings::now().resident
}

/// Does `work` in a process that does nothing else: this test program again, running only `test`. Whoever counts what a
/// process has, or sends signals to it, must not share it with other tests.
pub(crate) fn alone(test: &str, work: impl FnOnce()) {
    const ALONE: &str = "HAYFORK_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        work();
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads", "1"])
        .env(ALONE, "1")
        // One pool of the allocator, so that memory is easier to compare.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    assert!(text.contains("1 passed"), "there is no test {test}");
}

/// Waits for something, and fails if that takes longer than `limit`. Gives how long it took.
pub(crate) fn wait_for(limit: Duration, what: &str, mut is_true: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < limit, "waited in vain for {what}, {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    start.elapsed()
}
