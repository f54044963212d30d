//! Serves the vsock device: its queues, the host ends of its streams, its timers, and the connection to the agent.
//!
//! # The agent's connection
//! The agent listens on [`AGENT_PORT`]; the host connects. When the guest is that far is not known, so the connection is tried
//! again until it is accepted:
//!
//! ```text
//!            connect                    accepted
//!   idle ───────────────► asking ────────────────────► connected ──► over
//!    ▲                      │  refused, or the driver reset the device           ▲
//!    └──── RETRY later ─────┤                                                    │
//!                           └──── the host program closed its end ───────────────┘
//! ```
//! A guest without a driver for the device does not answer at all: the request waits in the device until there is one. A
//! guest with a driver and no agent refuses at once.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use hayfork_devices::virtio::device::Progress;
use hayfork_devices::virtio::transport::mmio::MmioDevice;
use hayfork_devices::virtio::vsock::host::{RefuseAll, UnixSocket};
use hayfork_devices::virtio::vsock::{CloseReason, Event, Readiness, Token, VsockDevice};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use vm_memory::GuestMemoryMmap;

use super::{add, ring};
use crate::after_fork::Released;
use crate::hypervisor::Doorbell;

/// The vsock port that the agent listens on.
pub const AGENT_PORT: u32 = 1024;

/// From a refusal to the next try. A guest needs some 20 ms from its driver's start to the agent's.
const RETRY: Duration = Duration::from_millis(1);

/// Turns of a busy device before the loop looks after others.
const TURNS: usize = 16;

/// The device as a machine has it: streams end in Unix sockets, and the guest cannot connect to anything.
pub type Vsock = VsockDevice<UnixSocket, RefuseAll>;

/// What the data of an event means.
const BELL: u32 = 0;
const TIMER: u32 = 1;
const WAKE: u32 = 2;
const SOCKET: u32 = 3;

enum Agent {
    Idle { socket: UnixSocket, from: Instant },
    Asking(Token),
    Connected,
    Over,
}

/// Serves one device, with one doorbell for its queues.
pub struct VsockSubscriber {
    device: Arc<MmioDevice<Vsock, GuestMemoryMmap>>,
    bell: Arc<Doorbell>,
    /// Rung when there may be work that the doorbell does not tell of.
    wake: Arc<OwnedFd>,
    timer: OwnedFd,
    /// When the timer is set for.
    armed: Option<Instant>,
    polled: HashMap<Token, RawFd>,
    tokens: HashMap<RawFd, Token>,
    agent: Agent,
    /// Of the agent's socket, wherever that is now.
    released: Option<Released>,
}

