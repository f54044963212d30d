//! What the examples that print figures for the nested rig count with.

use std::fs;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Where each exit of a virtual CPU to user space is counted.
const EXITS: &str = "/sys/kernel/tracing/events/kvm/kvm_userspace_exit";

/// Whether this host counts exits: tracefs is mounted, and the kernel counts events.
pub(crate) fn exits_are_counted() -> bool {
    Path::new(EXITS).join("hist").exists()
}

/// The median of some values, after all of them.
pub(crate) fn median(values: impl Iterator<Item = Outcome<u64>>) -> Outcome<u64> {
    let mut values = values.collect::<Outcome<Vec<u64>>>()?;
    println!("rounds {values:?}");
    values.sort_unstable();
    values.get(values.len() / 2).copied().ok_or_else(|| "no rounds".into())
}

/// Does something; gives what it took by a clock.
pub(crate) fn costs<T>(clock: impl Fn() -> u64, action: impl FnOnce() -> Outcome<T>) -> Outcome<(T, u64)> {
    let start = clock();
    let done = action()?;
    Ok((done, clock() - start))
}

/// Processor time of this process, in nanoseconds, that of threads which have ended included.
pub(crate) fn own_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // It starts at 0, so neither part is negative.
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000_000 + rest.unwrap_or(0)
}

/// Processor time, in nanoseconds, that those living threads of a process have taken whose names begin so (kernel
/// documentation, scheduler/sched-stats).
pub(crate) fn time_of_threads(process: &str, name: &str) -> Outcome<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?.path();
        // Threads may end meanwhile.
        let Ok(own_name) = fs::read_to_string(thread.join("comm")) else { continue };
        if own_name.starts_with(name) {
            let text = fs::read_to_string(thread.join("schedstat"))?;
            sum += text.split_whitespace().next().ok_or("an empty schedstat")?.parse::<u64>()?;
        }
    }
    if sum == 0 { Err(format!("no thread is named {name}").into()) } else { Ok(sum) }
}

/// Does something; gives the number of exits to user space of all virtual CPUs meanwhile.
pub(crate) fn counted<T>(action: impl FnOnce() -> Outcome<T>) -> Outcome<(T, u64)> {
    let trigger = Path::new(EXITS).join("trigger");
    fs::write(&trigger, "hist:keys=reason")?;
    let done = action();
    let table = fs::read_to_string(Path::new(EXITS).join("hist"));
    fs::write(&trigger, "!hist:keys=reason")?;
    let table = table?;
    let hits = table.lines().find_map(|line| line.trim().strip_prefix("Hits:"));
    Ok((done?, hits.ok_or("the table of exits has no sum")?.trim().parse()?))
}
