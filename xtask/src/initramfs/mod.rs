//! The initramfs: the guest agent as `/init` and the language drivers, in one uncompressed archive.
//!
//! 1. [`agent`] compiles the agent (cargo notices by itself when nothing is to be done);
//! 2. [`bytecode`] compiles the Python driver by the interpreter of the Python root image, if that has been built;
//! 3. the key is made from the agent's bytes, the drivers' files and the compiled ones;
//! 4. [`Inputs::pack`] writes the archive.
//!
//! ```text
//! /init                    the agent
//! /drivers/<language>/…    what initramfs/drivers holds, and compiled code
//! /dev/console /dev/null   what the kernel and the agent need before /dev is mounted
//! /newroot /proc /run /sys empty mount points
//! ```

pub(crate) mod agent;
pub(crate) mod bytecode;
mod cpio;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::context::Context;
use crate::image;
use crate::progress::{Task, megabytes};
use crate::store::{self, Built, Entry};

use cpio::Archive;

/// Kind of the store's entries.
pub(crate) const KIND: &str = "initramfs";
/// The archive's name in an entry and in a set.
pub(crate) const FILE: &str = "initramfs.cpio";
/// To be raised when this module makes another archive of the same inputs.
const LAYOUT: u32 = 1;

/// Driver files by path inside `drivers`: permission bits and content; `None` for a directory.
type Drivers = BTreeMap<String, Option<(u32, Vec<u8>)>>;

/// What the archive is made from.
pub(crate) struct Inputs {
    agent: Vec<u8>,
    drivers: Drivers,
}

impl Inputs {
    /// Reads the agent's binary and the drivers' folder.
    ///
    /// # Errors
    /// Something cannot be read, or the folder holds something else than files and directories.
    pub(crate) fn read(agent: &Path, drivers: &Path) -> Result<Self> {
        let bytes = fs::read(agent).with_context(|| format!("cannot read the agent {}", agent.display()))?;
        let mut files = Drivers::new();
        collect(drivers, "", &mut files)?;
        Ok(Self { agent: bytes, drivers: files })
    }

