//! Which pages of a private mapping were written: they are the process's own, and no longer those of a file. And which were
//! touched at all: they are mapped.
//!
//! `/proc/self/pagemap` says it for each page (Linux, Documentation/admin-guide/mm/pagemap.rst); what it hides from the
//! unprivileged are addresses only.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::{PAGE, proc};

/// Bits of an entry.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;

/// Entries that are read at a time.
const BATCH: u64 = 16 * 1024;

/// What is asked of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// That it was written.
    Written,
    /// That it was read or written.
    Touched,
}

impl Which {
    fn holds_for(self, entry: u64) -> bool {
        match self {
            Self::Written => entry & SWAPPED != 0 || entry & (PRESENT | OF_A_FILE) == PRESENT,
            Self::Touched => entry & (SWAPPED | PRESENT) != 0,
        }
    }
}

/// Offsets of such pages in `size` bytes of this process's memory from `start` on, whole pages, in order. Runs less than
/// `gap` pages apart are given as one, with what is between.
pub(super) fn pages(which: Which, start: u64, size: u64, gap: u64) -> io::Result<Vec<Range<u64>>> {
    let pagemap = proc::pagemap()?;
    let mut runs = Runs { all: Vec::new(), gap: gap * PAGE };
    let pages = size / PAGE;
    let mut entries = vec![0; usize::try_from(BATCH.min(pages)).unwrap_or(0) * 8];
    let mut page = 0;
    while page < pages {
        let count = BATCH.min(pages - page);
        let entries = &mut entries[..usize::try_from(count).unwrap_or(0) * 8];
        pagemap.read_exact_at(entries, (start / PAGE + page) * 8)?;
        for (at, entry) in (page..).zip(entries.chunks_exact(8)) {
            let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
            if which.holds_for(entry) {
                runs.add(at * PAGE..(at + 1) * PAGE);
            }
        }
        page += count;
    }
    Ok(runs.all)
}

/// Ranges in order, joined where they are close.
pub(super) struct Runs {
    pub(super) all: Vec<Range<u64>>,
    pub(super) gap: u64,
}

impl Runs {
    /// Adds a range that begins no earlier than the last one.
    pub(super) fn add(&mut self, range: Range<u64>) {
        match self.all.last_mut() {
            Some(last) if range.start <= last.end + self.gap => last.end = last.end.max(range.end),
            _ => self.all.push(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress, GuestMemoryRegion};

    use super::*;
    use crate::memory::GuestRam;

    #[test]
    fn close_ranges_are_joined() {
        let mut runs = Runs { all: Vec::new(), gap: 10 };
        for range in [0..5, 5..7, 17..20, 31..40, 33..35] {
            runs.add(range);
        }
        assert_eq!(runs.all, [0..20, 31..40]);
    }

    #[test]
    fn written_pages_and_no_others() {
        let ram = GuestRam::new(64 << 20).unwrap();
        let region = &ram.regions()[0];
        for page in [3, 4, 20, 16_383] {
            ram.memory().write_obj(1u8, GuestAddress(page * PAGE + 7)).unwrap();
        }
        let found = pages(Which::Written, region.as_ptr() as u64, region.len(), 0).unwrap();
        // The host may take large pages.
        for page in [3, 4, 20, 16_383] {
            assert!(found.iter().any(|range| range.contains(&(page * PAGE))), "{found:?}");
        }
        let bytes: u64 = found.iter().map(|range| range.end - range.start).sum();
        assert!(bytes <= 8 << 20, "{found:?}");
    }
}
