//! Reading a file.

use hayfork_protocol::Event;
use hayfork_protocol::message::FileKind;
use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;

use super::failure::{About, Outcome, failure};
use super::listing::info;
use super::resolve::Located;
use super::wire::{MAX_DATA, Message};
use super::worker::Line;

/// Sends the file's description and content, and returns how many bytes were sent: what the file held when it was opened,
/// or less if it shrank meanwhile.
///
/// # Errors
/// There is no such regular file, or it may not be read.
pub fn run(from: &Located<'_>, line: &mut Line) -> Outcome<u64> {
    // Without O_NONBLOCK a FIFO would block here until somebody writes to it.
    let file = from.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let info = info(from.name(), &fstat(&file).about(from.path)?);
    match info.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(Errno::ISDIR).about(from.path),
        _ => {
            let code = hayfork_protocol::message::FailureCode::WrongType;
            return Err(failure(code, format!("{:?}: it is no regular file", from.path)));
        }
    }
    let total = info.bytes;
    line.event(Event::File(info));
    let mut buffer = vec![0; MAX_DATA];
    let mut sent = 0;
    while sent < total {
        let want = usize::try_from(total - sent).unwrap_or(MAX_DATA).min(MAX_DATA);
        match rustix::io::read(&file, &mut buffer[..want]) {
            Ok(0) => break,
            Ok(n) => {
                line.send(&Message::Data(&buffer[..n]));
                sent += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).about(from.path),
        }
    }
    line.send(&Message::End);
    Ok(sent)
}
