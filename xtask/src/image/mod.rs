//! Root images: from a recipe to an EROFS file with a list of its contents.
//!
//! 1. [`recipe`]: what is wanted; [`resolve`]: in which versions the indexes offer it. Both make the key.
//! 2. [`bootstrap`]: Debian packages are installed by mmdebstrap, whose tar stream [`rootfs`] unpacks.
//! 3. [`npm`] packages, the recipe's files and links are added; what only installation needed goes
//!    ([`dpkg`], [`base`]); what every image has is added and checked ([`base`]).
//! 4. [`contents`] lists everything, [`erofs`] writes the image.
//!
//! Built twice from the same versions, an image has the same bytes: times, owners, order, UUID and hash
//! seeds are fixed, and files that record the moment of installation are removed.

mod base;
pub(crate) mod bootstrap;
mod contents;
mod dpkg;
mod erofs;
mod npm;
pub(crate) mod recipe;
pub(crate) mod resolve;
mod rootfs;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::context::{Context, SOURCE_DATE_EPOCH};
use crate::progress::{Task, megabytes};
use crate::store::{self, Built, Entry, remove_tree};

use recipe::Recipe;
use resolve::{Freshness, Resolution};
use rootfs::Root;

pub(crate) use contents::{FILE as CONTENTS, differences};
pub(crate) use erofs::FILE;

/// To be raised when these modules make another image of the same recipe and versions.
const LAYOUT: u32 = 3;

/// Kind of the store's entries for a language.
pub(crate) fn kind(language: &str) -> String {
    format!("image-{language}")
}

