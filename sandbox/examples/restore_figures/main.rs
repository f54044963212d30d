//! What it costs to make a guest of a template, and to have code run in one, in instructions: made for the nested rig
//! (`tests/rig/`), as [`boot_figures`](../boot_figures.rs) is, with python's own template, as the engine makes it.
//!
//! | figure | from | to |
//! |---|---|---|
//! | `restore` | a template of the backend | the machine is made, mapped, in its state, and may go on: the monitor's share, and nothing of the guest |
//! | `restore.ahead` | the same, with the pages that a clone uses made ahead | |
//! | `restore.page_ahead` | | of that, each page |
//! | `restore.begun` | the same as `restore`, with the machine begun ahead | |
//! | `template.acknowledged` | [`Engine::create`] with a template and no stock | the agent has acknowledged what makes it nobody's twin |
//! | `template.python_print` | the same | `print(1)` has its result |
//! | `pool.hand_out` | `create` with a stock | the sandbox is there |
//! | `pool.python_print` | the same | `print(1)` has its result |
//! | `vcpu.…` | | of that, the virtual CPU's thread alone |
//! | `exits.…` | | number of exits to user space meanwhile, where tracefs is mounted |
//!
//! Instructions are processor time of this process, kernel and guest included: what a machine waits for the kernel (grace periods,
//! while it is created) is the kernel's clock's affair. `restore`'s elapsed time, these waits included, is printed and is no figure.
//!
//! In those of `restore` the guest has no part: in the rig the thread that restores is ahead of the virtual CPU's, which has to wait until the
//! clock was read. The stock is not filled up while something is measured; that costs what `template.acknowledged` and a
//! first print cost, at another time.

#[path = "../counting/mod.rs"]
mod counting;
mod unsafe_priority;
mod watched;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hayfork_sandbox::{
    Engine, EngineOptions, ExecuteOptions, Language, Sandbox, SandboxOptions, StartedFrom, TemplateStore,
    WarmOptions,
};
use hayfork_vmm::backend::Template;
use hayfork_vmm::monitor::settle;

use self::counting::{Outcome, costs, counted, exits_are_counted, median, own_time, time_of_threads};
use self::watched::Watched;

/// Rounds of a figure of guests.
const ROUNDS: usize = 20;
/// Rounds of a figure of the monitor; the least counts, being that which no timer has disturbed.
const RESTORES: usize = 20;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Nothing takes that long.
const LIMIT: Duration = Duration::from_secs(60);
/// Ample for whatever was begun to come to its end.
const PAUSE: Duration = Duration::from_secs(1);

fn main() -> Outcome<()> {
    let watched = Watched::default();
    let options =
        EngineOptions { boot_timeout: LIMIT, template_store: TemplateStore::Off, ..EngineOptions::default() };
    let engine = Engine::with_backend(options, Arc::new(watched.clone()))?;
    pool(&engine, &watched)?;
    template(&engine)?;
    engine.shutdown();
    sleep(PAUSE);
    settle();

    let kept = watched.kept();
    println!("pages ahead: {} KiB in {} ranges", kept.ahead_bytes >> 10, kept.ahead_ranges);
    let (Some(plain), Some(ahead)) = (kept.plain, kept.ahead) else {
        return Err("the engine has made no template".into());
    };
    if std::env::var_os("HAYFORK_RIG").is_some() {
        unsafe_priority::first()?;
    }
    let least = restores("restore", &*plain, false)?;
    println!("figure restore {least} within 2 %");
    let with_pages = restores("restore.ahead", &*ahead, false)?;
    println!("figure restore.ahead {with_pages} shown");
    println!("figure restore.page_ahead {} within 2 %", (with_pages - least) / (kept.ahead_bytes / PAGE));
    println!("figure restore.begun {} within 2 %", restores("restore.begun", &*ahead, true)?);
    Ok(())
}

fn warm(count: usize) -> WarmOptions {
    WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count }
}

/// A machine of the stock, which is not filled up meanwhile. It is the only one that lives, since those that wait have timers.
fn pool(engine: &Engine, watched: &Watched) -> Outcome<()> {
    engine.keep_warm(warm(1))?;
    let fill = || {
        watched.open();
        let is_full = engine.runtime().block_on(engine.wait_warm(LIMIT * 5))?;
        watched.shut();
        if is_full { Ok(()) } else { Err("the pool does not fill up".into()) }
    };
    let cost = figures(engine, StartedFrom::Pool, fill)?;
    engine.keep_warm(warm(0))?;
    watched.open();
    sleep(PAUSE);
    settle();
    println!("figure pool.hand_out {} within 2 %", cost.created);
    println!("figure pool.python_print {} within 4 %", cost.printed);
    println!("figure vcpu.pool.python_print {} shown", cost.on_vcpu);
    println!("figure exits.pool.python_print {} shown", cost.exits);
    Ok(())
}

