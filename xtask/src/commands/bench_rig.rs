//! `cargo xtask bench-rig`: what the monitor's operations cost on an ordinary KVM, in instructions.
//!
//! Numbers of instructions repeat, on a busy machine too, so that they can be held against those that are committed
//! (`tests/rig/figures.json`): growth is a failure.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use hayfork_sandbox::images::ImageSet;

use crate::commands::images;
use crate::context::Context;
use crate::process;
use crate::rig::{self, Rig, binaries::Settings};

/// Files of an image set that figures of boots depend on.
const GUEST: [&str; 3] = ["vmlinux", "initramfs.cpio", "python.erofs"];

/// Measure the monitor in instructions, in the nested rig.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Runs of each program; a figure that differs between them by more than 0.1 % is a failure.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Commit to what is measured: write it to figures.json.
    #[arg(long)]
    update: bool,
    /// Show figures of this Firecracker beside; it is not part of this project.
    #[arg(long, value_name = "FILE", env = "HAYFORK_FIRECRACKER")]
    firecracker: Option<PathBuf>,
}

/// Carries the command out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let context = Context::new()?;
    let folder = rig::folder(&context.tree);
    let task = context.progress.task("figures");
    let settings = Settings::read(&folder.join("rig.toml"))?;
    let programs = settings.build_figures(&context.tree, &task)?;
    drop(task);
    if programs.is_empty() {
        bail!("rig.toml names no program that prints figures");
    }
    let rig = Rig::ensure(&context)?;
    let mut command = rig.command("figures");
    for program in &programs {
        command.arg("--program").arg(&program.path);
    }
    for (name, version) in &rig.tools {
        command.arg("--tools").arg(format!("{name}={version}"));
    }
    let compiler = process::output(Command::new("rustc").arg("--version").current_dir(&context.tree))?;
    command.arg("--tools").arg(format!("rustc={}", compiler.trim()));
    command.arg("--committed").arg(folder.join("figures.json")).args(["--runs", &options.runs.to_string()]);
    if settings.figures_need_images() {
        let folder = images::needed()?;
        for (file, digest, _) in ImageSet::open(&folder)?.manifest().files() {
            if GUEST.contains(&file) {
                command.arg("--tools").arg(format!("{file}={digest}"));
            }
        }
        command.arg("--files").arg(folder);
    }
    if let Some(firecracker) = &options.firecracker {
        command.arg("--firecracker").arg(firecracker);
    }
    if options.update {
        command.arg("--update");
    }
    let status = command.stdin(Stdio::null()).status().context("cannot start python3")?;
    if !status.success() {
        bail!("the figures do not hold");
    }
    Ok(())
}
