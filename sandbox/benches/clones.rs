//! What machines cost that do not boot: restored from a template, taken from the pool, forked; on each backend of this host.
//!
//! `cargo bench -p hayfork-sandbox --bench clones [-- BACKEND…]`, of `monitor`, `worker` (the monitor, each machine in a process of
//! its own) and `qemu`. Each round prints in a machine that nobody has used, which
//! says who it is and whether anybody was there before. Medians and the ninety-ninth percentile; beside the times stands the
//! processor time of this process, guests included, which says more on a busy host. Never fails for a figure. Without
//! `HAYFORK_IMAGES_DIR` it says so and ends.

#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)] // A benchmark.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hayfork_sandbox::{
    Engine, EngineOptions, Error, ExecuteOptions, Language, Sandbox, SandboxOptions, StartedFrom, WarmOptions,
};

/// The longest that anything is waited for.
const LIMIT: Duration = Duration::from_secs(120);

/// What a user's program would say about itself: its machine's id, and whether the trace of an earlier one is there.
const WHO: &str = "print(open('/etc/machine-id').read().strip(), __import__('os').path.exists('trace'))";
const TRACE: &str = "open('trace', 'w').close()";

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // A test runner that asks for its tests gets none.
    if arguments.iter().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    if std::env::var_os("HAYFORK_IMAGES_DIR").is_none() {
        return println!("clones: not measured: HAYFORK_IMAGES_DIR names no image set");
    }
    let backends =
        if arguments.is_empty() { vec!["monitor".into(), "worker".into(), "qemu".into()] } else { arguments };
    for backend in backends {
        let rounds = if backend == "qemu" { 10 } else { 200 };
        let (name, isolation) =
            if backend == "worker" { ("monitor", "worker") } else { (&*backend, "process") };
        let options = EngineOptions {
            backend: Some(name.into()),
            isolation: Some(isolation.into()),
            template_store: hayfork_sandbox::TemplateStore::Off,
            ..EngineOptions::default()
        };
        let done = Engine::new(options).and_then(|engine| {
            let done = engine.runtime().block_on(measure(&engine, &backend, rounds));
            engine.shutdown();
            done
        });
        if let Err(error) = done {
            println!("clones on {backend}: not measured further: {error}");
        }
    }
}

async fn measure(engine: &Engine, backend: &str, rounds: usize) -> Result<(), Error> {
    println!("clones on {backend}, python, {rounds} rounds");
    let began = Instant::now();
    warm(engine, 1).await?;
    println!("  {:<58} {:>9.2?}", "a template, and the first machine of it", began.elapsed());
    warm(engine, 0).await?;
    restores(engine, rounds).await?;
    handouts(engine, rounds).await?;
    forks(engine, rounds.min(20)).await?;
    memory(engine, if rounds < 50 { 5 } else { 50 }).await?;
    for callers in [4, 16] {
        sustained(engine, callers).await?;
    }
    Ok(())
}

async fn warm(engine: &Engine, count: usize) -> Result<(), Error> {
    engine.keep_warm(WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count })?;
    assert!(engine.wait_warm(LIMIT).await?, "the pool is not full");
    Ok(())
}

async fn create(engine: &Engine) -> Result<Sandbox, Error> {
    engine.create(SandboxOptions::new(Language::Python)).await
}