/// A machine made of the template when it is asked for. Templates differ: where things lie in a guest's memory is chance.
fn template(engine: &Engine) -> Outcome<()> {
    let cost = figures(engine, StartedFrom::Template, || Ok(()))?;
    println!("figure template.acknowledged {} shown", cost.created);
    println!("figure template.python_print {} shown", cost.printed);
    println!("figure vcpu.template.python_print {} shown", cost.on_vcpu);
    println!("figure exits.template.python_print {} shown", cost.exits);
    Ok(())
}

/// What a sandbox costs: until it is there and until it has printed the least of all rounds, since timers add to that; the rest is the
/// median, since a guest may also have done something of it before.
struct Cost {
    /// Until it is there.
    created: u64,
    /// Until it has printed.
    printed: u64,
    /// Of that, the virtual CPU's thread.
    on_vcpu: u64,
    /// Exits to user space until it has printed; 0 where they are not counted.
    exits: u64,
}

/// Costs of sandboxes that come from there. `prepare` comes before each.
fn figures(engine: &Engine, from: StartedFrom, prepare: impl Fn() -> Outcome<()>) -> Outcome<Cost> {
    let runtime = engine.runtime();
    let create = || -> Outcome<Sandbox> {
        let sandbox = runtime.block_on(engine.create(SandboxOptions::new(Language::Python)))?;
        match sandbox.boot_timings().from {
            is if is == from => Ok(sandbox),
            other => Err(format!("the sandbox is of {other:?}, not of {from:?}").into()),
        }
    };
    let on_vcpu = || time_of_threads("self", "hayfork-vcpu0");
    let mut all = Vec::new();
    // The first one, which is not counted, reads in what the others use.
    for _ in 0..=ROUNDS {
        prepare()?;
        // Threads that are left end meanwhile; the guest of the stock is warmed up, and falls asleep.
        sleep(Duration::from_millis(100));
        let count = || {
            // A virtual CPU of the stock has lived before.
            let (vcpu, start) = (on_vcpu().unwrap_or(0), own_time());
            let sandbox = create()?;
            let created = own_time() - start;
            runtime.block_on(print(&sandbox))?;
            let printed = own_time() - start;
            Ok((sandbox, Cost { created, printed, on_vcpu: on_vcpu()? - vcpu, exits: 0 }))
        };
        let ((sandbox, cost), exits) = if exits_are_counted() { counted(count)? } else { (count()?, 0) };
        runtime.block_on(sandbox.close())?;
        settle();
        all.push(Cost { exits, ..cost });
    }
    // The first one is not counted.
    let rounds = |what: &str, part: fn(&Cost) -> u64| {
        println!("{from:?}, {what}:");
        median(all.iter().skip(1).map(|cost| Ok(part(cost))))
    };
    let least = |what: &str, part: fn(&Cost) -> u64| -> Outcome<u64> {
        let mut costs: Vec<_> = all.iter().skip(1).map(part).collect();
        costs.sort_unstable();
        println!("{from:?}, {what}: {costs:?}");
        Ok(*costs.first().ok_or("no rounds")?)
    };
    Ok(Cost {
        created: least("created", |cost| cost.created)?,
        printed: least("printed", |cost| cost.printed)?,
        on_vcpu: rounds("on its virtual CPU", |cost| cost.on_vcpu)?,
        exits: rounds("exits", |cost| cost.exits)?,
    })
}

/// Runs a program until its result is there.
async fn print(sandbox: &Sandbox) -> Outcome<()> {
    let execution = sandbox.execute(ExecuteOptions::new("print(1)")).collect().await?;
    if execution.stdout == b"1\n" { Ok(()) } else { Err(format!("{execution:?}").into()) }
}

/// The monitor's share of a restore.
fn restores(name: &str, template: &dyn Template, is_begun: bool) -> Outcome<u64> {
    let (mut least, mut elapsed) = (u64::MAX, Vec::new());
    for round in 0..=RESTORES {
        if is_begun {
            template.prepare()?;
            sleep(Duration::from_millis(50));
        }
        let start = Instant::now();
        let (machine, cost) = costs(own_time, || Ok(template.restore()?))?;
        let took = start.elapsed();
        drop(machine);
        settle();
        sleep(Duration::from_millis(50));
        if round > 0 {
            least = least.min(cost);
            elapsed.push(took);
        }
    }
    elapsed.sort_unstable();
    println!(
        "{name}: elapsed {:?} to {:?}, median {:?}",
        elapsed[0],
        elapsed[RESTORES - 1],
        elapsed[RESTORES / 2]
    );
    Ok(least)
}
