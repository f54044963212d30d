//! `cargo xtask images`: builds the parts of an image set and puts the set together.
//!
//! The kernel is built beside the other parts, since it takes longest and the others wait for the network
//! now and then. A part that is in the cache costs next to nothing. When all parts are there, the set is
//! made and `current` points to it.

use std::iter;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};
use hayfork_sandbox::images::ImageSet;

use crate::context::Context;
use crate::image::{self, resolve::Freshness};
use crate::packages::{self, Purpose};
use crate::progress::megabytes;
use crate::set::Parts;
use crate::store::Entry;
use crate::{initramfs, kernel};

mod reproducible;

/// Options of `images`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Build these parts only: kernel, initramfs, or a language. May be repeated.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Build the kernel from this source tree instead of Debian's package.
    #[arg(long, value_name = "DIR")]
    kernel_source: Option<PathBuf>,
    /// Build each part a second time and compare the digests.
    #[arg(long)]
    check_reproducible: bool,
    /// Do not ask package indexes for newer versions than those known here.
    #[arg(long)]
    no_refresh: bool,
    /// Use no network: what is not in the cache is an error.
    #[arg(long)]
    offline: bool,
}

impl Options {
    /// Options for a command that needs a set and does not care for updates.
    fn whatever_is_there() -> Self {
        Self { no_refresh: true, ..Self::default() }
    }

    fn freshness(&self) -> Freshness {
        match (self.offline, self.no_refresh) {
            (true, _) => Freshness::Offline,
            (false, true) => Freshness::Any,
            (false, false) => Freshness::Day,
        }
    }
}

/// A part of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Kernel,
    Initramfs,
    Image(String),
}

impl Which {
    fn name(&self) -> &str {
        match self {
            Self::Kernel => "kernel",
            Self::Initramfs => "initramfs",
            Self::Image(language) => language,
        }
    }
}

/// Runs the command. Gives the set's directory, or nothing if parts are still missing for one.
///
/// # Errors
/// A part cannot be built; the errors of all parts are in the message.
pub(crate) fn run(options: &Options) -> Result<Option<PathBuf>> {
    // Files of the images must not depend on the umask of who builds them.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let context = Context::new()?;
    let languages = image::languages(&context)?;
    let wanted = select(&options.only, &languages)?;
    install_packages(&context, options, &wanted)?;

    let built = build_all(&context, options, &wanted);
    let mut parts = Parts::default();
    let mut failures = Vec::new();
    for (which, result) in wanted.iter().zip(built) {
        let added = result.and_then(|entry| match which {
            Which::Kernel => parts.kernel(&entry),
            Which::Initramfs => parts.initramfs(&entry),
            Which::Image(language) => parts.image(language, &entry),
        });
        failures.extend(added.err().map(|error| format!("{}: {error:#}", which.name())));
    }
    if !failures.is_empty() {
        bail!(failures.join("\n"));
    }
    if options.check_reproducible {
        reproducible::check(&context, options, &wanted)?;
    }
    add_known(&context, &languages, &wanted, &mut parts)?;
    let missing = parts.complete(&context.store, &languages);
    if !missing.is_empty() {
        eprintln!("no image set yet: {} missing", missing.join(", "));
        return Ok(None);
    }
    let directory = parts.assemble(&context.store, env!("CARGO_PKG_VERSION"))?;
    let set = ImageSet::open(&directory).context("the new set cannot be opened")?;
    let bytes = set.manifest().files().map(|(_, _, bytes)| bytes).sum();
    eprintln!("images: {} ({})", directory.display(), megabytes(bytes));
    Ok(Some(directory))
}

/// What running guests takes: QEMU, and the set that this tree makes, built if need be. Versions that
/// the package index may have got since are not looked for.
///
/// # Errors
/// As [`run`].
pub(crate) fn needed() -> Result<PathBuf> {
    packages::ensure(&[Purpose::Run], &Context::new()?.progress)?;
    run(&Options::whatever_is_there())?.context("the image set is not complete")
}

/// Adds parts that were not asked for but are in the cache, so that a set can be made of what there is.
fn add_known(context: &Context, languages: &[String], wanted: &[Which], parts: &mut Parts) -> Result<()> {
    let unwanted = |which: &Which| !wanted.contains(which);
    if unwanted(&Which::Kernel)
        && let Some(entry) = kernel::find(context, None, Freshness::Any)?
    {
        parts.kernel(&entry)?;
    }
    for language in languages {
        if unwanted(&Which::Image(language.clone()))
            && let Some(entry) = image::find(context, language, Freshness::Any)?
        {
            parts.image(language, &entry)?;
        }
    }
    Ok(())
}