async fn text(sandbox: &Sandbox, code: &str) -> Result<String, Error> {
    let done = sandbox.execute(ExecuteOptions::new(code)).collect().await?;
    assert_eq!(done.outcome.exit_code, 0, "{}", String::from_utf8_lossy(&done.stderr));
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// From the template, with an empty pool.
async fn restores(engine: &Engine, rounds: usize) -> Result<(), Error> {
    let mut kinds: [Vec<Duration>; 6] = Default::default();
    let before = processor();
    for _ in 0..rounds {
        let began = Instant::now();
        let sandbox = create(engine).await?;
        let acknowledged = began.elapsed();
        assert_eq!(sandbox.boot_timings().from, StartedFrom::Template);
        assert_eq!(text(&sandbox, "print(1)").await?, "1\n");
        let printed = began.elapsed();
        let again = Instant::now();
        assert_eq!(text(&sandbox, "print(2)").await?, "2\n");
        let again = again.elapsed();
        let ending = Instant::now();
        sandbox.close().await?;
        let timings = sandbox.boot_timings();
        let renewal = timings.total.saturating_sub(timings.launch + timings.handshake);
        let times = [timings.launch, acknowledged, printed, again, ending.elapsed(), renewal];
        for (all, time) in kinds.iter_mut().zip(times) {
            all.push(time);
        }
    }
    let used = processor().saturating_sub(before) / rounds as u32;
    let [launch, acknowledged, printed, again, closed, renewal] = kinds;
    line("restore: machine made and running", launch);
    line("restore: until the agent has acknowledged everything", acknowledged);
    line("  of that, from the handshake to the acknowledgement", renewal);
    line("empty pool: restore, print(1), its result", printed);
    line("print(2) there", again);
    line("closed, machine gone", closed);
    println!("  {:<58} {used:>9.2?}", "processor time of all that, a round");
    Ok(())
}

/// From a full pool.
async fn handouts(engine: &Engine, rounds: usize) -> Result<(), Error> {
    warm(engine, 4).await?;
    let (mut handed, mut printed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        assert!(engine.wait_warm(LIMIT).await?);
        // What was closed before is gone, and the newest one at rest.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let began = Instant::now();
        let sandbox = create(engine).await?;
        handed.push(began.elapsed());
        assert_eq!(text(&sandbox, "print(1)").await?, "1\n");
        printed.push(began.elapsed());
        assert_eq!(sandbox.boot_timings().from, StartedFrom::Pool);
        sandbox.close().await?;
    }
    line("full pool: handed out", handed);
    line("full pool: handed out, print(1), its result", printed);
    warm(engine, 0).await
}

/// Of a sandbox with 64 MB of live data.
async fn forks(engine: &Engine, rounds: usize) -> Result<(), Error> {
    let sandbox = create(engine).await?;
    text(&sandbox, "import os; data = os.urandom(64_000_000)").await?;
    let digest = "import hashlib; print(hashlib.md5(data).hexdigest())";
    let expected = text(&sandbox, digest).await?;
    let (mut kept, mut whole) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let began = Instant::now();
        let snapshot = sandbox.snapshot().await?;
        kept.push(began.elapsed());
        let fork = snapshot.restore().await?;
        whole.push(began.elapsed());
        if round == 0 {
            assert_eq!(text(&fork, digest).await?, expected);
        }
        fork.close().await?;
    }
    line("fork, 64 MB of live data: kept (the original stands still)", kept);
    line("fork, 64 MB of live data: until the fork is handed out", whole);
    sandbox.close().await
}

/// Of the host, for each machine that is kept ready.
async fn memory(engine: &Engine, count: usize) -> Result<(), Error> {
    warm(engine, 1).await?;
    let before = available();
    warm(engine, count + 1).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let each = before.saturating_sub(available()) as f64 / count as f64 / 1024.0;
    println!("  {:<58} {each:>6.2} MiB", format!("host memory of one of {count} in stock"));
    warm(engine, 0).await
}

/// One machine after the other, by several callers, each with a machine of its own for each run.
async fn sustained(engine: &Engine, callers: usize) -> Result<(), Error> {
    warm(engine, callers).await?;
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let before = (processor(), host_busy());
    let (began, time) = (Instant::now(), Duration::from_secs(10));
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let (engine, seen) = (engine.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                let mut runs = 0;
                while began.elapsed() < time {
                    let sandbox = create(&engine).await?;
                    let who = text(&sandbox, &format!("{WHO}\n{TRACE}")).await?;
                    let (id, was_used) = who.trim().split_once(' ').unwrap();
                    assert_eq!(was_used, "False", "somebody was there before");
                    assert!(seen.lock().unwrap().insert(id.to_owned()), "two machines have one id");
                    runs += 1;
                    // Ended behind the caller's back.
                    drop(sandbox);
                }
                Ok::<_, Error>(runs)
            })
        })
        .collect();
    let mut runs = 0u32;
    for task in tasks {
        runs += task.await.expect("it does not panic")?;
    }
    let rate = f64::from(runs) / began.elapsed().as_secs_f64();
    println!("  {:<58} {rate:>6.1} a second", format!("runs in machines of their own, {callers} callers"));
    let (own, all) = (processor().saturating_sub(before.0), host_busy().saturating_sub(before.1));
    let each = |time: Duration| time / runs.max(1);
    println!("  {:<58} {:>9.2?}   host {:>9.2?}", "processor time of all that, a run", each(own), each(all));
    warm(engine, 0).await
}

/// Processor time of this process so far, its guests' included.
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Processor time of the whole host so far, its kernel's own threads included.
fn host_busy() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let mut fields =
        text.lines().next().unwrap().split_whitespace().skip(1).map(|n| n.parse::<u64>().unwrap());
    // user, nice, system; then idle and waiting; then interrupts and what a host above this one took.
    let busy: u64 = fields.by_ref().take(3).sum::<u64>() + fields.skip(2).take(3).sum::<u64>();
    Duration::from_millis(busy * 10)
}

/// Memory that the host can give, in KiB.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn line(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!("  {what:<58} {:>9.2?}   p99 {:>9.2?}", at(50), at(99));
}
