//! Measures what the engine costs on this host: `cargo run --release --example measure [-- ROUNDS]`.

use std::time::{Duration, Instant};

use hayfork_sandbox::{
    Engine, EngineOptions, Error, ExecuteOptions, Language, RunEvent, Sandbox, SandboxOptions,
};

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let result = Engine::new(EngineOptions::default()).and_then(|engine| {
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
        println!("{:?}; first byte after {first:?}", sandbox.boot_timings());
        firsts.push(first);
        if let Some(previous) = last.replace(sandbox) {
            close(&previous).await?;
        }
    }
    println!("cold to first byte: median {:?}", median(&mut firsts));
    let Some(sandbox) = last else { return Ok(()) };

    let mut times = Vec::new();
    for n in 0..100 {
        let started = Instant::now();
        sandbox.execute(ExecuteOptions::new(format!("print({n})"))).collect().await?;
        times.push(started.elapsed());
    }
    println!("an execution in a living session: median {:?}", median(&mut times));

    let content = vec![7_u8; 100_000_000];
    for _ in 0..2 {
        let started = Instant::now();
        sandbox.write_file("big", 0o644, &content[..]).await?;
        println!("up: {:.1} MB/s", 100.0 / started.elapsed().as_secs_f64());
        let started = Instant::now();
        sandbox.read_file("big", tokio::io::sink()).await?;
        println!("down: {:.1} MB/s", 100.0 / started.elapsed().as_secs_f64());
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

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
