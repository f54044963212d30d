//! The header, and what holds for every section. Pure functions over bytes.

use std::ops::Range;

use super::identity::MAX_IDENTITY;
use crate::backend::MAX_MEMORY_MIB;

/// The format that is written and read.
pub const FORMAT: u32 = 1;

/// Bytes of the header.
pub const HEADER: u64 = PAGE;

/// The most bytes of the saver's own.
pub const MAX_ABOUT: u64 = 1 << 20;

/// The most bytes of a machine's state without its memory. A monitor's guest has 10 KiB for each processor, QEMU's 50 KiB.
pub const MAX_STATE: u64 = 64 << 20;

/// A page of the guest.
pub(super) const PAGE: u64 = 4096;

/// The longest memory: the most RAM, and gaps between its parts.
pub(super) const MAX_MEMORY: u64 = ((MAX_MEMORY_MIB as u64) << 20) + (4 << 30);

/// The most runs of pages.
pub(super) const MAX_EXTENTS: usize = 1 << 20;

/// The most runs of pages of a working set.
pub(super) const MAX_WORKING_SET: usize = 1 << 16;

/// Bytes of a run of pages in a file.
const RUN: usize = 16;

const MAGIC: [u8; 8] = *b"HAYSNAP\n";
const DIGEST: Range<usize> = 24..56;
const TABLE: usize = 56;
const ENTRY: usize = 56;

/// A digest.
pub(super) type Digest = [u8; 32];

/// What [`Kind::State`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// The monitor's.
    Monitor,
    /// QEMU's migration stream.
    Qemu,
}

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Memory,
    Identity,
    About,
    Extents,
    WorkingSet,
    State(StateKind),
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Memory => 1,
            Self::Identity => 2,
            Self::About => 3,
            Self::Extents => 4,
            Self::WorkingSet => 5,
            Self::State(StateKind::Monitor) => 6,
            Self::State(StateKind::Qemu) => 7,
        }
    }

    /// The kind at that place of the table: there are no others, and no other order.
    fn at(index: usize, number: u32) -> Option<Self> {
        let kind = match index {
            0 => Self::Memory,
            1 => Self::Identity,
            2 => Self::About,
            3 => Self::Extents,
            4 => Self::WorkingSet,
            5 if number == 7 => Self::State(StateKind::Qemu),
            5 => Self::State(StateKind::Monitor),
            _ => return None,
        };
        (kind.number() == number).then_some(kind)
    }

    fn most(self) -> u64 {
        match self {
            Self::Memory => MAX_MEMORY,
            Self::Identity => MAX_IDENTITY,
            Self::About => MAX_ABOUT,
            Self::Extents => (8 + MAX_EXTENTS * RUN) as u64,
            Self::WorkingSet => (MAX_WORKING_SET * RUN) as u64,
            Self::State(_) => MAX_STATE,
        }
    }
}

/// Number of sections.
pub(super) const SECTIONS: usize = 6;
const COUNT: u32 = 6;

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) kind: Kind,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) digest: Digest,
}

/// The first page of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// In the order of the file, the first one right behind the header, each right behind the one before.
    pub(super) sections: [Section; SECTIONS],
}

/// What is wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    NotASnapshot,
    Newer(u32),
    Corrupt(&'static str),
    /// The file should have that many bytes.
    Length(u64),
}

impl Header {
    /// Bytes of the whole file.
    pub(super) fn file_length(&self) -> u64 {
        self.sections.last().map_or(HEADER, |last| last.offset + last.length)
    }

    /// The section of that kind.
    pub(super) fn section(&self, wanted: impl Fn(Kind) -> bool) -> Section {
        // All kinds are there, in fixed places; the first stands for a caller's mistake, whose digest will not fit.
        self.sections.iter().copied().find(|section| wanted(section.kind)).unwrap_or(self.sections[0])
    }

