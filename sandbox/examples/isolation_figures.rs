//! Measures what a process for each machine costs, beside machines in this one:
//! `cargo build --release -p hayfork-vmm && cargo run --release -p hayfork-sandbox --example isolation_figures [-- CLONES]`.
//!
//! A python sandbox is made and kept, and clones of it are made one after the other, all alive at once. Memory is what the
//! host's `MemAvailable` loses over them; the rest are medians and 99th percentiles.

use std::time::{Duration, Instant};

use hayfork_sandbox::{Engine, EngineOptions, Error, ExecuteOptions, Language, Sandbox, SandboxOptions};

fn main() {
    let clones = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(50);
    println!(
        "{:<9}{:>16}{:>24}{:>16}{:>22}{:>18}{:>14}",
        "",
        "create, ms",
        "restore to answer, ms",
        "print(1), ms",
        "close, ms",
        "MiB for each",
        "private, KiB"
    );
    for isolation in ["process", "worker", "process", "worker"] {
        let options = EngineOptions {
            backend: Some("monitor".into()),
            isolation: Some(isolation.into()),
            template_store: hayfork_sandbox::TemplateStore::Off,
            ..EngineOptions::default()
        };
        let result = Engine::new(options).and_then(|engine| {
            let result = engine.runtime().block_on(measure(&engine, isolation, clones));
            engine.shutdown();
            result
        });
        if let Err(error) = result {
            eprintln!("{}: {error}\n{}", error.code(), error.remedy());
            std::process::exit(1);
        }
    }
}

async fn measure(engine: &Engine, isolation: &str, count: usize) -> Result<(), Error> {
    let mut created = Vec::new();
    let mut original = None;
    for _ in 0..5 {
        let started = Instant::now();
        let sandbox = engine.create(SandboxOptions::new(Language::Python)).await?;
        created.push(started.elapsed());
        original = Some(sandbox);
    }
    let Some(original) = original else { return Ok(()) };
    run(&original).await?;
    let template = original.snapshot().await?;
    drop(template.restore().await?);

    let (mut restored, mut printed, mut closed) = (Vec::new(), Vec::new(), Vec::new());
    let before = available_kib();
    let mut clones = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        let clone = template.restore().await?;
        restored.push(started.elapsed());
        clones.push(clone);
    }
    let taken = before.saturating_sub(available_kib());
    for clone in &clones {
        let started = Instant::now();
        run(clone).await?;
        printed.push(started.elapsed());
    }
    let private = clones.iter().filter_map(Sandbox::host_memory).map(|memory| memory.overhead >> 10).max();
    for clone in &clones {
        let started = Instant::now();
        clone.close().await?;
        closed.push(started.elapsed());
    }
    let each = taken / u64::try_from(count.max(1)).unwrap_or(1);
    println!(
        "{isolation:<9}{:>16}{:>24}{:>16}{:>22}{:>15}.{:02}{:>14}",
        median(&mut created),
        both(&mut restored),
        median(&mut printed),
        both(&mut closed),
        each / 1024,
        each % 1024 * 100 / 1024,
        private.unwrap_or(0),
    );
    Ok(())
}

async fn run(sandbox: &Sandbox) -> Result<(), Error> {
    sandbox.execute(ExecuteOptions::new("print(1)")).collect().await.map(drop)
}

/// `MemAvailable`, in KiB.
fn available_kib() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn median(times: &mut [Duration]) -> String {
    times.sort();
    times.get(times.len() / 2).map_or_else(String::new, |time| milliseconds(*time))
}

fn both(times: &mut [Duration]) -> String {
    let median = median(times);
    let last = times.get((times.len() * 99 / 100).min(times.len().saturating_sub(1)));
    format!("{median} / {}", last.map_or_else(String::new, |time| milliseconds(*time)))
}
