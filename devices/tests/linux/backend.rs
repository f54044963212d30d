//! Serves the device to a vhost-user front end (QEMU), and is the embedder that the device wants: one epoll
//! set for host sockets, one timer, one doorbell for other threads.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hayfork_devices::virtio::vsock::host::UnixSocket;
use hayfork_devices::virtio::vsock::{CloseReason, Event, Readiness, Token, VsockConfig, VsockDevice};
use hayfork_devices::virtio::{ActiveQueue, Progress, QueueError};
use vhost::vhost_user::Listener;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringMutex, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::timerfd::TimerFd;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Connector = Box<dyn FnMut(u32) -> io::Result<UnixSocket> + Send + Sync>;
type Device = VsockDevice<UnixSocket, Connector>;

const RX: usize = 0;
const TX: usize = 1;
// Numbers of events above those that vhost-user-backend keeps for itself (queues and exit).
const SOCKETS: u16 = 3;
const DOORBELL: u16 = 4;
const TIMER: u16 = 5;

/// Feature bit by which vhost-user says that it has protocol features.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Something that happened on the host, for the test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The guest connected to this port; here is the other end.
    Opened(u32),
    /// The guest accepted a connection of the host.
    Connected(Token),
    /// A connection ended.
    Closed(Token, CloseReason),
}

struct Backend {
    device: Device,
    mem: Option<Memory>,
    event_idx: bool,
    epoll: Epoll,
    polled: HashMap<Token, EventSet>,
    timer: TimerFd,
    doorbell: EventFd,
    /// Connections that other threads want, with a place for their tokens.
    wanted: Arc<Mutex<Requests>>,
    notices: Sender<Notice>,
}

#[derive(Default)]
struct Requests {
    connect: VecDeque<(u32, UnixStream, Sender<Token>)>,
    reset: bool,
    restore: Option<Sender<Carried>>,
}

/// Host ends of the connections that were carried over to a restored device, by their host ports.
pub(crate) type Carried = HashMap<u32, UnixStream>;

impl Backend {
    /// One turn of the embedder's loop.
    fn turn(&mut self, vrings: &[VringMutex]) -> io::Result<()> {
        let Some(mem) = self.mem.as_ref().map(Memory::memory) else {
            return Ok(());
        };
        loop {
            let mut rx = vrings[RX].get_mut();
            let mut tx = vrings[TX].get_mut();
            let (rx_progress, tx_progress) =
                on_loan(rx.get_queue_mut(), tx.get_queue_mut(), &mem, |rx, tx| {
                    self.device.process(rx, tx, &*mem)
                })
                .map_err(io::Error::other)?;
            if rx_progress.interrupt {
                rx.signal_used_queue()?;
            }
            if tx_progress.interrupt {
                tx.signal_used_queue()?;
            }
            drop((rx, tx));
            self.take_events()?;
            if !rx_progress.again && !tx_progress.again {
                break;
            }
        }
        match self.device.next_deadline() {
            Some(at) => {
                let wait = at.saturating_duration_since(Instant::now());
                self.timer.reset(wait.max(Duration::from_millis(1)), None)?;
            }
            None => self.timer.clear()?,
        }
        Ok(())
    }

