//! Assembles an image set from its parts.
//!
//! A set is a directory with hard links to the parts in the store (copies where links are impossible) and a
//! manifest; its name is the digest of the manifest. `current` in the cache then points to it. Format and
//! lookup are the engine's: `hayfork_sandbox::images`.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use hayfork_guest_kernel::Flavour;
use hayfork_sandbox::images::manifest::{FILE_NAME, FORMAT, Image, Part, SetManifest};
use hayfork_sandbox::images::{ImageSet, locate::CURRENT};

use crate::store::{self, Entry, FileDigest, Store, remove_tree};
use crate::{image, initramfs, kernel};

/// One file for a set.
#[derive(Clone, Debug)]
struct Piece {
    path: PathBuf,
    digest: FileDigest,
    source: String,
}

/// What a set is made of. A part that is not given is taken from the current set.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    kernel: Option<Piece>,
    /// Kernels of other flavours than the plain one, by flavour.
    kernels: BTreeMap<String, Piece>,
    initramfs: Option<Piece>,
    /// By language: the image and its list of contents.
    images: BTreeMap<String, (Piece, PathBuf)>,
}

impl Parts {
    /// Gives the kernel of a flavour.
    ///
    /// # Errors
    /// The entry has no kernel in it.
    pub(crate) fn kernel(&mut self, flavour: Flavour, entry: &Entry) -> Result<()> {
        let piece = Piece::of(entry, kernel::FILE)?;
        match flavour {
            Flavour::Plain => self.kernel = Some(piece),
            other => drop(self.kernels.insert(other.name().to_owned(), piece)),
        }
        Ok(())
    }

    /// Gives the initramfs.
    ///
    /// # Errors
    /// The entry has no archive in it.
    pub(crate) fn initramfs(&mut self, entry: &Entry) -> Result<()> {
        self.initramfs = Some(Piece::of(entry, initramfs::FILE)?);
        Ok(())
    }

    /// Gives the root image of a language.
    ///
    /// # Errors
    /// The entry has no image in it.
    pub(crate) fn image(&mut self, language: &str, entry: &Entry) -> Result<()> {
        let piece = Piece::of(entry, image::FILE)?;
        self.images.insert(language.to_owned(), (piece, entry.directory.join(image::CONTENTS)));
        Ok(())
    }

    /// Takes what is missing from the current set, and gives the names of what is missing still.
    /// `languages` are those that a set is to have.
    pub(crate) fn complete(&mut self, store: &Store, languages: &[String]) -> Vec<String> {
        let current = ImageSet::open(&store.root().join(CURRENT)).ok();
        let piece = |part: &Part, set: &ImageSet| Piece {
            path: set.directory().join(&part.file),
            digest: FileDigest { blake3: part.blake3.clone(), bytes: part.bytes },
            source: part.source.clone(),
        };
        if let Some(set) = &current {
            let manifest = set.manifest();
            if set.kernel().is_ok() {
                self.kernel.get_or_insert_with(|| piece(&manifest.kernel, set));
            }
            if set.initramfs().is_ok() {
                self.initramfs.get_or_insert_with(|| piece(&manifest.initramfs, set));
            }
            for (flavour, part) in &manifest.kernels {
                let known = flavour.parse::<Flavour>().is_ok();
                if known && is_there(set, part) {
                    self.kernels.entry(flavour.clone()).or_insert_with(|| piece(part, set));
                }
            }
            for (language, image) in &manifest.images {
                if set.image(language).is_ok() && languages.contains(language) {
                    let part = Part {
                        file: image.file.clone(),
                        blake3: image.blake3.clone(),
                        bytes: image.bytes,
                        source: String::new(),
                    };
                    let contents = set.directory().join(&image.contents);
                    self.images.entry(language.clone()).or_insert_with(|| (piece(&part, set), contents));
                }
            }
        }
        let mut missing = Vec::new();
        for (name, absent) in [("kernel", self.kernel.is_none()), ("initramfs", self.initramfs.is_none())] {
            missing.extend(absent.then(|| name.to_owned()));
        }
        missing.extend(languages.iter().filter(|language| !self.images.contains_key(*language)).cloned());
        missing
    }