impl VsockSubscriber {
    /// Serves `device`, and connects `agent` to the agent. Whoever resets or changes the device from elsewhere rings `wake`,
    /// an eventfd.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new(
        device: Arc<MmioDevice<Vsock, GuestMemoryMmap>>,
        bell: Arc<Doorbell>,
        wake: Arc<OwnedFd>,
        agent: UnixSocket,
    ) -> std::io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self {
            device,
            bell,
            wake,
            timer,
            armed: None,
            polled: HashMap::new(),
            tokens: HashMap::new(),
            released: Some(Released::new(&agent)),
            agent: Agent::Idle { socket: agent, from: Instant::now() },
        })
    }

    /// An eventfd for `wake`.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn bell() -> std::io::Result<Arc<OwnedFd>> {
        Ok(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Lets the device do what there is to do, up to a bound.
    fn turn(&mut self, ops: &mut EventOps) {
        self.reach_agent();
        for _ in 0..TURNS {
            let (again, events) = self.device.with_device(|device, queues, memory| {
                let result = match queues {
                    Some(queues) => device.process_data(queues, memory),
                    None => Ok(Progress::default()),
                };
                let again = result.as_ref().is_ok_and(|progress| progress.again);
                let mut events = Vec::new();
                while let Some(event) = device.next_event() {
                    events.push(event);
                }
                ((again, events), result)
            });
            for event in events {
                self.handle(event, ops);
            }
            if !again {
                self.set_timer();
                return;
            }
        }
        ring(self.wake.as_fd());
        self.set_timer();
    }

    fn handle(&mut self, event: Event<UnixSocket>, ops: &mut EventOps) {
        match event {
            Event::Opened { .. } => {} // nobody lets the guest connect
            Event::Connected { token } => {
                if matches!(self.agent, Agent::Asking(asked) if asked == token) {
                    self.agent = Agent::Connected;
                }
            }
            Event::Interest { token, interest } => {
                let mut wanted = EventSet::empty();
                wanted.set(EventSet::IN, interest.read);
                wanted.set(EventSet::OUT, interest.write);
                // A hangup is reported without being asked for.
                self.poll(token, (!interest.is_none()).then_some(wanted), ops);
            }
            Event::Closed { token, reason, socket } => {
                self.poll(token, None, ops);
                if matches!(self.agent, Agent::Asking(asked) if asked == token) {
                    self.agent = if reason == CloseReason::HostClosed {
                        self.released = None;
                        Agent::Over
                    } else {
                        Agent::Idle { socket, from: Instant::now() + RETRY }
                    };
                }
            }
        }
    }

    fn poll(&mut self, token: Token, wanted: Option<EventSet>, ops: &mut EventOps) {
        let result = match (self.polled.get(&token).copied(), wanted) {
            (None, Some(wanted)) => {
                let Some(fd) = self.device.device(|device| device.socket(token).map(AsRawFd::as_raw_fd))
                else {
                    return;
                };
                self.polled.insert(token, fd);
                self.tokens.insert(fd, token);
                ops.add(Events::with_data_raw(fd, SOCKET, wanted))
            }
            (Some(fd), Some(wanted)) => ops.modify(Events::with_data_raw(fd, SOCKET, wanted)),
            (Some(fd), None) => {
                self.polled.remove(&token);
                self.tokens.remove(&fd);
                ops.remove(Events::empty_raw(fd))
            }
            (None, None) => Ok(()),
        };
        if let Err(error) = result {
            tracing::error!(%error, "a stream's socket cannot be watched");
            self.device.device(|device| device.close(token));
        }
    }

    /// Asks for the agent's connection, if it is time.
    fn reach_agent(&mut self) {
        let Agent::Idle { from, .. } = self.agent else { return };
        if from > Instant::now() {
            return;
        }
        let Agent::Idle { socket, .. } = std::mem::replace(&mut self.agent, Agent::Over) else { return };
        // A refusal closes the socket.
        let released = self.released.take();
        match self.device.device(|device| device.connect(AGENT_PORT, socket)) {
            Ok(token) => (self.agent, self.released) = (Agent::Asking(token), released),
            Err(error) => tracing::error!(%error, "the agent's connection cannot be made"),
        }
    }

    /// Sets the timer for whatever is due first.
    fn set_timer(&mut self) {
        let mut due = self.device.device(|device| device.next_deadline());
        if let Agent::Idle { from, .. } = self.agent {
            due = Some(due.map_or(from, |due| due.min(from)));
        }
        if due == self.armed {
            return;
        }
        self.armed = due;
        let wait = due.map(|at| at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = wait.and_then(|wait| Timespec::try_from(wait).ok()).unwrap_or(zero);
        let time = Itimerspec { it_interval: zero, it_value: value };
        if let Err(errno) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time) {
            tracing::error!(%errno, "a timer cannot be set");
        }
    }
}

impl MutEventSubscriber for VsockSubscriber {
    fn process(&mut self, events: Events, ops: &mut EventOps) {
        match events.data() {
            SOCKET => {
                let Some(&token) = self.tokens.get(&events.fd()) else { return };
                let set = events.event_set();
                let readiness = Readiness {
                    readable: set.contains(EventSet::IN),
                    writable: set.contains(EventSet::OUT),
                    hangup: set.intersects(EventSet::HANG_UP | EventSet::ERROR),
                };
                self.device.device(|device| device.host_ready(token, readiness));
            }
            TIMER => {
                drain(&self.timer);
                self.armed = None;
                self.device.device(|device| device.expire(Instant::now()));
            }
            WAKE => drain(&self.wake),
            _ => {
                self.bell.drain();
                self.device.process_queue(Vsock::EVENT_QUEUE);
            }
        }
        self.turn(ops);
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, self.bell.as_ref(), BELL, EventSet::IN);
        add(ops, self.wake.as_ref(), WAKE, EventSet::IN);
        add(ops, &self.timer, TIMER, EventSet::IN);
        // The first turn is the thread's, when it may begin.
        ring(self.wake.as_fd());
    }
}

fn drain(descriptor: &impl AsFd) {
    // Not blocking; what it says does not matter, only that it is read.
    let _ = rustix::io::read(descriptor, &mut [0; 8]);
}
