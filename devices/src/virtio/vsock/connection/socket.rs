//! The host socket: writing what the guest sent, reading what it shall get, and what to poll for.

use std::collections::VecDeque;
use std::io::ErrorKind;

use super::{Connection, GuestEnd};
use crate::virtio::vsock::event::{Interest, Readiness};
use crate::virtio::vsock::host::HostSocket;

impl<S: HostSocket> Connection<S> {
    /// Writes bytes of the guest to the host socket, or buffers them; the window has room for them.
    pub(super) fn deliver(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.core.buffer.is_empty() {
            match self.write(bytes) {
                Written::Some(n) => bytes = &bytes[n..],
                Written::NotNow => break,
                Written::Never => return self.core.receive.forward(length(bytes)),
            }
        }
        self.core.buffer.extend(bytes);
    }

    /// Writes what is buffered, as far as the host socket takes it.
    fn flush(&mut self) {
        while !self.core.buffer.is_empty() {
            // The front slice; the rest is the next round.
            let buffer = std::mem::take(&mut self.core.buffer);
            let written = self.write(buffer.as_slices().0);
            self.core.buffer = buffer;
            match written {
                Written::Some(n) => drop(self.core.buffer.drain(..n)),
                Written::NotNow => break,
                Written::Never => self.drop_buffer(),
            }
        }
        if self.core.buffer.is_empty() {
            // An idle connection holds no memory.
            self.core.buffer = VecDeque::new();
        }
    }

    pub(super) fn drop_buffer(&mut self) {
        self.core.receive.forward(self.core.receive.in_flight());
        self.core.buffer.clear();
    }

    /// Writes to the host socket and counts what it took.
    fn write(&mut self, bytes: &[u8]) -> Written {
        let Some(socket) = self.socket.as_mut().filter(|_| !self.core.host_deaf) else {
            return Written::Never;
        };
        loop {
            match socket.write(bytes) {
                Ok(n) if (1..=bytes.len()).contains(&n) => {
                    self.core.receive.forward(length(&bytes[..n]));
                    return Written::Some(n);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Written::NotNow,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.core.host_deaf = true;
                    return Written::Never;
                }
            }
        }
    }

    /// The host socket became ready for something.
    pub(in super::super) fn ready(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        if readiness.hangup {
            // Bytes may still wait to be read; the read that finds the end draws the conclusion.
            self.hangup = true;
            self.readable = true;
        }
        if readiness.writable || readiness.hangup {
            self.flush();
        }
        self.settle();
    }

    /// What the socket should be polled for.
    pub(in super::super) fn interest(&self) -> Interest {
        if self.socket.is_none() {
            return Interest::default();
        }
        Interest {
            read: self.may_read() && !self.readable && self.core.send.free() > 0,
            write: !self.core.buffer.is_empty(),
            hangup: !self.hangup,
        }
    }

    pub(super) fn may_read(&self) -> bool {
        self.core.guest == GuestEnd::Open && !self.core.host_eof && self.socket.is_some()
    }

    /// Reads from the host socket, within the guest's credit; 0 if there is nothing.
    pub(super) fn read(&mut self, space: &mut [u8]) -> usize {
        let room = space.len().min(self.core.send.free() as usize);
        let Some(socket) = &mut self.socket else {
            return 0;
        };
        let result = loop {
            match socket.read(&mut space[..room]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        match result {
            Ok(n) if (1..=room).contains(&n) => {
                self.core.send.send(length(&space[..n]));
                return n;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            Ok(0) => self.core.host_eof = true,
            Ok(_) | Err(_) => {
                self.core.host_eof = true;
                self.hangup = true;
            }
        }
        self.settle();
        0
    }
}

/// Result of a write to the host socket.
enum Written {
    Some(usize),
    NotNow,
    Never,
}

/// The length of a slice that is known to be part of a packet or of a window.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
