//! What the driver tests need on the host beside Python and bash: Bun, and the JavaScript driver's
//! parsers. npm installs both from `initramfs/package-lock.json`, which pins versions and digests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::context::Context;
use crate::packages::{self, Purpose};
use crate::process;

/// Where npm puts Bun, below `initramfs/node_modules`.
const BUN: &str = "@oven/bun-linux-x64-baseline/bin/bun";

/// The Bun program, with the parsers installed beside it.
///
/// # Errors
/// npm is missing and cannot be installed, or what npm reports.
pub(crate) fn bun(context: &Context) -> Result<PathBuf> {
    let folder = context.tree.join("initramfs");
    let lock = folder.join("package-lock.json");
    let modules = folder.join("node_modules");
    let bun = modules.join(BUN);
    // npm writes this file last; it is older than the lock when the lock has changed since.
    let installed = fs::metadata(modules.join(".package-lock.json")).and_then(|file| file.modified());
    let wanted = fs::metadata(&lock).and_then(|file| file.modified());
    if bun.exists() && matches!((installed, wanted), (Ok(installed), Ok(wanted)) if installed >= wanted) {
        return Ok(bun);
    }
    packages::ensure(&[Purpose::Npm], &context.progress)?;
    let task = context.progress.task("bun");
    task.step("installing Bun and the driver's parsers");
    process::output(
        Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&folder),
    )
    .context("npm ci in initramfs/")?;
    task.done("installed");
    Ok(bun)
}
