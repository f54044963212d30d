//! The Python environment of the source tree: `.venv` with the package built into it.
//!
//! The package is installed so that its Python files are used from the tree; only the native module
//! and the program of worker processes have to be built. Whether that is due is told by a stamp in `.venv` that holds a digest of everything
//! the module is made of, so that a second call costs no more than reading those files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo;
use crate::context::Context;
use crate::process;
use crate::progress::Task;

/// Oldest Python that the package supports.
const OLDEST: (u32, u32) = (3, 11);

/// What the tests and checks need beside the package itself.
const TOOLS: &[&str] = &[
    "maturin>=1.9,<2",
    "mypy>=1.13",
    "pytest>=8",
    "pytest-rerunfailures>=14",
    "pytest-timeout>=2",
    "pytest-xdist>=3.6",
    "ruff>=0.9",
];

/// The program of worker processes (`hayfork_vmm::worker::BINARY_NAME`, which is not there on other hosts).
const WORKER: &str = "hayfork-worker";

/// Folders and files that the native module is made of.
const SOURCES: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "protocol",
    "devices",
    "vmm",
    "qemu",
    "sandbox",
    "pyhaystack/src",
    "pyhaystack/Cargo.toml",
];

/// Folder of the environment's programs, with the package ready to be used.
///
/// # Errors
/// No Python, too old a Python, or what pip or the build reports.
pub(crate) fn environment(context: &Context) -> Result<PathBuf> {
    let venv = context.tree.join(".venv");
    let bin = venv.join("bin");
    let stamp_file = venv.join("hayfork.stamp");
    let stamp = stamp(&context.tree)?;
    if fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp)
        && bin.join("hayfork").exists()
        && context.tree.join("pyhaystack/python/hayfork").join(WORKER).exists()
    {
        return Ok(bin);
    }
    tools(context)?;
    let task = context.progress.task("package");
    task.step("compiling the workers' program");
    worker(context, &task)?;
    task.step("compiling the native module");
    process::stream(
        Command::new(bin.join("maturin"))
            .args(["develop", "--release", "--quiet"])
            .current_dir(context.tree.join("pyhaystack"))
            .env("VIRTUAL_ENV", &venv)
            .env_remove("CONDA_PREFIX"),
        // Read to its end: a program whose output nobody takes is killed by its next line.
        |mut stdout| Ok(io::copy(&mut stdout, &mut io::sink())?),
        |line| task.detail(line),
    )?;
    fs::write(&stamp_file, stamp).with_context(|| format!("cannot write {}", stamp_file.display()))?;
    task.done("ready in .venv");
    Ok(bin)
}

/// Puts the program of worker processes into the package's folder, where the package looks for it.
fn worker(context: &Context, task: &Task) -> Result<()> {
    let mut command = cargo::command(&context.tree);
    command.args(["build", "--release", "--package", "hayfork-vmm", "--bin", WORKER]);
    let built = cargo::build(&mut command, task)?;
    let program = built.iter().find(|built| built.target == WORKER).context("cargo built no program")?;
    let place = context.tree.join("pyhaystack/python/hayfork").join(WORKER);
    // Renamed into place: a worker that runs keeps its file.
    let aside = place.with_extension("new");
    fs::copy(&program.path, &aside)
        .and_then(|_| fs::rename(&aside, &place))
        .with_context(|| format!("cannot write {}", place.display()))
}

/// Folder of the environment's programs, with the tools and without the package.
///
/// # Errors
/// No Python, too old a Python, or what pip reports.
pub(crate) fn tools(context: &Context) -> Result<PathBuf> {
    let venv = context.tree.join(".venv");
    let bin = venv.join("bin");
    let stamp_file = venv.join("tools.stamp");
    let stamp = TOOLS.join("\n");
    if fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) && bin.join("pip").exists() {
        return Ok(bin);
    }
    let task = context.progress.task("tools");
    if !bin.join("pip").exists() {
        task.step("making a Python environment");
        check_version()?;
        process::output(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            .context("the Python module venv does not work: install the package python3-venv")?;
    }
    task.step("installing Python tools");
    process::output(
        Command::new(bin.join("pip")).args(["install", "--quiet", "--disable-pip-version-check"]).args(TOOLS),
    )?;
    fs::write(&stamp_file, stamp).with_context(|| format!("cannot write {}", stamp_file.display()))?;
    task.done("ready in .venv");
    Ok(bin)
}

/// Whether the Python in PATH is new enough.
///
/// # Errors
/// There is none, or it is too old.
pub(crate) fn check_version() -> Result<()> {
    let text =
        process::output(Command::new("python3").args(["-c", "import sys; print(*sys.version_info[:2])"]))
            .with_context(|| {
                format!("Python {}.{} or newer is needed: install the package python3", OLDEST.0, OLDEST.1)
            })?;
    let mut numbers = text.split_whitespace().filter_map(|n| n.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < OLDEST {
        bail!("python3 is Python {}.{}, and {}.{} or newer is needed", found.0, found.1, OLDEST.0, OLDEST.1);
    }
    Ok(())
}

/// A digest of names and contents of everything that the native module is made of.
fn stamp(tree: &Path) -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&tree.join(source), &mut files)?;
    }
    files.push(tree.join("pyhaystack/pyproject.toml"));
    files.sort();
    let mut hasher = blake3::Hasher::new();
    hasher.update(tree.as_os_str().as_encoded_bytes());
    hasher.update(TOOLS.join(" ").as_bytes());
    for file in files {
        hasher.update(file.as_os_str().as_encoded_bytes());
        hasher.update(&[0]);
        hasher.update(
            blake3::hash(&fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?)
                .as_bytes(),
        );
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
            collect(&entry?.path(), files)?;
        }
    } else {
        files.push(path.to_owned());
    }
    Ok(())
}