    fn take_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.device.next_event() {
            match event {
                Event::Opened { host_port, .. } => {
                    let _ = self.notices.send(Notice::Opened(host_port));
                }
                Event::Connected { token } => drop(self.notices.send(Notice::Connected(token))),
                Event::Interest { token, interest } => {
                    let mut events = EventSet::empty();
                    events.set(EventSet::IN, interest.read);
                    events.set(EventSet::OUT, interest.write);
                    // A hangup is reported without being asked for.
                    let wanted = (!interest.is_none()).then_some(events);
                    self.poll(token, wanted)?;
                }
                Event::Closed { token, reason, socket } => {
                    if self.polled.remove(&token).is_some() {
                        let nothing = EpollEvent::default();
                        self.epoll.ctl(ControlOperation::Delete, socket.as_raw_fd(), nothing)?;
                    }
                    let _ = self.notices.send(Notice::Closed(token, reason));
                }
            }
        }
        Ok(())
    }

    fn poll(&mut self, token: Token, wanted: Option<EventSet>) -> io::Result<()> {
        let fd = self.device.socket(token).expect("a socket with an interest").as_raw_fd();
        let operation = match (self.polled.contains_key(&token), wanted.is_some()) {
            (false, true) => ControlOperation::Add,
            (true, true) => ControlOperation::Modify,
            (true, false) => ControlOperation::Delete,
            (false, false) => return Ok(()),
        };
        let event = EpollEvent::new(wanted.unwrap_or(EventSet::empty()), token.0);
        self.epoll.ctl(operation, fd, event)?;
        match wanted {
            Some(events) => drop(self.polled.insert(token, events)),
            None => drop(self.polled.remove(&token)),
        }
        Ok(())
    }

    fn sockets_ready(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::default(); 64];
        let n = self.epoll.wait(0, &mut events)?;
        for event in &events[..n] {
            let set = event.event_set();
            let readiness = Readiness {
                readable: set.contains(EventSet::IN),
                writable: set.contains(EventSet::OUT),
                hangup: set.intersects(EventSet::HANG_UP | EventSet::ERROR),
            };
            self.device.host_ready(Token(event.data()), readiness);
        }
        Ok(())
    }

    /// Puts a device in place of the old one that was made from its state, with new sockets for all
    /// connections.
    fn restore(&mut self) -> Carried {
        let state = serde_json::to_string(&self.device.save()).unwrap();
        let state = serde_json::from_str(&state).unwrap();
        let config = self.device.config().clone();
        let nobody: Connector = Box::new(|_| Err(io::ErrorKind::ConnectionRefused.into()));
        let connector = std::mem::replace(self.device.connector_mut(), nobody);
        let mut carried = Carried::new();
        let (device, _) = Device::restore(config, connector, state, |connection| {
            let (ours, theirs) = UnixSocket::pair().unwrap();
            theirs.set_read_timeout(Some(super::PATIENCE)).unwrap();
            carried.insert(connection.ports.host, theirs);
            Some(ours)
        })
        .unwrap();
        // With the old device its sockets are closed, and gone from the poll set.
        self.device = device;
        self.polled.clear();
        carried
    }

    fn doorbell_rang(&mut self) {
        let _ = self.doorbell.read();
        let mut wanted = self.wanted.lock().unwrap();
        while let Some((port, stream, answer)) = wanted.connect.pop_front() {
            let socket = UnixSocket::new(stream).unwrap();
            let token = self.device.connect(port, socket).unwrap();
            let _ = answer.send(token);
        }
        if let Some(answer) = wanted.restore.take() {
            drop(wanted);
            let _ = answer.send(self.restore());
            return;
        }
        if std::mem::take(&mut wanted.reset) {
            // Without the event (QEMU has that queue): the guest finds out by resets.
            self.device.reset_transport();
        }
    }
}

impl VhostUserBackendMut for Backend {
    type Bitmap = ();
    type Vring = VringMutex;

    // QEMU keeps the event queue to itself.
    fn num_queues(&self) -> usize {
        2
    }

    // More than the device asks for: QEMU's virtio-mmio offers 1024 whatever the device says.
    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        Device::FEATURES | PROTOCOL_FEATURES
    }

    fn acked_features(&mut self, features: u64) {
        self.device.accept_features(features & !PROTOCOL_FEATURES).expect("features of Linux");
        assert_ne!(features & 1 << VIRTIO_F_VERSION_1, 0);
        assert_eq!(features & 1 << VIRTIO_RING_F_EVENT_IDX != 0, self.event_idx || features >> 29 & 1 == 1);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
    }

    fn set_event_idx(&mut self, enabled: bool) {
        self.event_idx = enabled;
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut space = vec![0; size as usize];
        self.device.read_config(u64::from(offset), &mut space);
        space
    }

    fn update_memory(&mut self, mem: Memory) -> io::Result<()> {
        self.mem = Some(mem);
        Ok(())
    }

    fn handle_event(
        &mut self,
        event: u16,
        _set: EventSet,
        vrings: &[VringMutex],
        _thread: usize,
    ) -> io::Result<()> {
        match event {
            SOCKETS => self.sockets_ready()?,
            DOORBELL => self.doorbell_rang(),
            TIMER => {
                self.timer.wait()?;
                self.device.expire(Instant::now());
            }
            _ => {}
        }
        self.turn(vrings)
    }
}

