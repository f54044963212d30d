//! Randomness and identity of its own for a guest that was restored from a snapshot.
//!
//! Guests of one snapshot wake up with the same memory: the kernel's generator, those of the interpreters, the machine id
//! and the hostname. `Renew` makes them different, once the host has brought a seed.
//!
//! ```text
//!            kernel, hostname, files: fails ─────────────────────────────────────► Failed
//!  Renew ──► each context: due ──► waiting for the idle drivers ──all renewed────► Done
//!                                     │ 10 s                      or gone
//!                                     └──────────────────────────────────────────► Failed; late drivers still renew
//! ```
//! The kernel's generator comes first, since all else is drawn from it: each driver gets 32 bytes of its own. A driver that
//! runs code, or is not ready yet, gets its line before its next execution ([`Context::renew`]) and is not waited for.
//!
//! The files are `/etc/machine-id`, `/etc/hostname` and `/etc/hosts` as user code sees them: read-only binds of files in
//! `/run` of the user's root ([`crate::boot::user_root`]), which the agent changes in place, so that the binds keep to them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use hayfork_protocol::message::{FailureCode, Renew};
use hayfork_protocol::{Event, Mux, StreamId};
use rustix::fs::{Mode, OFlags, ResolveFlags, ftruncate, openat2};
use rustix::io::{Errno, pread, pwrite};

use crate::error::{During, Result};
use crate::exec::context::Context;
use crate::io::Outlet;
use crate::spawn::Walls;

/// How long idle drivers may take. They answer within milliseconds, or seconds where a translator on a loaded host has to translate
/// them anew (measured: JavaScript, 1 to 2), unless code that earlier executions left behind (timers,
/// tasks) keeps them.
const PATIENCE: Duration = Duration::from_secs(10);

/// The folder of the user's root that holds what stands behind the files of the machine's identity.
pub const FOLDER: &str = "run";

/// Files of [`FOLDER`], each of them bound to `/etc` under the same name.
pub const FILES: [&str; 3] = ["machine-id", "hostname", "hosts"];

/// Longest file of these that is understood, in bytes.
const LONGEST: usize = 16 * 1024;

/// A request that waits for drivers.
#[derive(Debug)]
struct Renewal {
    stream: StreamId,
    deadline: Instant,
    /// Contexts whose drivers were told and have not answered.
    waiting: BTreeSet<u32>,
}

/// All requests that are not answered yet.
#[derive(Debug, Default)]
pub struct Renewals {
    open: Vec<Renewal>,
}

impl Renewals {
    /// Renews the machine and tells all contexts. On a development machine (no walls) the machine is left alone.
    ///
    /// # Errors
    /// What could not be renewed; nobody is told then.
    pub fn begin(
        &mut self,
        stream: StreamId,
        renew: &Renew,
        walls: Option<&Walls>,
        contexts: &mut BTreeMap<u32, Context>,
    ) -> Result<()> {
        if let Some(walls) = walls {
            crate::sys::entropy::add(&renew.seed).during("reseed the kernel's random numbers")?;
            let before = rustix::system::uname().nodename().to_string_lossy().into_owned();
            rustix::system::sethostname(renew.hostname.as_bytes()).during("set the hostname")?;
            rename(walls.root.root.as_fd(), renew, &before)?;
        }
        let mut waiting = BTreeSet::new();
        for (key, context) in contexts {
            if context.renew()? {
                waiting.insert(*key);
            }
        }
        self.open.push(Renewal { stream, deadline: Instant::now() + PATIENCE, waiting });
        Ok(())
    }

