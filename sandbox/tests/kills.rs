//! Processes that use sandboxes and are killed (SIGKILL) at random moments, some at a time with one cache: nothing of them runs on,
//! and nothing that they leave on disk is in the way of who starts later.
//!
//! `HAYFORK_TEST_KILLS` says how many, 20 if it says nothing; `HAYFORK_TEST_SEED` repeats the moments and doings of an earlier run.
#![allow(missing_docs, clippy::unwrap_used)] // tests

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use common::{block_on, block_on_at_most, engine, options, out, run};
use hayfork_sandbox::{Engine, Error, Language, ResumeOptions, Sandbox, SandboxOptions, WarmOptions};
use rustix::process::{WaitOptions, getpid, set_child_subreaper, waitpid};

const TEST: &str = "processes_that_are_killed_at_any_moment_leave_nothing_in_the_way";
const KILLS: &str = "HAYFORK_TEST_KILLS";
const SEED: &str = "HAYFORK_TEST_SEED";

/// Set in the processes that this test starts: a seed for those that are killed, [`LATER`] for those that come afterwards.
const ROLE: &str = "HAYFORK_TEST_ROLE";
const LATER: &str = "later";

/// Processes that live at the same time.
const AT_ONCE: usize = 4;
/// Kills between two later starts, at least, and as a part of all.
const BETWEEN: (usize, usize) = (8, 25);
/// The longest life of a process that is to be killed, where machines start at once.
const LIFE: Duration = Duration::from_secs(5);
/// The same where they take seconds.
const LIFE_OF_QEMU: Duration = Duration::from_secs(25);
/// What a killed process has started must be gone within this time; a loaded host takes a while to take machines apart.
const PATIENCE: Duration = Duration::from_secs(20);
/// Paused sandboxes that are left for others.
const PAUSED: usize = 6;

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// What a process does that will be killed; it says what it is at.
async fn live(engine: &Engine, mut random: Random) -> Result<(), Error> {
    let began = Instant::now();
    let mut sandboxes: Vec<Sandbox> = Vec::new();
    while began.elapsed() < 10 * LIFE {
        let language = if random.below(3) == 0 { Language::Shell } else { Language::Python };
        let paused = engine.paused()?;
        if sandboxes.is_empty() || random.below(8) == 0 {
            println!("create");
            let sandbox = engine.create(SandboxOptions::new(language)).await?;
            mark(&sandbox).await;
            sandboxes.push(sandbox);
            continue;
        }
        let at = usize::try_from(random.below(sandboxes.len() as u64)).unwrap();
        match random.below(9) {
            0 => {
                println!("keep warm");
                let count = usize::try_from(random.below(3)).unwrap();
                engine.keep_warm(WarmOptions { language, memory_mib: None, cpus: None, count })?;
                engine.wait_warm(Duration::from_millis(random.below(500))).await?;
            }
            1 => {
                println!("restore");
                let snapshot = sandboxes[at].snapshot().await?;
                let clone = snapshot.restore().await?;
                assert!(knows(&clone).await);
            }
            2 => {
                println!("fork");
                sandboxes.append(&mut sandboxes[at].fork(2).await?);
            }
            3 => {
                println!("run");
                assert!(knows(&sandboxes[at]).await);
            }
            4 | 5 if paused.len() < PAUSED => {
                println!("pause");
                sandboxes.swap_remove(at).pause("").await?;
            }
            _ if !paused.is_empty() => {
                println!("resume");
                let which = usize::try_from(random.below(paused.len() as u64)).unwrap();
                let options = ResumeOptions { keep: random.below(3) == 0 };
                match engine.resume(&paused[which].id, options).await {
                    Ok(resumed) => {
                        assert!(knows(&resumed.sandbox).await);
                        sandboxes.push(resumed.sandbox);
                    }
                    // The other process has it.
                    Err(error) => {
                        assert!(["paused_busy", "paused_missing"].contains(&error.code()), "{error}");
                    }
                }
            }
            _ => {}
        }
        sandboxes.truncate(4);
    }
    Ok(())
}

/// Gives a sandbox something to know.
async fn mark(sandbox: &Sandbox) {
    run(sandbox, if sandbox.language() == Language::Shell { "x=42" } else { "x = 42" }).await;
}

async fn knows(sandbox: &Sandbox) -> bool {
    let code = if sandbox.language() == Language::Shell { "echo $x" } else { "print(x)" };
    out(&run(sandbox, code).await) == "42\n"
}

/// Who comes later: everything that is paused goes on, and everything works.
async fn come_later(engine: &Engine) -> Result<(), Error> {
    let paused = engine.paused()?;
    for entry in &paused {
        let resumed = engine.resume(&entry.id, ResumeOptions::default()).await?;
        assert!(knows(&resumed.sandbox).await, "{entry:?}");
    }
    assert_eq!(engine.paused()?, []);
    for language in [Language::Python, Language::Shell] {
        engine.keep_warm(WarmOptions { language, memory_mib: None, cpus: None, count: 1 })?;
        assert!(engine.wait_warm(Duration::from_secs(200)).await?);
        let sandbox = engine.create(SandboxOptions::new(language)).await?;
        mark(&sandbox).await;
        for fork in sandbox.fork(2).await? {
            assert!(knows(&fork).await);
        }
        let id = sandbox.pause("").await?;
        assert!(knows(&engine.resume(&id, ResumeOptions::default()).await?.sandbox).await);
    }
    println!("resumed {} and works", paused.len());
    Ok(())
}