    /// Makes the set and lets `current` point to it. Gives the set's directory.
    ///
    /// # Errors
    /// A part is missing, or the cache cannot be written.
    pub(crate) fn assemble(&self, store: &Store, version: &str) -> Result<PathBuf> {
        let kernel = self.kernel.as_ref().context("a set needs a kernel")?;
        let initramfs = self.initramfs.as_ref().context("a set needs an initramfs")?;
        let mut files: Vec<(String, &Path)> =
            vec![(kernel::FILE.to_owned(), &kernel.path), (initramfs::FILE.to_owned(), &initramfs.path)];
        let mut kernels = BTreeMap::new();
        for (flavour, piece) in &self.kernels {
            let part = piece.part(&kernel::file_in_set(flavour.parse()?));
            files.push((part.file.clone(), &piece.path));
            kernels.insert(flavour.clone(), part);
        }
        let mut images = BTreeMap::new();
        for (language, (piece, contents)) in &self.images {
            let image = Image {
                file: format!("{language}.erofs"),
                blake3: piece.digest.blake3.clone(),
                bytes: piece.digest.bytes,
                contents: format!("{language}.contents.txt"),
            };
            files.push((image.file.clone(), &piece.path));
            files.push((image.contents.clone(), contents));
            images.insert(language.clone(), image);
        }
        let manifest = SetManifest {
            format: FORMAT,
            version: version.to_owned(),
            kernel: kernel.part(kernel::FILE),
            kernels,
            initramfs: initramfs.part(initramfs::FILE),
            images,
        };
        let key = store::key(&manifest)?;
        let directory = store.root().join("sets").join(&key);
        let _lock = store.lock("sets", || {})?;
        if ImageSet::open(&directory).is_ok_and(|set| set.manifest() == &manifest && is_whole(&set)) {
            point_current(store, &key)?;
            return Ok(directory);
        }
        let partial = store.root().join("partial").join(format!("set-{key}"));
        remove_tree(&partial)?;
        fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
        for (name, source) in files {
            link_or_copy(source, &partial.join(name))?;
        }
        store::replace_file(&partial.join(FILE_NAME), manifest.to_text()?.as_bytes())?;
        fs::create_dir_all(store.root().join("sets"))?;
        remove_tree(&directory)?;
        fs::rename(&partial, &directory).with_context(|| format!("cannot make {}", directory.display()))?;
        point_current(store, &key)?;
        Ok(directory)
    }
}

impl Piece {
    fn of(entry: &Entry, file: &str) -> Result<Self> {
        let digest = entry.manifest.files.get(file);
        let digest = digest.with_context(|| format!("{} has no {file}", entry.directory.display()))?;
        Ok(Self {
            path: entry.directory.join(file),
            digest: digest.clone(),
            source: entry.manifest.source.clone(),
        })
    }

    fn part(&self, file: &str) -> Part {
        Part {
            file: file.to_owned(),
            blake3: self.digest.blake3.clone(),
            bytes: self.digest.bytes,
            source: self.source.clone(),
        }
    }
}

/// Whether all files of a set are there in their sizes.
fn is_whole(set: &ImageSet) -> bool {
    let kernels = || set.manifest().kernels.values().all(|part| is_there(set, part));
    let images = || set.languages().all(|language| set.image(language).is_ok());
    set.kernel().is_ok() && kernels() && set.initramfs().is_ok() && images()
}

/// Whether a part of a set is there in its size.
fn is_there(set: &ImageSet, part: &Part) -> bool {
    fs::metadata(set.directory().join(&part.file))
        .is_ok_and(|file| file.is_file() && file.len() == part.bytes)
}

fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    let copy = || -> std::io::Result<()> {
        fs::copy(from, to)?;
        fs::set_permissions(to, Permissions::from_mode(0o444))
    };
    fs::hard_link(from, to)
        .or_else(|_| copy())
        .with_context(|| format!("cannot put {} into the set", from.display()))
}

