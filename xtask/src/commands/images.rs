//! `cargo xtask images`: builds the parts of an image set and puts the set together.
//!
//! Kernels are built beside the other parts, since they take longest and the others wait for the network
//! now and then. Every set has the plain kernel; one of another flavour is built where this host's probe says that
//! it would run, or when asked for. A part that is in the cache costs next to nothing. When all parts are there, the set is
//! made and `current` points to it.

use std::path::PathBuf;
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};
use hayfork_guest_kernel::Flavour;
use hayfork_sandbox::images::ImageSet;

use crate::context::Context;
use crate::image::{self, resolve::Freshness};
use crate::packages::{self, Purpose};
use crate::progress::megabytes;
use crate::set::{self, Parts};
use crate::store::Entry;
use crate::{initramfs, kernel, room};

mod reproducible;

/// Bytes that the builds of all parts take, mostly for a short time.
const ROOM: u64 = 6 << 30;

/// Options of `images`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Build these parts only: kernel, kernel-pvm, initramfs, or a language. May be repeated.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Build the guest kernel of this flavour too, whatever this host's /dev/kvm is: pvm. May be repeated.
    #[arg(long, value_name = "FLAVOUR")]
    flavour: Vec<Flavour>,
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
    Kernel(Flavour),
    Initramfs,
    Image(String),
}

