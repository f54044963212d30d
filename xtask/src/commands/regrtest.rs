//! `cargo xtask regrtest`: CPython's own tests, as user code in a sandbox.
//!
//! They come from the Debian package that has them, of the release that the image is made of, and go in as any user's files
//! do. Which modules run, and which tests may fail and why, is in `tests/regrtest/`. Not a part of `test`: it takes half an hour.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::commands::images;
use crate::context::Context;
use crate::image::bootstrap;
use crate::packages::{self, Purpose};
use crate::progress::Task;
use crate::python;
use crate::store::{self, Built};

/// Entries of the cache with the tests.
pub(crate) const KIND: &str = "python-tests";

/// The release that the image is made of, and the package.
const SUITE: &str = "trixie";
const PACKAGE: &str = "libpython3.13-testsuite";

/// The folder above the tests in the package, and the tests.
const ABOVE: &str = "usr/lib/python3.13";
const TESTS: &str = "test";

/// The file of an entry.
const FILE: &str = "tests.tar";

/// Run CPython's own tests inside a sandbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these modules of the list, for instance `test_os`.
    modules: Vec<String>,
    /// The backend; the best of this host without it.
    #[arg(long)]
    backend: Option<String>,
    /// Write the results to `docs/regrtest.md`.
    #[arg(long)]
    write: bool,
}

/// Carries the command out.
pub(crate) fn run(options: &Options) -> Result<()> {
    let context = Context::new()?;
    let set = images::needed()?;
    let bin = python::environment(&context)?;
    packages::ensure(&[Purpose::Image], &context.progress)?;
    let task = context.progress.task("tests");
    let tests = tests(&context, &set, &task)?;
    task.done("CPython's tests are there");
    let mut command = Command::new(bin.join("python"));
    command.current_dir(&context.tree).arg("tests/regrtest/run.py").arg("--tests").arg(tests);
    if options.write {
        command.args(["--write", "docs/regrtest.md"]);
    }
    if let Some(backend) = &options.backend {
        command.args(["--backend", backend]);
    }
    let status = command.args(&options.modules).env("HAYFORK_IMAGES_DIR", &set).status();
    if !status.context("cannot start python")?.success() {
        bail!("tests have failed that are not explained");
    }
    Ok(())
}

/// The archive with the tests, one for each image, since they must be of its interpreter's version.
fn tests(context: &Context, set: &Path, task: &Task) -> Result<std::path::PathBuf> {
    let image = hayfork_sandbox::images::ImageSet::open(set)?;
    let digests: Vec<_> = image.manifest().files().filter(|(name, ..)| *name == "python.erofs").collect();
    let key =
        store::key(&(SUITE, PACKAGE, digests.iter().map(|(_, digest, _)| *digest).collect::<Vec<_>>()))?;
    let waiting = || task.step("another process fetches CPython's tests; waiting");
    let entry = context.store.get_or_build(KIND, &key, waiting, |directory| {
        task.step("fetching CPython's tests");
        let archive = File::create(directory.join(FILE)).context("cannot write the archive")?;
        let count = bootstrap::extract(SUITE, PACKAGE, |stream| pick(stream, archive))?;
        if count == 0 {
            bail!("{PACKAGE} has no tests in /{ABOVE}/{TESTS}");
        }
        Ok(Built { source: PACKAGE.to_owned(), ..Built::default() })
    })?;
    Ok(entry.directory.join(FILE))
}

/// Copies the tests from one archive to another; gives the number of their files.
fn pick(from: impl io::Read, to: File) -> Result<usize> {
    let mut archive = tar::Archive::new(from);
    let mut picked = tar::Builder::new(io::BufWriter::new(to));
    let mut count = 0;
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        let path = path.strip_prefix("./").unwrap_or(&path);
        let Ok(inside) = path.strip_prefix(ABOVE) else { continue };
        if !inside.starts_with(TESTS) {
            continue;
        }
        let (mut header, inside) = (entry.header().clone(), inside.to_owned());
        if let Some(target) = entry.link_name()? {
            picked.append_link(&mut header, inside, target)?;
        } else {
            picked.append_data(&mut header, inside, entry)?;
            count += 1;
        }
    }
    picked.finish()?;
    // The program that writes the stream must not fail because we stop at the mark of its end.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tests_are_picked() {
        let mut whole = tar::Builder::new(Vec::new());
        for (path, content) in [
            ("./usr/lib/python3.13/os.py", "no"),
            ("./usr/lib/python3.13/test/test_os.py", "import os"),
            ("./usr/lib/python3.13/test/data/x.txt", "x"),
            ("./usr/lib/python3.13/tests.py", "no"),
        ] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            whole.append_data(&mut header, path, content.as_bytes()).unwrap();
        }
        let whole = whole.into_inner().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(FILE);
        assert_eq!(pick(&whole[..], File::create(&place).unwrap()).unwrap(), 2);
        let mut archive = tar::Archive::new(File::open(&place).unwrap());
        let names: Vec<_> =
            archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().into_owned()).collect();
        assert_eq!(names, [Path::new("test/test_os.py"), Path::new("test/data/x.txt")]);
    }
}
