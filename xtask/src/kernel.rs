//! The guest kernel, in its flavours. The builder is the crate `hayfork-guest-kernel`; here is its place in the cache.
//!
//! The key holds the source's version. For Debian's package that is what the local package index offers, which
//! takes apt some seconds to say where it keeps no binary cache; so the answer is kept for a day
//! (`answers/kernel.json`), and longer for calls that take whatever has been built and for machines whose index is
//! gone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use hayfork_guest_kernel::{Builder, Error, Flavour, Identity, Manifest, Source, inputs_key};

use hayfork_vmm::hypervisor::probe::Verdict;

use crate::context::Context;
use crate::image::resolve::Freshness;
use crate::process;
use crate::progress::Task;
use crate::store::{self, Built, Entry, MANIFEST};

/// Kind of the store's entries.
pub(crate) const KIND: &str = "kernel";
/// The kernel's name in an entry, and that of the plain one in a set.
pub(crate) const FILE: &str = "vmlinux";
/// The builder's own manifest in an entry; `manifest.json` is the store's.
const BUILDERS_MANIFEST: &str = "kernel.json";

/// The kernel's name in a set: `vmlinux`, `vmlinux-pvm`.
pub(crate) fn file_in_set(flavour: Flavour) -> String {
    match flavour {
        Flavour::Plain => FILE.to_owned(),
        other => format!("{FILE}-{other}"),
    }
}

/// Flavours that this host needs besides the plain one: what its `/dev/kvm` runs natively. The plain one is in every set,
/// since it is QEMU's.
pub(crate) fn flavours_of_this_host() -> Vec<Flavour> {
    match hayfork_vmm::hypervisor::probe::probe().verdict {
        Verdict::KvmPvm { .. } => vec![Flavour::Pvm],
        _ => Vec::new(),
    }
}

/// The kernel if it is in the cache: of a source tree, of the newest package, or, if any version will do, of the
/// version that was newest when last looked. Uses no network.
///
/// # Errors
/// `tree` is no source tree.
pub(crate) fn find(
    context: &Context,
    flavour: Flavour,
    tree: Option<&Path>,
    freshness: Freshness,
) -> Result<Option<Entry>> {
    if let Some(tree) = tree {
        return Ok(lookup(context, flavour, &Source::tree(tree)?.identity()));
    }
    find_package(context, flavour, freshness, || Some(Source::newest_package().ok()?.identity()))
}

fn find_package(
    context: &Context,
    flavour: Flavour,
    freshness: Freshness,
    newest: impl FnOnce() -> Option<Identity>,
) -> Result<Option<Entry>> {
    if let Some(entry) = kept(context, freshness).and_then(|identity| lookup(context, flavour, &identity)) {
        return Ok(Some(entry));
    }
    let Some(identity) = newest() else { return Ok(None) };
    let entry = lookup(context, flavour, &identity);
    if entry.is_some() {
        keep(context, &identity)?;
    }
    Ok(entry)
}

fn lookup(context: &Context, flavour: Flavour, identity: &Identity) -> Option<Entry> {
    context.store.find(KIND, &inputs_key(flavour, identity))
}

/// The kernel, built if it is not in the cache.
///
/// # Errors
/// There is no source, or it does not build.
pub(crate) fn make(
    context: &Context,
    flavour: Flavour,
    tree: Option<&Path>,
    freshness: Freshness,
    task: &Task,
) -> Result<Entry> {
    task.step("looking for the kernel's source");
    if let Some(entry) = find(context, flavour, tree, freshness)? {
        return Ok(entry);
    }
    let source = match source(tree, freshness, task) {
        Ok(source) => source,
        Err(error) => {
            // No package index, or none with a kernel: what was built here before still does.
            let entry =
                kept(context, Freshness::Any).and_then(|identity| lookup(context, flavour, &identity));
            let Some(entry) = entry else { return Err(error) };
            context.progress.note(&format!("kernel ({flavour}): the one built before is used: {error:#}"));
            return Ok(entry);
        }
    };
    if freshness == Freshness::Offline && tree.is_none() {
        bail!("the guest kernel ({flavour}) is not in the cache, and without the network it cannot be built");
    }
    let identity = source.identity();
    let waiting = || task.step("another build is making it; waiting");
    let entry = context.store.get_or_build(KIND, &inputs_key(flavour, &identity), waiting, |directory| {
        let manifest = build(flavour, &source, directory, task)?;
        let facts = BTreeMap::from([("compiler".to_owned(), manifest.compiler.clone())]);
        Ok(Built { source: manifest.source_line(), facts })
    })?;
    if tree.is_none() {
        keep(context, &identity)?;
    }
    Ok(entry)
}

/// Builds the kernel a second time in `scratch`.
///
/// # Errors
/// As [`make`].
pub(crate) fn make_again(flavour: Flavour, tree: Option<&Path>, scratch: &Path, task: &Task) -> Result<()> {
    build(flavour, &source(tree, Freshness::Any, task)?, scratch, task).map(drop)
}

