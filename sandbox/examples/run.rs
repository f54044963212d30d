//! Runs source text in a new sandbox and shows what happens, with times:
//! `cargo run --example run -- LANGUAGE CODE [TIMEOUT-SECONDS]`.

use std::time::{Duration, Instant};

use hayfork_sandbox::{Engine, EngineOptions, Error, ExecuteOptions, Language, RunEvent, SandboxOptions};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let language = arguments.next().and_then(|name| Language::from_name(&name));
    let (Some(language), Some(code)) = (language, arguments.next()) else {
        eprintln!("usage: run python|javascript|shell CODE [TIMEOUT-SECONDS]");
        std::process::exit(2);
    };
    let timeout = arguments.next().and_then(|text| text.parse().ok()).map(Duration::from_secs_f64);
    let result = Engine::new(EngineOptions::default()).and_then(|engine| {
        let options = ExecuteOptions { timeout, ..ExecuteOptions::new(code) };
        let result = engine.runtime().block_on(run(&engine, language, options));
        engine.shutdown();
        result
    });
    if let Err(error) = result {
        eprintln!("{}: {error}\n{}", error.code(), error.remedy());
        std::process::exit(1);
    }
}

async fn run(engine: &Engine, language: Language, options: ExecuteOptions) -> Result<(), Error> {
    let sandbox = engine.create(SandboxOptions::new(language)).await?;
    println!("{:?}", sandbox.boot_timings());
    let started = Instant::now();
    let mut running = sandbox.execute(options);
    while let Some(event) = running.next().await {
        let at = started.elapsed();
        match event {
            RunEvent::Stdout(bytes) => println!("{at:>10.3?} stdout {}", shown(&bytes)),
            RunEvent::Stderr(bytes) => println!("{at:>10.3?} stderr {}", shown(&bytes)),
            RunEvent::Failed(error) => return Err(error),
            other => println!("{at:>10.3?} {other:?}"),
        }
    }
    println!("{:?}", sandbox.stats().await?);
    Ok(())
}

fn shown(bytes: &[u8]) -> String {
    match bytes.len() {
        0..=200 => format!("{:?}", String::from_utf8_lossy(bytes)),
        length => format!("{length} bytes"),
    }
}
