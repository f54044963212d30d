//! The clocks of sandboxes that did not boot: the wall clock is right when they are handed out, monotonic time goes on from where it
//! stood, and time passes at its pace; whatever age the snapshot has, and wherever it was.
#![allow(missing_docs, clippy::unwrap_used)] // tests

#[path = "common/ages.rs"]
mod ages;
mod common;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ages::{ACCURACY, Bracket, ages, wait_for_age};
use common::{block_on, block_on_at_most, create, engine, out, run};
use hayfork_sandbox::{Engine, EngineOptions, Language, ResumeOptions, Sandbox, Snapshot, WarmOptions};

const LANGUAGES: [Language; 3] = [Language::Python, Language::JavaScript, Language::Shell];

/// Code that prints wall clock and monotonic clock, in seconds. What is loaded only when it is used first is used before.
fn read(language: Language) -> &'static str {
    match language {
        Language::Python => "import time; print(time.time(), time.monotonic())",
        // Bun's own clock begins with the process.
        Language::JavaScript => "console.log(Date.now() / 1000, performance.now() / 1000)",
        Language::Shell => "read up _ < /proc/uptime; echo $EPOCHREALTIME $up",
    }
}

/// What a guest's clocks said, and when that was by the host's.
struct Reading {
    asked: (Instant, Duration),
    answered: (Instant, Duration),
    wall: Duration,
    monotonic: Duration,
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

async fn clocks(sandbox: &Sandbox) -> Reading {
    let asked = (Instant::now(), wall_clock());
    let execution = run(sandbox, read(sandbox.language())).await;
    let answered = (Instant::now(), wall_clock());
    let text = out(&execution);
    let seconds = |text: &str| Duration::from_secs_f64(text.parse().unwrap());
    let Some((wall, monotonic)) = text.trim().split_once(' ') else { panic!("{execution:?}") };
    Reading { asked, answered, wall: seconds(wall), monotonic: seconds(monotonic) }
}

impl Reading {
    /// The wall clock is right.
    fn check_wall(&self, what: &str) {
        let (before, after) = (self.asked.1, self.answered.1);
        let early = before.checked_sub(self.wall).unwrap_or_default();
        let late = self.wall.checked_sub(after).unwrap_or_default();
        println!(
            "{what}: the wall clock is behind by at least {early:?}, ahead by {late:?}; asked in {:?}",
            after.saturating_sub(before)
        );
        assert!(
            early <= ACCURACY && late <= ACCURACY,
            "{what}: {:?} within {before:?} to {after:?}",
            self.wall
        );
    }

    /// Monotonic time has gone on from `earlier`, by no more than the guest has lived: until `kept`, and since `restored`.
    fn check_monotonic(&self, earlier: &Self, kept: Instant, restored: Instant, what: &str) {
        // Shells read hundredths.
        let passed = (self.monotonic + Duration::from_millis(10)).checked_sub(earlier.monotonic);
        let passed = passed.unwrap_or_else(|| panic!("{what}: it goes back"));
        let most = (kept - earlier.asked.0) + (self.answered.0 - restored);
        assert!(passed <= most + ACCURACY, "{what}: {passed:?} have passed, at most {most:?} did");
    }
}

/// Sleeps of a second last one.
async fn keeps_pace(sandbox: &Sandbox, what: &str) {
    let before = clocks(sandbox).await;
    let code = match sandbox.language() {
        Language::Python => "time.sleep(1)",
        Language::JavaScript => "await new Promise((done) => setTimeout(done, 1000))",
        Language::Shell => "sleep 1",
    };
    let start = Instant::now();
    run(sandbox, code).await;
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(998), "{what}: a second took {took:?}");
    assert!(took < Duration::from_secs(6), "{what}: a second took {took:?}");
    let after = clocks(sandbox).await;
    let bracket = Bracket::between((before.asked.0, before.answered.0), (after.asked.0, after.answered.0));
    bracket.check(after.monotonic.checked_sub(before.monotonic).unwrap(), what);
    bracket.check(after.wall.checked_sub(before.wall).unwrap(), what);
    after.check_wall(what);
}

/// A sandbox at rest.
struct Kept {
    snapshot: Snapshot,
    reading: Reading,
    since: Instant,
}

async fn keep(sandbox: &Sandbox) -> Kept {
    // The first time anything is used it takes longer.
    clocks(sandbox).await;
    let reading = clocks(sandbox).await;
    let snapshot = sandbox.snapshot().await.unwrap();
    Kept { snapshot, reading, since: Instant::now() }
}

