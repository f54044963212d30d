//! Structured results: records from the `results` FIFO, passed on as they come.
//!
//! ```text
//!  {"token":"…","kind":"display","parts":[["text/plain",5],["image/png",70000]]}\n  bytes of the first part, of the second …
//! ```
//! A record's header is a JSON line with the execution's token; what does not parse, has another token, or breaks a limit is
//! skipped up to the next newline, where the search goes on. A header that counts is announced to the host before its bytes
//! are read, and the bytes are never held: they go from the FIFO to the host by its credit. A record that is cut off by the
//! end of the execution ends the bundle channel early, by which the host knows.

use hayfork_protocol::limits::{MAX_BUNDLE, MAX_BUNDLE_PARTS};
use hayfork_protocol::message::{BundleKind, Exception, Part};
use hayfork_protocol::{Channel, Event};
use serde::Deserialize;

use crate::io::{Got, Outlet, Source};

/// Longest header, in bytes: an exception's three strings of together 64 KiB, each byte escaped as `\u00xx`.
const MAX_HEADER: usize = 6 * 64 * 1024 + 4096;

/// Longest string of an exception that is passed on, in bytes.
const MAX_STRING: usize = 64 * 1024;

/// Records of one execution; the rest is dropped.
const MAX_RECORDS: u32 = 10_000;

/// What a header holds; other fields are ignored.
#[derive(Debug, Deserialize)]
struct Header {
    token: String,
    kind: Kind,
    #[serde(default)]
    parts: Vec<(String, u32)>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    traceback: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Result,
    Display,
    Error,
}

/// Reads one execution's records.
#[derive(Debug)]
pub struct Results {
    source: Source,
    token: String,
    /// The header so far.
    header: Vec<u8>,
    /// The header is too long; skip to the next newline.
    skipping: bool,
    /// Bytes of the announced bundle that are still to come.
    body_left: u32,
    records: u32,
    /// Bytes that were read behind a header and are not dealt with yet.
    ahead: Vec<u8>,
    /// Bytes in the FIFO that still count, once the end is known.
    left: Option<usize>,
}

/// How far [`Results::pump`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing to read for now.
    Empty,
    /// The host must take some first.
    Held,
    /// There may be more.
    More,
}

impl Results {
    /// A reader for the execution with that token.
    pub fn new(source: Source, token: String) -> Self {
        Self {
            source,
            token,
            header: Vec::new(),
            skipping: false,
            body_left: 0,
            records: 0,
            ahead: Vec::new(),
            left: None,
        }
    }

    /// An event said that there is something to read.
    pub fn wake(&mut self) {
        self.source.wake();
    }

    /// The code has ended: only what is in the FIFO now still counts.
    pub fn end(&mut self) {
        self.source.wake();
        self.left = Some(self.source.waiting());
    }

    /// The FIFO, for the next execution.
    pub fn into_source(self) -> Source {
        self.source
    }

    /// Whether the host waits for more bytes of a bundle.
    pub fn is_within_bundle(&self) -> bool {
        self.body_left > 0
    }

    /// Reads and passes on at most one buffer.
    pub fn pump(&mut self, outlet: &mut Outlet<'_>, buffer: &mut [u8]) -> Progress {
        let wanted = if self.body_left > 0 {
            let room = outlet.room(Channel::Bundle);
            if room == 0 {
                return if self.source.is_readable() || !self.ahead.is_empty() {
                    Progress::Held
                } else {
                    Progress::Empty
                };
            }
            room.min(self.body_left as usize)
        } else {
            buffer.len()
        };
        let mut ahead = std::mem::take(&mut self.ahead);
        if !ahead.is_empty() {
            let rest = ahead.split_off(wanted.min(ahead.len()));
            let unused = self.take(&ahead, outlet);
            self.ahead = [&ahead[ahead.len() - unused..], &rest].concat();
            return Progress::More;
        }
        let wanted = wanted.min(buffer.len()).min(self.left.unwrap_or(usize::MAX));
        if wanted == 0 {
            return Progress::Empty;
        }
        match self.source.read(&mut buffer[..wanted]) {
            Got::Bytes(n) => {
                self.left = self.left.map(|left| left.saturating_sub(n));
                let unused = self.take(&buffer[..n], outlet);
                self.ahead = buffer[n - unused..n].to_vec();
                Progress::More
            }
            Got::Nothing | Got::End => Progress::Empty,
        }
    }

    /// Deals with bytes up to the end of the next header, or as many as belong to the body, and returns how many at the end
    /// it left.
    fn take(&mut self, bytes: &[u8], outlet: &mut Outlet<'_>) -> usize {
        if self.body_left > 0 {
            // `pump` offered no more than this.
            outlet.data(Channel::Bundle, bytes);
            self.body_left = self.body_left.saturating_sub(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            return 0;
        }
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let piece = &bytes[..newline.unwrap_or(bytes.len())];
        if self.header.len() + piece.len() > MAX_HEADER {
            self.skipping = true;
            self.header = Vec::new();
        }
        if !self.skipping {
            self.header.extend_from_slice(piece);
        }
        let Some(newline) = newline else { return 0 };
        let header = std::mem::take(&mut self.header);
        if !std::mem::take(&mut self.skipping) {
            self.record(&header, outlet);
        }
        bytes.len() - newline - 1
    }

    /// Looks at a header and announces it if it counts.
    fn record(&mut self, header: &[u8], outlet: &mut Outlet<'_>) {
        let Ok(header) = serde_json::from_slice::<Header>(header) else { return };
        if header.token != self.token || self.records >= MAX_RECORDS {
            return;
        }
        let kind = match header.kind {
            Kind::Result => BundleKind::Result,
            Kind::Display => BundleKind::Display,
            Kind::Error => {
                self.records += 1;
                outlet.event(&Event::Exception(Exception {
                    name: cut(header.name),
                    value: cut(header.value),
                    traceback: cut(header.traceback),
                }));
                return;
            }
        };
        let total = header.parts.iter().try_fold(0u32, |sum, (_, bytes)| sum.checked_add(*bytes));
        let Some(total) = total.filter(|total| *total <= MAX_BUNDLE) else { return };
        let well_formed =
            header.parts.iter().all(|(mime, _)| mime.len() <= 255 && !mime.contains(char::is_control));
        if header.parts.len() > MAX_BUNDLE_PARTS || !well_formed {
            return;
        }
        self.records += 1;
        let parts = header.parts.into_iter().map(|(mime, bytes)| Part { mime, bytes }).collect();
        outlet.event(&Event::Bundle { kind, parts });
        self.body_left = total;
    }
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_STRING {
        let mut end = MAX_STRING;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests;