/// The parts that `--only` names, in the order of building; all if it names none.
fn select(only: &[String], languages: &[String]) -> Result<Vec<Which>> {
    let all = || {
        let images = languages.iter().cloned().map(Which::Image);
        // The initramfs comes last: it takes the interpreter out of the Python image.
        iter::once(Which::Kernel).chain(images).chain([Which::Initramfs]).collect::<Vec<_>>()
    };
    if only.is_empty() {
        return Ok(all());
    }
    let unknown = only.iter().find(|name| !all().iter().any(|part| part.name() == *name));
    if let Some(name) = unknown {
        let names: Vec<String> = all().iter().map(|part| part.name().to_owned()).collect();
        bail!("there is no part {name:?}; the parts are {}", names.join(", "));
    }
    Ok(all().into_iter().filter(|part| only.iter().any(|name| part.name() == name)).collect())
}

/// Installs what the parts that are not in the cache need.
fn install_packages(context: &Context, options: &Options, wanted: &[Which]) -> Result<()> {
    if options.offline {
        return Ok(());
    }
    let freshness = options.freshness();
    let mut purposes = Vec::new();
    for which in wanted {
        match which {
            Which::Initramfs => {}
            Which::Kernel => {
                let cached = kernel::find(context, options.kernel_source.as_deref(), freshness)?.is_some();
                if !cached || options.check_reproducible {
                    purposes.push(Purpose::Kernel);
                }
            }
            Which::Image(language) => {
                let cached = image::find(context, language, freshness)?.is_some();
                if !cached || options.check_reproducible {
                    purposes.push(Purpose::Image);
                    if image::needs_npm(context, language)? {
                        purposes.push(Purpose::Npm);
                    }
                }
            }
        }
    }
    packages::ensure(&purposes, &context.progress)
}

/// Builds the parts: the kernel in a thread of its own, the others one after the other.
fn build_all(context: &Context, options: &Options, wanted: &[Which]) -> Vec<Result<Entry>> {
    thread::scope(|scope| {
        let lanes: Vec<_> = wanted
            .iter()
            .map(|which| {
                (which == &Which::Kernel).then(|| scope.spawn(|| build_one(context, options, which)))
            })
            .collect();
        // Everything that has no thread, before the kernel's is waited for.
        let mut results: Vec<Option<Result<Entry>>> = wanted
            .iter()
            .zip(&lanes)
            .map(|(which, lane)| lane.is_none().then(|| build_one(context, options, which)))
            .collect();
        for (result, lane) in results.iter_mut().zip(lanes) {
            if let Some(lane) = lane {
                *result = Some(lane.join().unwrap_or_else(|_| Err(anyhow!("the builder panicked"))));
            }
        }
        results.into_iter().flatten().collect()
    })
}

fn build_one(context: &Context, options: &Options, which: &Which) -> Result<Entry> {
    let task = context.progress.task(which.name());
    let entry = match which {
        Which::Kernel => kernel::make(context, options.kernel_source.as_deref(), options.freshness(), &task)?,
        Which::Initramfs => {
            let python = image::find(context, "python", Freshness::Any)?;
            initramfs::make(context, python.as_ref(), &task)?
        }
        Which::Image(language) => image::make(context, language, options.freshness(), &task)?,
    };
    let summary = match which {
        Which::Image(_) => image::summary(&entry),
        _ => format!(
            "{}, {}",
            megabytes(entry.manifest.files.values().map(|file| file.bytes).sum()),
            entry.manifest.source
        ),
    };
    task.done(&format!("{} {summary}", if entry.built { "built:" } else { "in the cache:" }));
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn languages() -> Vec<String> {
        ["javascript", "python"].map(str::to_owned).to_vec()
    }

    fn names(only: &[&str]) -> Result<Vec<String>> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        Ok(select(&only, &languages())?.iter().map(|which| which.name().to_owned()).collect())
    }

    #[test]
    fn parts_are_selected_by_name() {
        assert_eq!(names(&[]).expect("all"), ["kernel", "javascript", "python", "initramfs"]);
        assert_eq!(names(&["initramfs", "python", "initramfs"]).expect("two"), ["python", "initramfs"]);
        let error = names(&["perl"]).expect_err("unknown").to_string();
        assert!(error.contains("perl") && error.contains("javascript, python, initramfs"), "{error}");
    }

    #[test]
    fn options_say_how_fresh_versions_must_be() {
        assert_eq!(Options::default().freshness(), Freshness::Day);
        assert_eq!(Options::whatever_is_there().freshness(), Freshness::Any);
        assert_eq!(Options { offline: true, ..Options::default() }.freshness(), Freshness::Offline);
    }
}
