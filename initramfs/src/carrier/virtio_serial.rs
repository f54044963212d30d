//! A named virtio-serial port (virtio 1.2, 5.3), the carrier under QEMU.
//!
//! What Linux's driver does (drivers/char/virtio_console.c) and what follows from it:
//! * The port's name comes over the control queue a little after the device: [`Port::open`] waits for it.
//! * While the host end is closed, `read` returns 0, `poll` says HUP, and a blocking `write` would sleep until the host
//!   returns. The port is opened non-blocking, so a write says EAGAIN then.
//! * A change of the host end wakes the pollers, so edge-triggered epoll tells of it: HUP there means closed, no HUP open.
//! * Both come over the control queue and are handled in a kernel thread, while data is handled in the interrupt. So a new
//!   host's first bytes can be read before the driver says that the old host went away, and close and open in quick
//!   succession may show as one event without HUP. Therefore HUP counts only when it still holds a moment later, and the
//!   handshake's magic tells of a new host whatever the port says.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::Presence;
use crate::error::{During, OsError, Result};
use crate::poller::{Poller, Ready, Token};

const CLASS: &str = "/sys/class/virtio-ports";

/// How long a port may take to appear after boot.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long HUP must hold to count.
const MOMENT: Duration = Duration::from_millis(10);

/// An open port.
#[derive(Debug)]
pub struct Port {
    fd: OwnedFd,
    /// When HUP is looked at again.
    doubt: Option<Instant>,
}

impl Port {
    /// Waits for the port of that name and opens it.
    pub(super) fn open(name: &str, poller: &Poller) -> Result<Self> {
        let device = wait_for(name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = open(&device, flags, Mode::empty()).during_with(|| format!("open {device}"))?;
        poller.add(&fd, Token::Carrier)?;
        Ok(Self { fd, doubt: None })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn ready(&mut self, ready: Ready) -> Presence {
        self.doubt = ready.hung_up.then(|| Instant::now() + MOMENT);
        Presence::Unchanged
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.doubt
    }

    pub(super) fn on_time(&mut self, now: Instant) -> Presence {
        if self.doubt.is_none_or(|doubt| now < doubt) {
            return Presence::Unchanged;
        }
        self.doubt = None;
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&at_once)) {
            Ok(_) if fds[0].revents().contains(PollFlags::HUP) => Presence::Gone,
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