    /// Answers what can be answered.
    pub fn pump(&mut self, contexts: &BTreeMap<u32, Context>, mut mux: Option<&mut Mux>) {
        let now = Instant::now();
        self.open.retain_mut(|renewal| {
            renewal.waiting.retain(|key| contexts.get(key).is_some_and(Context::is_renewing));
            let mut outlet = Outlet::new(mux.as_deref_mut(), Some(renewal.stream));
            if renewal.waiting.is_empty() {
                outlet.event(&Event::Done { bytes: 0 });
            } else if renewal.deadline <= now {
                let late: Vec<_> = renewal.waiting.iter().map(ToString::to_string).collect();
                outlet.failed(
                    FailureCode::Io,
                    format!(
                        "not all interpreters have renewed their random numbers in {PATIENCE:?}, since background code \
                         keeps them: context {}",
                        late.join(", ")
                    ),
                );
            } else {
                return true;
            }
            outlet.close();
            false
        });
    }

    /// When [`Renewals::pump`] is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.open.iter().map(|renewal| renewal.deadline).min()
    }

    /// The host abandons a request. False if it is none of these.
    pub fn reset(&mut self, stream: StreamId, mux: Option<&mut Mux>) -> bool {
        let before = self.open.len();
        self.open.retain(|renewal| renewal.stream != stream);
        if self.open.len() == before {
            return false;
        }
        let mut outlet = Outlet::new(mux, Some(stream));
        outlet.failed(FailureCode::Cancelled, "the host abandoned the renewal");
        outlet.close();
        true
    }

    /// The host is gone. Drivers renew all the same.
    pub fn abandon(&mut self) {
        self.open.clear();
    }
}

/// The line that tells a driver to renew, with a seed that nobody else gets.
///
/// # Errors
/// The kernel gives no random numbers.
pub fn line() -> Result<String> {
    let mut seed = [0; 32];
    // So few bytes come whole once the generator is seeded.
    rustix::rand::getrandom(&mut seed[..], rustix::rand::GetRandomFlags::empty())
        .during("get random bytes")?;
    Ok(format!("renew {}\n", hex(&seed)))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string does not fail
        text
    })
}

/// Gives the files below `root` the new identity; `before` is the hostname that they have now. An image without one of them
/// goes without.
fn rename(root: BorrowedFd<'_>, renew: &Renew, before: &str) -> Result<()> {
    let [machine_id, hostname, hosts] = FILES;
    change(root, machine_id, |_| format!("{}\n", hex(&renew.machine_id)))?;
    change(root, hostname, |_| format!("{}\n", renew.hostname))?;
    change(root, hosts, |text| replace_name(text, before, &renew.hostname))
}

/// Changes one of the files in place. It is one write, and the new end, where it is another one, follows at once: who reads in
/// between finds the tail of the old text behind the new.
fn change(root: BorrowedFd<'_>, name: &str, text: impl FnOnce(&str) -> String) -> Result<()> {
    let path = format!("{FOLDER}/{name}");
    // The folder is on a file system that root commands can write to: no link must lead elsewhere.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file: OwnedFd = match openat2(root, &path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno).during_with(|| format!("open {path} of the user's root")),
    };
    let mut old = vec![0; LONGEST];
    let n = pread(&file, &mut old[..], 0).during_with(|| format!("read {path}"))?;
    let new = text(&String::from_utf8_lossy(&old[..n]));
    match pwrite(&file, new.as_bytes(), 0) {
        Ok(written) if written == new.len() => {}
        Ok(_) => return Err(Errno::NOSPC).during_with(|| format!("write {path}")),
        Err(errno) => return Err(errno).during_with(|| format!("write {path}")),
    }
    if n > new.len() || n == LONGEST {
        ftruncate(&file, new.len() as u64).during_with(|| format!("shorten {path}"))?;
    }
    Ok(())
}

/// hosts(5) with another name in all places of `before`, which stays what it was otherwise.
fn replace_name(hosts: &str, before: &str, after: &str) -> String {
    let mut text = String::new();
    for piece in hosts.split_inclusive(|c: char| c.is_ascii_whitespace()) {
        let word = piece.trim_end_matches(|c: char| c.is_ascii_whitespace());
        text += if word == before { after } else { word };
        text += &piece[word.len()..];
    }
    text
}

#[cfg(test)]
mod tests;
