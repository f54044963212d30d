//! Describing files and folders.

use hayfork_protocol::Event;
use hayfork_protocol::limits::MAX_ENTRIES_PER_MESSAGE;
use hayfork_protocol::message::{FileInfo, FileKind};
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, fstat, statat};
use rustix::io::Errno;

use super::failure::{About, Outcome};
use super::resolve::Located;
use super::wire::MAX_MESSAGE;
use super::worker::Line;

/// Most bytes that one entry takes in a message, apart from its name.
const ENTRY_OVERHEAD: usize = 40;

/// The protocol's description of what stat(2) says.
pub fn info(name: &str, stat: &Stat) -> FileInfo {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    // Negative for times before 1970, which count as 1970.
    let (seconds, ns) = (u64::try_from(stat.st_mtime).unwrap_or(0), stat.st_mtime_nsec);
    FileInfo {
        name: name.to_owned(),
        kind,
        bytes: if kind == FileKind::Directory { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) },
        mode: stat.st_mode & 0o7777,
        modified_ns: seconds.saturating_mul(1_000_000_000).saturating_add(ns),
    }
}

/// Describes one entry without following a final link.
///
/// # Errors
/// There is none.
pub fn stat(of: &Located<'_>) -> Outcome<FileInfo> {
    if let Ok(entry) = of.entry() {
        let stat = statat(&entry.folder, entry.name, AtFlags::SYMLINK_NOFOLLOW).about(of.path)?;
        return Ok(info(entry.name, &stat));
    }
    // The base itself, a path that ends with "..", or one whose folder cannot be opened, which says why.
    let fd = of.open(OFlags::PATH | OFlags::NOFOLLOW)?;
    Ok(info(of.name(), &fstat(&fd).about(of.path)?))
}

/// Sends the entries of a folder, sorted by name, byte by byte.
///
/// # Errors
/// There is no such folder, or it may not be read.
pub fn run(of: &Located<'_>, line: &mut Line) -> Outcome<()> {
    let folder = of.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&folder).about(of.path)? {
        let entry = entry.about(of.path)?;
        let name = entry.file_name();
        if name.to_bytes() != b"." && name.to_bytes() != b".." {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    let mut batch = Vec::new();
    let mut size = 0;
    for (index, name) in names.iter().enumerate() {
        if index % 256 == 0 {
            line.check();
        }
        let stat = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Removed since.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno).about(of.path),
        };
        let entry = info(&name.to_string_lossy(), &stat);
        let entry_size = entry.name.len() + ENTRY_OVERHEAD;
        if batch.len() == MAX_ENTRIES_PER_MESSAGE || size + entry_size > MAX_MESSAGE - 64 {
            line.event(Event::Entries(std::mem::take(&mut batch)));
            size = 0;
        }
        size += entry_size;
        batch.push(entry);
    }
    if !batch.is_empty() {
        line.event(Event::Entries(batch));
    }
    Ok(())
}
