//! Writing snapshot files: aside, and whole or not at all.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, linkat, open};
use rustix::io::Errno;

use super::format::{
    Digest, HEADER, Header, Kind, MAX_ABOUT, MAX_EXTENTS, MAX_MEMORY, MAX_STATE, MAX_WORKING_SET, PAGE,
    Section, StateKind, write_runs,
};
use super::identity::MAX_IDENTITY;
use super::{Identity, SnapshotError};

/// Bytes of memory that are read at a time.
const PIECE: usize = 256 << 10;

/// Zeroes between two pages that are written rather than left out, in bytes: a run costs two system calls in each load.
const GAP: u64 = 4 * PAGE;

/// What the names of files that are not finished begin and end with.
const PREFIX: &str = ".hayfork-";
const SUFFIX: &str = ".partial";

/// Names that are tried before giving up: only other processes with this one's number take any.
const ATTEMPTS: u32 = 1000;

/// What a file is made of.
#[derive(Clone, Debug)]
pub struct Contents<'a> {
    /// What the machine was made of and runs on.
    pub identity: &'a Identity,
    /// Bytes of the saver's own, at most [`MAX_ABOUT`].
    pub about: &'a [u8],
    /// What kind of state it is.
    pub kind: StateKind,
    /// The machine's state without its memory.
    pub state: &'a [u8],
    /// The memory.
    pub memory: Memory<'a>,
    /// Pages that a clone writes to at once: whole pages, in order, apart from each other.
    pub working_set: &'a [Range<u64>],
}

/// The memory of a machine at rest, wherever its pages are.
#[derive(Clone, Debug)]
pub struct Memory<'a> {
    /// Its length, in bytes.
    pub length: u64,
    /// Whole pages, in order, each at the same offset of the file (that nobody changes); what none of them names is zero.
    pub pieces: Vec<(Range<u64>, BorrowedFd<'a>)>,
}

/// Writes a file at `path`, in place of one that is there.
///
/// # Errors
/// Something is too long, or the file system refuses. What was at `path` is there still, and nothing else is left.
pub fn write(path: &Path, contents: &Contents<'_>) -> Result<(), SnapshotError> {
    let failed =
        |what| move |source: io::Error| SnapshotError::Unwritable { path: path.to_path_buf(), what, source };
    let identity = postcard::to_allocvec(contents.identity)
        .map_err(|error| failed("encoding the identity")(io::Error::other(error)))?;
    let working_set = working_set(contents.working_set, contents.memory.length);
    let too_long = [
        ("memory", contents.memory.length, MAX_MEMORY),
        ("the machine's identity", identity.len() as u64, MAX_IDENTITY),
        ("what is to be kept with a snapshot", contents.about.len() as u64, MAX_ABOUT),
        ("the machine's state", contents.state.len() as u64, MAX_STATE),
    ];
    if let Some((what, given, most)) = too_long.into_iter().find(|(_, given, most)| given > most) {
        return Err(SnapshotError::TooLong { what, given, most });
    }
    let aside = Aside::create(path).map_err(failed("making a file"))?;
    let writing = failed("writing");
    let (memory, runs) = Pages::copy(&aside.file, &contents.memory).map_err(&writing)?;
    let mut extents = contents.memory.length.to_le_bytes().to_vec();
    write_runs(&mut extents, &runs);
    let mut working_set_bytes = Vec::new();
    write_runs(&mut working_set_bytes, &working_set);
    let mut at = memory.offset + memory.length;
    let mut put = |kind, bytes: &[u8]| {
        let section =
            Section { kind, offset: at, length: bytes.len() as u64, digest: *blake3::hash(bytes).as_bytes() };
        aside.file.write_all_at(bytes, at)?;
        at += section.length;
        Ok(section)
    };
    let sections = [
        memory,
        put(Kind::Identity, &identity).map_err(&writing)?,
        put(Kind::About, contents.about).map_err(&writing)?,
        put(Kind::Extents, &extents).map_err(&writing)?,
        put(Kind::WorkingSet, &working_set_bytes).map_err(&writing)?,
        put(Kind::State(contents.kind), contents.state).map_err(&writing)?,
    ];
    aside.file.write_all_at(&Header { sections }.to_bytes(), 0).map_err(&writing)?;
    aside.publish().map_err(failed("putting it in its place"))
}

/// A working set as the reader takes it: it only makes clones faster, so what does not fit is left out.
fn working_set(pages: &[Range<u64>], length: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let fits = |run: &&Range<u64>| {
        run.start.is_multiple_of(PAGE) && run.end.is_multiple_of(PAGE) && !run.is_empty() && run.end <= length
    };
    for run in pages.iter().filter(fits).take(MAX_WORKING_SET) {
        match runs.last_mut() {
            Some(last) if run.start < last.start => {}
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => runs.push(run.clone()),
        }
    }
    runs
}

/// Writes pages one after the other, without those of zeroes, and remembers which.
struct Pages<'a> {
    file: &'a File,
    at: u64,
    hasher: blake3::Hasher,
    waiting: Vec<u8>,
    runs: Vec<Range<u64>>,
}

