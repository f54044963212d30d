//! A guest's RAM: the file that QEMU maps, and copies of it at rest.
//!
//! ```text
//!  launched:  memfd, sealed in size ◄── MAP_SHARED ── QEMU            keep(): what the file holds is copied
//!  restored:  memfd, sealed whole   ◄── MAP_PRIVATE ── QEMU, QEMU …   keep(): the same, and over it the pages that this QEMU has
//!             (an Image)                 its own pages where it wrote         of its own, read from its memory
//! ```
//! Nobody can change an [`Image`], so any number of machines can be made of it at once. Reading another process's memory is allowed to
//! its parent unless the host forbids it by `kernel.yama.ptrace_scope` of 2 or 3.
//!
//! Copies are whole files, not layers: QEMU maps one file. Pages of zeroes are left out. Most of the cost is new pages: about 1 ms for
//! each MiB that is not zero.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use hayfork_vmm::after_fork::Released;
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, ftruncate, memfd_create, seek};
use rustix::io::Errno;

/// What the RAM of a launched machine is called in lists of descriptors and mappings.
const OWN_NAME: &str = "hayfork-ram";
/// The same for what restored machines are made of.
pub(crate) const IMAGE_NAME: &str = "hayfork-template";

/// Size of a page in `/proc/PID/pagemap`.
const PAGE: u64 = 4096;
/// Bytes copied at a time; small enough for the processor's cache.
const PIECE: usize = 64 * 1024;
const PAGE_BYTES: usize = 4096;
static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Bits of an entry of `/proc/PID/pagemap` (Linux, Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;

/// The RAM of one machine.
#[derive(Debug)]
pub(crate) enum Ram {
    /// Of a machine that was launched: its own, shared with this process.
    Own(Memory),
    /// Of a machine that was restored: private pages over those of an image.
    Over(Arc<Image>),
}

/// Memory without a name in a file system.
#[derive(Debug)]
pub(crate) struct Memory {
    /// A child made by fork must not keep it when it is given up here.
    _released: Released,
    file: File,
}

/// RAM that nobody can change any more.
#[derive(Debug)]
pub(crate) struct Image(Memory);

impl Ram {
    /// RAM of that size for a machine that starts anew. Its size is fixed, so that QEMU cannot lose pages from under the guest.
    /// Pages come as the guest touches them.
    ///
    /// # Errors
    /// There is no memory or descriptor left.
    pub(crate) fn new(mib: u32) -> io::Result<Self> {
        let memory = Memory::new(OWN_NAME, u64::from(mib) << 20)?;
        fcntl_add_seals(&memory.file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self::Own(memory))
    }

    /// The file.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(memory) => memory.file.as_fd(),
            Self::Over(image) => image.0.file.as_fd(),
        }
    }

    /// Whether what the guest writes goes to the file.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Keeps the content as it is now. The guest must be at rest, and `pid` be the process that runs it.
    ///
    /// # Errors
    /// There is no memory or descriptor left, or the process's memory cannot be read.
    pub(crate) fn keep(&self, pid: u32) -> io::Result<Image> {
        match self {
            Self::Own(memory) => {
                let copy = memory.like()?;
                copy.take_extents(memory, 0..memory.len()?)?;
                Image::seal(copy)
            }
            Self::Over(image) => {
                let base = &image.0;
                let process = Process::open(pid)?;
                let copy = base.like()?;
                let mut at = 0;
                for Run { offset, address } in process.own_pages(base)? {
                    copy.take_extents(base, at..offset.start)?;
                    copy.take(&process.memory, address, offset.clone())?;
                    at = offset.end;
                }
                copy.take_extents(base, at..base.len()?)?;
                Image::seal(copy)
            }
        }
    }
}

impl Memory {
    fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let descriptor = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&descriptor, bytes)?;
        Ok(Self { _released: Released::new(&descriptor), file: descriptor.into() })
    }

    /// An empty one of the same size, to become an image.
    fn like(&self) -> io::Result<Self> {
        Self::new(IMAGE_NAME, self.len()?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Where there is content in `within`.
    fn extents(&self, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut all = Vec::new();
        let mut at = within.start;
        while at < within.end {
            let start = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(start) if start < within.end => start,
                Ok(_) | Err(Errno::NXIO) => break, // only a hole from here on
                Err(errno) => return Err(errno.into()),
            };
            at = seek(&self.file, SeekFrom::Hole(start))?.min(within.end);
            all.push(start..at);
        }
        Ok(all)
    }

    /// Copies what `other` has in these places.
    fn take_extents(&self, other: &Self, within: Range<u64>) -> io::Result<()> {
        for extent in other.extents(within)? {
            self.take(&other.file, extent.start, extent)?;
        }
        Ok(())
    }

    /// Copies to `to`, whole pages, from `source` at `from`. Pages of zeroes are left out: this one is empty there.
    fn take(&self, source: &File, from: u64, to: Range<u64>) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        let mut at = to.start;
        while at < to.end {
            let count = (to.end - at).min(PIECE as u64);
            let piece = &mut buffer[..usize::try_from(count).unwrap_or(PIECE)];
            source.read_exact_at(piece, from + (at - to.start))?;
            for run in runs(piece) {
                self.file.write_all_at(&piece[run.clone()], at + run.start as u64)?;
            }
            at += count;
        }
        Ok(())
    }
}

