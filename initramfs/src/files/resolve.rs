//! Which files a path may name.
//!
//! A relative path begins in the home folder. An absolute one must lead into the home folder or one of the shared
//! temporary folders, the places where user code may write. From there the kernel resolves it *beneath* that folder
//! (openat2(2), `RESOLVE_BENEATH`): neither `..` nor a symbolic link gets out, and no race changes that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hayfork_protocol::message::FailureCode;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, statat};
use rustix::io::Errno;

use super::failure::{About, Outcome, failure};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The folders that paths may lead into.
#[derive(Debug)]
pub struct Places {
    /// Path and descriptor; the first is home.
    folders: Vec<(String, OwnedFd)>,
}

/// A path, resolved to a folder that it stays in.
#[derive(Debug)]
pub struct Located<'a> {
    base: BorrowedFd<'a>,
    /// Components below the base; `.` and empty ones are gone.
    names: Vec<&'a str>,
    /// As the host wrote it.
    pub path: &'a str,
}

/// The folder that holds an entry, and the entry's name in it.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The folder.
    pub folder: OwnedFd,
    /// A single component, neither empty nor `.` nor `..`.
    pub name: &'a str,
}

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

impl Places {
    /// Opens the home folder and those of `shared` that exist.
    ///
    /// # Errors
    /// There is no home folder.
    pub fn open(home: &str, shared: &[&str]) -> Result<Self, Errno> {
        let mut folders = vec![(home.to_owned(), openat(CWD, home, DIRECTORY, Mode::empty())?)];
        for path in shared {
            if let Ok(fd) = openat(CWD, *path, DIRECTORY, Mode::empty()) {
                folders.push(((*path).to_owned(), fd));
            }
        }
        Ok(Self { folders })
    }

    /// Finds the folder that a path stays in.
    ///
    /// # Errors
    /// An absolute path that leads into none of them.
    pub fn locate<'a>(&'a self, path: &'a str) -> Outcome<Located<'a>> {
        if !path.starts_with('/') {
            let base = self.folders[0].1.as_fd();
            return Ok(Located { base, names: components(path).collect(), path });
        }
        let names: Vec<&str> = components(path).collect();
        for (folder, fd) in &self.folders {
            let prefix: Vec<&str> = components(folder).collect();
            if names.starts_with(&prefix) {
                return Ok(Located { base: fd.as_fd(), names: names[prefix.len()..].to_vec(), path });
            }
        }
        let known: Vec<&str> = self.folders.iter().map(|(path, _)| path.as_str()).collect();
        Err(failure(
            FailureCode::BadPath,
            format!("{path:?}: an absolute path must lead into one of {}", known.join(", ")),
        ))
    }
}

/// Resolves below `base`; the kernel asks to try again when a rename raced with `..`.
fn beneath(base: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut result = Err(Errno::AGAIN);
    for _ in 0..8 {
        result = openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    result
}

impl<'a> Located<'a> {
    fn relative(&self) -> String {
        if self.names.is_empty() { ".".to_owned() } else { self.names.join("/") }
    }

    /// Opens what the path names. Following links is fine as long as they stay below the base.
    ///
    /// # Errors
    /// It does not exist, leads out, or may not be opened like that.
    pub fn open(&self, flags: OFlags) -> Outcome<OwnedFd> {
        beneath(self.base, &self.relative(), flags).about(self.path)
    }

    /// The last component, or that of the base itself.
    pub fn name(&self) -> &'a str {
        self.names.last().copied().unwrap_or(".")
    }

    fn split(&self) -> Outcome<(&[&'a str], &'a str)> {
        match self.names.split_last() {
            Some((name, above)) if *name != ".." => Ok((above, name)),
            Some(_) => {
                Err(failure(FailureCode::BadPath, format!("{:?}: the path must end with a name", self.path)))
            }
            None => Err(failure(
                FailureCode::BadPath,
                format!("{:?}: this folder itself cannot be replaced, renamed or removed", self.path),
            )),
        }
    }

    /// The folder that holds what the path names.
    ///
    /// # Errors
    /// That folder does not exist, or the path has no last component.
    pub fn entry(&self) -> Outcome<Entry<'a>> {
        let (above, name) = self.split()?;
        let above = if above.is_empty() { ".".to_owned() } else { above.join("/") };
        Ok(Entry { folder: beneath(self.base, &above, DIRECTORY).about(self.path)?, name })
    }

    /// As [`Located::entry`], and makes the folders above that are missing.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn entry_with_parents(&self) -> Outcome<Entry<'a>> {
        let (above, name) = self.split()?;
        Ok(Entry { folder: self.make_folders(above)?, name })
    }

    /// Makes the folder that the path names, and those above it. One that exists is fine.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn make_folder(&self) -> Outcome<OwnedFd> {
        self.make_folders(&self.names)
    }

    fn make_folders(&self, names: &[&str]) -> Outcome<OwnedFd> {
        let mut folder = beneath(self.base, ".", DIRECTORY).about(self.path)?;
        for (index, name) in names.iter().enumerate() {
            let so_far = names[..=index].join("/");
            let mut next = beneath(self.base, &so_far, DIRECTORY);
            if matches!(next, Err(Errno::NOENT)) {
                match mkdirat(&folder, *name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno).about(self.path),
                }
                next = beneath(self.base, &so_far, DIRECTORY);
            }
            folder = next.about(self.path)?;
        }
        Ok(folder)
    }

    /// Checks that the path's last component may be replaced by a file: it is not a folder, nor a link that leads out.
    ///
    /// # Errors
    /// It may not.
    pub fn check_replaceable(&self, entry: &Entry<'_>) -> Outcome<()> {
        let stat = match statat(&entry.folder, entry.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno).about(self.path),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Err(Errno::ISDIR).about(self.path),
            FileType::Symlink => match beneath(self.base, &self.relative(), OFlags::PATH) {
                // A link to nothing is replaced like any file.
                Ok(_) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno).about(self.path),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