impl<'a> Pages<'a> {
    /// Writes the memory behind the header of a file. Gives its section, and where its pages belong.
    fn copy(file: &'a File, memory: &Memory<'_>) -> io::Result<(Section, Vec<Range<u64>>)> {
        let mut pages =
            Self { file, at: HEADER, hasher: blake3::Hasher::new(), waiting: Vec::new(), runs: Vec::new() };
        let mut buffer = vec![0; PIECE];
        let mut end = 0;
        for (range, source) in &memory.pieces {
            // Pages that come twice or in another order would make a file that no reader takes.
            let whole = range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE);
            if !whole || range.start < end || range.end < range.start || range.end > memory.length {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory's pieces do not fit"));
            }
            end = range.end;
            let mut place = range.start;
            while place < range.end {
                let bytes = (range.end - place).min(PIECE as u64);
                let piece = &mut buffer[..usize::try_from(bytes).unwrap_or(0)];
                read_exact_at(*source, piece, place)?;
                for (page, bytes) in
                    (place..).step_by(usize::try_from(PAGE).unwrap_or(1)).zip(piece.chunks(ZEROES.len()))
                {
                    if bytes != &ZEROES[..bytes.len()] {
                        pages.add(page, bytes)?;
                    }
                }
                place += bytes;
            }
        }
        pages.flush()?;
        let length = pages.at - HEADER;
        let digest: Digest = *pages.hasher.finalize().as_bytes();
        Ok((Section { kind: Kind::Memory, offset: HEADER, length, digest }, pages.runs))
    }

    fn add(&mut self, at: u64, page: &[u8]) -> io::Result<()> {
        let many = self.runs.len() >= MAX_EXTENTS;
        match self.runs.last_mut() {
            Some(last) if at - last.end <= GAP || many => {
                let mut gap = at - last.end;
                last.end = at + PAGE;
                while gap > 0 {
                    self.put(&ZEROES)?;
                    gap -= PAGE;
                }
            }
            _ => self.runs.push(at..at + PAGE),
        }
        self.put(page)
    }

    fn put(&mut self, page: &[u8]) -> io::Result<()> {
        self.waiting.extend_from_slice(page);
        if self.waiting.len() >= PIECE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.waiting);
        self.file.write_all_at(&self.waiting, self.at)?;
        self.at += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }
}

const ZEROES: [u8; 4096] = [0; 4096];

fn read_exact_at(source: BorrowedFd<'_>, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(source, &mut *buffer, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buffer = &mut buffer[read..];
                at += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// A file that has no name, or one that says that it is not finished. It is locked as long as it is being written.
struct Aside {
    file: File,
    path: PathBuf,
    folder: PathBuf,
    /// Its name until it is published.
    name: Option<PathBuf>,
}

impl Aside {
    fn create(path: &Path) -> io::Result<Self> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let mut this = match nameless(&folder) {
            Ok(file) => Self { file: file.into(), path: path.to_path_buf(), folder, name: None },
            // The file system has no files without a name (or the kernel).
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::named(path, folder)?,
            Err(errno) => return Err(errno.into()),
        };
        if this.name.is_none() {
            flock(&this.file, FlockOperation::NonBlockingLockExclusive)?;
        }
        // Whatever this process's mask.
        this.file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o400))?;
        this.file.flush()?;
        Ok(this)
    }

    fn named(path: &Path, folder: PathBuf) -> io::Result<Self> {
        for name in names(&folder) {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = match open(&name, flags, Mode::RUSR) {
                Ok(file) => File::from(file),
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno.into()),
            };
            flock(&file, FlockOperation::LockExclusive)?;
            // Somebody may have taken it for a leftover before it was locked.
            if file.metadata()?.nlink() > 0 {
                return Ok(Self { file, path: path.to_path_buf(), folder, name: Some(name) });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Gives the file its name, on the disk.
    fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        let name = match self.name.take() {
            Some(name) => name,
            None => self.link()?,
        };
        let renamed = fs::rename(&name, &self.path);
        if renamed.is_err() {
            self.name = Some(name);
        }
        renamed?;
        File::open(&self.folder)?.sync_all()
    }

    /// A name for a file that has none. It cannot be the final one, since that may be taken.
    fn link(&self) -> io::Result<PathBuf> {
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        for name in names(&self.folder) {
            match linkat(CWD, &own, CWD, &name, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => return Ok(name),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = fs::remove_file(name);
        }
    }
}

/// A file of the folder without a name.
fn nameless(folder: &Path) -> rustix::io::Result<std::os::fd::OwnedFd> {
    if cfg!(test) && std::env::var_os(WITHOUT_NAMELESS).is_some() {
        return Err(Errno::OPNOTSUPP);
    }
    open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR)
}

/// Set where tests want a file system that has no files without a name.
pub(super) const WITHOUT_NAMELESS: &str = "HAYFORK_TEST_WITHOUT_NAMELESS_FILES";

/// Names for files that are not finished.
fn names(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, folder) = (std::process::id(), folder.to_path_buf());
    (0..ATTEMPTS).map(move |_| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        folder.join(format!("{PREFIX}{process}-{number}{SUFFIX}"))
    })
}

/// Removes files of a folder that were never finished and whose writer has died. Gives how many.
///
/// # Errors
/// The folder cannot be read.
pub fn remove_leftovers(folder: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !is_partial(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        // Gone by now, or somebody else's.
        let Ok(file) = open(&path, flags, Mode::empty()) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && fs::remove_file(&path).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_partial(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX))
}
