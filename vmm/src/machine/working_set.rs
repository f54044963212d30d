//! Which pages a clone is given ahead, by what another one has used.
//!
//! Pages that it wrote, in any case: they are copied sooner or later, and in one call that is cheaper than in a fault each.
//! Where the hypervisor keeps the processor's page tables by software, a page that is only read costs a fault as well. KVM
//! then fills the entries of a whole group of pages (`PTE_PREFETCH_NUM`), but only of those that are the guest's own and so
//! writable. Making a group of pages the guest's own pays if enough of it is used.

use std::ops::Range;

use crate::memory::PAGE;

/// Pages in a group, which begins at a multiple of its size.
const GROUP: u64 = 8;

/// Pages that may be copied ahead to save a fault. Measured on `kvm_pvm`, the time of a fault is that of 2 (3.5 and 7.4
/// microseconds); one more is worth it, since the copies are made before anybody waits.
const PAGES_FOR_A_FAULT: u64 = 3;

/// Pages to be made ahead, by those that were touched and those that were written, both in order; below `end`. What was touched was
/// looked at first, and the guest goes on: some of what it has written since may not be among it.
pub(super) fn of(touched: &[Range<u64>], written: &[Range<u64>], end: u64) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    let mut add = |page: u64| {
        let range = page * PAGE..(page + 1) * PAGE;
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    };
    let mut touched = pages(touched).peekable();
    let mut written = pages(written).peekable();
    let mut mine = Vec::new();
    while let Some(first) = touched.peek().copied().into_iter().chain(written.peek().copied()).min() {
        let group = first / GROUP;
        let in_group = |page: &u64| *page / GROUP == group;
        let mut used: u64 = 0;
        while touched.next_if(in_group).is_some() {
            used += 1;
        }
        mine.clear();
        while let Some(page) = written.next_if(in_group) {
            mine.push(page);
        }
        let copies = GROUP - mine.len() as u64;
        if copies < PAGES_FOR_A_FAULT * used.max(mine.len() as u64).saturating_sub(1) {
            (group * GROUP..(group + 1) * GROUP).filter(|page| *page < end / PAGE).for_each(&mut add);
        } else {
            mine.iter().copied().for_each(&mut add);
        }
    }
    all
}

fn pages(ranges: &[Range<u64>]) -> impl Iterator<Item = u64> {
    ranges.iter().flat_map(|range| range.start / PAGE..range.end / PAGE)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Ranges are meant.
mod tests {
    use super::*;

    fn ranges(pages: &[Range<u64>]) -> Vec<Range<u64>> {
        pages.iter().map(|range| range.start * PAGE..range.end * PAGE).collect()
    }

    #[test]
    fn groups_of_which_enough_is_used_are_whole_and_of_others_what_was_written() {
        let touched = ranges(&[0..3, 8..12, 16..19, 24..25, 32..64, 70..72]);
        let written = ranges(&[2..3, 16..19, 70..71]);
        // 0..8: three used, one of them written. 8..16: four read. 16..24: three written. 24..32: one read. 64..72: one of each.
        let expected = ranges(&[2..3, 8..24, 32..64, 70..71]);
        assert_eq!(of(&touched, &written, 1 << 30), expected);
    }

    #[test]
    fn what_was_written_later_than_the_touched_was_looked_at_counts_as_well() {
        let touched = ranges(&[40..41]);
        let written = ranges(&[0..8, 9..10, 17..18, 40..41, 64..68]);
        assert_eq!(of(&touched, &written, 1 << 30), ranges(&[0..8, 9..10, 17..18, 40..41, 64..72]));
        assert_eq!(of(&[], &ranges(&[3..4]), 1 << 30), ranges(&[3..4]));
    }

    #[test]
    fn nothing_beyond_the_end() {
        let all = ranges(&[8..9, 9..14]);
        assert_eq!(of(&all, &[], 14 * PAGE).first(), Some(&(8 * PAGE..14 * PAGE)));
        assert!(of(&[], &[], 0).is_empty());
    }
}
