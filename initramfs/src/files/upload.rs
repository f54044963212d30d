//! Writing a file: all of it or nothing.
//!
//! The content goes into a file without a name (`O_TMPFILE`), which vanishes with its last descriptor however the worker
//! ends. Only a complete one gets a name: its own if that is free, otherwise a temporary one that is renamed over what stands
//! there.

use hayfork_protocol::message::FailureCode;
use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::failure::{About, Outcome, failure};
use super::resolve::Located;
use super::wire::Message;
use super::worker::Line;

/// Receives the content and returns its size, in bytes.
///
/// # Errors
/// The path is not possible, or there is no room.
pub fn run(to: &Located<'_>, mode: u32, line: &mut Line) -> Outcome<u64> {
    let entry = to.entry_with_parents()?;
    to.check_replaceable(&entry)?;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    // Its final mode from the begin: a change would be told to whoever watches the folder, of a file without a name.
    let file = openat(&entry.folder, ".", flags, Mode::from_raw_mode(mode & 0o777)).about(to.path)?;
    let mut bytes = 0;
    loop {
        match line.receive() {
            Message::Data(mut data) => {
                bytes += data.len() as u64;
                if bytes > hayfork_protocol::limits::MAX_FILE {
                    return Err(Errno::FBIG).about(to.path);
                }
                while !data.is_empty() {
                    match rustix::io::write(&file, data) {
                        Ok(n) => data = &data[n..],
                        Err(Errno::INTR) => {}
                        Err(errno) => return Err(errno).about(to.path),
                    }
                }
            }
            Message::End => break,
            _ => return Err(failure(FailureCode::BadRequest, "unexpected message within a file's content")),
        }
    }
    match linkat(&file, "", &entry.folder, entry.name, AtFlags::EMPTY_PATH) {
        Err(Errno::EXIST) => {}
        result => return result.about(to.path).map(|()| bytes),
    }
    let temporary = format!(".hayfork-{:x}.tmp", crate::clock::uptime_ns());
    linkat(&file, "", &entry.folder, temporary.as_str(), AtFlags::EMPTY_PATH).about(to.path)?;
    if let Err(errno) = renameat(&entry.folder, temporary.as_str(), &entry.folder, entry.name) {
        let _ = unlinkat(&entry.folder, temporary.as_str(), AtFlags::empty());
        return Err(errno).about(to.path);
    }
    Ok(bytes)
}
