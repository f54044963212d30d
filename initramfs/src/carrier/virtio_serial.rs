//! A named virtio-serial port (virtio 1.2, 5.3), the carrier under QEMU.
//!
//! What Linux's driver does (drivers/char/virtio_console.c) and what follows from it:
//! * The port's name comes over the control queue a little after the device: [`Port::open`] waits for it.
//! * While the host end is closed, `read` returns 0, `poll` says HUP, and a blocking `write` would sleep until the host
//!   returns. The port is opened non-blocking, so a write says EAGAIN then.
//! * A change of the host end wakes the pollers, so edge-triggered epoll tells of it: HUP there means closed, no HUP open.
//!   Close and open in quick succession may show as one event without HUP; the handshake's magic covers that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::Presence;
use crate::error::{During, OsError, Result};
use crate::poller::{Poller, Ready, Token};

const CLASS: &str = "/sys/class/virtio-ports";

/// How long a port may take to appear after boot.
const PATIENCE: Duration = Duration::from_secs(10);

/// An open port.
#[derive(Debug)]
pub struct Port {
    fd: OwnedFd,
    host: bool,
}

impl Port {
    /// Waits for the port of that name and opens it.
    pub(super) fn open(name: &str, poller: &Poller) -> Result<Self> {
        let device = wait_for(name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = open(&device, flags, Mode::empty()).during_with(|| format!("open {device}"))?;
        poller.add(&fd, Token::Carrier)?;
        Ok(Self { fd, host: false })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn ready(&mut self, ready: Ready) -> Presence {
        match (std::mem::replace(&mut self.host, !ready.hung_up), self.host) {
            (true, false) => Presence::Gone,
            (false, true) => Presence::Replaced,
            _ => Presence::Unchanged,
        }
    }
}

fn wait_for(name: &str) -> Result<String> {
    let give_up = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(device) = find(name) {
            return Ok(device);
        }
        if Instant::now() > give_up {
            return Err(OsError::new(format!("find the virtio-serial port {name:?}"), Errno::NODEV));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(8));
    }
}

fn find(name: &str) -> Option<String> {
    std::fs::read_dir(CLASS).ok()?.flatten().find_map(|entry| {
        let found = std::fs::read_to_string(entry.path().join("name")).ok()?;
        (found.trim_end() == name).then(|| format!("/dev/{}", entry.file_name().to_string_lossy()))
    })
}
