//! A root file system on its way from a tar stream to an image.
//!
//! It lies in an ordinary directory of whoever builds it. Three things are different from unpacking with
//! tar, so that no root is needed and nothing outside can be touched:
//! - owners are forgotten (in the image everything belongs to root), device nodes are left out, set-user-id
//!   and set-group-id bits are dropped;
//! - the permissions of directories are remembered and applied by [`Root::seal`], after all changes;
//! - paths are followed inside the root only: a link to `/etc` means the image's `/etc` ([`Root::host_path`]).

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use tar::EntryType;

/// Bits that a directory may have: permissions and the sticky bit.
const DIRECTORY_BITS: u32 = 0o1777;
/// Links followed before a path counts as endless; the kernel's own limit.
const MAX_LINKS: u32 = 40;

/// The root file system.
pub(crate) struct Root {
    base: PathBuf,
    /// Permission bits of each directory, by its path relative to `base`.
    directories: BTreeMap<PathBuf, u32>,
}

/// Something in the root file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Absolute path inside the image.
    pub(crate) path: String,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) kind: Kind,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File { bytes: u64, blake3: String },
    Link { target: String },
}

impl Root {
    /// An empty root in `base`, which must not exist.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(crate) fn create(base: &Path) -> Result<Self> {
        fs::create_dir(base).with_context(|| format!("cannot make {}", base.display()))?;
        Ok(Self { base: base.to_owned(), directories: BTreeMap::from([(PathBuf::new(), 0o755)]) })
    }

    /// Adds what a tar stream holds.
    ///
    /// # Errors
    /// The stream is damaged, an entry comes before its directory or leaves the root, or writing fails.
    pub(crate) fn unpack(&mut self, stream: impl Read) -> Result<()> {
        let mut archive = tar::Archive::new(stream);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let path = entry.path()?.into_owned();
            self.unpack_entry(&mut entry, &path)
                .with_context(|| format!("cannot unpack {}", path.display()))?;
        }
        // The program that writes the stream must not fail because we stop at the end-of-archive mark.
        io::copy(&mut archive.into_inner(), &mut io::sink())?;
        Ok(())
    }

    fn unpack_entry(&mut self, entry: &mut tar::Entry<'_, impl Read>, path: &Path) -> Result<()> {
        let path = relative(path)?;
        let kind = entry.header().entry_type();
        let mode = entry.header().mode()?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        if kind == EntryType::Directory {
            self.directory_of(&path)?;
            if self.directories.insert(path.clone(), mode & DIRECTORY_BITS).is_none() {
                fs::create_dir(self.base.join(&path))?;
            }
            return Ok(());
        }
        self.directory_of(&path)?;
        let place = self.base.join(&path);
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let mut file = File::create_new(&place)?;
                io::copy(entry, &mut file)?;
                file.set_permissions(Permissions::from_mode(mode & 0o777))?;
            }
            EntryType::Symlink => {
                symlink(entry.link_name()?.context("a link without a target")?, &place)?;
            }
            EntryType::Link => {
                let target = relative(&entry.link_name()?.context("a link without a target")?)?;
                self.directory_of(&target)?;
                fs::hard_link(self.base.join(target), &place)?;
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {}
            other => bail!("entries of type {other:?} are not known"),
        }
        Ok(())
    }

    /// Checks that the directory that `path` is in came as a directory, so it is no link to elsewhere.
    fn directory_of(&self, path: &Path) -> Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        ensure!(self.directories.contains_key(parent), "its directory is not in the archive");
        Ok(())
    }

    /// Where a path of the image is on the host. Links on the way are followed as inside the image; the last
    /// part is not followed, and need not exist.
    ///
    /// # Errors
    /// A directory on the way does not exist.
    pub(crate) fn host_path(&self, path: &str) -> Result<PathBuf> {
        self.resolve(path).map(|relative| self.base.join(relative))
    }

    fn resolve(&self, path: &str) -> Result<PathBuf> {
        let mut pending: Vec<String> = parts(Path::new(path)).rev().collect();
        let mut resolved = PathBuf::new();
        let mut links = 0;
        while let Some(part) = pending.pop() {
            if part == ".." {
                resolved.pop();
                continue;
            }
            let next = resolved.join(&part);
            if pending.is_empty() {
                return Ok(next);
            }
            let place = self.base.join(&next);
            let metadata = fs::symlink_metadata(&place)
                .with_context(|| format!("/{} of {path} does not exist", next.display()))?;
            if metadata.is_symlink() {
                links += 1;
                ensure!(links <= MAX_LINKS, "{path} has too many links");
                let target = fs::read_link(&place)?;
                if target.is_absolute() {
                    resolved = PathBuf::new();
                }
                pending.extend(parts(&target).collect::<Vec<_>>().into_iter().rev());
            } else {
                ensure!(metadata.is_dir(), "/{} of {path} is no directory", next.display());
                resolved = next;
            }
        }
        Ok(resolved)
    }

    /// Removes what is at `path`, a tree as a whole, or, for `directory/*`, all that is in a directory.
    /// Says whether there was anything at that place.
    ///
    /// # Errors
    /// Removing fails.
    pub(crate) fn remove(&mut self, path: &str) -> Result<bool> {
        if let Some(directory) = path.strip_suffix("/*") {
            let Ok(place) = self.host_path(directory) else { return Ok(false) };
            let Ok(entries) = fs::read_dir(&place) else { return Ok(false) };
            for entry in entries {
                let name = entry?.file_name();
                self.remove(&format!("{directory}/{}", name.to_string_lossy()))?;
            }
            return Ok(true);
        }
        let Ok(inside) = self.resolve(path) else { return Ok(false) };
        ensure!(!inside.as_os_str().is_empty(), "the whole image cannot be removed");
        let place = self.base.join(&inside);
        match fs::symlink_metadata(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error.into()),
            Ok(metadata) if metadata.is_dir() => {
                fs::remove_dir_all(&place).with_context(|| format!("cannot remove {path}"))?;
                self.directories.retain(|directory, _| !directory.starts_with(&inside));
            }
            Ok(_) => fs::remove_file(&place).with_context(|| format!("cannot remove {path}"))?,
        }
        Ok(true)
    }

    /// Removes a file, a link, or a directory if it is empty; anything else stays.
    ///
    /// # Errors
    /// Removing fails.
    pub(crate) fn remove_file_or_empty_directory(&mut self, path: &str) -> Result<()> {
        let Ok(place) = self.host_path(path) else { return Ok(()) };
        let Ok(metadata) = fs::symlink_metadata(&place) else { return Ok(()) };
        if !metadata.is_dir() || fs::read_dir(&place)?.next().is_none() {
            self.remove(path)?;
        }
        Ok(())
    }

    /// Makes a directory, with those above it (mode 755), or changes the mode of one that is there.
    ///
    /// # Errors
    /// Something else is in its place.
    pub(crate) fn directory(&mut self, path: &str, mode: u32) -> Result<()> {
        let mut inside = PathBuf::new();
        for part in parts(Path::new(path)) {
            ensure!(part != "..", "{path} is not a plain path");
            inside.push(part);
            if !self.directories.contains_key(&inside) {
                fs::create_dir(self.base.join(&inside)).with_context(|| format!("cannot make {path}"))?;
                self.directories.insert(inside.clone(), 0o755);
            }
        }
        self.directories.insert(inside, mode & DIRECTORY_BITS);
        Ok(())
    }

    /// Writes a file, replacing what is there (a link is replaced, not followed).
    ///
    /// # Errors
    /// Its directory is missing, or writing fails.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &mut impl Read) -> Result<()> {
        self.remove(path)?;
        let place = self.host_path(path)?;
        let mut write = || -> io::Result<()> {
            let mut file = File::create_new(&place)?;
            io::copy(content, &mut file)?;
            file.set_permissions(Permissions::from_mode(mode & 0o777))
        };
        write().with_context(|| format!("cannot write {path}"))
    }

    /// Reads a text file of the image.
    ///
    /// # Errors
    /// It is not there or no text.
    pub(crate) fn text(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.host_path(path)?).with_context(|| format!("cannot read {path} of the image"))
    }

    /// Makes a symbolic link, replacing what is there.
    ///
    /// # Errors
    /// Its directory is missing, or writing fails.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.remove(path)?;
        symlink(target, self.host_path(path)?).with_context(|| format!("cannot make the link {path}"))
    }

    /// Ends all changes: stores equal files once (as hard links), applies the directories' permissions, and
    /// gives everything that is there, sorted by path.
    ///
    /// # Errors
    /// Something cannot be read or changed, or is neither file, directory nor link.
    pub(crate) fn seal(self) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        self.collect(Path::new(""), &mut nodes)?;
        nodes.sort_by(|one, other| one.path.cmp(&other.path));
        self.share_equal_files(&nodes)?;
        for (directory, mode) in self.directories.iter().rev() {
            fs::set_permissions(self.base.join(directory), Permissions::from_mode(*mode))?;
        }
        Ok(nodes)
    }

    fn collect(&self, directory: &Path, nodes: &mut Vec<Node>) -> Result<()> {
        for entry in fs::read_dir(self.base.join(directory))? {
            let entry = entry?;
            let inside = directory.join(entry.file_name());
            let path = format!(
                "/{}",
                inside.to_str().with_context(|| format!("{} is not UTF-8", inside.display()))?
            );
            let metadata = entry.metadata()?;
            let (mode, kind) = if metadata.is_dir() {
                let mode =
                    self.directories.get(&inside).with_context(|| format!("{path} came from nowhere"))?;
                self.collect(&inside, nodes)?;
                (*mode, Kind::Directory)
            } else if metadata.is_symlink() {
                (0o777, Kind::Link { target: fs::read_link(entry.path())?.to_string_lossy().into_owned() })
            } else if metadata.is_file() {
                let digest = crate::store::digest_file(&entry.path())?;
                let kind = Kind::File { bytes: digest.bytes, blake3: digest.blake3 };
                (metadata.permissions().mode() & 0o7777, kind)
            } else {
                bail!("{path} is neither file, directory nor link");
            };
            nodes.push(Node { path, mode, kind });
        }
        Ok(())
    }

    /// Files with the same bytes and permissions become one file with several names. The image is read-only,
    /// so nobody can tell, except by its size.
    fn share_equal_files(&self, nodes: &[Node]) -> Result<()> {
        let mut seen: BTreeMap<(&str, u32), &str> = BTreeMap::new();
        for node in nodes {
            let Kind::File { bytes, blake3 } = &node.kind else { continue };
            if *bytes == 0 {
                continue;
            }
            if let Some(first) = seen.get(&(blake3.as_str(), node.mode)) {
                let place = self.base.join(&node.path[1..]);
                fs::remove_file(&place)?;
                fs::hard_link(self.base.join(&first[1..]), &place)?;
            } else {
                seen.insert((blake3, node.mode), &node.path);
            }
        }
        Ok(())
    }
}

/// The path without `.` parts; one that is absolute or has `..` is refused.
fn relative(path: &Path) -> Result<PathBuf> {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => result.push(part),
            _ => bail!("the path leaves the image"),
        }
    }
    Ok(result)
}

/// The parts of a path, `..` included.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = String> {
    path.components().filter_map(|component| match component {
        Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
        Component::ParentDir => Some("..".to_owned()),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
