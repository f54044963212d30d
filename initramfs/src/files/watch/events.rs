//! What the kernel writes into an inotify descriptor, inotify(7).

use rustix::fs::inotify::ReadFlags;

/// Bytes of an event before its name: `wd`, `mask`, `cookie`, `len`.
const HEADER: usize = 16;

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Which watch; -1 for an overflow.
    pub wd: i32,
    /// What happened.
    pub mask: ReadFlags,
    /// The same for both halves of a rename.
    pub cookie: u32,
    /// The entry within the folder; empty for the folder itself.
    pub name: &'a [u8],
}

/// The events in what one read gave. A read gives whole ones; the rest of something else is passed over.
pub fn parse(mut bytes: &[u8]) -> impl Iterator<Item = Event<'_>> {
    std::iter::from_fn(move || {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&header[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        let (name, next) = rest.split_at_checked(usize::try_from(word(12)).ok()?)?;
        bytes = next;
        // The kernel pads names with NUL.
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(Event {
            wd: word(0).cast_signed(),
            mask: ReadFlags::from_bits_retain(word(4)),
            cookie: word(8),
            name,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(wd: i32, mask: ReadFlags, cookie: u32, name: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = u32::try_from(name.len()).unwrap();
        for word in [wd.cast_unsigned(), mask.bits(), cookie, length] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(name);
        bytes
    }

    #[test]
    fn events_are_taken_one_after_the_other() {
        let mut bytes = raw(1, ReadFlags::CREATE | ReadFlags::ISDIR, 0, b"name\0\0\0\0");
        bytes.extend(raw(-1, ReadFlags::QUEUE_OVERFLOW, 0, b""));
        bytes.extend(raw(2, ReadFlags::MOVED_TO, 7, b"x\0"));
        let events: Vec<_> = parse(&bytes).collect();
        assert_eq!(events.len(), 3);
        assert_eq!((events[0].wd, events[0].name), (1, &b"name"[..]));
        assert!(events[0].mask.contains(ReadFlags::ISDIR));
        assert_eq!((events[1].wd, events[1].name), (-1, &b""[..]));
        assert_eq!((events[2].cookie, events[2].name), (7, &b"x"[..]));
        // Cut anywhere, there is no panic, and no event is made up.
        for cut in 0..bytes.len() {
            let n = parse(&bytes[..cut]).count();
            assert!(n <= 2 && parse(&bytes[..cut]).eq(events[..n].iter().copied()), "{cut}");
        }
    }

    #[test]
    fn a_length_beyond_the_end_ends_it() {
        let mut bytes = raw(1, ReadFlags::CREATE, 0, b"a\0");
        bytes[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(parse(&bytes).count(), 0);
    }
}
