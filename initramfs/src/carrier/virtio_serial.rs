//! Two named virtio-serial ports (virtio 1.2, 5.3), the carrier under QEMU.
//!
//! The host is at the first of them. In a machine that goes on where another stood, it is at the one that the other machine's host
//! was not at: the agent finds its host gone and another one at the second port, whatever it was at, and however long it takes to
//! look. So nothing that the old host had half said is taken for words of the new one.
//!
//! ```text
//!   launched          restored from it       restored from that
//!   NAME    host      NAME    gone           NAME    host
//!   NAME.2  nobody    NAME.2  host           NAME.2  gone
//! ```
//!
//! What Linux's driver does (drivers/char/virtio_console.c) and what follows from it:
//! * The port's name comes over the control queue a little after the device: [`Ports::open`] waits for it.
//! * While the host end is closed, `read` returns 0, `poll` says HUP, and a blocking `write` would sleep until the host
//!   returns. The port is opened non-blocking, so a write says EAGAIN then.
//! * A change of the host end wakes the pollers, so edge-triggered epoll tells of it: HUP there means closed, no HUP open.
//! * Both come over the control queue and are handled in a kernel thread, while data is handled in the interrupt. So a new
//!   host's first bytes can be read before the driver says that the old host went away, and close and open in quick
//!   succession may show as one event without HUP. Therefore HUP counts only when it still holds a moment later, and the
//!   handshake's magic tells of a new host whatever the port says.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::Presence;
use super::line::Line;
use crate::error::{During, OsError, Result};
use crate::poller::{Poller, Ready, Token};

const CLASS: &str = "/sys/class/virtio-ports";

/// How long a port may take to appear after boot.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long HUP must hold to count.
const MOMENT: Duration = Duration::from_millis(10);

/// What the second port's name ends in.
const SECOND: &str = ".2";

/// The two ports, one of them in use.
#[derive(Debug)]
pub struct Ports {
    current: Port,
    /// `None` if the machine has none.
    other: Option<Port>,
    /// When HUP is looked at again.
    doubt: Option<Instant>,
}

/// An open port.
#[derive(Debug)]
struct Port {
    line: Line,
    device: String,
    token: Token,
}

impl Ports {
    /// Waits for the port of that name and opens it, and the second one.
    pub(super) fn open(name: &str, poller: &Poller) -> Result<Self> {
        let current = Port::open(wait_for(name)?, Token::Carrier, poller)?;
        // They are announced together.
        let other = wait_for(&format!("{name}{SECOND}"))
            .and_then(|device| Port::open(device, Token::Listener, poller))
            .inspect_err(|error| crate::warning!("this machine cannot be forked: {error}"))
            .ok();
        Ok(Self { current, other, doubt: None })
    }

    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.current.line
    }

    pub(super) fn ready(&mut self, ready: Ready, poller: &Poller) -> Presence {
        if (ready.hung_up || ready.token != self.current.token) && self.has_moved() {
            self.follow(poller);
            return Presence::Replaced;
        }
        if ready.token == self.current.token {
            self.doubt = ready.hung_up.then(|| Instant::now() + MOMENT);
        }
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
        if self.current.is_hung_up() { Presence::Gone } else { Presence::Unchanged }
    }

    /// Whether the host is at the other port. Looked at anew, since events tell what was the case before other events.
    fn has_moved(&self) -> bool {
        self.other.as_ref().is_some_and(|other| self.current.is_hung_up() && !other.is_hung_up())
    }

    /// Goes on at the other port. Closing the port that was in use throws away what it still holds.
    fn follow(&mut self, poller: &Poller) {
        self.doubt = None;
        let Some(other) = self.other.take() else { return };
        let Port { line, device, token } = std::mem::replace(&mut self.current, other);
        drop(line);
        self.other = Port::open(device, token, poller)
            .inspect_err(|error| crate::warning!("this machine cannot be forked again: {error}"))
            .ok();
    }
}

impl Port {
    fn open(device: String, token: Token, poller: &Poller) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = open(&device, flags, Mode::empty()).during_with(|| format!("open {device}"))?;
        Ok(Self { line: Line::new(fd, token, poller)?, device, token })
    }

    /// Whether the host's end is closed, as far as the driver knows.
    fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.line, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
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