    /// What the state is.
    pub(super) fn state(&self) -> StateKind {
        match self.sections[SECTIONS - 1].kind {
            Kind::State(kind) => kind,
            _ => StateKind::Monitor,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(TABLE);
        page.extend(MAGIC);
        page.extend(FORMAT.to_le_bytes());
        page.extend(COUNT.to_le_bytes());
        page.extend(self.file_length().to_le_bytes());
        page.extend([0; 32]);
        for Section { kind, offset, length, digest } in self.sections {
            page.extend(kind.number().to_le_bytes());
            page.extend([0; 4]);
            page.extend(offset.to_le_bytes());
            page.extend(length.to_le_bytes());
            page.extend(digest);
        }
        page.resize(usize::try_from(HEADER).unwrap_or(0), 0);
        let digest = *blake3::hash(&page).as_bytes();
        page[DIGEST].copy_from_slice(&digest);
        page
    }

    /// Reads a whole first page of a file of `length` bytes.
    pub(super) fn parse(page: &[u8], length: u64) -> Result<Self, HeaderError> {
        let mut blank = page.to_vec();
        let digest = blank.get(DIGEST).map(<[u8]>::to_vec).ok_or(HeaderError::NotASnapshot)?;
        blank[DIGEST].fill(0);
        if page[..8] != MAGIC {
            return Err(HeaderError::NotASnapshot);
        }
        if digest != blake3::hash(&blank).as_bytes() {
            return Err(HeaderError::Corrupt("its header is not what was written"));
        }
        let format = word(page, 8);
        if format > FORMAT {
            return Err(HeaderError::Newer(format));
        }
        if format != FORMAT || word(page, 12) != COUNT {
            return Err(HeaderError::Corrupt("its header contradicts itself"));
        }
        let expected = long(page, 16);
        if expected != length {
            return Err(HeaderError::Length(expected));
        }
        let mut at = HEADER;
        let mut sections = Vec::with_capacity(SECTIONS);
        for index in 0..SECTIONS {
            let entry = &page[TABLE + index * ENTRY..][..ENTRY];
            let kind = Kind::at(index, word(entry, 0)).filter(|_| word(entry, 4) == 0);
            let (offset, length) = (long(entry, 8), long(entry, 16));
            let Some(kind) = kind.filter(|kind| offset == at && length <= kind.most()) else {
                return Err(HeaderError::Corrupt("its table of sections contradicts itself"));
            };
            at += length;
            let mut digest = Digest::default();
            digest.copy_from_slice(&entry[24..ENTRY]);
            sections.push(Section { kind, offset, length, digest });
        }
        let rest = &page[TABLE + SECTIONS * ENTRY..];
        match <[Section; SECTIONS]>::try_from(sections) {
            Ok(sections) if at == expected && rest.iter().all(|&byte| byte == 0) => Ok(Self { sections }),
            _ => Err(HeaderError::Corrupt("its table of sections contradicts itself")),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Runs of pages as bytes.
pub(super) fn write_runs(bytes: &mut Vec<u8>, runs: &[Range<u64>]) {
    for run in runs {
        bytes.extend(run.start.to_le_bytes());
        bytes.extend(run.end.to_le_bytes());
    }
}

/// Runs of whole pages below `length`, in order, each with something in it and none touching another; `None` if they are not
/// that.
pub(super) fn read_runs(bytes: &[u8], length: u64) -> Option<Vec<Range<u64>>> {
    if !bytes.len().is_multiple_of(RUN) {
        return None;
    }
    let mut runs: Vec<Range<u64>> = Vec::with_capacity(bytes.len() / RUN);
    for entry in bytes.chunks_exact(RUN) {
        let run = long(entry, 0)..long(entry, 8);
        let whole = run.start.is_multiple_of(PAGE) && run.end.is_multiple_of(PAGE);
        let apart = runs.last().is_none_or(|last| last.end < run.start);
        if !whole || !apart || run.is_empty() || run.end > length {
            return None;
        }
        runs.push(run);
    }
    Some(runs)
}

/// The extents section: the length of the memory, and its runs.
pub(super) fn read_extents(bytes: &[u8]) -> Option<(u64, Vec<Range<u64>>)> {
    let (length, runs) = bytes.split_at_checked(8)?;
    let length = long(length, 0);
    if !length.is_multiple_of(PAGE) || length > MAX_MEMORY {
        return None;
    }
    Some((length, read_runs(runs, length)?))
}
