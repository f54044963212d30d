//! `cargo xtask lint`: formatting, lints and types of all code, each a check that passes or fails.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::commands::tally::Tally;
use crate::context::Context;
use crate::python;

/// Check formatting, lints and types.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

/// Carries the command out.
pub(crate) fn run(_: &Options) -> Result<()> {
    let context = Context::new()?;
    let mut tally = Tally::default();
    checks(&context, &mut tally)?;
    tally.print();
    if tally.failed > 0 {
        bail!("{} checks failed", tally.failed);
    }
    Ok(())
}

/// Runs every check and counts it.
pub(crate) fn checks(context: &Context, tally: &mut Tally) -> Result<()> {
    let bin = python::environment(context)?;
    let ruff = bin.join("ruff");
    let mut checks: Vec<(&str, Command)> = Vec::new();
    let mut cargo = |name, arguments: &[&str]| {
        let mut command = Command::new("cargo");
        command.args(arguments);
        checks.push((name, command));
    };
    cargo("rustfmt", &["fmt", "--all", "--check"]);
    cargo("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    let mut python = |name, program: &std::path::Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        checks.push((name, command));
    };
    python(
        "ruff format",
        &ruff,
        &["format", "--check", "--quiet", "pyhaystack", "tests", "initramfs/drivers/python"],
    );
    python("ruff check", &ruff, &["check", "--quiet", "pyhaystack", "tests", "initramfs/drivers/python"]);
    python("mypy", &bin.join("mypy"), &["--strict", "--no-error-summary", "pyhaystack/python/hayfork"]);
    python(
        "mypy of the rig",
        &bin.join("mypy"),
        &["--config-file", "tests/rig/mypy.ini", "--no-error-summary", "tests/rig"],
    );
    for (name, mut command) in checks {
        let status = command
            .current_dir(&context.tree)
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        tally.check(&format!("lint: {name}"), status.success());
    }
    Ok(())
}
