//! Reading snapshot files.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, OFlags, ftruncate, memfd_create};

use super::format::{self, HEADER, Header, HeaderError, Kind, Section, StateKind};
use super::{FORMAT, Identity, SnapshotError};

/// Bytes of memory that are read, hashed and written at a time: they stay in the processor's cache.
const PIECE: usize = 256 << 10;

/// Bytes that can be read at any place. Files, and bytes in memory for tests.
pub trait Source {
    /// How many there are.
    ///
    /// # Errors
    /// The file system does not say.
    fn length(&self) -> io::Result<u64>;

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) at the end, or what the file system says.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Source for File {
    fn length(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl Source for &[u8] {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let there = start.checked_add(buffer.len()).and_then(|end| self.get(start..end));
        buffer.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A snapshot file whose header, identity and about have been read and are whole.
#[derive(Debug)]
pub struct SnapshotFile<S = File> {
    reader: Reader<S>,
    identity: Identity,
    about: Vec<u8>,
}

impl SnapshotFile {
    /// Opens a file. Nothing of the machine's state or memory is read.
    ///
    /// # Errors
    /// It cannot be read, is no snapshot, of a newer format, cut off or damaged.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let unreadable = |source| SnapshotError::Unreadable { path: path.to_path_buf(), source };
        // Opening a pipe would wait for somebody to write to it.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(SnapshotError::NotASnapshot { path: path.to_path_buf() });
        }
        Self::of(file, path)
    }
}

impl<S: Source> SnapshotFile<S> {
    /// The same for bytes from elsewhere; `path` is for errors.
    ///
    /// # Errors
    /// As [`SnapshotFile::open`].
    pub fn of(source: S, path: &Path) -> Result<Self, SnapshotError> {
        let path = path.to_path_buf();
        let length =
            source.length().map_err(|source| SnapshotError::Unreadable { path: path.clone(), source })?;
        let mut page = vec![0; usize::try_from(length.min(HEADER)).unwrap_or(0)];
        source
            .read(&mut page, 0)
            .map_err(|source| SnapshotError::Unreadable { path: path.clone(), source })?;
        if length < HEADER {
            let begins_as_one = !page.is_empty() && page.iter().zip(b"HAYSNAP\n").all(|(a, b)| a == b);
            return Err(if begins_as_one {
                SnapshotError::Truncated { path, expected: HEADER, found: length }
            } else {
                SnapshotError::NotASnapshot { path }
            });
        }
        let header = Header::parse(&page, length).map_err(|error| match error {
            HeaderError::NotASnapshot => SnapshotError::NotASnapshot { path: path.clone() },
            HeaderError::Newer(found) => SnapshotError::Newer { path: path.clone(), found, known: FORMAT },
            HeaderError::Length(expected) if length < expected => {
                SnapshotError::Truncated { path: path.clone(), expected, found: length }
            }
            HeaderError::Length(_) => {
                SnapshotError::Corrupt { path: path.clone(), what: "there is something behind its end" }
            }
            HeaderError::Corrupt(what) => SnapshotError::Corrupt { path: path.clone(), what },
        })?;
        let reader = Reader { source, path, header };
        let identity = reader.section(Kind::Identity)?;
        let Ok((identity, [])) = postcard::take_from_bytes::<Identity>(&identity) else {
            return Err(reader.corrupt("its identity cannot be read"));
        };
        let about = reader.section(Kind::About)?;
        Ok(Self { reader, identity, about })
    }

    /// What the machine was made of and runs on.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What was saved with it.
    pub fn about(&self) -> &[u8] {
        &self.about
    }

    /// What kind of state it holds.
    pub fn state_kind(&self) -> StateKind {
        self.reader.header.state()
    }

    /// Bytes of pages that it holds.
    pub fn memory_bytes(&self) -> u64 {
        self.reader.header.section(|kind| kind == Kind::Memory).length
    }

    /// Lets the rest be read, if everything that must be the same is.
    ///
    /// # Errors
    /// [`SnapshotError::Foreign`] names what is not.
    pub fn admit(self, here: &Identity, kind: StateKind) -> Result<Admitted<S>, SnapshotError> {
        if let Some(part) = self.identity.difference(here) {
            let value = |identity: &Identity| identity.get(part).map(str::to_owned);
            return Err(SnapshotError::Foreign {
                path: self.reader.path.clone(),
                part: part.to_owned(),
                saved: value(&self.identity),
                here: value(here),
            });
        }
        if self.state_kind() != kind {
            return Err(self.reader.corrupt("it has another backend's state"));
        }
        Ok(Admitted { reader: self.reader, about: self.about, extents: OnceLock::new() })
    }
}

/// A snapshot file that belongs here.
#[derive(Debug)]
pub struct Admitted<S = File> {
    reader: Reader<S>,
    about: Vec<u8>,
    /// Length of the memory and its extents, which the memory and the working set are read by.
    extents: OnceLock<(u64, Vec<Range<u64>>)>,
}

/// The memory of a saved machine, read and compared with its digest.
#[derive(Debug)]
pub struct LoadedMemory {
    /// A memfd that can be sealed and is not yet. Nobody else has it.
    pub memory: OwnedFd,
    /// Its length, in bytes.
    pub length: u64,
    /// Where it has content; the rest are holes, to be read as zeroes.
    pub extents: Vec<Range<u64>>,
}

impl<S: Source> Admitted<S> {
    /// What was saved with the machine.
    pub fn into_about(self) -> Vec<u8> {
        self.about
    }

    /// The machine's state.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub fn state(&self) -> Result<Vec<u8>, SnapshotError> {
        self.reader.section(Kind::State(self.reader.header.state()))
    }

    /// An error that says what is wrong with a state that was read whole, but is none.
    pub fn bad_state(&self, what: &'static str) -> SnapshotError {
        self.reader.corrupt(what)
    }

    /// Pages that a clone writes to at once.
    ///
    /// # Errors
    /// They are damaged, or cannot be read.
    pub fn working_set(&self) -> Result<Vec<Range<u64>>, SnapshotError> {
        let bytes = self.reader.section(Kind::WorkingSet)?;
        let (length, _) = self.extents()?;
        format::read_runs(&bytes, *length).ok_or_else(|| self.reader.corrupt("its working set is none"))
    }

    /// Reads the memory into a memfd with that name, which appears in /proc only.
    ///
    /// # Errors
    /// It is damaged or cannot be read, or this host has no memory for it.
    pub fn memory(&self, name: &str) -> Result<LoadedMemory, SnapshotError> {
        let (length, extents) = self.extents()?;
        let (length, extents) = (*length, extents.clone());
        let section = self.reader.header.section(|kind| kind == Kind::Memory);
        if extents.iter().map(|run| run.end - run.start).sum::<u64>() != section.length {
            return Err(self.reader.corrupt("its memory is not as long as it says"));
        }
        let no_memory = |errno: rustix::io::Errno| SnapshotError::NoMemory { source: errno.into() };
        let memory =
            memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(no_memory)?;
        ftruncate(&memory, length).map_err(no_memory)?;
        let memory = File::from(memory);
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; PIECE];
        let mut at = section.offset;
        for run in &extents {
            let mut place = run.start;
            while place < run.end {
                let bytes = (run.end - place).min(PIECE as u64);
                let piece = &mut buffer[..usize::try_from(bytes).unwrap_or(0)];
                self.reader.read(piece, at)?;
                hasher.update(piece);
                memory.write_all_at(piece, place).map_err(|source| SnapshotError::NoMemory { source })?;
                at += bytes;
                place += bytes;
            }
        }
        self.reader.compare(&section, hasher.finalize())?;
        Ok(LoadedMemory { memory: memory.into(), length, extents })
    }

    fn extents(&self) -> Result<&(u64, Vec<Range<u64>>), SnapshotError> {
        if let Some(extents) = self.extents.get() {
            return Ok(extents);
        }
        let bytes = self.reader.section(Kind::Extents)?;
        let extents =
            format::read_extents(&bytes).ok_or_else(|| self.reader.corrupt("its table of pages is none"))?;
        // Who came first read the same.
        Ok(self.extents.get_or_init(|| extents))
    }
}