/// Runs the builder and moves its manifest out of the way of the store's.
fn build(flavour: Flavour, source: &Source, directory: &Path, task: &Task) -> Result<Manifest> {
    let mut step = None;
    let manifest = Builder::new(flavour).build(source, directory, &mut |progress| {
        if step != Some(progress.step) {
            step = Some(progress.step);
            task.step(&progress.step.to_string());
        }
        task.advance(u64::from(progress.percent()), 100);
    })?;
    fs::rename(directory.join(MANIFEST), directory.join(BUILDERS_MANIFEST))?;
    Ok(manifest)
}

/// The source to build from. A machine whose package index was never fetched gets it, if we may.
fn source(tree: Option<&Path>, freshness: Freshness, task: &Task) -> Result<Source> {
    if let Some(tree) = tree {
        return Ok(Source::tree(tree)?);
    }
    match Source::newest_package() {
        Err(Error::NoPackage { .. })
            if freshness != Freshness::Offline && rustix::process::geteuid().is_root() =>
        {
            task.step("fetching the package index (apt-get update)");
            process::output(Command::new("apt-get").args(["--quiet", "update"]))
                .context("cannot fetch the package index")?;
            Ok(Source::newest_package()?)
        }
        other => Ok(other?),
    }
}

/// Where the identity of the newest source is kept.
fn answer(context: &Context) -> PathBuf {
    context.store.root().join("answers").join("kernel.json")
}

/// The kept answer, if it is fresh enough. Its age is the file's.
fn kept(context: &Context, freshness: Freshness) -> Option<Identity> {
    let path = answer(context);
    let asked = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
    if !freshness.accepts(SystemTime::now().duration_since(asked).unwrap_or(Duration::MAX)) {
        return None;
    }
    serde_json::from_slice(&fs::read(&path).ok()?).ok()
}

fn keep(context: &Context, identity: &Identity) -> Result<()> {
    store::replace_file(&answer(context), &serde_json::to_vec_pretty(identity)?)
}

#[cfg(test)]
mod tests {
    use crate::progress::Progress;
    use crate::store::Store;

    use super::*;

    #[test]
    fn a_kernel_built_before_is_found_again() {
        let directory = tempfile::tempdir().expect("tempdir");
        let context = Context {
            tree: directory.path().to_owned(),
            store: Store::new(directory.path().join("cache")),
            progress: Progress::new(),
        };
        let identity = Identity {
            package: Some("linux-source-6.12".to_owned()),
            version: "6.12.0-test".to_owned(),
            digest: format!("sha256:{}", "0".repeat(64)),
        };
        let find_package = |freshness, newest: Option<&Identity>| {
            find_package(&context, Flavour::Plain, freshness, || newest.cloned())
                .expect("looks")
                .map(|entry| entry.manifest.key)
        };
        assert_eq!(find_package(Freshness::Any, None), None);
        let build = |directory: &Path| {
            fs::write(directory.join(FILE), b"a kernel")?;
            Ok(Built::default())
        };
        let key = inputs_key(Flavour::Plain, &identity);
        context.store.get_or_build(KIND, &key, || {}, build).expect("entry");
        let key = Some(key);
        assert_eq!(find_package(Freshness::Any, None), None, "nobody has said that it is the newest");
        assert_eq!(find_package(Freshness::Day, Some(&identity)), key);
        for freshness in [Freshness::Any, Freshness::Offline, Freshness::Day] {
            assert_eq!(find_package(freshness, None), key, "kept");
        }
        // Another version is the newest now, and it is not there; after a day that counts.
        let newer = Identity { version: "6.12.1-test".to_owned(), ..identity };
        assert_eq!(find_package(Freshness::Now, Some(&newer)), None);
        let file = fs::File::open(answer(&context)).expect("answer");
        file.set_modified(SystemTime::now() - Duration::from_secs(25 * 60 * 60)).expect("time");
        assert_eq!(find_package(Freshness::Day, Some(&newer)), None);
        assert_eq!(find_package(Freshness::Any, Some(&newer)), key);
        assert!(
            find(&context, Flavour::Plain, Some(directory.path()), Freshness::Any).is_err(),
            "no source tree"
        );
        // Another flavour of the same source is another kernel.
        let other = super::find_package(&context, Flavour::Pvm, Freshness::Any, || None).expect("looks");
        assert!(other.is_none(), "{other:?}");
    }

    #[test]
    fn names_in_a_set_say_the_flavour_as_the_engine_knows_it() {
        use hayfork_vmm::backend::KernelFlavour;
        assert_eq!(file_in_set(Flavour::Plain), "vmlinux");
        assert_eq!(file_in_set(Flavour::Pvm), "vmlinux-pvm");
        for (ours, engines) in [(Flavour::Plain, KernelFlavour::Plain), (Flavour::Pvm, KernelFlavour::Pvm)] {
            assert_eq!(ours.name(), engines.name());
        }
    }
}
