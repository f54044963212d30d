//! The nested rig: a machine with an ordinary `/dev/kvm`, on hosts without one. `tests/rig/` is the rig itself, a Python
//! package; here are its places in the cache and the programs that run inside.
//!
//! | kind | what | key |
//! |---|---|---|
//! | `rig-base` | kernel and initramfs of L1 | the packages' versions, L1's init and modules |
//! | `rig-l1` | an L1 that has booted: memory, state | the base's key, QEMU's version and arguments |
//!
//! Which packages are used is kept without a limit in time (`answers/rig.json`): the rig is test equipment, which needs no
//! newest kernel, and figures compare while it stays the same. They are asked for again only when the base has to be built.

pub(crate) mod binaries;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commands::images;
use crate::commands::tally::Tally;
use crate::context::Context;
use crate::packages::{self, Purpose};
use crate::progress::Task;
use crate::store::{self, Built, Entry};
use crate::{process, python};

use binaries::Settings;

/// Kind of the entries with L1's kernel and initramfs.
pub(crate) const BASE: &str = "rig-base";
/// Kind of the entries with a stored L1.
pub(crate) const STORED: &str = "rig-l1";
/// L1's memory in an entry.
const MEMORY: &str = "memory";

/// A rig that is ready.
pub(crate) struct Rig {
    tree: PathBuf,
    base: Entry,
    stored: Entry,
    /// The versions of its tools, which figures depend on.
    pub(crate) tools: Vec<(&'static str, String)>,
}

/// A Debian package of a certain version.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Package {
    name: String,
    version: String,
}

/// What the rig itself says its entries depend on.
#[derive(Debug, Deserialize, Serialize)]
struct Recipe {
    base: Value,
    machine: Value,
}

impl Rig {
    /// Makes the rig ready: out of the cache, or by booting an L1, which takes half a minute.
    ///
    /// # Errors
    /// Packages are missing and cannot be installed, or L1 does not boot.
    pub(crate) fn ensure(context: &Context) -> Result<Self> {
        packages::ensure(&[Purpose::Rig], &context.progress)?;
        python::check_version()?;
        let task = context.progress.task("rig");
        let recipe: Recipe = ask(&context.tree, &["recipe"])?;
        let (packages, base) = base(context, &recipe, &task)?;
        let stored = stored(context, &recipe, &base, &task)?;
        if base.built || stored.built {
            task.done("stored in the cache");
        }
        let mut tools: Vec<_> =
            ["kernel", "busybox"].into_iter().zip(packages.into_iter().map(|p| p.version)).collect();
        tools.push(("qemu", recipe.machine["qemu"].as_str().unwrap_or_default().to_owned()));
        Ok(Self { tree: context.tree.clone(), base, stored, tools })
    }

    /// One of the rig's commands that use a stored L1.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = command(&self.tree);
        command.arg(name);
        command.arg("--base").arg(&self.base.directory).arg("--stored").arg(&self.stored.directory);
        command
    }
}

/// The folder of the rig's own files.
pub(crate) fn folder(tree: &Path) -> PathBuf {
    tree.join("tests/rig")
}

fn command(tree: &Path) -> Command {
    let mut command = Command::new("python3");
    // -B: nothing is written into the source tree.
    command.args(["-B", "-m", "hayfork_rig"]).env("PYTHONPATH", folder(tree)).current_dir(tree);
    command
}

/// Runs a command that prints JSON.
fn ask<T: for<'a> Deserialize<'a>>(tree: &Path, arguments: &[&str]) -> Result<T> {
    let text = process::output(command(tree).args(arguments))?;
    serde_json::from_str(&text).with_context(|| format!("the rig's {arguments:?} printed {text:?}"))
}

fn base_key(recipe: &Recipe, packages: &[Package]) -> Result<String> {
    store::key(&(&recipe.base, packages))
}

