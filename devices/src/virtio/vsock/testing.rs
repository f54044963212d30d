//! A mock vsock driver and mock host sockets, for tests, benches and fuzz targets.
//!
//! [`Guest`] owns guest memory and both sides' queues; it sends packets in chains cut as told and
//! collects what comes. It keeps no connection state: tests say what a guest does, right or wrong.
//! [`pair`] gives the two ends of an in-memory stream with a bounded pipe in each direction.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::host::{Connector, HostSocket};
use super::packet::{HEADER_LEN, Header, Op, TYPE_STREAM};
use super::{HOST_CID, VsockDevice};
use crate::virtio::queue::{ActiveQueue, QueueError};
use crate::virtio::testing::{DriverQueue, Segment, Used, cut};

/// Address of the mock guest.
pub const GUEST_CID: u64 = 3;

/// Guest memory of the mock: two regions with a border that buffers can cross.
const MEM_SIZE: usize = 16 << 20;
const TX_BUFFERS: u64 = 1 << 20;
const RX_BUFFERS: u64 = 9 << 20;

/// A mock guest with its queues.
#[derive(Debug)]
pub struct Guest {
    /// Guest memory.
    pub mem: GuestMemoryMmap,
    /// The driver's sides of the queues.
    pub rx: DriverQueue,
    /// See `rx`.
    pub tx: DriverQueue,
    /// See `rx`.
    pub event: DriverQueue,
    /// The device's sides of the queues.
    pub rx_queue: ActiveQueue,
    /// See `rx_queue`.
    pub tx_queue: ActiveQueue,
    /// See `rx_queue`.
    pub event_queue: ActiveQueue,
    next_tx: u64,
    next_rx: u64,
}

impl Default for Guest {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Guest {
    /// A guest that has set up its queues and offered no buffers.
    pub fn new(event_idx: bool) -> Self {
        // Two regions that touch, so that a buffer can be contiguous for the guest and not for us.
        let border = TX_BUFFERS + (4 << 20);
        let mem = GuestMemoryMmap::from_ranges(&[
            (GuestAddress(0), usize::try_from(border).unwrap()),
            (GuestAddress(border), MEM_SIZE - usize::try_from(border).unwrap()),
        ])
        .unwrap();
        let rx = DriverQueue::new(&mem, 0x1000, 256);
        let tx = DriverQueue::new(&mem, 0x4000, 256);
        let event = DriverQueue::new(&mem, 0x8000, 16);
        Self {
            rx_queue: rx.device_queue(event_idx),
            tx_queue: tx.device_queue(event_idx),
            event_queue: event.device_queue(event_idx),
            mem,
            rx,
            tx,
            event,
            next_tx: 0,
            next_rx: 0,
        }
    }

    /// Sends a packet in a chain that is cut as told; `None` if the queue is full.
    pub fn send(&mut self, header: &Header, payload: &[u8], cuts: &[u32]) -> Option<u16> {
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(payload);
        self.send_bytes(&bytes, cuts)
    }

    /// Sends bytes that may be no packet at all.
    pub fn send_bytes(&mut self, bytes: &[u8], cuts: &[u32]) -> Option<u16> {
        let len = u32::try_from(bytes.len()).unwrap();
        let area = RX_BUFFERS - TX_BUFFERS;
        if self.next_tx + u64::from(len) > area {
            self.next_tx = 0;
        }
        let addr = TX_BUFFERS + self.next_tx;
        let head = self.tx.add(&cut(addr, len, cuts, false))?;
        self.mem.write_slice(bytes, GuestAddress(addr)).unwrap();
        self.next_tx += u64::from(len);
        Some(head)
    }

    /// Offers a receive buffer of `len` bytes in a chain that is cut as told.
    pub fn offer(&mut self, len: u32, cuts: &[u32]) -> Option<u16> {
        let area = MEM_SIZE as u64 - RX_BUFFERS;
        if self.next_rx + u64::from(len) > area {
            self.next_rx = 0;
        }
        let head = self.rx.add(&cut(RX_BUFFERS + self.next_rx, len, cuts, true))?;
        self.next_rx += u64::from(len);
        Some(head)
    }

    /// Offers as many receive buffers of `len` bytes as the queue and memory hold.
    pub fn offer_all(&mut self, len: u32) {
        let most = (MEM_SIZE as u64 - RX_BUFFERS) / u64::from(len);
        while (self.rx.pending() as u64) < most && self.offer(len, &[]).is_some() {}
    }

    /// Takes the next packet that the device sent.
    pub fn receive(&mut self) -> Option<(Header, Vec<u8>)> {
        let used = self.rx.next_used()?;
        let bytes = self.bytes_of(&used);
        let header: &[u8; HEADER_LEN] = bytes[..HEADER_LEN].try_into().expect("a whole header");
        let header = Header::decode(header);
        let payload = bytes[HEADER_LEN..].to_vec();
        assert_eq!(payload.len(), header.len as usize, "{header:?}");
        Some((header, payload))
    }

