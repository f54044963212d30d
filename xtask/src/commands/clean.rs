//! `cargo xtask clean`: removes what `images` has built.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail};
use hayfork_sandbox::images::{ImageSet, locate::CURRENT};
use rustix::fs::{FlockOperation, flock};

use crate::commands::regrtest;
use crate::context::Context;
use crate::store::{EntryManifest, MANIFEST, Store, remove_tree};
use crate::{initramfs, kernel, rig};

/// Options of `clean`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Keep the current set and what it is made of; remove only what is older.
    #[arg(long)]
    old: bool,
}

/// Runs the command.
///
/// # Errors
/// A build is running, or something cannot be removed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let context = Context::new()?;
    let removed = clean(&context.store, options.old)?;
    println!("removed {removed} entries from {}", context.store.root().display());
    Ok(())
}

/// Removes entries and sets; with `keep_current` those of the current set stay. Gives their number. Only
/// directories that the store makes are touched.
fn clean(store: &Store, keep_current: bool) -> Result<usize> {
    let root = store.root();
    refuse_while_building(root)?;
    let current = if keep_current { ImageSet::open(&root.join(CURRENT)).ok() } else { None };
    let used: BTreeSet<String> = current
        .iter()
        .flat_map(|set| set.manifest().files().map(|(_, digest, _)| digest.to_owned()).collect::<Vec<_>>())
        .collect();
    let mut removed = 0;
    for kind in subdirectories(root)? {
        let name = kind.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_entries = [kernel::KIND, initramfs::KIND, initramfs::bytecode::KIND].contains(&name.as_str())
            || name.starts_with("image-");
        let is_rig = [rig::BASE, rig::STORED, regrtest::KIND].contains(&name.as_str());
        if name == "partial" || (name == "answers" && !keep_current) {
            remove_tree(&kind)?;
        } else if is_entries || is_rig || name == "sets" {
            let entries = subdirectories(&kind)?;
            let newest = entries.iter().max_by_key(|entry| made(entry)).cloned();
            for entry in entries {
                let keep = if is_entries {
                    uses(&entry, &used)
                } else if is_rig {
                    keep_current && newest.as_ref() == Some(&entry)
                } else {
                    current.as_ref().is_some_and(|set| set.directory().file_name() == entry.file_name())
                };
                if !keep {
                    remove_tree(&entry)?;
                    removed += 1;
                }
            }
        }
    }
    if !keep_current {
        drop(fs::remove_file(root.join(CURRENT)));
    }
    Ok(removed)
}

/// Whether one of the entry's files has one of the digests.
fn uses(entry: &Path, digests: &BTreeSet<String>) -> bool {
    let manifest = fs::read(entry.join(MANIFEST)).ok();
    let manifest = manifest.and_then(|text| serde_json::from_slice::<EntryManifest>(&text).ok());
    manifest.is_some_and(|manifest| manifest.files.values().any(|file| digests.contains(&file.blake3)))
}

/// When an entry was made.
fn made(entry: &Path) -> Option<SystemTime> {
    fs::metadata(entry.join(MANIFEST)).and_then(|manifest| manifest.modified()).ok()
}

fn refuse_while_building(root: &Path) -> Result<()> {
    let Ok(locks) = fs::read_dir(root.join("locks")) else { return Ok(()) };
    for lock in locks {
        let path = lock?.path();
        let file = fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{} is being built; run `cargo xtask clean` when that is done", path.display());
        }
    }
    Ok(())
}

/// The directories in a directory; none if it does not exist.
fn subdirectories(directory: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot list {}", directory.display()))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use hayfork_guest_kernel::Flavour;

    use crate::set::Parts;
    use crate::store::Built;

    use super::*;

    /// A store with kernels and archives `k1` and `k2`, and a set of each; the second is the current one.
    fn sample(store: &Store) {
        for key in ["k1", "k2"] {
            let mut parts = Parts::default();
            let entry = |kind: &str, file: &str| {
                let build = |directory: &Path| {
                    fs::write(directory.join(file), format!("{kind} {key}"))?;
                    Ok(Built::default())
                };
                store.get_or_build(kind, key, || {}, build).expect("entry")
            };
            parts.kernel(Flavour::Plain, &entry("kernel", kernel::FILE)).expect("kernel");
            parts.initramfs(&entry("initramfs", initramfs::FILE)).expect("initramfs");
            parts.assemble(store, "0.1.0").expect("assembles");
        }
        fs::create_dir_all(store.root().join("somebody-elses")).expect("directory");
    }

    #[test]
    fn old_entries_go_and_the_current_set_stays() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        sample(&store);
        assert_eq!(clean(&store, true).expect("cleans"), 3);
        assert!(store.find("kernel", "k1").is_none() && store.find("kernel", "k2").is_some());
        ImageSet::open(&store.root().join(CURRENT)).expect("opens").verify().expect("whole");
        assert_eq!(clean(&store, true).expect("cleans"), 0);
    }

    #[test]
    fn of_the_rig_only_the_newest_stays() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        for (age, key) in [(2, "new"), (9, "old"), (5, "older")] {
            let entry = store.get_or_build(rig::STORED, key, || {}, |_| Ok(Built::default())).expect("entry");
            let manifest = fs::File::open(entry.directory.join(MANIFEST)).expect("manifest");
            manifest.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).expect("time");
        }
        assert_eq!(clean(&store, true).expect("cleans"), 2);
        assert!(store.find(rig::STORED, "new").is_some());
        assert_eq!(clean(&store, false).expect("cleans"), 1);
    }

    #[test]
    fn everything_of_ours_goes() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        assert_eq!(clean(&store, false).expect("nothing there"), 0);
        sample(&store);
        assert_eq!(clean(&store, false).expect("cleans"), 6);
        assert!(ImageSet::open(&store.root().join(CURRENT)).is_err());
        assert!(store.root().join("somebody-elses").exists());
    }

    #[test]
    fn nothing_goes_while_something_is_built() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        sample(&store);
        let lock = store.lock("kernel-k3", || {}).expect("lock");
        assert!(clean(&store, false).is_err());
        assert!(store.find("kernel", "k1").is_some());
        drop(lock);
        clean(&store, false).expect("cleans");
    }
}
