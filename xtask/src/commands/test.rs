//! `cargo xtask test`: sets up what is missing and runs every layer of tests.
//!
//! | layer | what | needs |
//! |---|---|---|
//! | lint | formatting, lints, types | |
//! | unit | `cargo nextest` (or `cargo test`) over the workspace | |
//! | fuzz | each fuzz target for some seconds | a C++ compiler |
//! | drivers | the language drivers on the host, the test playing the agent | |
//! | rig | the rig's own tests, and the monitor's in the nested rig, on an ordinary KVM | |
//! | guest | Rust tests that boot guests, on each backend that the host offers | the image set |
//! | behaviours | the public Python API, end to end, on each of them too | the image set, the package |

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use hayfork_vmm::hypervisor::probe::{Verdict, probe};

use crate::commands::tally::Tally;
use crate::commands::{fuzz, images, lint, runner};
use crate::context::Context;
use crate::{host_drivers, process, python, rig, room};

/// How long one runner may take, building included. Each test has a limit of its own, so this is for a runner that hangs itself.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// After so long the turn in worker processes, the last one, is left out and its absence said: on a host so slow, all others
/// count more.
const PATIENCE: Duration = Duration::from_secs(70 * 60);

/// Bytes that everything takes that is built for all tests.
const ROOM: u64 = 12 << 30;

/// The variable that names the backend for engines that are not told another.
const BACKEND: &str = "HAYFORK_BACKEND";

/// The variable that says where the monitor runs machines.
const ISOLATION: &str = "HAYFORK_ISOLATION";

/// Set up and run all tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these layers.
    #[arg(value_enum)]
    layers: Vec<Layer>,

    /// In worker processes too, run everything: what a guest does with its code is the same there, so usually only tests of
    /// machines and their lives run.
    #[arg(long)]
    whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Layer {
    Lint,
    Unit,
    Fuzz,
    Drivers,
    Rig,
    Guest,
    Behaviours,
}

/// Tests with guests in worker processes: those of machines, of what they are made of, and of their ends.
const OF_MACHINES: &str = "binary(machines) + binary(paused)";

/// The same of the public API.
const MACHINE_BEHAVIOURS: [&str; 8] =
    ["endings", "engine", "forks", "isolation", "pause", "pool", "templates", "workers"];

/// Carries the command out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let began = Instant::now();
    let context = Context::new()?;
    room::look(&context, ROOM);
    let wanted = |layer| options.layers.is_empty() || options.layers.contains(&layer);
    let mut tally = Tally::default();
    if wanted(Layer::Unit) {
        unit(&context, &mut tally)?;
    }
    let bin = python::tools(&context)?;
    if [Layer::Lint, Layer::Behaviours].into_iter().any(wanted) {
        python::environment(&context)?;
    }
    if wanted(Layer::Lint) {
        lint::checks(&context, &mut tally)?;
    }
    if wanted(Layer::Drivers) {
        let mut command = Command::new(bin.join("pytest"));
        command
            // A file is one runner's: its tests share nothing, but those of signals want the processor to themselves.
            .args(["-q", "--reruns", "1", "--numprocesses", "auto", "--dist", "loadfile", "tests/drivers"])
            .env("HAYFORK_DRIVER_JAVASCRIPT", host_drivers::bun(&context)?);
        runner(&context, &mut tally, "drivers", &mut command)?;
    }
    if wanted(Layer::Rig) {
        let mut command = Command::new(bin.join("pytest"));
        command.args(["-q", "tests/rig/tests"]).env("PYTHONPATH", rig::folder(&context.tree));
        runner(&context, &mut tally, "rig's own", &mut command)?;
        // What does not compile for the rig, or a rig that cannot be had, is this layer's failure and not the others' end.
        if let Err(error) = rig::test(&context, &mut tally) {
            println!("rig: {error:#}");
            tally.check("rig", false);
        }
    }
    if wanted(Layer::Fuzz) {
        fuzz::smoke(&context, &mut tally)?;
    }
    if wanted(Layer::Guest) || wanted(Layer::Behaviours) {
        let set = images::needed()?;
        for (turn, (backend, isolation)) in backends().into_iter().enumerate() {
            let all = options.whole || isolation != "worker";
            if !all && began.elapsed() > PATIENCE {
                tally.note("worker processes: left out, the others took too long; cargo xtask test guest behaviours has them");
                continue;
            }
            if wanted(Layer::Guest) {
                // Tests of what is not behind the choice of a backend run once.
                let mut command = cargo_test(true, if turn == 0 { None } else { Some("hayfork-sandbox") });
                if !all && process::exists("cargo-nextest") {
                    command.args(["--filterset", OF_MACHINES]);
                }
                command.env("HAYFORK_IMAGES_DIR", &set).env(BACKEND, backend).env(ISOLATION, isolation);
                runner(&context, &mut tally, &format!("guest: {backend}, {isolation}"), &mut command)?;
            }
            if wanted(Layer::Behaviours) {
                let mut command = Command::new(bin.join("pytest"));
                command.args(["-q", "--reruns", "1"]);
                if all {
                    command.arg("tests/behaviours");
                } else {
                    command.args(MACHINE_BEHAVIOURS.map(|of| format!("tests/behaviours/test_{of}.py")));
                }
                command.env("HAYFORK_IMAGES_DIR", &set).env(BACKEND, backend).env(ISOLATION, isolation);
                runner(&context, &mut tally, &format!("behaviours: {backend}, {isolation}"), &mut command)?;
            }
        }
    }
    tally.print();
    if tally.failed > 0 {
        bail!("{} of {} failed", tally.failed, tally.passed + tally.failed);
    }
    Ok(())
}

/// What the backends of this host are called, and where they run machines: tests with guests run on each of them.
fn backends() -> Vec<(&'static str, &'static str)> {
    let verdict = probe().verdict;
    let mut all = vec![("qemu", "process")];
    if matches!(verdict, Verdict::Hardware { .. } | Verdict::KvmPvm { .. }) {
        all.extend([("monitor", "process"), ("monitor", "worker")]);
    } else {
        println!("\nnothing runs on the monitor: {verdict}");
    }
    all
}

fn unit(context: &Context, tally: &mut Tally) -> Result<()> {
    runner(context, tally, "unit", &mut cargo_test(false, None))
}

/// Cargo's tests, of all packages or of one: those that run anywhere, or those marked as needing the image set. The latter
/// start virtual machines, so they run one after the other.
fn cargo_test(guests: bool, package: Option<&str>) -> Command {
    let mut command = Command::new("cargo");
    let packages = package.map_or_else(|| vec!["--workspace"], |package| vec!["-p", package]);
    if process::exists("cargo-nextest") {
        command.args(["nextest", "run", "--no-fail-fast", "--cargo-quiet"]).args(packages);
        if guests {
            command.args(["--run-ignored", "only", "--test-threads", "1"]);
        }
    } else {
        command.args(["test", "--no-fail-fast", "--quiet"]).args(packages);
        if guests {
            command.args(["--", "--ignored", "--test-threads", "1"]);
        }
    }
    command
}

/// Runs a test runner, shows what it prints, and counts its tests.
fn runner(context: &Context, tally: &mut Tally, name: &str, command: &mut Command) -> Result<()> {
    println!("\n── {name}");
    let ran =
        runner::run(command.current_dir(&context.tree), LIMIT).with_context(|| format!("running {name}"))?;
    tally.runner(name, &ran.output, ran.success, ran.took);
    if ran.late {
        tally.note(&format!("{name} was ended after {} s, before it was done", LIMIT.as_secs()));
    }
    Ok(())
}
