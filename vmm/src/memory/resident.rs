//! How much of a guest's RAM is there: pages that the host had to give, and pages of images that guests share.

use std::io::{self, BufRead, BufReader};
use std::ops::Range;

use super::proc;

/// Bytes that take host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Pages of guest RAM that are this guest's alone.
    pub own: u64,
    /// Unchanged pages of images, which other guests may use too.
    pub shared: u64,
    /// What the process has written outside of guest RAM.
    pub rest: u64,
}

/// Asks the kernel about the mappings of this process that lie in `ranges` of addresses.
///
/// # Errors
/// The kernel does not say.
pub(super) fn resident(ranges: &[Range<u64>]) -> io::Result<Resident> {
    // `smaps` and not `smaps_rollup`: the process has much else.
    count(BufReader::new(proc::smaps()?), ranges)
}

fn count(smaps: impl BufRead, ranges: &[Range<u64>]) -> io::Result<Resident> {
    let mut sum = Resident::default();
    let mut inside = false;
    for line in smaps.lines() {
        let line = line?;
        let Some((name, rest)) = line.split_once(char::is_whitespace) else { continue };
        if let Some(mapping) = addresses(name) {
            inside = ranges.iter().any(|range| range.start <= mapping.start && mapping.end <= range.end);
        } else {
            let kib = || rest.trim().strip_suffix(" kB").and_then(|number| number.parse::<u64>().ok());
            match name {
                // Private pages of an image that were written are anonymous too.
                "Anonymous:" if inside => sum.own += kib().unwrap_or(0) << 10,
                "Rss:" if inside => sum.shared += kib().unwrap_or(0) << 10,
                "Private_Dirty:" if !inside => sum.rest += kib().unwrap_or(0) << 10,
                _ => {}
            }
        }
    }
    sum.shared = sum.shared.saturating_sub(sum.own);
    Ok(sum)
}

/// The addresses of a mapping's first line: `7f00-7f10`.
fn addresses(word: &str) -> Option<Range<u64>> {
    let (start, end) = word.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 \n\
Size:               1024 kB\n\
Rss:                 100 kB\n\
Pss:                  50 kB\n\
Anonymous:           100 kB\n\
VmFlags: rd wr mr mw me ac\n\
7f0000100000-7f0000200000 rw-p 01000000 00:01 7 /memfd:hayfork-kernel (deleted)\n\
Rss:                 600 kB\n\
Anonymous:            20 kB\n\
7f0000200000-7f0000300000 r-xp 00000000 08:01 9 /usr/lib/x.so\n\
Rss:                 999 kB\n\
Private_Dirty:         8 kB\n\
Anonymous:           999 kB\n";

    #[test]
    fn only_mappings_inside_count() {
        let range = 0x7f00_0000_0000..0x7f00_0020_0000;
        let found = count(SMAPS.as_bytes(), &[range]).unwrap();
        assert_eq!(found, Resident { own: 120 << 10, shared: 580 << 10, rest: 8 << 10 });
        assert_eq!(count(SMAPS.as_bytes(), &[]).unwrap(), Resident { rest: 8 << 10, ..Resident::default() });
        assert_eq!(
            count("nonsense\n1-2\n-\n".as_bytes(), std::slice::from_ref(&(0..9))).unwrap(),
            Resident::default()
        );
    }
}
