//! What guests that are not booted cost on this host: `cargo run --release --example pool [-- LANGUAGE [ROUNDS]]`.
//!
//! Each round gets a machine that nobody has used, prints a number in it, and closes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hayfork_sandbox::{
    Engine, EngineOptions, Error, ExecuteOptions, Language, Sandbox, SandboxOptions, WarmOptions,
};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let language = arguments.next().and_then(|name| Language::from_name(&name)).unwrap_or(Language::Python);
    let rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(50);
    let result = Engine::new(EngineOptions::default()).and_then(|engine| {
        let result = engine.runtime().block_on(measure(&engine, language, rounds));
        engine.shutdown();
        result
    });
    if let Err(error) = result {
        eprintln!("{}: {error}\n{}", error.code(), error.remedy());
        std::process::exit(1);
    }
}

async fn measure(engine: &Engine, language: Language, rounds: usize) -> Result<(), Error> {
    let warm = |count| engine.keep_warm(WarmOptions { language, memory_mib: None, cpus: None, count });
    let began = Instant::now();
    warm(1)?;
    engine.wait_warm(Duration::from_secs(60)).await?;
    println!("template and a first machine of it: {:?}", began.elapsed());
    warm(0)?;

    let (mut made, mut first, mut second, mut closed) = (vec![], vec![], vec![], vec![]);
    let c0 = processor();
    for _ in 0..rounds {
        let times = round(engine, language).await?;
        for (all, time) in [&mut made, &mut first, &mut second, &mut closed].into_iter().zip(times) {
            all.push(time);
        }
    }
    println!("CPU of a round {:?}", (processor() - c0) / rounds as u32);
    show("restored, until it is handed out", &mut made);
    show("first print there", &mut first);
    show("second print there", &mut second);
    show("closed", &mut closed);

    if std::env::var("ONLY").is_ok() { return Ok(()); }
    warm(8)?;
    let (mut made, mut first, mut both) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        engine.wait_warm(Duration::from_secs(60)).await?;
        let times = round(engine, language).await?;
        made.push(times[0]);
        first.push(times[1]);
        both.push(times[0] + times[1]);
    }
    show("of the full pool, until it is handed out", &mut made);
    show("first print there", &mut first);
    show("both", &mut both);

    for callers in [1, 4, 16] {
        let (began, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..callers)
            .map(|_| {
                let (engine, done) = (engine.clone(), Arc::clone(&done));
                tokio::spawn(async move {
                    while began.elapsed() < Duration::from_secs(5) {
                        round(&engine, language).await?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<_, Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("it does not panic")?;
        }
        let rate = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
        println!("{callers} callers: {rate:.1} machines a second");
    }
    Ok(())
}

/// How long it took to get a machine, to print there twice, and to close it.
async fn round(engine: &Engine, language: Language) -> Result<[Duration; 4], Error> {
    let began = Instant::now();
    let p0 = processor();
    let sandbox = engine.create(SandboxOptions::new(language)).await?;
    let made = began.elapsed();
    let p1 = processor();
    let first = print(&sandbox, 1).await?;
    let p2 = processor();
    let second = print(&sandbox, 2).await?;
    let p3 = processor();
    if std::env::var("CPU").is_ok() { let t = sandbox.boot_timings(); println!("   cpu {:?} {:?} {:?}  wall {:?} {:?} {:?} launch {:?} handshake {:?} renew {:?}", p1-p0, p2-p1, p3-p2, made, first, second, t.launch, t.handshake, t.total - t.launch - t.handshake); }
    let closing = Instant::now();
    sandbox.close().await?;
    Ok([made, first, second, closing.elapsed()])
}

async fn print(sandbox: &Sandbox, number: u32) -> Result<Duration, Error> {
    let code = match sandbox.language() {
        Language::Python => format!("print({number})"),
        Language::JavaScript => format!("console.log({number})"),
        Language::Shell => format!("echo {number}"),
    };
    let began = Instant::now();
    let done = sandbox.execute(ExecuteOptions::new(code)).collect().await?;
    assert_eq!(done.stdout, format!("{number}\n").as_bytes());
    Ok(began.elapsed())
}

fn show(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    println!("{what:<42} median {:>8.2?}  p99 {:>8.2?}", at(50), at(99));
}

/// Processor time of this process so far, its guests' included.
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
