//! `cargo xtask soak`: one machine after the other, natively, with no second try. Not a part of `test`: it takes minutes, and
//! means something on a host that does nothing else.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::commands::images;
use crate::context::Context;

/// Boot many machines in a row.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many.
    #[arg(default_value_t = 200)]
    boots: u32,
    /// Each agent must answer within so many seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// The backend.
    #[arg(long, default_value = "monitor")]
    backend: String,
}

/// Carries the command out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let context = Context::new()?;
    let set = images::needed()?;
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "--package", "hayfork-sandbox", "--example", "soak", "--"]);
    command.args([options.boots.to_string(), options.seconds.to_string(), options.backend.clone()]);
    let status = command
        .current_dir(&context.tree)
        .env("HAYFORK_IMAGES_DIR", &set)
        .status()
        .context("cannot start cargo")?;
    if !status.success() {
        bail!("not every machine came up ({status})");
    }
    Ok(())
}
