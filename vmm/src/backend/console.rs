//! Keeps the newest console output of a guest and watches it for the kernel's last words.
//!
//! The guest is not trusted, and what is kept here ends up in error messages on somebody's terminal: control characters
//! are taken out when it is shown.

use std::collections::VecDeque;

/// The longest part of a line that is looked at for the kernel's last words.
const LINE: usize = 160;

/// The newest bytes of an output.
#[derive(Debug)]
pub struct Ring {
    bytes: VecDeque<u8>,
    capacity: usize,
}

impl Ring {
    /// An empty ring that keeps `capacity` bytes. It takes memory only as it fills.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: VecDeque::new(), capacity }
    }

    /// Appends; the oldest bytes make room.
    pub fn push(&mut self, new: &[u8]) {
        let new = &new[new.len().saturating_sub(self.capacity)..];
        let excess = (self.bytes.len() + new.len()).saturating_sub(self.capacity);
        self.bytes.drain(..excess);
        self.bytes.extend(new);
    }

    /// Drops what is kept.
    pub fn clear(&mut self) {
        self.bytes = VecDeque::new();
    }

    /// What is kept, as text that is safe to show: carriage returns are left out, other control characters but newline
    /// and tab are shown as U+FFFD, as is what is no UTF-8.
    pub fn text(&self) -> String {
        let (front, back) = self.bytes.as_slices();
        let bytes = [front, back].concat();
        String::from_utf8_lossy(&bytes)
            .chars()
            .filter(|&c| c != '\r')
            .map(|c| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c })
            .collect()
    }
}

/// What a kernel said before it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastWords {
    /// `Kernel panic - not syncing: …`
    pub panic: bool,
    /// `reboot: Power down` or `reboot: Restarting system`
    pub reboot: bool,
}

/// Finds the kernel's last words in its output, however that is cut into pieces. They count at the beginning of a line
/// only, behind the time stamp, so that a program's output that quotes them does not.
#[derive(Debug, Default)]
pub struct Watch {
    line: Vec<u8>,
    heard: LastWords,
}

impl Watch {
    /// Looks at more output.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let message = without_time_stamp(&self.line);
                self.heard.reboot |=
                    message == b"reboot: Power down" || message == b"reboot: Restarting system";
                self.line.clear();
            } else if self.line.len() < LINE && byte != b'\r' {
                self.line.push(byte);
                // Not at the end of the line: the guest may be gone before that.
                if byte == b':' {
                    self.heard.panic |= without_time_stamp(&self.line) == b"Kernel panic - not syncing:";
                }
            }
        }
    }

    /// What was heard so far.
    pub fn heard(&self) -> LastWords {
        self.heard
    }
}

/// The message behind `[   12.345678] `, and behind `[    T1] ` where the kernel prints the caller as well.
fn without_time_stamp(line: &[u8]) -> &[u8] {
    let mut rest = line;
    while rest.first() == Some(&b'[') {
        let Some(end) = rest.iter().position(|&byte| byte == b']') else { break };
        rest = rest[end + 1..].trim_ascii_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest_bytes() {
        let mut ring = Ring::new(8);
        assert_eq!(ring.text(), "");
        ring.push(b"abc");
        assert_eq!(ring.text(), "abc");
        ring.push(b"defgh");
        assert_eq!(ring.text(), "abcdefgh");
        ring.push(b"ij");
        assert_eq!(ring.text(), "cdefghij");
        ring.push(b"0123456789");
        assert_eq!(ring.text(), "23456789");
        ring.push(b"");
        assert_eq!(ring.text(), "23456789");
        for byte in b'a'..=b'z' {
            ring.push(&[byte]);
        }
        assert_eq!(ring.text(), "stuvwxyz");
        assert!(ring.bytes.capacity() <= 32, "memory stays bounded: {}", ring.bytes.capacity());
    }

    #[test]
    fn what_is_shown_cannot_command_a_terminal() {
        let mut ring = Ring::new(100);
        ring.push(b"one\r\ntwo\t\x1b]0;owned\x07 \xc2\x9b31m \xff");
        assert_eq!(ring.text(), "one\ntwo\t\u{fffd}]0;owned\u{fffd} \u{fffd}31m \u{fffd}");
    }

    #[test]
    fn a_cut_character_at_the_beginning_is_harmless() {
        let mut ring = Ring::new(4);
        ring.push("aäöb".as_bytes());
        assert_eq!(ring.text(), "\u{fffd}öb");
    }

    fn heard(pieces: &[&str]) -> LastWords {
        let mut watch = Watch::default();
        for piece in pieces {
            watch.push(piece.as_bytes());
        }
        watch.heard()
    }

    #[test]
    fn a_panic_is_heard_however_it_is_cut() {
        let text =
            "[    1.234567] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100\r\n";
        let panic = LastWords { panic: true, reboot: false };
        assert_eq!(heard(&[text]), panic);
        assert_eq!(heard(&["Kernel panic - not syncing: VFS"]), panic);
        assert_eq!(heard(&["[    0.1][    T1] Kernel panic - not syncing: x"]), panic);
        let bytes: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(heard(&bytes.iter().map(String::as_str).collect::<Vec<_>>()), panic);
    }

    #[test]
    fn a_reboot_is_heard() {
        let reboot = LastWords { panic: false, reboot: true };
        assert_eq!(heard(&["[    3.2] reboot: Restarting system\n"]), reboot);
        assert_eq!(heard(&["noise\n[    3.2] reboot: Power down\r\n"]), reboot);
    }

    #[test]
    fn quotations_and_near_misses_are_not_heard() {
        let nothing = LastWords::default();
        assert_eq!(heard(&["he said: Kernel panic - not syncing: no\n"]), nothing);
        assert_eq!(heard(&["Kernel panic - not syn\ncing: no\n"]), nothing);
        assert_eq!(heard(&["reboot: Power down now, said he\n"]), nothing);
        let long = format!("{} Kernel panic - not syncing: x", "x".repeat(1000));
        assert_eq!(heard(&[&long]), nothing);
    }
}
