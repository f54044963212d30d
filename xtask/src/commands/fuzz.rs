//! `cargo xtask fuzz`: each fuzz target for some seconds.
//!
//! The targets are built with the coverage instrumentation that libFuzzer needs, which the stable
//! compiler has; the address sanitizer would need a nightly one and finds little in safe code. With
//! `cargo fuzz` and a nightly compiler the same targets run longer and sanitised.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::commands::tally::Tally;
use crate::context::Context;
use crate::process;

/// What libFuzzer needs of the compiler.
const INSTRUMENTATION: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions=yes -Coverflow-checks=yes";

/// Run each fuzz target for some seconds.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Carries the command out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let context = Context::new()?;
    let mut tally = Tally::default();
    targets(&context, &mut tally, options.seconds)?;
    tally.print();
    if tally.failed > 0 {
        bail!("{} fuzz targets failed", tally.failed);
    }
    Ok(())
}

/// A short run of each target, as a part of the tests.
pub(crate) fn smoke(context: &Context, tally: &mut Tally) -> Result<()> {
    targets(context, tally, 8)
}

fn targets(context: &Context, tally: &mut Tally, seconds: u32) -> Result<()> {
    let folder = context.tree.join("fuzz");
    let triple = host_triple()?;
    println!("\n── fuzz");
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--bins", "--target", &triple])
        .current_dir(&folder)
        .env("RUSTFLAGS", INSTRUMENTATION)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        tally.check("fuzz: build", false);
        return Ok(());
    }
    for name in names(&folder)? {
        let corpus = folder.join("corpus").join(&name);
        std::fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
        let artifacts = folder.join("artifacts").join(&name);
        std::fs::create_dir_all(&artifacts)
            .with_context(|| format!("cannot make {}", artifacts.display()))?;
        let status = Command::new(folder.join("target").join(&triple).join("release").join(&name))
            .arg(format!("-max_total_time={seconds}"))
            .arg("-rss_limit_mb=2048")
            .arg("-verbosity=0")
            .arg("-print_final_stats=1")
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg(&corpus)
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("cannot start the fuzz target {name}"))?;
        tally.check(&format!("fuzz: {name}"), status.success());
    }
    Ok(())
}

/// The targets, by the folder that holds one file for each.
fn names(folder: &Path) -> Result<Vec<String>> {
    let targets = folder.join("fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&targets).with_context(|| format!("cannot read {}", targets.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn host_triple() -> Result<String> {
    let text = process::output(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}
