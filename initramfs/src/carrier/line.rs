//! A descriptor to the host, and what the loop is woken for on its account.
//!
//! Room in it matters only while something waits for room. A loop that was woken for it at other times would be woken for
//! every credit that the host gives, which after a short answer is one more turn for nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;

use super::Input;
use crate::error::Result;
use crate::poller::{Poller, Token, Watch};

/// Until memory is asked for again.
const MOMENT: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug)]
pub struct Line {
    fd: OwnedFd,
    watch: Watch,
    waits_for_room: bool,
}

impl Line {
    /// Takes a non-blocking descriptor, and registers it.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn new(fd: OwnedFd, token: Token, poller: &Poller) -> Result<Self> {
        let watch = poller.watch(&fd, token)?;
        Ok(Self { fd, watch, waits_for_room: false })
    }

    /// Reads what is there.
    pub fn read(&self, buffer: &mut [u8]) -> Input {
        match rustix::io::read(&self.fd, buffer) {
            Ok(0) => Input::Closed,
            Ok(n) => Input::Bytes(n),
            Err(Errno::AGAIN | Errno::INTR) => Input::Nothing,
            Err(_) => Input::Closed,
        }
    }

    /// Writes what fits, and returns how many bytes that were; `None` if nothing fits now. An event tells of room then.
    pub fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, bytes)) {
            Ok(n) => {
                if n == bytes.len() && self.waits_for_room {
                    self.waits_for_room = false;
                    self.watch.listen(&self.fd);
                }
                Some(n)
            }
            Err(Errno::AGAIN) => {
                if !self.waits_for_room {
                    // Tells at once if there is room by now.
                    self.waits_for_room = true;
                    self.watch.listen_for_room(&self.fd);
                }
                None
            }
            // There is room, and no memory for a packet: the next attempt is made soon.
            Err(Errno::NOMEM | Errno::NOBUFS) => {
                std::thread::sleep(MOMENT);
                self.waits_for_room = true;
                self.watch.listen_for_room(&self.fd);
                None
            }
            // It is over, of which an event tells.
            Err(_) => None,
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn events(poller: &Poller) -> Vec<(bool, bool)> {
        let mut seen = Vec::new();
        poller.wait(true, None, |ready| seen.push((ready.readable, ready.writable))).unwrap();
        seen
    }

    #[test]
    fn room_is_told_of_to_who_waits_for_it_alone() {
        let poller = Poller::new().unwrap();
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, host) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let mut line = Line::new(ours, Token::Carrier, &poller).unwrap();
        let mut buffer = vec![0; 1 << 20];
        assert_eq!(events(&poller), [], "room from the beginning is nothing to tell");
        line.write(b"short").unwrap();
        rustix::io::read(&host, &mut *buffer).unwrap();
        assert_eq!(events(&poller), []);

        while line.write(&buffer).is_some() {}
        assert_eq!(events(&poller), [], "there is none");
        while rustix::io::read(&host, &mut *buffer).is_ok() {}
        assert_eq!(events(&poller), [(false, true)]);

        line.write(b"all of it").unwrap();
        rustix::io::read(&host, &mut *buffer).unwrap();
        assert_eq!(events(&poller), [], "nothing waits any more");
        rustix::io::write(&host, b"x").unwrap();
        assert_eq!(events(&poller), [(true, false)]);
    }
}
