//! Removing and renaming.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::failure::{About, Outcome};
use super::resolve::Located;
use super::worker::Line;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Renames, replacing a file that stands there.
///
/// # Errors
/// One of the paths is not possible, or they are in different file systems.
pub fn rename(from: &Located<'_>, to: &Located<'_>) -> Outcome<()> {
    let (old, new) = (from.entry()?, to.entry()?);
    match renameat(&old.folder, old.name, &new.folder, new.name) {
        Err(Errno::XDEV) => Err(super::failure::failure(
            hayfork_protocol::message::FailureCode::BadPath,
            format!(
                "{:?} and {:?} are in different file systems: copy the content instead",
                from.path, to.path
            ),
        )),
        Err(errno @ (Errno::NOENT | Errno::INVAL)) => Err(errno).about(from.path),
        result => result.about(to.path),
    }
}

/// Removes a file, a link, or a folder with all it holds.
///
/// # Errors
/// There is no such entry, or a part of it may not be removed; what was removed before stays removed.
pub fn remove(what: &Located<'_>, line: &Line) -> Outcome<()> {
    let entry = what.entry()?;
    match unlinkat(&entry.folder, entry.name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        result => return result.about(what.path),
    }
    let name = CString::new(entry.name).map_err(|_| Errno::INVAL).about(what.path)?;
    let top = openat(&entry.folder, &name, FOLDER, Mode::empty()).about(what.path)?;
    empty(top, line).about(what.path)?;
    match unlinkat(&entry.folder, &name, AtFlags::REMOVEDIR) {
        // Somebody else was faster.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno).about(what.path),
    }
}

/// What identifies a folder while it exists.
fn identity(folder: &OwnedFd) -> Result<(u64, u64), Errno> {
    fstat(folder).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Removes everything below `folder`, with one open descriptor however deep it goes: down by name, up by `..`. On the way
/// up the folder must be the one it came from, so that a folder moved meanwhile does not lead the removal astray.
fn empty(mut folder: OwnedFd, line: &Line) -> Result<(), Errno> {
    let mut above: Vec<((u64, u64), CString)> = Vec::new();
    let mut steps = 0u32;
    loop {
        steps += 1;
        if steps.is_multiple_of(64) {
            line.check();
        }
        if let Some(child) = unlink_files(&folder)? {
            let next = openat(&folder, &child, FOLDER, Mode::empty())?;
            above.push((identity(&folder)?, child));
            folder = next;
            continue;
        }
        let Some((parent, name)) = above.pop() else { return Ok(()) };
        let up = openat(&folder, "..", FOLDER, Mode::empty())?;
        if identity(&up)? != parent {
            return Err(Errno::BUSY);
        }
        unlinkat(&up, &name, AtFlags::REMOVEDIR)?;
        folder = up;
    }
}

/// Removes what is no folder in `folder`, and returns the first folder that it meets.
fn unlink_files(folder: &OwnedFd) -> Result<Option<CString>, Errno> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            kind => kind,
        };
        if kind == FileType::Directory {
            return Ok(Some(name.to_owned()));
        }
        match unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}