/// L1's kernel and initramfs, and the packages that they are made of.
fn base(context: &Context, recipe: &Recipe, task: &Task) -> Result<(Vec<Package>, Entry)> {
    let answer = context.store.root().join("answers").join("rig.json");
    let kept: Option<Vec<Package>> =
        fs::read(&answer).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if let Some(packages) = kept
        && let Some(entry) = context.store.find(BASE, &base_key(recipe, &packages)?)
    {
        return Ok((packages, entry));
    }
    task.step("looking for L1's packages");
    let packages = resolve(context, task)?;
    let waiting = || task.step("another process is making L1's kernel and initramfs; waiting");
    let entry = context.store.get_or_build(BASE, &base_key(recipe, &packages)?, waiting, |directory| {
        task.step("fetching L1's packages");
        let named = serde_json::to_string(&packages)?;
        process::output(
            command(&context.tree).args(["base", "--packages", &named, "--into"]).arg(directory),
        )?;
        let source = packages.iter().map(|package| format!("{} {}", package.name, package.version));
        Ok(Built { source: source.collect::<Vec<_>>().join(", "), ..Built::default() })
    })?;
    store::replace_file(&answer, &serde_json::to_vec_pretty(&packages)?)?;
    Ok((packages, entry))
}

/// The newest packages of the local index, which is fetched if it has none and we may.
fn resolve(context: &Context, task: &Task) -> Result<Vec<Package>> {
    match ask(&context.tree, &["resolve"]) {
        Err(_) if rustix::process::geteuid().is_root() => {
            task.step("fetching the package index (apt-get update)");
            process::output(Command::new("apt-get").args(["--quiet", "update"]))
                .context("cannot fetch the package index")?;
            ask(&context.tree, &["resolve"])
        }
        other => other,
    }
}

/// An L1 that has booted.
fn stored(context: &Context, recipe: &Recipe, base: &Entry, task: &Task) -> Result<Entry> {
    let key = store::key(&(&base.manifest.key, &recipe.machine))?;
    let waiting = || task.step("another process is booting L1; waiting");
    let boot = |directory: &Path| {
        let mut command = command(&context.tree);
        command.args(["store", "--base"]).arg(&base.directory).arg("--stored").arg(directory);
        process::output(&mut command)
    };
    let entry = context.store.get_or_build(STORED, &key, waiting, |directory| {
        task.step("booting L1 to store it");
        if let Err(error) = boot(directory) {
            context.progress.note(&format!("rig: L1 is booted once more: {error:#}"));
            boot(directory)?;
        }
        Ok(Built { source: base.manifest.source.clone(), ..Built::default() })
    })?;
    writable(&entry.directory.join(MEMORY)).context("cannot open L1's memory to its owner")?;
    Ok(entry)
}

/// QEMU opens the memory for writing, though its mapping is private and never changes the file (QEMU 8.2 and newer
/// could be told not to).
fn writable(memory: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(memory, fs::Permissions::from_mode(0o644))
}

/// Runs the rig's tests and counts them.
///
/// # Errors
/// The rig cannot be made ready, or what it is to run does not compile.
pub(crate) fn test(context: &Context, tally: &mut Tally) -> Result<()> {
    println!("\n── rig");
    let folder = folder(&context.tree);
    let settings = folder.join("rig.toml");
    let task = context.progress.task("rig tests");
    let wanted = Settings::read(&settings)?;
    let built = wanted.build_tests(&context.tree, &task)?;
    drop(task);
    let rig = Rig::ensure(context)?;
    let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
    let (list, report) = (scratch.path().join("built.json"), scratch.path().join("report.json"));
    fs::write(&list, serde_json::to_vec(&built)?)?;
    let mut command = rig.command("test");
    command.arg("--built").arg(&list).arg("--settings").arg(&settings).arg("--report").arg(&report);
    command.arg("--logs").arg(context.tree.join("target/rig"));
    if wanted.tests_need_images() {
        command.arg("--files").arg(images::needed()?);
    }
    let status = command.stdin(Stdio::null()).status().context("cannot start python3")?;
    // Without a report the rig itself has failed, and has said why.
    let sum: Sum =
        fs::read(&report).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let unnamed = u64::from(!status.success() && sum.failed == 0);
    tally.add("rig", sum.passed, sum.failed + unnamed);
    for test in sum.flaky {
        tally.note(&format!("rig: passed only when it was run again: {test}"));
    }
    for remark in sum.remarks {
        tally.note(&format!("rig: {remark}"));
    }
    Ok(())
}

/// What the rig writes about a run of tests.
#[derive(Debug, Default, Deserialize)]
struct Sum {
    passed: u64,
    failed: u64,
    flaky: Vec<String>,
    remarks: Vec<String>,
}
