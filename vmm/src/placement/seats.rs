//! How many machines of the [rule](super) are in this process.
//!
//! A number and the process that it is of, changed together: a child made by `fork` inherits the number without the machines, whose
//! handles are inert there, and counts its own from 0. Nothing waits here, so nothing can be left locked by a fork.

use std::sync::atomic::{AtomicU64, Ordering};

/// Seats that are taken.
#[derive(Debug, Default)]
pub(super) struct Seats(AtomicU64);

/// The seats of this process.
pub(super) fn of_this_process() -> &'static Seats {
    static SEATS: Seats = Seats(AtomicU64::new(0));
    &SEATS
}

/// One of them, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: &'static Seats,
    process: u32,
}

impl Seats {
    /// One, if fewer than `most` are taken.
    pub(super) fn take(&'static self, most: usize) -> Option<Seat> {
        self.take_as(std::process::id(), most)
    }

    /// One, however many are taken.
    pub(super) fn take_beyond(&'static self) -> Seat {
        let process = std::process::id();
        self.change(process, |taken| Some(taken.saturating_add(1)));
        Seat { seats: self, process }
    }

    /// Whether there is one, at this moment.
    pub(super) fn has_one(&self, most: usize) -> bool {
        let taken = Count::unpack(self.0.load(Ordering::SeqCst)).of(std::process::id());
        (taken as usize) < most
    }

    fn take_as(&'static self, process: u32, most: usize) -> Option<Seat> {
        let taken = self.change(process, |taken| ((taken as usize) < most).then(|| taken.saturating_add(1)));
        // Not made before it is taken: its end would give one back.
        taken.then(|| Seat { seats: self, process })
    }

    /// Changes what is taken by `process` as `to` says; whether it did.
    fn change(&self, process: u32, to: impl Fn(u32) -> Option<u32>) -> bool {
        let changed = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |packed| {
            let taken = to(Count::unpack(packed).of(process))?;
            Some(Count { process, taken }.pack())
        });
        changed.is_ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // In a child that handle was of no machine.
        if self.process == std::process::id() {
            self.seats.change(self.process, |taken| taken.checked_sub(1));
        }
    }
}

/// What the number holds.
#[derive(Clone, Copy)]
struct Count {
    process: u32,
    taken: u32,
}

impl Count {
    fn unpack(packed: u64) -> Self {
        let [p0, p1, p2, p3, t0, t1, t2, t3] = packed.to_le_bytes();
        Self { process: u32::from_le_bytes([p0, p1, p2, p3]), taken: u32::from_le_bytes([t0, t1, t2, t3]) }
    }

    fn pack(self) -> u64 {
        u64::from(self.taken) << 32 | u64::from(self.process)
    }

    /// What that process has taken.
    fn of(self, process: u32) -> u32 {
        if self.process == process { self.taken } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn seats() -> &'static Seats {
        Box::leak(Box::default())
    }

    fn taken(seats: &Seats) -> u32 {
        Count::unpack(seats.0.load(Ordering::SeqCst)).taken
    }

    #[test]
    fn there_are_as_many_as_the_bound_says_and_one_that_is_given_back_is_there_again() {
        let seats = seats();
        let (one, two) = (seats.take(2).unwrap(), seats.take(2).unwrap());
        assert!(seats.take(2).is_none() && !seats.has_one(2));
        // Another bound, of the same process.
        assert!(seats.has_one(3));
        drop(seats.take(3).unwrap());
        drop(one);
        let again = seats.take(2).unwrap();
        assert!(seats.take(2).is_none());
        drop((two, again));
        assert_eq!(taken(seats), 0);
        assert!(seats.take(0).is_none());
    }

    #[test]
    fn one_beyond_the_bound_counts_like_the_others() {
        let seats = seats();
        let one = seats.take(1).unwrap();
        let beyond = seats.take_beyond();
        drop(one);
        assert!(seats.take(1).is_none());
        drop(beyond);
        assert!(seats.take(1).is_some());
    }

    #[test]
    fn a_child_counts_its_own_and_gives_back_none_of_its_parent_s() {
        let seats = seats();
        let ours = seats.take(1).unwrap();
        let child = std::process::id() + 1;
        let its = seats.take_as(child, 1).expect("its parent's does not count");
        assert!(seats.take_as(child, 1).is_none());
        // What it inherited, and what belongs to another process than this.
        drop((ours, its));
        assert_eq!((taken(seats), seats.take_as(child, 1).is_none()), (1, true));
    }

    #[test]
    fn many_at_once_never_take_more_than_there_are_and_lose_none() {
        const MOST: usize = 5;
        let (seats, here) = (seats(), AtomicU64::new(0));
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..2000 {
                        let Some(seat) = seats.take(MOST) else { continue };
                        assert!(here.fetch_add(1, Ordering::SeqCst) < MOST as u64);
                        here.fetch_sub(1, Ordering::SeqCst);
                        drop(seat);
                    }
                });
            }
        });
        assert_eq!(taken(seats), 0);
    }
}