#[derive(Debug)]
struct Reader<S> {
    source: S,
    path: PathBuf,
    header: Header,
}

impl<S: Source> Reader<S> {
    fn corrupt(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Corrupt { path: self.path.clone(), what }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), SnapshotError> {
        self.source.read(buffer, offset).map_err(|source| match source.kind() {
            // It has become shorter since it was opened.
            io::ErrorKind::UnexpectedEof => SnapshotError::Truncated {
                path: self.path.clone(),
                expected: self.header.file_length(),
                found: self.source.length().unwrap_or(offset),
            },
            _ => SnapshotError::Unreadable { path: self.path.clone(), source },
        })
    }

    /// A whole section, whose length is bounded by its kind.
    fn section(&self, kind: Kind) -> Result<Vec<u8>, SnapshotError> {
        let section = self.header.section(|found| found == kind);
        let mut bytes = vec![0; usize::try_from(section.length).unwrap_or(0)];
        self.read(&mut bytes, section.offset)?;
        self.compare(&section, blake3::hash(&bytes))?;
        Ok(bytes)
    }

    fn compare(&self, section: &Section, found: blake3::Hash) -> Result<(), SnapshotError> {
        if found == blake3::Hash::from_bytes(section.digest) {
            return Ok(());
        }
        Err(self.corrupt(match section.kind {
            Kind::Memory => "its memory is not what was written",
            Kind::Identity => "its identity is not what was written",
            Kind::About => "what was kept with it is not what was written",
            Kind::Extents => "its table of pages is not what was written",
            Kind::WorkingSet => "its working set is not what was written",
            Kind::State(_) => "its state is not what was written",
        }))
    }
}
