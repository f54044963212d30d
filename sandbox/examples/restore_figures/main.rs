//! What it costs to make a guest of a template, and to have code run in one, in instructions: made for the nested rig
//! (`tests/rig/`), as [`boot_figures`](../boot_figures.rs) is, with python's own template, as the engine makes it.
//!
//! | figure | from | to |
//! |---|---|---|
//! | `restore` | a template of the backend | the machine is made, mapped, in its state, and may go on: the monitor's share, and nothing of the guest |
//! | `restore.ahead` | the same, with the pages that a clone uses made ahead | |
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
//! In the first two the guest has no part: in the rig the thread that restores is ahead of the virtual CPU's, which has to wait until the
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
    Engine, EngineOptions, ExecuteOptions, Language, Sandbox, SandboxOptions, StartedFrom, WarmOptions,
};
use hayfork_vmm::backend::Template;
use hayfork_vmm::monitor::settle;

use self::counting::{Outcome, costs, counted, exits_are_counted, median, own_time, time_of_threads};
use self::watched::Watched;

/// Rounds of a figure of guests; the median counts.
const ROUNDS: usize = 5;
/// Rounds of a figure of the monitor; the least counts, being that which no timer has disturbed.
const RESTORES: usize = 20;
/// Nothing takes that long.
const LIMIT: Duration = Duration::from_secs(60);
/// Ample for whatever was begun to come to its end.
const PAUSE: Duration = Duration::from_secs(1);

fn main() -> Outcome<()> {
    let watched = Watched::default();
    let options = EngineOptions { boot_timeout: LIMIT, ..EngineOptions::default() };
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
    restores("restore", &*plain)?;
    restores("restore.ahead", &*ahead)
}

fn warm(count: usize) -> WarmOptions {
    WarmOptions { language: Language::Python, memory_mib: None, cpus: None, count }
}

/// A machine of the stock, while that is not filled up.
fn pool(engine: &Engine, watched: &Watched) -> Outcome<()> {
    let runtime = engine.runtime();
    // One more, since the first code that runs reads in what the others use.
    let stock = 2 * ROUNDS + 1;
    engine.keep_warm(warm(stock))?;
    if !runtime.block_on(engine.wait_warm(LIMIT * 5))? {
        return Err("the pool does not fill up".into());
    }
    watched.shut();
    figures(engine, "pool", "hand_out", StartedFrom::Pool)?;
    engine.keep_warm(warm(0))?;
    watched.open();
    sleep(PAUSE);
    settle();
    Ok(())
}

/// A machine made of the template when it is asked for.
fn template(engine: &Engine) -> Outcome<()> {
    figures(engine, "template", "acknowledged", StartedFrom::Template)
}

/// Figures of sandboxes that come from there: `KIND.CREATED` and `KIND.python_print`, and their parts.
fn figures(engine: &Engine, kind: &str, created: &str, from: StartedFrom) -> Outcome<()> {
    let runtime = engine.runtime();
    let create = || -> Outcome<Sandbox> {
        let sandbox = runtime.block_on(engine.create(SandboxOptions::new(Language::Python)))?;
        match sandbox.boot_timings().from {
            is if is == from => Ok(sandbox),
            other => Err(format!("the sandbox is of {other:?}, not of {from:?}").into()),
        }
    };
    let close = |sandbox: Sandbox| -> Outcome<()> {
        runtime.block_on(sandbox.close())?;
        drop(sandbox);
        settle();
        // Threads that are left end meanwhile.
        sleep(Duration::from_millis(50));
        Ok(())
    };
    let (mut until_created, mut until_printed, mut on_vcpu) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let vcpus_before = time_of_threads("self", "hayfork-vcpu0").unwrap_or(0);
        let start = own_time();
        let sandbox = create()?;
        let is_there = own_time() - start;
        runtime.block_on(print(&sandbox))?;
        let has_printed = own_time() - start;
        // The virtual CPU of a machine of the stock has lived before.
        let vcpu = time_of_threads("self", "hayfork-vcpu0")? - vcpus_before;
        close(sandbox)?;
        // The first one reads in what the others use.
        if round > 0 {
            until_created.push(Ok(is_there));
            until_printed.push(Ok(has_printed));
            on_vcpu.push(Ok(vcpu));
        }
    }
    println!("figure {kind}.{created} {} within 2 %", median(until_created.into_iter())?);
    println!("figure {kind}.python_print {} within 2 %", median(until_printed.into_iter())?);
    println!("figure vcpu.{kind}.python_print {} within 2 %", median(on_vcpu.into_iter())?);
    if exits_are_counted() {
        let rounds = (0..ROUNDS).map(|_| {
            let (sandbox, exits) = counted(|| {
                let sandbox = create()?;
                runtime.block_on(print(&sandbox))?;
                Ok(sandbox)
            })?;
            close(sandbox)?;
            Ok(exits)
        });
        println!("figure exits.{kind}.python_print {} within 2 %", median(rounds)?);
    }
    Ok(())
}

/// Runs a program until its result is there.
async fn print(sandbox: &Sandbox) -> Outcome<()> {
    let execution = sandbox.execute(ExecuteOptions::new("print(1)")).collect().await?;
    if execution.stdout == b"1\n" { Ok(()) } else { Err(format!("{execution:?}").into()) }
}

/// The monitor's share of a restore.
fn restores(name: &str, template: &dyn Template) -> Outcome<()> {
    let (mut least, mut elapsed) = (u64::MAX, Vec::new());
    for round in 0..=RESTORES {
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
    println!("figure {name} {least} within 2 %");
    Ok(())
}
