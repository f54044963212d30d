//! When a stock is made up for: not while a caller runs what it has just taken.
//!
//! Making a machine hinders others of the process: it changes the memory map that all of them share, and takes a processor. A
//! caller who has been handed a machine runs something in it at once, mostly something short: with a replacement made at the
//! same time it takes twice as long (`cargo bench -p hayfork-sandbox --bench clones`). So what is made up for waits until
//! nothing was taken for a moment, but not for long.

use std::time::Duration;

use tokio::time::Instant;

/// Nothing was taken for that long: what was taken last has run something short.
const QUIET: Duration = Duration::from_millis(20);
/// Machines that are taken all the time are made up for after that long.
const PATIENCE: Duration = Duration::from_millis(100);

/// What was taken of a stock that is not full.
#[derive(Debug, Default)]
pub(super) struct Lull {
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Lull {
    /// One was taken.
    pub(super) fn taken(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// The stock is full, or as good as.
    pub(super) fn full(&mut self) {
        self.first = None;
    }

    /// When what was taken may be made up for; `None`: now.
    pub(super) fn until(&self, now: Instant) -> Option<Instant> {
        let (first, last) = (self.first?, self.last?);
        Some((last + QUIET).min(first + PATIENCE)).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_nothing_is_taken_and_not_later_than_patience() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut lull = Lull::default();
        assert_eq!(lull.until(start), None, "nothing was taken");
        lull.taken(at(0));
        assert_eq!(lull.until(at(1)), Some(at(20)));
        assert_eq!(lull.until(at(20)), None);
        for ms in 1..=9 {
            lull.taken(at(ms * 10));
        }
        assert_eq!(lull.until(at(91)), Some(at(100)), "the first one has waited long enough then");
        lull.taken(at(105));
        assert_eq!(lull.until(at(106)), None, "until it is full again");
        lull.full();
        lull.taken(at(110));
        assert_eq!(lull.until(at(111)), Some(at(130)));
    }
}
