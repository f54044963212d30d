//! How old snapshots are that tests restore, and what the host knows about a guest's time. Part of several test programs.
#![allow(dead_code)] // each of them uses a part of it

use std::time::{Duration, Instant};

/// What a guest's clock may be off by, beside the time that passes while it is asked.
pub(crate) const ACCURACY: Duration = Duration::from_millis(50);

/// Environment variable: one more age, in seconds.
const ENVIRONMENT: &str = "HAYFORK_TEST_AGE";

/// Ages to restore at, youngest first.
pub(crate) fn ages() -> Vec<Duration> {
    let more = std::env::var(ENVIRONMENT).ok().map(|text| text.parse().expect("a number of seconds"));
    [0, 10].into_iter().chain(more).map(Duration::from_secs).collect()
}

/// Waits until something is that old.
pub(crate) fn wait_for_age(since: Instant, age: Duration) {
    std::thread::sleep(age.saturating_sub(since.elapsed()));
}

/// How much time has passed for a guest between two readings of a clock of its own, as its host knows it: no less than lies
/// between the end of the first and the beginning of the second, and no more than between the other ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bracket {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl Bracket {
    /// For readings that were asked for and answered at these times, if the guest has lived through all of it.
    pub(crate) fn between(first: (Instant, Instant), second: (Instant, Instant)) -> Self {
        Self { least: second.0 - first.1, most: second.1 - first.0 }
    }

    /// Fails if a guest says that another time has passed.
    pub(crate) fn check(&self, passed: Duration, what: &str) {
        let fits = passed + ACCURACY >= self.least && passed <= self.most + ACCURACY;
        assert!(fits, "{what}: the guest says {passed:?}, the host {self:?}");
    }
}