    /// Key of the archive.
    ///
    /// # Errors
    /// Never in practice.
    pub(crate) fn key(&self) -> Result<String> {
        let digest = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
        let drivers: BTreeMap<&str, Option<(u32, String)>> = self
            .drivers
            .iter()
            .map(|(path, file)| (path.as_str(), file.as_ref().map(|(mode, bytes)| (*mode, digest(bytes)))))
            .collect();
        store::key(&(LAYOUT, digest(&self.agent), drivers))
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// Writing fails.
    pub(crate) fn pack(&self, path: &Path) -> Result<()> {
        let write = || -> io::Result<()> {
            let mut archive = Archive::new(BufWriter::new(File::create(path)?));
            for directory in ["dev", "drivers", "newroot", "proc", "run", "sys"] {
                archive.directory(directory, 0o755)?;
            }
            archive.character_device("dev/console", 0o600, (5, 1))?;
            archive.character_device("dev/null", 0o666, (1, 3))?;
            archive.file("init", 0o755, &self.agent)?;
            // Sorted by path, so a directory comes before its files.
            for (path, file) in &self.drivers {
                match file {
                    None => archive.directory(&format!("drivers/{path}"), 0o755)?,
                    Some((mode, bytes)) => archive.file(&format!("drivers/{path}"), *mode, bytes)?,
                }
            }
            archive.finish()?.into_inner().map_err(io::IntoInnerError::into_error).map(drop)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Builds agent and archive. `python` is the Python root image.
///
/// # Errors
/// The agent or a driver does not compile, or the cache cannot be written.
pub(crate) fn make(context: &Context, python: Option<&Entry>, task: &Task) -> Result<Entry> {
    task.step("compiling the agent");
    let binary = agent::compile(&context.tree, None, task)?;
    let mut inputs = Inputs::read(&binary, &drivers(&context.tree))?;
    match python {
        Some(python) => inputs.drivers.extend(bytecode::make(context, python, &inputs.drivers, task)?),
        None => task.step("no Python image in the cache: the Python driver starts more slowly, from source"),
    }
    let waiting = || task.step("another build is packing it; waiting");
    context.store.get_or_build(KIND, &inputs.key()?, waiting, |directory| {
        task.step("packing");
        inputs.pack(&directory.join(FILE))?;
        let facts = BTreeMap::from([("agent".to_owned(), megabytes(inputs.agent.len() as u64))]);
        Ok(Built { source: format!("hayfork-agent {}", env!("CARGO_PKG_VERSION")), facts })
    })
}

/// Builds it a second time, agent and compiled code included, in `scratch`.
///
/// # Errors
/// As [`make`].
pub(crate) fn make_again(
    context: &Context,
    python: Option<&Entry>,
    task: &Task,
    scratch: &Path,
) -> Result<()> {
    task.step("compiling the agent a second time");
    let binary = agent::compile(&context.tree, Some(&scratch.join("target")), task)?;
    let mut inputs = Inputs::read(&binary, &drivers(&context.tree))?;
    if let Some(python) = python {
        let compiled = scratch.join("bytecode");
        fs::create_dir(&compiled)?;
        bytecode::compile(&python.directory.join(image::FILE), &inputs.drivers, &compiled)?;
        inputs.drivers.extend(bytecode::read(&compiled)?);
    }
    inputs.pack(&scratch.join(FILE))
}

fn drivers(tree: &Path) -> PathBuf {
    tree.join("initramfs/drivers")
}

/// Adds what `directory` holds to `files`, leaving out what tools leave behind.
fn collect(directory: &Path, prefix: &str, files: &mut Drivers) -> Result<()> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let name = entry
            .file_name()
            .into_string()
            .ok()
            .with_context(|| format!("{} is not UTF-8", path.display()))?;
        if name.starts_with('.') || name == "__pycache__" || name == "node_modules" {
            continue;
        }
        let inside = format!("{prefix}{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&path, &format!("{inside}/"), files)?;
            files.insert(inside, None);
        } else if kind.is_file() {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            // Only the executable bit is taken over: the others depend on the umask of who cloned.
            let executable = entry.metadata()?.permissions().mode() & 0o100 != 0;
            files.insert(inside, Some((if executable { 0o755 } else { 0o644 }, bytes)));
        } else {
            bail!("{} is neither file nor directory, so it cannot go into the initramfs", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn sample(directory: &Path) -> Inputs {
        let drivers = directory.join("drivers");
        fs::create_dir_all(drivers.join("python/__pycache__")).expect("directories");
        fs::write(drivers.join("python/driver.py"), b"print()").expect("file");
        fs::write(drivers.join("python/__pycache__/driver.pyc"), b"x").expect("file");
        fs::write(drivers.join(".hidden"), b"x").expect("file");
        fs::write(drivers.join("run"), b"#!").expect("file");
        fs::set_permissions(drivers.join("run"), Permissions::from_mode(0o700)).expect("permissions");
        fs::write(directory.join("agent"), b"an agent").expect("file");
        Inputs::read(&directory.join("agent"), &drivers).expect("inputs")
    }

    #[test]
    fn drivers_are_taken_without_leftovers() {
        let directory = tempfile::tempdir().expect("tempdir");
        let inputs = sample(directory.path());
        assert_eq!(inputs.drivers.keys().collect::<Vec<_>>(), ["python", "python/driver.py", "run"]);
        assert_eq!(inputs.drivers["run"], Some((0o755, b"#!".to_vec())));
        assert_eq!(inputs.drivers["python/driver.py"].as_ref().expect("file").0, 0o644);
    }

    #[test]
    fn the_key_follows_agent_names_modes_and_content() {
        let directory = tempfile::tempdir().expect("tempdir");
        let key = sample(directory.path()).key().expect("key");
        assert_eq!(key, sample(directory.path()).key().expect("key"));
        let changed = |change: &dyn Fn(&mut Inputs)| {
            let mut inputs = sample(directory.path());
            change(&mut inputs);
            inputs.key().expect("key")
        };
        assert_ne!(key, changed(&|inputs| inputs.agent.push(0)));
        assert_ne!(key, changed(&|inputs| drop(inputs.drivers.insert("more".to_owned(), None))));
        assert_ne!(
            key,
            changed(&|inputs| drop(inputs.drivers.insert("run".to_owned(), Some((0o644, b"#!".to_vec())))))
        );
        assert_ne!(
            key,
            changed(&|inputs| drop(inputs.drivers.insert("run".to_owned(), Some((0o755, b"#".to_vec())))))
        );
    }

    #[test]
    fn the_archive_is_the_same_each_time() {
        let directory = tempfile::tempdir().expect("tempdir");
        let inputs = sample(directory.path());
        let pack = |name: &str| {
            let path = directory.path().join(name);
            inputs.pack(&path).expect("packs");
            fs::read(path).expect("read")
        };
        let archive = pack("one");
        assert_eq!(archive, pack("two"));
        let position = |needle: &[u8]| archive.windows(needle.len()).position(|window| window == needle);
        assert!(position(b"init\0").is_some() && position(b"an agent").is_some());
        assert!(position(b"drivers\0") < position(b"drivers/python\0"));
        assert!(position(b"drivers/python\0") < position(b"drivers/python/driver.py\0"));
        assert!(position(b"__pycache__").is_none());
    }

    #[test]
    fn links_among_the_drivers_are_refused() {
        let directory = tempfile::tempdir().expect("tempdir");
        sample(directory.path());
        let drivers = directory.path().join("drivers");
        std::os::unix::fs::symlink("/etc/passwd", drivers.join("link")).expect("link");
        assert!(Inputs::read(&directory.path().join("agent"), &drivers).is_err());
    }
}
