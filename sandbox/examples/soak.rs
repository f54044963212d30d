//! Boots one machine after the other through the engine, with no second try: `soak [BOOTS [SECONDS [BACKEND]]]`.
//!
//! Each agent must answer within so many seconds of the call, and an echo must come back; 200 boots, 5 seconds and `monitor`
//! if nothing is said. Prints what failed and how long the others took; the exit code is 1 if any failed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use hayfork_sandbox::{CommandOptions, Engine, EngineOptions, Error, Language, SandboxOptions};

const LANGUAGES: [Language; 3] = [Language::Python, Language::JavaScript, Language::Shell];

/// What one boot took.
struct Boot {
    launch: Duration,
    ready: Duration,
    closed: Duration,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u32| match arguments.next().map(|text| text.parse()) {
        None => Some(default),
        Some(number) => number.ok().filter(|number| *number > 0),
    };
    let (Some(boots), Some(seconds)) = (number(200), number(5)) else {
        eprintln!("usage: soak [BOOTS [SECONDS [BACKEND]]]");
        return ExitCode::from(2);
    };
    let backend = arguments.next().unwrap_or_else(|| String::from("monitor"));
    let limit = Duration::from_secs(seconds.into());
    let options = EngineOptions {
        backend: Some(backend),
        boot_timeout: limit,
        template_store: hayfork_sandbox::TemplateStore::Off,
        ..EngineOptions::default()
    };
    let engine = match Engine::new(options) {
        Ok(engine) => engine,
        Err(error) => {
            eprintln!("{error}. {}", error.remedy());
            return ExitCode::from(2);
        }
    };
    let start = Instant::now();
    let mut done = Vec::new();
    let mut failed = 0;
    for number in 0..boots {
        let language = LANGUAGES[number as usize % LANGUAGES.len()];
        match engine.runtime().block_on(boot(&engine, language)) {
            Ok(boot) => done.push(boot),
            Err(error) => {
                failed += 1;
                println!("boot {number} ({}): {error}", language.name());
            }
        }
        if (number + 1) % 20 == 0 {
            println!(
                "{} of {boots} after {:.1} s, {failed} failed",
                number + 1,
                start.elapsed().as_secs_f64()
            );
        }
    }
    engine.shutdown();
    print("launch", done.iter().map(|boot| boot.launch));
    print("agent ready", done.iter().map(|boot| boot.ready));
    print("and closed", done.iter().map(|boot| boot.closed));
    println!("{} of {boots} within {seconds} s", done.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One machine's life; in words what went wrong.
async fn boot(engine: &Engine, language: Language) -> Result<Boot, String> {
    let say = |error: Error| format!("{}: {error}", error.code());
    let start = Instant::now();
    let options = SandboxOptions { cpus: Some(1), ..SandboxOptions::new(language) };
    let sandbox = engine.create(options).await.map_err(say)?;
    let ready = start.elapsed();
    let launch = sandbox.boot_timings().launch;
    let echo = sandbox.command(CommandOptions::new(["echo", "hello"])).collect().await.map_err(say)?;
    if echo.stdout != b"hello\n" {
        return Err(format!("the guest echoed {:?}", echo.stdout));
    }
    sandbox.close().await.map_err(say)?;
    Ok(Boot { launch, ready, closed: start.elapsed() })
}

/// Prints the spread of some times.
fn print(what: &str, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<_> = times.collect();
    times.sort();
    let Some(last) = times.len().checked_sub(1) else { return };
    let at = |percent: usize| times[last * percent / 100].as_secs_f64() * 1e3;
    println!(
        "{what:>12}: {:.0} ms at least, median {:.0}, 90 % {:.0}, 99 % {:.0}, {:.0} at most",
        at(0),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}