/// Where whole pages of `bytes` are not all zeroes.
fn runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    for page in bytes.chunks(PAGE_BYTES) {
        let end = at + page.len();
        if page != &ZEROES[..page.len()] {
            match all.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => all.push(at..end),
            }
        }
        at = end;
    }
    all
}

impl Image {
    /// Takes memory as it is now.
    fn seal(memory: Memory) -> io::Result<Self> {
        fcntl_add_seals(
            &memory.file,
            SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?;
        Ok(Self(memory))
    }

    /// Takes memory that was read from a file, and that nobody else has.
    ///
    /// # Errors
    /// It cannot be sealed.
    pub(crate) fn loaded(memory: OwnedFd) -> io::Result<Self> {
        Self::seal(Memory { _released: Released::new(&memory), file: memory.into() })
    }

    /// Where there is content.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(crate) fn pieces(&self) -> io::Result<Vec<(Range<u64>, BorrowedFd<'_>)>> {
        let extents = self.0.extents(0..self.0.len()?)?;
        Ok(extents.into_iter().map(|extent| (extent, self.0.file.as_fd())).collect())
    }
}

/// A process whose memory is read.
struct Process {
    memory: File,
    pagemap: File,
    pid: u32,
}

/// Pages that a process has of its own where it maps a file.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    /// In the file.
    offset: Range<u64>,
    /// In the process.
    address: u64,
}

/// A mapping of a file, or of a part of it.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    address: Range<u64>,
    offset: u64,
}

impl Process {
    fn open(pid: u32) -> io::Result<Self> {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        Ok(Self { memory: open("mem")?, pagemap: open("pagemap")?, pid })
    }

    /// The pages that it has of its own in its mapping of `file`, by offset.
    fn own_pages(&self, file: &Memory) -> io::Result<Vec<Run>> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid))?;
        let metadata = file.file.metadata()?;
        let mut mappings = mappings(&maps, metadata.ino(), metadata.dev());
        mappings.sort_unstable_by_key(|mapping| mapping.offset);
        let length = file.len()?;
        let mut all = Vec::new();
        let mut covered = 0;
        for Mapping { address, offset } in mappings {
            if offset != covered {
                break;
            }
            covered = address
                .end
                .checked_sub(address.start)
                .and_then(|bytes| bytes.checked_add(offset))
                .unwrap_or(u64::MAX);
            if covered > length {
                // Whoever says this is not the QEMU that was started, or not any more: its pages belong nowhere.
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the process maps more than there is of the memory",
                ));
            }
            self.own_in(&address, offset, &mut all)?;
        }
        if covered == length {
            return Ok(all);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the process does not map the whole of the memory"))
    }

    /// Adds the pages of one mapping.
    fn own_in(&self, address: &Range<u64>, offset: u64, all: &mut Vec<Run>) -> io::Result<()> {
        let mut entries = vec![0; PIECE];
        let mut at = address.start;
        while at < address.end {
            let pages = ((address.end - at) / PAGE).min(PIECE as u64 / 8);
            let entries = &mut entries[..usize::try_from(pages * 8).unwrap_or(PIECE)];
            self.pagemap.read_exact_at(entries, at / PAGE * 8)?;
            for entry in entries.chunks_exact(8) {
                let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
                if entry & SWAPPED != 0 || entry & (PRESENT | OF_A_FILE) == PRESENT {
                    let start = offset + (at - address.start);
                    match all.last_mut() {
                        Some(last) if last.offset.end == start => last.offset.end += PAGE,
                        _ => all.push(Run { offset: start..start + PAGE, address: at }),
                    }
                }
                at += PAGE;
            }
        }
        Ok(())
    }
}

/// The mappings of a file in the text of `/proc/PID/maps`: `55d0c0000000-55d0c0001000 rw-p 00000000 00:01 1034  /memfd:…`.
fn mappings(maps: &str, inode: u64, device: u64) -> Vec<Mapping> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let parse = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = fields.nth(1)?;
        let of_the_file = fields.next()? == device && fields.next()?.parse() == Ok(inode);
        let number = |text| u64::from_str_radix(text, 16).ok();
        let mapping = Mapping { address: number(start)?..number(end)?, offset: number(offset)? };
        of_the_file.then_some(mapping)
    };
    maps.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests;
