//! Edge-triggered readiness of descriptors, by epoll.
//!
//! Every descriptor is registered once, for reading or for both, with a [`Token`] that says whose it is. An event only means "try
//! again"; whoever owns the descriptor remembers that until the kernel says EAGAIN. Events for an owner that is gone are
//! ignored by looking it up, so nothing has to be unregistered: closing does that. An owner that reads by the clock for a
//! while has no events for that time ([`Watch`]).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::error::{During, Result};

/// Events taken from the kernel at a time.
const BATCH: usize = 32;

/// What a descriptor belongs to. The number is the owner's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The connection to the host.
    Carrier,
    /// The vsock listener.
    Listener,
    /// The signalfd.
    Signals,
    /// The inotify descriptor that tells when a driver opened its standard input.
    Opened,
    /// Pressure stall information.
    Pressure,
    /// A descriptor of a context's driver or execution.
    Context(u32, Part),
    /// A descriptor of a command.
    Command(u32, Part),
    /// The socket of a file worker.
    Worker(u32),
}

/// Which of an owner's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Report of a start.
    Start,
    /// Standard input.
    Stdin,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Structured results.
    Results,
    /// The driver's events.
    Events,
    /// What the driver prints while idle, standard output.
    IdleOut,
    /// The same, standard error.
    IdleErr,
}

const PARTS: [Part; 8] = [
    Part::Start,
    Part::Stdin,
    Part::Stdout,
    Part::Stderr,
    Part::Results,
    Part::Events,
    Part::IdleOut,
    Part::IdleErr,
];

impl Token {
    /// Kind in bits 40 to 47, part in bits 32 to 39, key below.
    fn to_u64(self) -> u64 {
        let (kind, part, key): (u64, u64, u32) = match self {
            Self::Carrier => (1, 0, 0),
            Self::Listener => (2, 0, 0),
            Self::Signals => (3, 0, 0),
            Self::Opened => (4, 0, 0),
            Self::Pressure => (5, 0, 0),
            Self::Context(key, part) => (6, part as u64, key),
            Self::Command(key, part) => (7, part as u64, key),
            Self::Worker(key) => (8, 0, key),
        };
        kind << 40 | part << 32 | u64::from(key)
    }

    fn from_u64(bits: u64) -> Option<Self> {
        let [k0, k1, k2, k3, part, kind, ..] = bits.to_le_bytes();
        let key = u32::from_le_bytes([k0, k1, k2, k3]);
        let part = PARTS.get(usize::from(part)).copied()?;
        Some(match kind {
            1 => Self::Carrier,
            2 => Self::Listener,
            3 => Self::Signals,
            4 => Self::Opened,
            5 => Self::Pressure,
            6 => Self::Context(key, part),
            7 => Self::Command(key, part),
            8 => Self::Worker(key),
            _ => return None,
        })
    }
}

/// What the kernel said about a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Whose.
    pub token: Token,
    /// Reading may bring something.
    pub readable: bool,
    /// Writing may succeed.
    pub writable: bool,
    /// The other end says nothing more, or is closed, or failed.
    pub ending: bool,
    /// The other end is closed.
    pub hung_up: bool,
}

/// What a descriptor is watched for that is read from. EPOLLERR and EPOLLHUP are reported in any case.
const READING: EventFlags =
    EventFlags::IN.union(EventFlags::PRI).union(EventFlags::RDHUP).union(EventFlags::ET);

/// The same, and room for what waits to be written.
const BOTH: EventFlags = READING.union(EventFlags::OUT);

/// An epoll instance.
#[derive(Debug)]
pub struct Poller {
    epoll: Rc<OwnedFd>,
}

/// Switches the events of one registered descriptor off and on.
#[derive(Debug)]
pub struct Watch {
    epoll: Rc<OwnedFd>,
    token: Token,
}

impl Watch {
    /// No data wakes the loop from here on. False if the kernel refused, and everything is as before.
    pub fn mute(&self, fd: impl AsFd) -> bool {
        self.set(fd, EventFlags::ET)
    }

    /// The loop wakes again, at once if there is something already.
    pub fn listen(&self, fd: impl AsFd) {
        self.set(fd, READING);
    }

