//! `--check-reproducible`: every part is built a second time, from nothing, and must have the same digests.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::context::Context;
use crate::image::{self, Plan, resolve::Freshness};
use crate::store::{Entry, digest_file, remove_tree};
use crate::{initramfs, kernel};

use super::{Options, Which};

/// Builds the parts again and compares. What the parts are compared with is in the cache by now.
///
/// # Errors
/// A part cannot be built, or has another digest; all those are named.
pub(super) fn check(context: &Context, options: &Options, wanted: &[Which]) -> Result<()> {
    let mut different = Vec::new();
    for which in wanted {
        let scratch = context.store.root().join("partial").join(format!("again-{}", std::process::id()));
        remove_tree(&scratch)?;
        fs::create_dir_all(&scratch)?;
        let result = check_one(context, options, which, &scratch);
        remove_tree(&scratch)?;
        let lines = result.with_context(|| format!("cannot build {} a second time", which.name()))?;
        if !lines.is_empty() {
            different.push(format!("{}:\n    {}", which.name(), lines.join("\n    ")));
        }
    }
    if different.is_empty() {
        return Ok(());
    }
    bail!("built a second time, these parts are different:\n{}", different.join("\n"))
}

/// Builds one part in `scratch`; gives what is different.
fn check_one(context: &Context, options: &Options, which: &Which, scratch: &Path) -> Result<Vec<String>> {
    let task = context.progress.task(which.name());
    let (first, file) = match which {
        Which::Kernel(flavour) => {
            let tree = options.kernel_source.as_deref();
            let entry = kernel::make(context, *flavour, tree, Freshness::Any, &task)?;
            kernel::make_again(*flavour, tree, scratch, &task)?;
            (entry, kernel::FILE)
        }
        Which::Initramfs => {
            let python = image::find(context, "python", Freshness::Any)?;
            let entry = initramfs::make(context, python.as_ref(), &task)?;
            initramfs::make_again(context, python.as_ref(), &task, scratch)?;
            (entry, initramfs::FILE)
        }
        Which::Image(language) => {
            let entry = image::make(context, language, Freshness::Any, &task)?;
            let plan = Plan::new(context, language, Freshness::Any, &task)?;
            image::build(context, &plan, scratch, &task)?;
            (entry, image::FILE)
        }
    };
    let lines = compare(&first, scratch, file)?;
    if lines.is_empty() {
        let digest = first.manifest.files.get(file).map_or("?", |file| file.blake3.as_str());
        println!("{}: built twice, both times {digest}", which.name());
    }
    task.done("built a second time");
    Ok(lines)
}

/// What is different between an entry and a directory with the same part.
fn compare(first: &Entry, second: &Path, file: &str) -> Result<Vec<String>> {
    let expected = first.manifest.files.get(file).context("the first build lacks its file")?;
    let found = digest_file(&second.join(file))?;
    if *expected == found {
        return Ok(Vec::new());
    }
    let mut lines = vec![format!(
        "{file}: {} ({} bytes), then {} ({} bytes)",
        expected.blake3, expected.bytes, found.blake3, found.bytes
    )];
    let read = |directory: &Path| fs::read_to_string(directory.join(image::CONTENTS)).unwrap_or_default();
    lines.extend(image::differences(&read(&first.directory), &read(second), 20));
    Ok(lines)
}

#[cfg(test)]
mod tests;
