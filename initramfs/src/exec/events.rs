//! The driver's own lines: `ready`, `renewed` and `<token> done <code>`.
//!
//! User code runs in the driver's process with the driver's rights, so it can write here too. What counts is therefore the
//! token, 128 random bits that the agent made for one execution and that nothing prints. A line counts if it *ends* as it
//! should: bytes that user code put in front, without a newline, do no harm. The other lines have no token: who forges
//! them deceives itself alone.

/// Longest line that a driver writes, in bytes; of a longer one only the end is looked at.
const MAX_LINE: usize = 4096;

/// What the driver said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverEvent {
    /// It takes work now.
    Ready,
    /// Its random numbers are new.
    Renewed,
    /// The execution with the expected token is over.
    Done(u8),
}

/// Cuts the stream into lines.
#[derive(Debug, Default)]
pub struct Lines {
    held: Vec<u8>,
}

impl Lines {
    /// Takes bytes and returns the events in them that count, in order. `token` is that of the running execution.
    pub fn push(&mut self, bytes: &[u8], token: Option<&str>) -> Vec<DriverEvent> {
        let mut found = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.held.extend_from_slice(piece);
            if self.held.last() == Some(&b'\n') {
                self.held.pop();
                found.extend(parse(&self.held, token));
                self.held.clear();
            } else if self.held.len() > 2 * MAX_LINE {
                self.held.drain(..self.held.len() - MAX_LINE);
            }
        }
        found
    }
}

fn parse(line: &[u8], token: Option<&str>) -> Option<DriverEvent> {
    if line == b"ready" {
        return Some(DriverEvent::Ready);
    }
    if line == b"renewed" {
        return Some(DriverEvent::Renewed);
    }
    let token = token?.as_bytes();
    let space = line.iter().rposition(|byte| *byte == b' ')?;
    let (front, code) = (&line[..space], &line[space + 1..]);
    let front = front.strip_suffix(b" done")?;
    if !front.ends_with(token) || code.len() > 3 {
        return None;
    }
    std::str::from_utf8(code).ok()?.parse().ok().map(DriverEvent::Done)
}

#[cfg(test)]
mod tests;
