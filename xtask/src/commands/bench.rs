//! `cargo xtask bench`: the figures that the README quotes.
//!
//! Device and protocol benches first (in one process, ratios are what counts), then the product's own
//! figures over whole processes, beside their targets. `HAYFORK_FIRECRACKER` names a Firecracker binary to compare with.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::commands::images;
use crate::context::Context;
use crate::python;

/// Measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only the product's own figures, without the benches of single parts.
    #[arg(long)]
    product: bool,
    /// Measurements of each product figure.
    #[arg(long, default_value_t = 5)]
    runs: u32,
}

/// Carries the command out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let context = Context::new()?;
    let set = images::needed()?;
    let bin = python::environment(&context)?;
    if !options.product {
        let mut parts = Command::new("cargo");
        parts.args(["bench", "--workspace", "--benches", "--quiet"]).env("HAYFORK_IMAGES_DIR", &set);
        bench(&context, &mut parts)?;
    }
    let script = context.tree.join("pyhaystack/benches/product.py");
    let runs = options.runs.to_string();
    bench(
        &context,
        Command::new(bin.join("python")).arg(script).args(["--runs", &runs]).env("HAYFORK_IMAGES_DIR", &set),
    )
}

fn bench(context: &Context, command: &mut Command) -> Result<()> {
    let status = command
        .current_dir(&context.tree)
        .status()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{} failed ({status})", command.get_program().display());
    }
    Ok(())
}