/// Lets `work` use two queues of the vhost-user library, which keeps their settings, as the device wants them.
/// A queue that is not ready makes it nothing to do.
fn on_loan(
    rx: &mut Queue,
    tx: &mut Queue,
    mem: &GuestMemoryMmap,
    work: impl FnOnce(&mut ActiveQueue, &mut ActiveQueue) -> Result<(Progress, Progress), QueueError>,
) -> Result<(Progress, Progress), QueueError> {
    if !rx.ready() || !tx.ready() {
        return Ok(Default::default());
    }
    let mut active_rx = ActiveQueue::new(std::mem::take(rx), mem)?;
    let mut active_tx = ActiveQueue::new(std::mem::take(tx), mem)?;
    let result = work(&mut active_rx, &mut active_tx);
    (*rx, *tx) = (active_rx.into_inner(), active_tx.into_inner());
    result
}

/// The running service, for tests.
pub(crate) struct Service {
    wanted: Arc<Mutex<Requests>>,
    doorbell: EventFd,
    backend: Arc<Mutex<Backend>>,
}

impl Service {
    /// Serves a device on the vhost-user socket at `path`, to one front end.
    pub(crate) fn start(
        path: &Path,
        config: VsockConfig,
        connector: Connector,
        notices: Sender<Notice>,
    ) -> Self {
        let wanted = Arc::new(Mutex::new(Requests::default()));
        let doorbell = EventFd::new(EFD_NONBLOCK).unwrap();
        let backend = Arc::new(Mutex::new(Backend {
            device: Device::new(config, connector).unwrap(),
            mem: None,
            event_idx: false,
            epoll: Epoll::new().unwrap(),
            polled: HashMap::new(),
            timer: TimerFd::new().unwrap(),
            doorbell: doorbell.try_clone().unwrap(),
            wanted: wanted.clone(),
            notices,
        }));
        let mem = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon = VhostUserDaemon::new("vsock".to_owned(), backend.clone(), mem).unwrap();
        {
            let backend = backend.lock().unwrap();
            let handler = &daemon.get_epoll_handlers()[0];
            for (fd, number) in [
                (backend.epoll.as_raw_fd(), SOCKETS),
                (backend.doorbell.as_raw_fd(), DOORBELL),
                (backend.timer.as_raw_fd(), TIMER),
            ] {
                handler.register_listener(fd, EventSet::IN, u64::from(number)).unwrap();
            }
        }
        let mut listener = Listener::new(path, true).unwrap();
        thread::spawn(move || {
            daemon.start(&mut listener).unwrap();
            // Ends when QEMU does, which the library calls an error.
            if let Err(error) = daemon.wait() {
                println!("vhost-user connection: {error}");
            }
        });
        Self { wanted, doorbell, backend }
    }

    /// Connects to a port of the guest; the stream is the host program's end.
    pub(crate) fn connect(&self, guest_port: u32) -> (Token, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(super::PATIENCE)).unwrap();
        theirs.set_write_timeout(Some(super::PATIENCE)).unwrap();
        let (answer, token) = std::sync::mpsc::channel();
        self.wanted.lock().unwrap().connect.push_back((guest_port, ours, answer));
        self.doorbell.write(1).unwrap();
        (token.recv_timeout(super::PATIENCE).expect("the device's thread answers"), theirs)
    }

    /// Makes the device forget all connections.
    pub(crate) fn reset_transport(&self) {
        self.wanted.lock().unwrap().reset = true;
        self.doorbell.write(1).unwrap();
    }

    /// Saves the device, and goes on with a restored one.
    pub(crate) fn restore(&self) -> Carried {
        let (answer, carried) = std::sync::mpsc::channel();
        self.wanted.lock().unwrap().restore = Some(answer);
        self.doorbell.write(1).unwrap();
        carried.recv_timeout(super::PATIENCE).expect("the device's thread answers")
    }

    /// Looks at the device between two turns.
    pub(crate) fn with_device<T>(&self, look: impl FnOnce(&Device) -> T) -> T {
        look(&self.backend.lock().unwrap().device)
    }
}