    /// What the device wrote into a chain.
    pub fn bytes_of(&self, used: &Used) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Segment { addr, len, .. } in &used.segments {
            let mut part = vec![0; *len as usize];
            self.mem.read_slice(&mut part, GuestAddress(*addr)).unwrap();
            bytes.extend(part);
        }
        bytes.truncate(used.len as usize);
        bytes
    }

    /// Takes used tx chains back; gives their number.
    ///
    /// # Panics
    /// If one was used with another length than 0.
    pub fn reap(&mut self) -> usize {
        let mut n = 0;
        while let Some(used) = self.tx.next_used() {
            assert_eq!(used.len, 0, "the device writes nothing into a tx chain");
            n += 1;
        }
        n
    }

    /// Lets the device handle both queues until it says that there is no more to do.
    ///
    /// # Errors
    /// Those of the device.
    pub fn run<S: HostSocket, C: Connector<S>>(
        &mut self,
        device: &mut VsockDevice<S, C>,
    ) -> Result<(), QueueError> {
        loop {
            let (rx, tx) = device.process(&mut self.rx_queue, &mut self.tx_queue, &self.mem)?;
            if !rx.again && !tx.again {
                return Ok(());
            }
        }
    }
}

/// A header from the mock guest to the host.
pub fn from_guest(guest_port: u32, host_port: u32, op: Op) -> Header {
    Header {
        src_cid: GUEST_CID,
        dst_cid: HOST_CID,
        src_port: guest_port,
        dst_port: host_port,
        len: 0,
        type_: TYPE_STREAM,
        op: op as u16,
        flags: 0,
        buf_alloc: 256 * 1024,
        fwd_cnt: 0,
    }
}

/// One direction of an in-memory stream.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// The writer is done.
    finished: bool,
    /// The reader is gone.
    deaf: bool,
}

impl Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() && !buf.is_empty() {
            return if self.finished || self.deaf { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        self.bytes.read(buf)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.deaf || self.finished {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = self.capacity - self.bytes.len();
        if room == 0 && !buf.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = room.min(buf.len());
        self.bytes.extend(&buf[..n]);
        Ok(n)
    }
}

/// One end of an in-memory stream; dropping it closes it.
#[derive(Debug)]
pub struct MockSocket {
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
}

/// Two connected sockets, each of whose directions holds `capacity` bytes.
pub fn pair(capacity: usize) -> (MockSocket, MockSocket) {
    let pipe = || Arc::new(Mutex::new(Pipe { capacity, ..Pipe::default() }));
    let (a, b) = (pipe(), pipe());
    let ours = MockSocket { incoming: a.clone(), outgoing: b.clone() };
    let theirs = MockSocket { incoming: b, outgoing: a };
    (ours, theirs)
}

impl MockSocket {
    /// Everything that can be read now, and whether the stream ended behind it.
    pub fn read_available(&mut self) -> (Vec<u8>, bool) {
        let mut pipe = self.incoming.lock().unwrap();
        let bytes = pipe.bytes.drain(..).collect();
        (bytes, pipe.finished)
    }

    /// Whether the other end is gone or has ended both directions.
    pub fn hung_up(&self) -> bool {
        self.incoming.lock().unwrap().finished && self.outgoing.lock().unwrap().deaf
    }
}

impl Read for MockSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.incoming.lock().unwrap().read(buf)
    }
}

impl Write for MockSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.outgoing.lock().unwrap().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl HostSocket for MockSocket {
    fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.incoming.lock().unwrap().deaf = true;
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.outgoing.lock().unwrap().finished = true;
        }
        Ok(())
    }
}

impl Drop for MockSocket {
    fn drop(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// A connector that gives in-memory sockets for every port but one, and keeps their other ends.
#[derive(Debug)]
pub struct MockConnector {
    /// Other ends of the sockets given, with their ports, oldest first.
    pub accepted: VecDeque<(u32, MockSocket)>,
    /// Bytes that each direction of a socket holds.
    pub capacity: usize,
}

/// The port that [`MockConnector`] refuses.
pub const REFUSED_PORT: u32 = 666;

impl Default for MockConnector {
    fn default() -> Self {
        Self { accepted: VecDeque::new(), capacity: 1 << 20 }
    }
}

impl Connector<MockSocket> for MockConnector {
    fn connect(&mut self, port: u32) -> io::Result<MockSocket> {
        if port == REFUSED_PORT {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = pair(self.capacity);
        self.accepted.push_back((port, theirs));
        Ok(ours)
    }
}
