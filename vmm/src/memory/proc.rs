//! What the kernel says of this process's memory: `/proc/self/pagemap` and `/proc/self/smaps`.
//!
//! They are opened for each question, since a child made by `fork` has others under the same names. A
//! [worker](crate::worker), which makes no children and may open nothing once it is confined, opens them [once](keep_open).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

const PAGEMAP: &str = "/proc/self/pagemap";
const SMAPS: &str = "/proc/self/smaps";

static KEPT: OnceLock<Files> = OnceLock::new();

#[derive(Debug)]
struct Files {
    pagemap: File,
    smaps: File,
}

/// Opens both for the life of the process. For processes that make no children by `fork`.
///
/// # Errors
/// They cannot be opened.
pub fn keep_open() -> io::Result<()> {
    let files = Files { pagemap: File::open(PAGEMAP)?, smaps: File::open(SMAPS)? };
    // Who came first did the same.
    let _ = KEPT.set(files);
    Ok(())
}

/// A file for one question.
pub(super) enum Opened {
    Now(File),
    Before(&'static File),
}

impl Deref for Opened {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Self::Now(file) => file,
            Self::Before(file) => file,
        }
    }
}

fn open(kept: impl FnOnce(&'static Files) -> &'static File, path: &str) -> io::Result<Opened> {
    match KEPT.get() {
        Some(files) => Ok(Opened::Before(kept(files))),
        None => File::open(path).map(Opened::Now),
    }
}

/// An entry for each page; to be read at positions.
pub(super) fn pagemap() -> io::Result<Opened> {
    open(|files| &files.pagemap, PAGEMAP)
}

/// The mappings with their sizes, from the first on.
pub(super) fn smaps() -> io::Result<impl Read> {
    Ok(FromStart { file: open(|files| &files.smaps, SMAPS)?, at: 0 })
}

/// Reads a file without its own position, which others may have moved.
struct FromStart {
    file: Opened,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
