use super::*;
use crate::poller::{Poller, Token};
use std::os::fd::OwnedFd;

const MS: Duration = Duration::from_millis(1);

/// A pipe's reading end under a pace, and a clock.
struct Bench {
    poller: Poller,
    pace: Pace,
    read: OwnedFd,
    write: OwnedFd,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let poller = Poller::new().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let watch = poller.watch(&read, Token::Worker(1)).unwrap();
        Self { poller, pace: Pace::new(watch), read, write, now: Instant::now() }
    }

    /// A read that emptied the pipe, `after` the one before; gives the length of the pause.
    fn small(&mut self, after: Duration) -> Duration {
        self.brought(after, 10)
    }

    fn brought(&mut self, after: Duration, n: usize) -> Duration {
        self.now += after;
        self.pace.hurry();
        self.pace.brought(&self.read, n, 64 * 1024, self.now);
        self.pace.until().map_or(Duration::ZERO, |until| until - self.now)
    }

    /// Whether a write wakes the event loop.
    fn is_heard(&self) -> bool {
        rustix::io::write(&self.write, b"x").unwrap();
        let mut heard = false;
        self.poller.wait(true, None, |_| heard = true).unwrap();
        heard
    }
}

#[test]
fn single_lines_are_read_at_once() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        assert_eq!(bench.small(50 * MS), Duration::ZERO);
        assert!(bench.is_heard());
    }
}

#[test]
fn a_burst_is_gathered_and_wakes_nobody_until_it_is_over() {
    let mut bench = Bench::new();
    assert_eq!(bench.small(MS), Duration::ZERO);
    for _ in 0..3 {
        assert_eq!(bench.small(MS), LONGEST);
        assert!(!bench.is_heard());
    }
    bench.pace.ran_dry(&bench.read);
    let mut heard = false;
    bench.poller.wait(true, None, |_| heard = true).unwrap();
    assert!(heard, "what came meanwhile is told when the loop listens again");
    assert!(bench.is_heard());
    assert_eq!(bench.small(50 * MS), Duration::ZERO);
}

#[test]
fn an_answer_to_input_is_the_first_output_after_a_silence() {
    let mut bench = Bench::new();
    bench.small(MS);
    for _ in 0..3 {
        assert_eq!(bench.small(MS), LONGEST);
        bench.pace.restart(&bench.read);
        assert_eq!(bench.pace.until(), None);
        assert!(bench.is_heard());
        assert_eq!(bench.small(MS), Duration::ZERO);
    }
}

#[test]
fn whoever_prints_much_is_hardly_held_up() {
    let mut bench = Bench::new();
    bench.small(MS);
    assert_eq!(bench.small(MS), LONGEST);
    let pauses: Vec<_> = (0..4).map(|_| bench.brought(MS, MUCH)).collect();
    assert!(pauses.is_sorted_by(|a, b| b < a || a.is_zero()), "{pauses:?}");
    assert_eq!(pauses.last(), Some(&Duration::ZERO));
    // Less again: slowly more.
    assert_eq!(bench.small(MS), SHORTEST);
    assert_eq!(bench.small(MS), 2 * SHORTEST);
}

#[test]
fn a_full_buffer_is_followed_by_the_next_read() {
    let mut bench = Bench::new();
    bench.small(MS);
    assert_eq!(bench.small(MS), LONGEST);
    bench.pace.hurry();
    bench.pace.brought(&bench.read, 100, 100, bench.now);
    assert_eq!(bench.pace.until(), None);
}
