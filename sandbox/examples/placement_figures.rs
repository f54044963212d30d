//! Measures what a machine costs beside others that live, in one process with them and in a worker of its own:
//! `cargo build --release -p hayfork-vmm && cargo run --release -p hayfork-sandbox --example placement_figures [-- ROUNDS]`.
//!
//! For each number of idle python sandboxes beside it: one is made of the language's template, prints, and is closed, over and over,
//! by one caller. What counts is processor time, that of this process with its guests and that of the workers that have ended; it says more
//! than elapsed time on a busy host, which stands beside it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use hayfork_sandbox::{
    Engine, EngineOptions, Error, ExecuteOptions, Language, Sandbox, SandboxOptions, TemplateStore,
    WarmOptions,
};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Idle sandboxes beside the one that is measured.
const BESIDE: [usize; 8] = [0, 1, 3, 7, 15, 31, 63, 127];

/// Times that memory is measured, and machines for that.
const MEMORY: (usize, u64) = (7, 32);

/// Callers at once.
const CALLERS: [u32; 2] = [1, 4];

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(40);
    println!("{:<9}{:>8}{:>34}{:>34}", "", "", "one caller", "4 callers at once");
    println!(
        "{:<9}{:>8}{:>14}{:>20}{:>14}{:>20}",
        "", "beside", "processor ms", "elapsed, median/99", "processor ms", "elapsed, median/99"
    );
    let only = std::env::args().nth(2);
    for isolation in
        ["process", "worker"].into_iter().filter(|name| only.as_deref().is_none_or(|only| only == *name))
    {
        let options = EngineOptions {
            backend: Some("monitor".into()),
            isolation: Some(isolation.into()),
            template_store: TemplateStore::Off,
            ..EngineOptions::default()
        };
        let result = Engine::new(options).and_then(|engine| {
            let result = engine.runtime().block_on(measure(&engine, isolation, rounds));
            engine.shutdown();
            result
        });
        if let Err(error) = result {
            eprintln!("{}: {error}\n{}", error.code(), error.remedy());
            std::process::exit(1);
        }
    }
}

async fn measure(engine: &Engine, isolation: &str, rounds: u32) -> Result<(), Error> {
    let warm = |count| {
        engine.keep_warm(WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count })
    };
    warm(1)?;
    engine.wait_warm(Duration::from_secs(120)).await?;
    warm(0)?;
    for _ in 0..4 {
        round(engine).await?;
    }
    let mut idle = Vec::new();
    for beside in BESIDE {
        while idle.len() < beside {
            idle.push(used(engine).await?);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut line = format!("{isolation:<9}{beside:>8}");
        for callers in CALLERS {
            round(engine).await?;
            let used = processor();
            let tasks: Vec<_> =
                (0..callers).map(|_| tokio::spawn(lives(engine.clone(), rounds / callers))).collect();
            let mut times = Vec::new();
            for task in tasks {
                times.extend(
                    task.await.unwrap_or_else(|fault| std::panic::resume_unwind(fault.into_panic()))?,
                );
            }
            let used = processor().saturating_sub(used) / u32::try_from(times.len()).unwrap_or(1).max(1);
            times.sort_unstable();
            let at = |share: usize| times.get((times.len() - 1) * share / 100).copied().unwrap_or_default();
            let elapsed = format!("{} / {}", milliseconds(at(50)), milliseconds(at(99)));
            // Writing to a String cannot fail.
            let _ = write!(line, "{:>14}{elapsed:>20}", milliseconds(used));
        }
        println!("{line}");
    }
    drop(idle);
    memory(engine, isolation).await
}

/// What the host's `MemAvailable` loses for each of some idle machines: others on the host take and give, so the median of several times.
async fn memory(engine: &Engine, isolation: &str) -> Result<(), Error> {
    let (mut each, pause) = (Vec::new(), Duration::from_secs(1));
    let (mut private, mut taken) = (0, 0);
    for _ in 0..MEMORY.0 {
        tokio::time::sleep(pause).await;
        let (before, open) = (available_kib(), descriptors());
        let mut idle = Vec::new();
        for _ in 0..MEMORY.1 {
            idle.push(used(engine).await?);
        }
        tokio::time::sleep(pause).await;
        each.push(before.saturating_sub(available_kib()) / MEMORY.1);
        taken = (descriptors().saturating_sub(open)) / idle.len().max(1);
        private = idle
            .iter()
            .filter_map(Sandbox::host_memory)
            .map(|memory| memory.overhead >> 10)
            .max()
            .unwrap_or(0);
        for sandbox in idle {
            sandbox.close().await?;
        }
    }
    each.sort_unstable();
    let of = |kib: Option<&u64>| mebibytes(kib.copied().unwrap_or(0));
    println!(
        "{isolation:<9} memory of one that has printed: {} MiB ({} to {}); its process's own, beside the guest's: {private} KiB; \
         {taken} descriptors here",
        of(each.get(each.len() / 2)),
        of(each.first()),
        of(each.last())
    );
    Ok(())
}

/// One machine's life after the other; how long each took.
async fn lives(engine: Engine, count: u32) -> Result<Vec<Duration>, Error> {
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        round(&engine).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

/// A machine's life: restored, used, gone.
async fn round(engine: &Engine) -> Result<(), Error> {
    used(engine).await?.close().await
}

/// A machine that has printed.
async fn used(engine: &Engine) -> Result<Sandbox, Error> {
    let sandbox = engine.create(SandboxOptions::new(Language::Python)).await?;
    sandbox.execute(ExecuteOptions::new("print(1)")).collect().await?;
    Ok(sandbox)
}

/// Processor time of this process so far, its guests' included, and of the workers that have ended.
fn processor() -> Duration {
    let of = |who| {
        let time = |usage: Usage| (usage.user_time() + usage.system_time()).num_microseconds();
        getrusage(who).map(time).map_or(0, |time| u64::try_from(time).unwrap_or(0))
    };
    Duration::from_micros(of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN))
}

/// `MemAvailable`, in KiB.
fn available_kib() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn mebibytes(kib: u64) -> String {
    format!("{}.{:02}", kib / 1024, kib % 1024 * 100 / 1024)
}