/// How long a set stays after another one has become the current one. Who opened it before may still use its files.
const KEEP_OLD: Duration = Duration::from_secs(24 * 60 * 60);
/// The most sets that one call removes: whoever only wants to run something does not wait for a big clean-up.
const PRUNE_AT_MOST: usize = 64;

/// Removes sets that have not been the current one for a day. Only the sets go: what they were linked from stays in the
/// store, for `cargo xtask clean --old`. Gives their number.
///
/// # Errors
/// The directory of sets cannot be read, or a set not removed.
pub(crate) fn prune(store: &Store) -> Result<usize> {
    let sets = store.root().join("sets");
    let _lock = store.lock("sets", || {})?;
    let current = fs::canonicalize(store.root().join(CURRENT)).ok();
    let mut removed = 0;
    for entry in fs::read_dir(&sets).with_context(|| format!("cannot list {}", sets.display()))? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        // `point_current` sets the time of the set that it replaces.
        let age = metadata.modified().ok().and_then(|then| SystemTime::now().duration_since(then).ok());
        let is_old = age.is_some_and(|age| age > KEEP_OLD);
        let is_current = fs::canonicalize(&path).ok() == current;
        if metadata.is_dir() && is_old && !is_current && removed < PRUNE_AT_MOST {
            remove_tree(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Replaces the link `current` in one step. The set that it pointed to is old from now on.
fn point_current(store: &Store, key: &str) -> Result<()> {
    let before = fs::canonicalize(store.root().join(CURRENT)).ok();
    if let Some(before) = before.filter(|before| !before.ends_with(key)) {
        // A set that cannot be marked goes a little earlier.
        drop(File::open(before).and_then(|directory| directory.set_modified(SystemTime::now())));
    }
    let aside = store.root().join(format!("{CURRENT}.new"));
    drop(fs::remove_file(&aside));
    symlink(Path::new("sets").join(key), &aside)
        .and_then(|()| fs::rename(&aside, store.root().join(CURRENT)))
        .context("cannot set the link to the current set")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use crate::store::Built;

    use super::*;

    fn entry(store: &Store, kind: &str, key: &str, files: &[&str]) -> Entry {
        let build = |directory: &Path| {
            for file in files {
                fs::write(directory.join(file), format!("{kind} {key} {file}"))?;
            }
            Ok(Built { source: format!("{kind} source"), facts: BTreeMap::new() })
        };
        store.get_or_build(kind, key, || {}, build).expect("entry")
    }

    fn all(store: &Store, key: &str) -> Parts {
        let mut parts = Parts::default();
        parts.kernel(Flavour::Plain, &entry(store, "kernel", key, &[kernel::FILE])).expect("kernel");
        parts.initramfs(&entry(store, "initramfs", key, &[initramfs::FILE])).expect("initramfs");
        for language in ["python", "shell"] {
            let files = [image::FILE, image::CONTENTS];
            parts.image(language, &entry(store, &image::kind(language), key, &files)).expect("image");
        }
        parts
    }

    fn languages() -> Vec<String> {
        vec!["python".to_owned(), "shell".to_owned()]
    }

    #[test]
    fn a_set_is_assembled_and_found_by_the_engine() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        let mut parts = all(&store, "k1");
        assert!(parts.complete(&store, &languages()).is_empty());
        let made = parts.assemble(&store, "0.1.0").expect("assembles");

        let lookup = hayfork_sandbox::images::Lookup {
            cache: Some(store.root().to_owned()),
            ..hayfork_sandbox::images::Lookup::default()
        };
        let set = lookup.open().expect("found");
        set.verify().expect("digests hold");
        assert_eq!(set.directory(), fs::canonicalize(&made).expect("path"));
        assert_eq!(set.manifest().kernel.source, "kernel source");
        assert_eq!(fs::read(set.image("shell").expect("shell")).expect("read"), b"image-shell k1 root.erofs");
        let contents = set.contents("python").expect("python").expect("contents");
        assert_eq!(fs::read(contents).expect("read"), b"image-python k1 contents.txt");
        // Linked, not copied.
        assert_eq!(fs::metadata(set.kernel().expect("kernel")).expect("metadata").nlink(), 2);

        assert_eq!(parts.assemble(&store, "0.1.0").expect("again"), made);
        assert_ne!(parts.assemble(&store, "0.2.0").expect("other version"), made);
    }

    #[test]
    fn one_new_part_is_joined_with_the_current_set() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        let mut only = Parts::default();
        only.initramfs(&entry(&store, "initramfs", "k2", &[initramfs::FILE])).expect("initramfs");
        assert_eq!(only.complete(&store, &languages()), ["kernel", "python", "shell"]);
        assert!(only.assemble(&store, "0.1.0").is_err());

        all(&store, "k1").assemble(&store, "0.1.0").expect("assembles");
        assert!(only.complete(&store, &languages()).is_empty());
        let set = ImageSet::open(&only.assemble(&store, "0.1.0").expect("assembles")).expect("opens");
        set.verify().expect("digests hold");
        assert_eq!(fs::read(set.initramfs().expect("file")).expect("read"), b"initramfs k2 initramfs.cpio");
        assert_eq!(fs::read(set.kernel().expect("file")).expect("read"), b"kernel k1 vmlinux");
    }

    #[test]
    fn a_kernel_of_another_flavour_stands_beside_the_plain_one() {
        use hayfork_vmm::backend::KernelFlavour;

        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        let mut parts = all(&store, "k1");
        let plain = parts.assemble(&store, "0.1.0").expect("assembles");
        parts.kernel(Flavour::Pvm, &entry(&store, "kernel", "pvm", &[kernel::FILE])).expect("kernel");
        let both = parts.assemble(&store, "0.1.0").expect("assembles");
        assert_ne!(both, plain);
        let set = ImageSet::open(&both).expect("opens");
        set.verify().expect("digests hold");
        let path = set.kernel_of(KernelFlavour::Pvm).expect("pvm");
        assert!(path.ends_with("vmlinux-pvm"));
        assert_eq!(fs::read(path).expect("read"), b"kernel pvm vmlinux");

        // It stays in a set that is made without it, and a set that has lost it is made again.
        let mut again = all(&store, "k1");
        assert!(again.complete(&store, &languages()).is_empty());
        assert_eq!(again.assemble(&store, "0.1.0").expect("assembles"), both);
        fs::remove_file(both.join("vmlinux-pvm")).expect("remove");
        assert_eq!(parts.assemble(&store, "0.1.0").expect("assembles"), both);
        ImageSet::open(&both).expect("opens").verify().expect("whole");
    }

    #[test]
    fn sets_go_a_day_after_they_were_the_current_one() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        let day = KEEP_OLD + Duration::from_secs(60);
        let age = |set: &Path| {
            let then = SystemTime::now().checked_sub(day).expect("time");
            File::open(set).and_then(|set| set.set_modified(then)).expect("sets");
        };
        let [one, two, three] = ["1", "2", "3"].map(|key| {
            let made = all(&store, key).assemble(&store, "0.1.0").expect("assembles");
            // Made long ago, but the current one until the next is made.
            age(&made);
            made
        });
        assert_eq!(prune(&store).expect("prunes"), 0);
        assert!(one.exists() && two.exists() && three.exists(), "a set is as old as its replacement");
        age(&one);
        assert_eq!(prune(&store).expect("prunes"), 1);
        assert!(!one.exists() && two.exists() && three.exists(), "the current one stays, however old");
        assert!(store.find("kernel", "1").is_some(), "what it was made of stays");
        fs::write(store.root().join("sets/somebody-elses"), "").expect("write");
        age(&two);
        assert_eq!(prune(&store).expect("prunes"), 1);
        assert_eq!(prune(&store).expect("prunes"), 0);
    }

    #[test]
    fn a_damaged_set_is_made_again() {
        let directory = tempfile::tempdir().expect("tempdir");
        let store = Store::new(directory.path().join("cache"));
        let parts = all(&store, "k1");
        let made = parts.assemble(&store, "0.1.0").expect("assembles");
        fs::remove_file(made.join("shell.erofs")).expect("remove");
        assert_eq!(parts.assemble(&store, "0.1.0").expect("again"), made);
        ImageSet::open(&made).expect("opens").verify().expect("whole");
    }
}