/// The folders of the processes that are killed.
struct Stage {
    folder: tempfile::TempDir,
    images: PathBuf,
    worker: Option<PathBuf>,
}

impl Stage {
    fn new() -> Self {
        let engine = engine();
        let images = engine.images().unwrap().directory().to_path_buf();
        let folder = tempfile::tempdir().unwrap();
        for name in ["cache", "tmp", "run"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder, images, worker: options().worker }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// This program again.
    fn start(&self, role: &str, output: &Path) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([TEST, "--exact", "--include-ignored", "--nocapture", "--test-threads", "1"])
            .env(ROLE, role)
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("TMPDIR", self.path("tmp"))
            .env("HAYFORK_IMAGES_DIR", &self.images)
            .env_remove("HAYFORK_PAUSED_DIR")
            .stdin(Stdio::null())
            .stdout(File::create(output).unwrap())
            .stderr(File::options().append(true).create(true).open(output.with_extension("err")).unwrap());
        if let Some(worker) = &self.worker {
            command.env("HAYFORK_WORKER", worker);
        }
        command.spawn().unwrap()
    }

    /// Starts a later process and looks at what is left when it has ended.
    fn check(&self) {
        let output = self.path("later.out");
        let status = self.start(LATER, &output).wait().unwrap();
        let text = fs::read_to_string(&output).unwrap();
        let errors = fs::read_to_string(output.with_extension("err")).unwrap();
        assert!(status.success() && text.contains("and works"), "{text}{errors}");
        println!("{}", text.lines().find(|line| line.ends_with("and works")).unwrap());
        nothing_runs();
        let left = files(&["cache", "tmp", "run"].map(|name| self.path(name)));
        let unknown: Vec<_> = left.iter().filter(|path| !is_template(path)).collect();
        assert_eq!(unknown, Vec::<&PathBuf>::new(), "left over");
    }
}

/// Whole templates are kept for others.
fn is_template(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    name.ends_with(".template") && !name.starts_with('.')
}

fn files(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut to_do = folders.to_vec();
    while let Some(folder) = to_do.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { to_do.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Waits for the end of everything that killed processes had started: this one has inherited it.
fn nothing_runs() {
    let start = Instant::now();
    while let Ok(waited) = waitpid(None, WaitOptions::NOHANG) {
        if waited.is_none() {
            assert!(start.elapsed() < PATIENCE, "still there: {:?}", inherited());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Names of this process's children.
fn inherited() -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/self/task/{}/children", getpid().as_raw_pid()));
    let name = |pid: &str| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    children.unwrap_or_default().split_whitespace().map(name).collect()
}

fn life() -> Duration {
    if std::env::var("HAYFORK_BACKEND").is_ok_and(|name| name == "qemu") { LIFE_OF_QEMU } else { LIFE }
}

fn kill(stage: &Stage, kills: usize, random: &mut Random) -> BTreeMap<String, usize> {
    let mut moments = BTreeMap::new();
    let between = BETWEEN.0.max(kills / BETWEEN.1);
    let (mut done, mut checked) = (0, 0);
    while done < kills {
        let mut living: Vec<_> = (0..AT_ONCE.min(kills - done))
            .map(|number| {
                let output = stage.path(&format!("{number}.out"));
                let child = stage.start(&random.below(1 << 40).to_string(), &output);
                let end = Duration::from_millis(random.below(u64::try_from(life().as_millis()).unwrap()));
                (Instant::now() + end, child, output)
            })
            .collect();
        living.sort_by_key(|(end, ..)| *end);
        for (end, mut child, output) in living {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            let text = fs::read_to_string(&output).unwrap();
            let errors = fs::read_to_string(output.with_extension("err")).unwrap_or_default();
            assert!(ended.is_none(), "it has ended by itself: {text}{errors}");
            fs::write(output.with_extension("err"), "").unwrap();
            let at = text.lines().last().filter(|line| !line.is_empty() && !line.contains("test"));
            *moments.entry(at.unwrap_or("start").to_owned()).or_default() += 1;
            done += 1;
        }
        nothing_runs();
        if done >= checked + between || done >= kills {
            stage.check();
            checked = done;
            println!("{done} killed while they were at {moments:?}");
        }
    }
    moments
}

#[test]
#[ignore = "needs the image set"]
fn processes_that_are_killed_at_any_moment_leave_nothing_in_the_way() {
    match std::env::var(ROLE).as_deref() {
        Ok(LATER) => {
            let engine = engine();
            return block_on(&engine, come_later(&engine)).unwrap();
        }
        Ok(seed) => {
            let engine = engine();
            let random = Random::new(seed.parse().unwrap());
            return block_on_at_most(&engine, 20 * life(), live(&engine, random)).unwrap();
        }
        Err(_) => {}
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number(SEED).unwrap_or(now.as_secs());
    let kills = usize::try_from(number(KILLS).unwrap_or(20)).unwrap();
    println!("{SEED}={seed}");
    set_child_subreaper(Some(getpid())).unwrap();
    let stage = Stage::new();
    nothing_runs();
    let moments = kill(&stage, kills, &mut Random::new(seed));
    assert!(moments.len() > 2, "{moments:?}");
}