    /// The loop wakes for room as well, at once if there is some already.
    pub fn listen_for_room(&self, fd: impl AsFd) {
        self.set(fd, BOTH);
    }

    fn set(&self, fd: impl AsFd, flags: EventFlags) -> bool {
        let data = EventData::new_u64(self.token.to_u64());
        epoll::modify(&*self.epoll, fd, data, flags)
            .inspect_err(|errno| crate::warning!("change what a descriptor is watched for: {errno}"))
            .is_ok()
    }
}

impl Poller {
    /// An empty one.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).during("make an epoll instance")?;
        Ok(Self { epoll: Rc::new(epoll) })
    }

    /// Registers a descriptor for reading and priority events. It leaves when it is closed.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn add(&self, fd: impl AsFd, token: Token) -> Result<()> {
        self.register(fd, token, READING)
    }

    /// Registers a descriptor for writing as well.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn add_for_both(&self, fd: impl AsFd, token: Token) -> Result<()> {
        self.register(fd, token, BOTH)
    }

    fn register(&self, fd: impl AsFd, token: Token, flags: EventFlags) -> Result<()> {
        let data = EventData::new_u64(token.to_u64());
        epoll::add(&*self.epoll, fd, data, flags).during("watch a descriptor")
    }

    /// Registers a descriptor as [`Poller::add`] does.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn watch(&self, fd: impl AsFd, token: Token) -> Result<Watch> {
        self.add(fd, token)?;
        Ok(Watch { epoll: Rc::clone(&self.epoll), token })
    }

    /// Waits until something is ready, or until `deadline`, or not at all if `busy`, and calls `each`
    /// for what is.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn wait(&self, busy: bool, deadline: Option<Instant>, mut each: impl FnMut(Ready)) -> Result<()> {
        let left = if busy {
            Some(Duration::ZERO)
        } else {
            deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
        };
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut buffer = [const { MaybeUninit::<Event>::uninit() }; BATCH];
        let events = match wait_portably(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok(events) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno).during("wait for events"),
        };
        for event in events {
            let flags = event.flags;
            let Some(token) = Token::from_u64(event.data.u64()) else { continue };
            each(Ready {
                token,
                readable: flags.intersects(
                    EventFlags::IN | EventFlags::PRI | EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR,
                ),
                writable: flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP),
                ending: flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR),
                hung_up: flags.contains(EventFlags::HUP),
            });
        }
        Ok(())
    }
}

fn wait_portably<'a>(
    epoll: &OwnedFd,
    buffer: &'a mut [MaybeUninit<Event>],
    timeout: Option<&Timespec>,
) -> std::result::Result<&'a mut [Event], Errno> {
    epoll::wait(epoll, buffer, timeout).map(|(ready, _)| ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        let tokens = [
            Token::Carrier,
            Token::Listener,
            Token::Signals,
            Token::Opened,
            Token::Pressure,
            Token::Context(u32::MAX, Part::IdleErr),
            Token::Command(7, Part::Start),
            Token::Worker(9),
        ];
        for token in tokens {
            assert_eq!(Token::from_u64(token.to_u64()), Some(token));
        }
        for (index, part) in PARTS.iter().enumerate() {
            assert_eq!(*part as usize, index);
        }
        assert_eq!(Token::from_u64(0), None);
        assert_eq!(Token::from_u64(u64::MAX), None);
    }

    #[test]
    fn reports_an_edge_once_and_hangup() {
        let poller = Poller::new().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        poller.add(&read, Token::Worker(3)).unwrap();
        rustix::io::write(&write, b"x").unwrap();
        let mut seen = Vec::new();
        poller.wait(true, None, |ready| seen.push(ready)).unwrap();
        assert_eq!(seen.len(), 1);
        assert!(seen[0].readable && !seen[0].hung_up);
        seen.clear();
        poller.wait(true, None, |ready| seen.push(ready)).unwrap();
        assert!(seen.is_empty());
        drop(write);
        poller.wait(true, None, |ready| seen.push(ready)).unwrap();
        assert!(seen[0].hung_up);
    }
}