/// The languages that have a recipe, sorted.
///
/// # Errors
/// The folder of recipes cannot be read.
pub(crate) fn languages(context: &Context) -> Result<Vec<String>> {
    let folder = context.recipes();
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        if entry.path().join(recipe::FILE).is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Whether the recipe wants packages of the npm registry.
///
/// # Errors
/// The recipe is wrong.
pub(crate) fn needs_npm(context: &Context, language: &str) -> Result<bool> {
    Ok(!Recipe::load(&context.recipes().join(language))?.npm.is_empty())
}

/// The packages that were installed are not those that the index had offered: it has changed in between.
#[derive(Debug, thiserror::Error)]
#[error("the package index changed while the image was being built ({0}); run the command again")]
struct IndexChanged(String);

/// What it takes to build an image.
pub(crate) struct Plan {
    recipe: Recipe,
    resolution: Resolution,
    key: String,
}

impl Plan {
    /// Reads the recipe and finds the versions.
    ///
    /// # Errors
    /// The recipe is wrong, or the indexes cannot be asked.
    pub(crate) fn new(context: &Context, language: &str, freshness: Freshness, task: &Task) -> Result<Self> {
        let recipe = Recipe::load(&context.recipes().join(language))?;
        let resolution = resolve::resolve(context, &recipe, freshness, task)?;
        Self::with(context, recipe, resolution)
    }

    fn with(context: &Context, recipe: Recipe, resolution: Resolution) -> Result<Self> {
        let folder = context.recipes().join(&recipe.image.language);
        let mut files = BTreeMap::new();
        for copy in &recipe.build.files {
            files.insert(&copy.from, store::digest_file(&folder.join(&copy.from))?.blake3);
        }
        let key = store::key(&(LAYOUT, SOURCE_DATE_EPOCH, &recipe, &resolution, files))?;
        Ok(Self { recipe, resolution, key })
    }

    /// The image's entry, if it has been built.
    pub(crate) fn find(&self, context: &Context) -> Option<Entry> {
        context.store.find(&kind(&self.recipe.image.language), &self.key)
    }
}

/// The image of a language if it is in the cache and its versions are known well enough; asks nobody.
///
/// # Errors
/// The recipe is wrong.
pub(crate) fn find(context: &Context, language: &str, freshness: Freshness) -> Result<Option<Entry>> {
    let recipe = Recipe::load(&context.recipes().join(language))?;
    let Some(resolution) = resolve::kept(context, &recipe, freshness)? else { return Ok(None) };
    Ok(Plan::with(context, recipe, resolution)?.find(context))
}

/// The image of a language, built if it is not in the cache.
///
/// # Errors
/// See [`Plan::new`] and [`build`].
pub(crate) fn make(context: &Context, language: &str, freshness: Freshness, task: &Task) -> Result<Entry> {
    let mut freshness = freshness;
    loop {
        let plan = Plan::new(context, language, freshness, task)?;
        if let Some(entry) = plan.find(context) {
            return Ok(entry);
        }
        ensure!(
            freshness != Freshness::Offline,
            "the {language} image is not in the cache, and without the network it cannot be built"
        );
        let waiting = || task.step("another build is making it; waiting");
        let made = context.store.get_or_build(&kind(language), &plan.key, waiting, |directory| {
            build(context, &plan, directory, task)
        });
        match made {
            // Versions that are up to a day old: ask again, once.
            Err(error) if freshness != Freshness::Now && error.is::<IndexChanged>() => {
                task.step("the package index has changed since it was asked");
                freshness = Freshness::Now;
            }
            other => return other,
        }
    }
}

/// Builds an image into `directory`: the EROFS file and the list of contents.
///
/// # Errors
/// A step fails: network, packages, disk space. [`IndexChanged`] if the versions are not the plan's.
pub(crate) fn build(context: &Context, plan: &Plan, directory: &Path, task: &Task) -> Result<Built> {
    let Plan { recipe, resolution, .. } = plan;
    let work = directory.join("work");
    fs::create_dir(&work)?;
    let tree = work.join("root");

    let count = resolution.packages.len();
    task.step(&format!("installing {count} Debian packages"));
    let mut root = Root::create(&tree)?;
    bootstrap::install(recipe, count, task, |stream| root.unpack(stream))?;
    let packages = dpkg::installed(&root)?;
    let changed = packages.iter().find(|package| !resolution.packages.contains(package));
    if let Some(package) = changed {
        return Err(IndexChanged(format!("{} {}", package.name, package.version)).into());
    }

    for (wanted, package) in recipe.npm.iter().zip(&resolution.npm) {
        task.step(&format!("downloading {} {}", package.name, package.version));
        let scratch = work.join("npm");
        fs::create_dir(&scratch)?;
        npm::install(&mut root, package, &wanted.install, &scratch)?;
        remove_tree(&scratch)?;
    }

    task.step("cleaning up");
    finish_tree(&mut root, recipe, &packages, &context.recipes().join(&recipe.image.language))?;
    let nodes = root.seal()?;
    base::check(&nodes)?;
    fs::write(
        directory.join(contents::FILE),
        contents::describe(recipe, &packages, &resolution.npm, &nodes),
    )?;

    task.step("writing and checking the file system");
    let image = directory.join(erofs::FILE);
    erofs::write(&tree, &nodes, &image, &recipe.erofs)?;
    remove_tree(&work)?;
    let facts = BTreeMap::from([
        ("mkfs.erofs".to_owned(), erofs::version()),
        ("files".to_owned(), nodes.len().to_string()),
        ("packages".to_owned(), count.to_string()),
    ]);
    Ok(Built { source: format!("Debian {}", recipe.apt.suite), facts })
}

/// Everything between installation and the finished tree.
fn finish_tree(root: &mut Root, recipe: &Recipe, packages: &[dpkg::Package], folder: &Path) -> Result<()> {
    for name in &recipe.cleanup.packages {
        let package = packages.iter().find(|package| package.name == *name);
        let package = package.with_context(|| format!("package {name}, to be removed, was not installed"))?;
        dpkg::remove_files(root, package)?;
    }
    for path in &recipe.cleanup.remove {
        ensure!(root.remove(path)?, "{path}, to be removed, is not in the image");
    }
    base::clean(root)?;
    base::furnish(root)?;
    for copy in &recipe.build.files {
        let from = folder.join(&copy.from);
        let mut file = File::open(&from).with_context(|| format!("cannot open {}", from.display()))?;
        root.file(&copy.to, copy.mode, &mut file)?;
    }
    for link in &recipe.build.symlinks {
        root.link(&link.path, &link.target)?;
    }
    Ok(())
}

/// One line about an entry, for people.
pub(crate) fn summary(entry: &Entry) -> String {
    let fact = |name: &str| entry.manifest.facts.get(name).map_or("?", String::as_str);
    let bytes = entry.manifest.files.get(FILE).map_or(0, |file| file.bytes);
    format!("{}, {} packages, {} files", megabytes(bytes), fact("packages"), fact("files"))
}