#[test]
#[ignore = "needs the image set"]
fn clocks_of_clones_are_right_whatever_age_the_snapshot_has() {
    let engine = engine();
    block_on_for_ages(&engine, async {
        let mut all = Vec::new();
        for language in LANGUAGES {
            let sandbox = create(&engine, language).await;
            all.push((language.name(), keep(&sandbox).await));
            let what = format!("the original, {}", language.name());
            clocks(&sandbox).await.check_wall(&what);
            keeps_pace(&sandbox, &what).await;
        }
        for age in ages() {
            for (language, kept) in &all {
                tokio::task::block_in_place(|| wait_for_age(kept.since, age));
                let what = format!("{language} of {:?}", kept.since.elapsed());
                let restored = Instant::now();
                let clone = kept.snapshot.restore().await.unwrap();
                let reading = clocks(&clone).await;
                reading.check_wall(&what);
                reading.check_monotonic(&kept.reading, kept.since, restored, &what);
                keeps_pace(&clone, &what).await;
            }
        }
    });
}

#[test]
#[ignore = "needs the image set"]
fn the_wall_clock_of_a_sandbox_that_booted_is_right() {
    let engine = engine();
    block_on(&engine, async {
        for language in LANGUAGES {
            let sandbox = create(&engine, language).await;
            clocks(&sandbox).await.check_wall(language.name());
        }
    });
}

#[test]
#[ignore = "needs the image set"]
fn clocks_of_resumed_sandboxes_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions { paused: Some(folder.path().to_path_buf()), ..common::options() };
    let engine = Engine::new(options).unwrap();
    block_on_for_ages(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        clocks(&sandbox).await;
        let reading = clocks(&sandbox).await;
        let id = sandbox.pause("").await.unwrap();
        let since = Instant::now();
        for age in ages() {
            tokio::task::block_in_place(|| wait_for_age(since, age));
            let what = format!("resumed after {:?}", since.elapsed());
            let restored = Instant::now();
            let resumed = engine.resume(&id, ResumeOptions { keep: true }).await.unwrap().sandbox;
            let now = clocks(&resumed).await;
            now.check_wall(&what);
            now.check_monotonic(&reading, since, restored, &what);
            keeps_pace(&resumed, &what).await;
        }
    });
}

#[test]
#[ignore = "needs the image set"]
fn clocks_of_sandboxes_of_the_pool_are_right() {
    let engine = engine();
    block_on_for_ages(&engine, async {
        engine
            .keep_warm(WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count: 2 })
            .unwrap();
        assert!(engine.wait_warm(Duration::from_secs(200)).await.unwrap());
        let since = Instant::now();
        for age in ages() {
            // One that has waited that long, and one that was made of a template that is older still.
            tokio::task::block_in_place(|| wait_for_age(since, age));
            for _ in 0..3 {
                let sandbox = create(&engine, Language::Python).await;
                let what = format!("{:?} after {:?}", sandbox.boot_timings().from, since.elapsed());
                clocks(&sandbox).await.check_wall(&what);
                keeps_pace(&sandbox, &what).await;
            }
        }
    });
}

/// Timers of the interpreters that were set before: each comes in its time, as if nothing had been in between.
#[test]
#[ignore = "needs the image set"]
fn timers_that_were_set_before_come_one_after_the_other() {
    const SET: &str = "
import threading, time
start, fired = time.monotonic(), []
for number in range(1, 7):
    threading.Timer(number / 2, lambda: fired.append(time.monotonic() - start)).start()
";
    let engine = engine();
    block_on(&engine, async {
        let sandbox = create(&engine, Language::Python).await;
        run(&sandbox, "import threading, time").await;
        let set = Instant::now();
        run(&sandbox, SET).await;
        let snapshot = sandbox.snapshot().await.unwrap();
        let lived = set.elapsed();
        drop(sandbox);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let restored = Instant::now();
        let clone = snapshot.restore().await.unwrap();
        let waited = run(&clone, "while len(fired) < 6: time.sleep(0.01)\nprint(*sorted(fired))").await;
        let took = restored.elapsed();
        let fired: Vec<f64> = out(&waited).split_whitespace().map(|time| time.parse().unwrap()).collect();
        println!("{fired:?}");
        assert_eq!(fired.len(), 6, "{waited:?}");
        assert!((1..).zip(&fired).all(|(number, time)| *time >= f64::from(number) / 2.0), "{fired:?}");
        assert!(fired[5] - fired[0] > 1.5, "all at once: {fired:?}");
        assert!(took + lived + ACCURACY >= Duration::from_secs(3), "3 s took {took:?}: {fired:?}");
    });
}

/// As [`block_on`], for longer.
fn block_on_for_ages<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    block_on_at_most(engine, Duration::from_secs(300) + ages().into_iter().sum::<Duration>(), future)
}
