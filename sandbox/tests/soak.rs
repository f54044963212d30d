//! Many runs in a row, each in a virtual machine that nobody used before: none finds anything of another, and when all are over,
//! this process has what it had at the start.
//!
//! `HAYFORK_TEST_RUNS` says how many, 100 (30 under QEMU) if it says nothing, and `HAYFORK_TEST_SECONDS` when to begin no more.
#![allow(missing_docs, clippy::unwrap_used)] // tests
#![allow(clippy::duplicate_mod)] // `program` is a part of both

mod common;
#[path = "../../vmm/tests/host/mod.rs"]
mod host;

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{block_on_at_most, engine, out, run};
use hayfork_sandbox::{Engine, Language, SandboxOptions, StartedFrom, WarmOptions};
use host::{Holdings, alone, wait_for};

const RUNS: &str = "HAYFORK_TEST_RUNS";
const SECONDS: &str = "HAYFORK_TEST_SECONDS";

/// Machines that are kept ready.
const POOL: usize = 4;

/// Runs at the same time.
const CALLERS: usize = 2;

/// Runs before counting begins: whatever is made once is made by then.
const FIRST: usize = 12;

/// What every run does: says which machine it is in and what it finds of others, then leaves everything that code can leave. It
/// loads nothing that takes a while.
fn code(number: usize) -> String {
    format!(
        "
import builtins, os, posix
places = ('.', '/tmp', '/dev/shm', '/var/tmp')
found = [name for name in ('hayfork_secret',) if hasattr(builtins, name) or name in globals() or name in os.environ]
for place in places:
    try:
        found += [name for name in os.listdir(place) if 'hayfork-secret' in name]
    except OSError:
        pass
for process in os.listdir('/proc'):
    if process.isdigit():
        try:
            with open('/proc/' + process + '/cmdline', 'rb') as file:
                found += ['process'] * (b'4242' in file.read())
        except OSError:
            pass
with open('/etc/machine-id') as file:
    print(file.read().strip(), os.uname().nodename, os.urandom(8).hex(), found)
builtins.hayfork_secret = hayfork_secret = os.environ['hayfork_secret'] = 'secret {number}'
left = 0
for place in places:
    try:
        with open(place + '/hayfork-secret-{number}', 'w') as file:
            left += file.write('secret' * 1000) > 0
    except OSError:
        pass
assert left > 1, left
posix.posix_spawnp('sleep', ['sleep', '4242'], os.environ)
"
    )
}

/// What was seen of all machines so far.
#[derive(Default)]
struct Seen {
    words: HashSet<String>,
    from_pool: usize,
    runs: usize,
}

async fn one(engine: &Engine, number: usize, seen: &Mutex<Seen>) {
    let sandbox = engine.create(SandboxOptions::new(Language::Python)).await.unwrap();
    let execution = run(&sandbox, &code(number)).await;
    let text = out(&execution);
    assert!(execution.stderr.is_empty(), "{execution:?}");
    let words: Vec<&str> = text.split_whitespace().collect();
    let [machine, host, random, "[]"] = words[..] else {
        panic!("run {number} finds something: {execution:?}")
    };
    {
        let mut seen = seen.lock().unwrap();
        // All that boot are called the same.
        let booted = sandbox.boot_timings().from == StartedFrom::Boot;
        for word in [machine, host, random].into_iter().filter(|word| !booted || *word != host) {
            assert!(seen.words.insert(word.to_owned()), "run {number} is in a machine that was used: {text}");
        }
        seen.from_pool += usize::from(sandbox.boot_timings().from == StartedFrom::Pool);
        seen.runs += 1;
    }
    // Some are told to end and waited for, others are let go.
    if number.is_multiple_of(2) {
        sandbox.close().await.unwrap();
    }
}

fn keep_warm(engine: &Engine, count: usize) {
    let options = WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count };
    engine.keep_warm(options).unwrap();
}

/// What this process has when nothing runs: its pool is full, and machines that were used are gone.
async fn at_rest(engine: &Engine) -> Holdings {
    assert!(engine.wait_warm(Duration::from_secs(250)).await.unwrap(), "the pool does not fill up");
    // Threads of the runtime that have nothing to do go after ten seconds.
    let mut last = Holdings::now();
    let start = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let now = Holdings::now();
        let same = |one: &Holdings| (one.descriptors, one.threads, one.of_guests);
        if same(&now) == same(&last) && start.elapsed() > Duration::from_secs(14) {
            return now;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{last:?} then {now:?}");
        last = now;
    }
}

#[test]
#[ignore = "needs the image set"]
fn runs_in_a_row_are_in_fresh_machines_and_leave_nothing() {
    alone("runs_in_a_row_are_in_fresh_machines_and_leave_nothing", || {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().expect("a number"));
        // Machines of QEMU take seconds each.
        let usual = if std::env::var("HAYFORK_BACKEND").is_ok_and(|name| name == "qemu") { 30 } else { 100 };
        let runs = number(RUNS).unwrap_or(usual) as usize;
        let seconds = Duration::from_secs(number(SECONDS).unwrap_or(24 * 3600).into());
        // A translated guest takes some seconds to answer on a loaded host.
        let limit = Duration::from_secs(600) + Duration::from_secs(3) * u32::try_from(runs).unwrap();
        let engine = engine();
        block_on_at_most(&engine, limit, async {
            let seen = Mutex::new(Seen::default());
            keep_warm(&engine, POOL);
            for number in 0..FIRST {
                one(&engine, number, &seen).await;
            }
            let before = at_rest(&engine).await;
            let start = Instant::now();
            let caller = async |caller: usize| {
                for number in (FIRST + caller..FIRST + runs).step_by(CALLERS) {
                    if start.elapsed() > seconds {
                        break;
                    }
                    one(&engine, number, &seen).await;
                    let done = seen.lock().unwrap().runs - FIRST;
                    if done.is_multiple_of(500) {
                        eprintln!("{done} runs in {:?}: {:?}", start.elapsed(), Holdings::now());
                    }
                }
            };
            tokio::join!(caller(0), caller(1));
            let took = start.elapsed();
            let after = at_rest(&engine).await;
            let seen = seen.into_inner().unwrap();
            let counted = seen.runs - FIRST;
            println!(
                "{counted} runs in {took:?}, {:.1} a second, {} of {} from the pool\n{before:?}\n{after:?}",
                f64::from(u32::try_from(counted).unwrap()) / took.as_secs_f64(),
                seen.from_pool,
                seen.runs,
            );
            let exact = |of: &Holdings| (of.descriptors, of.threads, of.of_guests);
            assert_eq!(exact(&after), exact(&before));
            // The allocator's, which do not grow with the number of runs.
            assert!(after.mappings <= before.mappings + 24, "{} mappings before", before.mappings);
            assert!(after.resident <= before.resident + (16 << 20), "{} bytes before", before.resident);
            assert!(seen.runs == FIRST + runs || took > seconds, "{} runs", seen.runs);
        });
        drop(engine);
        wait_for(Duration::from_secs(30), "the end of all threads", || {
            // The one that starts processes lives as long as they may: as this one does.
            let ends = |name: &String| name.starts_with("hayfork") && name != "hayfork-spawn";
            !host::thread_names().iter().any(ends)
        });
        assert_eq!(children(), Vec::<String>::new(), "processes are left");
    });
}

/// Processes of this one.
fn children() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
    let all: Vec<String> = tasks.flatten().filter_map(of).collect();
    all.join(" ").split_whitespace().map(str::to_owned).collect()
}
