//! What one watch has to tell and nobody has asked for yet.
//!
//! It is bounded twice. From the soft bound on the kernel is not asked for more, which it then holds itself. The hard bound
//! stands for what one read, or one look into a new folder, can bring on top; beyond it changes are lost, and an overflow
//! says so.
//!
//! A rename comes in two halves. The first stands in its place as a removal, and holds back itself and what follows until
//! the second has come, or the time is over in which it would have.

use std::collections::VecDeque;

use hayfork_protocol::change::{Change, ChangeKind, Record, encode};

/// Bytes from which on the kernel is not asked for more.
const SOFT: usize = 64 * 1024;

/// Bytes beyond which changes are lost.
const HARD: usize = 1024 * 1024;

/// What a record costs beside its paths.
const OVERHEAD: usize = 96;

#[derive(Debug)]
struct Slot {
    record: Record,
    half: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Queue {
    slots: VecDeque<Slot>,
    /// Number of the first slot; they are counted through.
    first: u64,
    bytes: usize,
}

fn cost(record: &Record) -> usize {
    OVERHEAD
        + match record {
            Record::Change(change) => change.path.len() + change.to.as_ref().map_or(0, String::len),
            Record::Flushed => 0,
        }
}

impl Queue {
    /// Whether there is room for what the kernel has.
    pub fn has_room(&self) -> bool {
        self.bytes < SOFT
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether something can be told now.
    pub fn is_ready(&self) -> bool {
        self.slots.front().is_some_and(|slot| !slot.half)
    }

    fn add(&mut self, record: Record, half: bool) -> u64 {
        self.bytes += cost(&record);
        self.slots.push_back(Slot { record, half });
        self.first + self.slots.len() as u64 - 1
    }

    /// Whether the newest record is that one, so that saying it twice tells nothing.
    fn ends_with(&self, change: &Change) -> bool {
        matches!(self.slots.back(), Some(Slot { record: Record::Change(last), half: false }) if last == change)
    }

    /// Adds a change. False if it was lost.
    pub fn push(&mut self, change: Change) -> bool {
        if self.ends_with(&change) {
            return true;
        }
        if self.bytes >= HARD {
            self.overflow();
            return false;
        }
        self.add(Record::Change(change), false);
        true
    }

    /// Says that changes were lost here.
    pub fn overflow(&mut self) {
        let change = Change { kind: ChangeKind::Overflow, path: String::new(), to: None, directory: false };
        if !self.ends_with(&change) {
            self.add(Record::Change(change), false);
        }
    }

    /// Says that everything up to here was told.
    pub fn flushed(&mut self) {
        self.add(Record::Flushed, false);
    }

    /// Adds the first half of a rename, as a removal, and returns its number; `None` if it was lost.
    pub fn push_half(&mut self, change: Change) -> Option<u64> {
        if self.bytes >= HARD {
            self.overflow();
            return None;
        }
        Some(self.add(Record::Change(change), true))
    }

    /// The second half has come, with the new path; or it does not come.
    pub fn settle(&mut self, number: u64, to: Option<String>) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) else { return };
        if let (Record::Change(change), Some(to)) = (&mut slot.record, to) {
            self.bytes += to.len();
            (change.kind, change.to) = (ChangeKind::Renamed, Some(to));
        }
        slot.half = false;
    }

    /// Takes as many records as fit in `most` bytes, encoded.
    pub fn batch(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(slot) = self.slots.front().filter(|slot| !slot.half) {
            let before = bytes.len();
            // Paths are bounded where they are made: it encodes.
            if encode(&slot.record, &mut bytes).is_ok() && bytes.len() > most {
                bytes.truncate(before);
                break;
            }
            self.bytes -= cost(&slot.record);
            self.slots.pop_front();
            self.first += 1;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hayfork_protocol::change::Decoder;

    fn change(kind: ChangeKind, path: &str) -> Change {
        Change { kind, path: path.into(), to: None, directory: false }
    }

    fn taken(queue: &mut Queue, most: usize) -> Vec<String> {
        let mut decoder = Decoder::default();
        decoder.push(&queue.batch(most));
        let mut all = Vec::new();
        while let Some(record) = decoder.next().unwrap() {
            all.push(match record {
                Record::Change(Change { kind, path, to: None, .. }) => format!("{kind:?} {path}"),
                Record::Change(Change { kind, path, to: Some(to), .. }) => format!("{kind:?} {path} {to}"),
                Record::Flushed => "Flushed".into(),
            });
        }
        all
    }

    #[test]
    fn the_same_thing_is_told_once() {
        let mut queue = Queue::default();
        for _ in 0..3 {
            queue.push(change(ChangeKind::Written, "a"));
        }
        queue.push(change(ChangeKind::Written, "b"));
        queue.push(change(ChangeKind::Written, "a"));
        queue.overflow();
        queue.overflow();
        assert_eq!(taken(&mut queue, 4096), ["Written a", "Written b", "Written a", "Overflow "]);
        assert!(queue.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn a_half_rename_holds_back_what_follows() {
        let mut queue = Queue::default();
        queue.push(change(ChangeKind::Created, "a"));
        let first = queue.push_half(change(ChangeKind::Removed, "a")).unwrap();
        let second = queue.push_half(change(ChangeKind::Removed, "b")).unwrap();
        queue.push(change(ChangeKind::Created, "c"));
        assert_eq!(taken(&mut queue, 4096), ["Created a"]);
        assert!(!queue.is_ready());
        queue.settle(second, Some("bb".into()));
        assert!(!queue.is_ready());
        queue.settle(first, None);
        assert_eq!(taken(&mut queue, 4096), ["Removed a", "Renamed b bb", "Created c"]);
        // Long gone, and never there.
        queue.settle(first, Some("x".into()));
        queue.settle(99, None);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn it_is_bounded_and_says_what_it_lost() {
        let mut queue = Queue::default();
        let long = "x".repeat(1000);
        let mut kept = 0;
        while queue.push(change(ChangeKind::Created, &format!("{kept}{long}"))) {
            kept += 1;
            assert!(kept < 2000);
        }
        assert!(!queue.has_room() && queue.bytes < HARD + 2 * (OVERHEAD + long.len()));
        assert_eq!(queue.push_half(change(ChangeKind::Removed, "x")), None);
        queue.flushed();
        let mut told = Vec::new();
        while queue.is_ready() {
            let batch = taken(&mut queue, 32 * 1024);
            assert!((1..=32).contains(&batch.len()));
            told.extend(batch);
        }
        assert_eq!((told.len(), queue.bytes), (kept + 2, 0));
        assert_eq!(told[kept..], ["Overflow ", "Flushed"]);
    }
}