impl Which {
    fn name(&self) -> &str {
        match self {
            Self::Kernel(Flavour::Plain) => "kernel",
            Self::Kernel(Flavour::Pvm) => "kernel-pvm",
            Self::Kernel(other) => other.name(),
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
    room::look(&context, ROOM);
    let languages = image::languages(&context)?;
    let host = kernel::flavours_of_this_host();
    let wanted = select(&options.only, &kernels(&options.flavour, &host), &languages)?;
    install_packages(&context, options, &wanted)?;

    let built = build_all(&context, options, &wanted);
    let mut parts = Parts::default();
    let mut failures = Vec::new();
    for (which, result) in wanted.iter().zip(built) {
        let added = result.and_then(|entry| match which {
            Which::Kernel(flavour) => parts.kernel(*flavour, &entry),
            Which::Initramfs => parts.initramfs(&entry),
            Which::Image(language) => parts.image(language, &entry),
        });
        let Err(error) = added else { continue };
        if is_optional(which, options) {
            context.progress.note(&format!("{}: goes without: {error:#}", which.name()));
        } else {
            failures.push(format!("{}: {error:#}", which.name()));
        }
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
    // Only a nuisance: the next call tries again.
    if let Err(error) = set::prune(&context.store) {
        context.progress.note(&format!("old image sets stay: {error:#}"));
    }
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
    if unwanted(&Which::Kernel(Flavour::Plain))
        && let Some(entry) = kernel::find(context, Flavour::Plain, None, Freshness::Any)?
    {
        parts.kernel(Flavour::Plain, &entry)?;
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

/// The flavours to build: the plain one, what this host runs, and what is asked for; each once.
fn kernels(asked: &[Flavour], host: &[Flavour]) -> Vec<Flavour> {
    let mut flavours = vec![Flavour::Plain];
    for flavour in asked.iter().chain(host) {
        if !flavours.contains(flavour) {
            flavours.push(*flavour);
        }
    }
    flavours
}

/// Whether a set is made without this part if it cannot be built: a kernel that nobody has asked for, and without
/// which machines run under QEMU.
fn is_optional(which: &Which, options: &Options) -> bool {
    let Which::Kernel(flavour) = which else { return false };
    *flavour != Flavour::Plain
        && !options.flavour.contains(flavour)
        && !options.only.iter().any(|name| name == which.name())
}

/// The parts that `--only` names, in the order of building; if it names none, all with the kernels given.
fn select(only: &[String], kernels: &[Flavour], languages: &[String]) -> Result<Vec<Which>> {
    let all = |kernels: &[Flavour]| {
        let kernels = kernels.iter().copied().map(Which::Kernel);
        let images = languages.iter().cloned().map(Which::Image);
        // The initramfs comes last: it takes the interpreter out of the Python image.
        kernels.chain(images).chain([Which::Initramfs]).collect::<Vec<_>>()
    };
    if only.is_empty() {
        return Ok(all(kernels));
    }
    let known = all(Flavour::ALL);
    let unknown = only.iter().find(|name| !known.iter().any(|part| part.name() == *name));
    if let Some(name) = unknown {
        let names: Vec<&str> = known.iter().map(Which::name).collect();
        bail!("there is no part {name:?}; the parts are {}", names.join(", "));
    }
    Ok(known.into_iter().filter(|part| only.iter().any(|name| part.name() == name)).collect())
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
            Which::Kernel(flavour) => {
                let tree = options.kernel_source.as_deref();
                let cached = kernel::find(context, *flavour, tree, freshness)?.is_some();
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

/// Builds the parts: the kernels, one after the other, in a thread of their own, the others beside them.
fn build_all(context: &Context, options: &Options, wanted: &[Which]) -> Vec<Result<Entry>> {
    let is_kernel = |which: &&Which| matches!(which, Which::Kernel(_));
    let build = |which| build_one(context, options, which);
    let (kernels, others) = thread::scope(|scope| {
        let lane = scope.spawn(|| wanted.iter().filter(is_kernel).map(build).collect::<Vec<_>>());
        let others: Vec<_> = wanted.iter().filter(|which| !is_kernel(which)).map(build).collect();
        (lane.join(), others)
    });
    let panicked = || anyhow!("the builder panicked");
    let mut kernels = kernels.unwrap_or_default().into_iter();
    let mut others = others.into_iter();
    wanted
        .iter()
        .map(|which| if is_kernel(&which) { kernels.next() } else { others.next() })
        .map(|result| result.unwrap_or_else(|| Err(panicked())))
        .collect()
}

fn build_one(context: &Context, options: &Options, which: &Which) -> Result<Entry> {
    let task = context.progress.task(which.name());
    let entry = match which {
        Which::Kernel(flavour) => {
            kernel::make(context, *flavour, options.kernel_source.as_deref(), options.freshness(), &task)?
        }
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

    fn names(only: &[&str], kernels: &[Flavour]) -> Result<Vec<String>> {
        let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
        Ok(select(&only, kernels, &languages())?.iter().map(|which| which.name().to_owned()).collect())
    }

    #[test]
    fn parts_are_selected_by_name() {
        let plain = [Flavour::Plain];
        assert_eq!(names(&[], &plain).expect("all"), ["kernel", "javascript", "python", "initramfs"]);
        assert_eq!(
            names(&[], Flavour::ALL).expect("all"),
            ["kernel", "kernel-pvm", "javascript", "python", "initramfs"]
        );
        assert_eq!(
            names(&["initramfs", "python", "initramfs"], &plain).expect("two"),
            ["python", "initramfs"]
        );
        assert_eq!(names(&["kernel-pvm"], &plain).expect("by name"), ["kernel-pvm"]);
        let error = names(&["perl"], &plain).expect_err("unknown").to_string();
        assert!(error.contains("perl") && error.contains("javascript, python, initramfs"), "{error}");
    }

    #[test]
    fn the_flavours_are_the_plain_one_and_what_the_host_or_the_caller_wants() {
        let pvm = [Flavour::Pvm];
        assert_eq!(kernels(&[], &[]), [Flavour::Plain]);
        for (asked, host) in [(&pvm[..], &[][..]), (&[], &pvm), (&pvm, &pvm)] {
            assert_eq!(kernels(asked, host), [Flavour::Plain, Flavour::Pvm]);
        }
        assert_eq!(kernels(&[Flavour::Plain, Flavour::Plain], &[]), [Flavour::Plain]);
    }

    #[test]
    fn only_a_kernel_that_nobody_asked_for_may_be_missing() {
        let pvm = Which::Kernel(Flavour::Pvm);
        let options = Options::default();
        assert!(is_optional(&pvm, &options));
        assert!(!is_optional(&Which::Kernel(Flavour::Plain), &options));
        assert!(!is_optional(&Which::Initramfs, &options));
        assert!(!is_optional(&pvm, &Options { flavour: vec![Flavour::Pvm], ..Options::default() }));
        assert!(!is_optional(&pvm, &Options { only: vec!["kernel-pvm".to_owned()], ..Options::default() }));
    }

    #[test]
    fn options_say_how_fresh_versions_must_be() {
        assert_eq!(Options::default().freshness(), Freshness::Day);
        assert_eq!(Options::whatever_is_there().freshness(), Freshness::Any);
        assert_eq!(Options { offline: true, ..Options::default() }.freshness(), Freshness::Offline);
    }
}
