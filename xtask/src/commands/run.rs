//! `cargo xtask run`: everything that a first result needs, and then the result.

use std::process::{Command, exit};

use anyhow::{Context as _, Result};

use crate::commands::images;
use crate::context::Context;
use crate::python;

/// What runs when nothing else is named.
const EXAMPLE: &str = "pyhaystack/examples/hello.py";

/// Build what is missing, then run a program in a virtual machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What `hayfork run` takes: a file, `-`, or the code itself, and options. An example without it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Behind other options, instead of a program: the example.
const THE_EXAMPLE: &str = "--example";

/// Carries the command out. Does not return if the program ends with another exit code than 0.
pub(crate) fn run(options: &Options) -> Result<()> {
    let context = Context::new()?;
    let set = images::needed()?;
    let bin = python::environment(&context)?;
    let mut command = Command::new(bin.join("hayfork"));
    command.args(["run", "--timings"]).env("HAYFORK_IMAGES_DIR", &set);
    let (last, others) = options
        .arguments
        .split_last()
        .map_or((THE_EXAMPLE, &[][..]), |(last, others)| (last.as_str(), others));
    if last == THE_EXAMPLE {
        eprintln!(
            "running {EXAMPLE}; give your own with  make run CODE='print(6 * 7)'  or  make run FILE=program.py"
        );
        command.args(others).arg(context.tree.join(EXAMPLE));
    } else {
        command.args(&options.arguments);
    }
    let status = command.status().context("cannot start hayfork")?;
    if status.success() {
        return Ok(());
    }
    exit(status.code().unwrap_or(125));
}
