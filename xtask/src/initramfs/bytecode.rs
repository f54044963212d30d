//! Compiled code of the Python driver, so that a guest need not compile it at every start (59 KB of source: some
//! 0.3 s under QEMU's TCG on a busy machine).
//!
//! Only the interpreter that will read the code can write it. It is taken out of the Python root image and run by
//! the image's own dynamic linker, which needs neither root nor a chroot. The files are of the hash-based kind
//! (PEP 552): the driver takes one only if it fits the source, so an initramfs works with any Python image, with one
//! that it was not compiled for just more slowly.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::context::Context;
use crate::progress::Task;
use crate::store::{self, Built, Entry, MANIFEST, remove_tree};
use crate::{image, process};

use super::Drivers;

/// Kind of the store's entries.
pub(crate) const KIND: &str = "driver-bytecode";
/// The driver's folder among the drivers.
const LANGUAGE: &str = "python/";
/// Where the guest sees the drivers; tracebacks show these paths.
const PLACE: &str = "/usr/lib/hayfork";
/// To be raised when this module makes other files of the same inputs.
const LAYOUT: u32 = 1;
/// Stands for `/` in the names of an entry's files, for entries are flat.
const SLASH: char = '+';

/// The compiled files by path inside the drivers' folder. `python` is the image's entry.
///
/// # Errors
/// The image cannot be read, or a driver's file does not compile.
pub(super) fn make(context: &Context, python: &Entry, drivers: &Drivers, task: &Task) -> Result<Drivers> {
    let image = python.manifest.files.get(image::FILE).context("the Python image's entry has no image")?;
    let sources: BTreeMap<&str, String> =
        sources(drivers).map(|(path, bytes)| (path, blake3::hash(bytes).to_hex().to_string())).collect();
    let key = store::key(&(LAYOUT, PLACE, &image.blake3, sources))?;
    let waiting = || task.step("another build is compiling the Python driver; waiting");
    let entry = context.store.get_or_build(KIND, &key, waiting, |directory| {
        task.step("compiling the Python driver");
        compile(&python.directory.join(image::FILE), drivers, directory)?;
        Ok(Built { source: "the Python driver".to_owned(), facts: BTreeMap::new() })
    })?;
    read(&entry.directory)
}

/// Compiles into `directory`, one flat file for each compiled one.
///
/// # Errors
/// As [`make`].
pub(super) fn compile(image: &Path, drivers: &Drivers, directory: &Path) -> Result<()> {
    let work = directory.join("work");
    let root = work.join("root");
    let tree = work.join("drivers");
    fs::create_dir_all(&work)?;
    let mut extract = Command::new("fsck.erofs");
    extract.arg(format!("--extract={}", root.display())).arg("--no-preserve").arg(image);
    process::output(&mut extract).context("cannot take the interpreter out of the Python image")?;

    for (path, bytes) in sources(drivers) {
        let place = tree.join(path);
        fs::create_dir_all(place.parent().context("a file without a directory")?)?;
        fs::write(&place, bytes)?;
    }
    let architecture = env::consts::ARCH;
    let linker = fs::read_dir(root.join("lib64"))
        .context("the Python image has no dynamic linker")?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux")))
        .context("the Python image has no dynamic linker")?;
    let mut compiler = Command::new(linker);
    compiler
        .env_clear()
        .env("PYTHONHOME", root.join("usr"))
        .env("PYTHONHASHSEED", "0")
        .env("LC_ALL", "C.UTF-8")
        .arg("--library-path")
        .arg(root.join(format!("usr/lib/{architecture}-linux-gnu")))
        .arg(root.join("usr/bin/python3"))
        // Without .pyc files for the interpreter's own modules, and without `site`.
        .args(["-B", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"])
        .arg("-s")
        .arg(&tree)
        .args(["-p", PLACE])
        .arg(&tree);
    process::output(&mut compiler).context("the Python driver does not compile")?;
    flatten(&tree, "", directory)?;
    remove_tree(&work)
}

/// The Python driver's source files: path and content.
fn sources(drivers: &Drivers) -> impl Iterator<Item = (&str, &[u8])> {
    drivers.iter().filter_map(|(path, file)| {
        let (_, bytes) = file.as_ref()?;
        let is_module =
            path.starts_with(LANGUAGE) && Path::new(path).extension().is_some_and(|end| end == "py");
        is_module.then_some((path.as_str(), bytes.as_slice()))
    })
}

/// Moves the `.pyc` files of a tree into `to`, their paths made into names.
fn flatten(tree: &Path, prefix: &str, to: &Path) -> Result<()> {
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            flatten(&entry.path(), &format!("{name}{SLASH}"), to)?;
        } else if entry.path().extension().is_some_and(|end| end == "pyc") {
            fs::rename(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}

/// Reads what [`compile`] has made, with the directories that it lies in.
///
/// # Errors
/// A file cannot be read.
pub(super) fn read(directory: &Path) -> Result<Drivers> {
    let mut files = Drivers::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == MANIFEST {
            continue;
        }
        let path = entry.file_name().to_string_lossy().replace(SLASH, "/");
        if let Some((parent, _)) = path.rsplit_once('/') {
            files.insert(parent.to_owned(), None);
        }
        files.insert(path, Some((0o644, fs::read(entry.path())?)));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_python_drivers_modules_are_sources() {
        let file = |text: &str| Some((0o644, text.as_bytes().to_vec()));
        let drivers = Drivers::from([
            ("javascript/a.py".to_owned(), file("x")),
            ("python".to_owned(), None),
            ("python/driver.py".to_owned(), file("a")),
            ("python/launch".to_owned(), file("b")),
            ("python/package/module.py".to_owned(), file("c")),
        ]);
        let found: Vec<&str> = sources(&drivers).map(|(path, _)| path).collect();
        assert_eq!(found, ["python/driver.py", "python/package/module.py"]);
    }

    #[test]
    fn compiled_files_keep_their_paths() {
        let directory = tempfile::tempdir().expect("tempdir");
        let tree = directory.path().join("tree");
        let cache = tree.join("python/package/__pycache__");
        fs::create_dir_all(&cache).expect("directory");
        fs::write(cache.join("module.cpython-313.pyc"), b"code").expect("file");
        fs::write(tree.join("python/package/module.py"), b"source").expect("file");
        let out = directory.path().join("out");
        fs::create_dir(&out).expect("directory");
        flatten(&tree, "", &out).expect("flattens");
        fs::write(out.join(MANIFEST), b"{}").expect("manifest");
        let files = read(&out).expect("reads");
        assert_eq!(
            files.into_iter().collect::<Vec<_>>(),
            [
                ("python/package/__pycache__".to_owned(), None),
                (
                    "python/package/__pycache__/module.cpython-313.pyc".to_owned(),
                    Some((0o644, b"code".to_vec()))
                ),
            ]
        );
    }
}
