//! Measures what the engine costs on this host: `cargo run --release --example measure [-- ROUNDS]`.
//!
//! Beside each time stands the processor time that the machine's process used: on a busy host the former says little,
//! on an idle one both are nearly the same, since a guest with one virtual CPU runs on one thread.

use std::time::{Duration, Instant};

use hayfork_sandbox::{
    Engine, EngineOptions, Error, ExecuteOptions, Language, RunEvent, Sandbox, SandboxOptions,
};

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let result = Engine::new(EngineOptions {
        template_store: hayfork_sandbox::TemplateStore::Off,
        ..EngineOptions::default()
    })
    .and_then(|engine| {
        let result = engine.runtime().block_on(measure(&engine, rounds));
        engine.shutdown();
        result
    });
    if let Err(error) = result {
        eprintln!("{}: {error}\n{}", error.code(), error.remedy());
        std::process::exit(1);
    }
}

async fn measure(engine: &Engine, rounds: usize) -> Result<(), Error> {
    let mut firsts = Vec::new();
    let mut last = None;
    for _ in 0..rounds {
        let started = Instant::now();
        let sandbox = engine.create(SandboxOptions::new(Language::Python)).await?;
        first_byte(&sandbox, "print(1)").await?;
        let first = started.elapsed();
        println!(
            "{:?}; first byte after {first:?}, processor {:.2} s",
            sandbox.boot_timings(),
            processor(&sandbox)
        );
        firsts.push(first);
        if let Some(previous) = last.replace(sandbox) {
            close(&previous).await?;
        }
    }
    println!("cold to first byte: median {:?}", median(&mut firsts));
    let Some(sandbox) = last else { return Ok(()) };

    let mut times = Vec::new();
    let before = processor(&sandbox);
    for n in 0..100 {
        let started = Instant::now();
        sandbox.execute(ExecuteOptions::new(format!("print({n})"))).collect().await?;
        times.push(started.elapsed());
    }
    let used = (processor(&sandbox) - before) * 10.0;
    println!(
        "an execution in a living session: median {:?}, processor {used:.1} ms on average",
        median(&mut times)
    );

    let content = vec![7_u8; 100_000_000];
    for _ in 0..2 {
        let (started, before) = (Instant::now(), processor(&sandbox));
        sandbox.write_file("big", 0o644, &content[..]).await?;
        show_rate("up", started, processor(&sandbox) - before);
        let (started, before) = (Instant::now(), processor(&sandbox));
        sandbox.read_file("big", tokio::io::sink()).await?;
        show_rate("down", started, processor(&sandbox) - before);
        sandbox.remove("big").await?;
    }
    println!("guest: {:?}", sandbox.stats().await?);
    println!("host: {:?}", sandbox.host_memory());
    close(&sandbox).await
}

async fn first_byte(sandbox: &Sandbox, code: &str) -> Result<(), Error> {
    let mut running = sandbox.execute(ExecuteOptions::new(code));
    while let Some(event) = running.next().await {
        match event {
            RunEvent::Stdout(_) => return Ok(()),
            RunEvent::Failed(error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn close(sandbox: &Sandbox) -> Result<(), Error> {
    let started = Instant::now();
    sandbox.close().await?;
    println!("close: {:?}", started.elapsed());
    Ok(())
}

fn show_rate(way: &str, started: Instant, processor: f64) {
    println!(
        "{way}: {:.1} MB/s, {:.1} MB for each second of processor time",
        100.0 / started.elapsed().as_secs_f64(),
        100.0 / processor
    );
}

/// Seconds of processor time that the machine's process has used (proc(5), fields 14 and 15, in ticks of 10 ms).
fn processor(sandbox: &Sandbox) -> f64 {
    let read = || -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", sandbox.process_id()?)).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u32>().ok()? + fields.get(12)?.parse::<u32>().ok()?;
        Some(f64::from(ticks) / 100.0)
    };
    read().unwrap_or(f64::NAN)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
