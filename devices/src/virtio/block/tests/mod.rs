//! Tests of the block device against a mock driver, over a file and over a mock backend.
// Test patterns, and sizes of memory that fit anywhere.
#![allow(clippy::cast_possible_truncation)]

mod file;
mod hostile;
mod requests;
mod state;

use std::io;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{BlockBackend, BlockDevice};
use crate::virtio::queue::{ActiveQueues, QueueError};
use crate::virtio::testing::{DriverQueue, Segment, cut};
use crate::virtio::{Progress, VirtioDevice};

pub(super) const IN: u32 = 0;
pub(super) const OUT: u32 = 1;
pub(super) const FLUSH: u32 = 4;
pub(super) const GET_ID: u32 = 8;
pub(super) const DISCARD: u32 = 11;
pub(super) const WRITE_ZEROES: u32 = 13;

pub(super) const OK: u8 = 0;
pub(super) const IOERR: u8 = 1;
pub(super) const UNSUPP: u8 = 2;

pub(super) const VERSION_1: u64 = 1 << 32;
pub(super) const F_RO: u64 = 1 << 5;
pub(super) const F_FLUSH: u64 = 1 << 9;

pub(super) const ID: [u8; 20] = *b"hayfork-test-disk\0\0\0";

/// Guest memory: two regions that touch in the middle of the data area.
pub(super) const MEMORY: u64 = 24 << 20;
const BORDER: u64 = 0x20_0000 + 4096 + 100;
const HEADER: u64 = 0x1_0000;
const STATUS: u64 = 0x1_1000;
/// Where data lies; the border crosses it.
pub(super) const DATA: u64 = 0x20_0000;

/// A disk in memory that counts, and fails when told.
#[derive(Debug, Default)]
pub(super) struct MockDisk {
    pub(super) bytes: Vec<u8>,
    pub(super) read_only: bool,
    pub(super) flushes: u32,
    pub(super) calls: u32,
    pub(super) failing: bool,
    /// Ranges that were discarded.
    pub(super) discarded: Vec<(u64, u64)>,
    /// Ranges that became zero, and whether they might be unmapped.
    pub(super) zeroed: Vec<(u64, u64, bool)>,
}

impl MockDisk {
    fn call(&mut self) -> io::Result<()> {
        self.calls += 1;
        if self.failing { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn range(offset: u64, len: usize) -> std::ops::Range<usize> {
        let offset = usize::try_from(offset).unwrap();
        offset..offset + len
    }
}

impl BlockBackend for MockDisk {
    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.call()?;
        data.copy_from_slice(&self.bytes[Self::range(offset, data.len())]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call()?;
        self.bytes[Self::range(offset, data.len())].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.call()?;
        self.flushes += 1;
        Ok(())
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.call()?;
        self.discarded.push((offset, len));
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
        self.call()?;
        self.zeroed.push((offset, len, may_unmap));
        self.bytes[Self::range(offset, usize::try_from(len).unwrap())].fill(0);
        Ok(())
    }
}

/// Bytes that differ from sector to sector.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ (i / 512 % 256) as u8).collect()
}

/// A disk in memory with a pattern, behind a driver that flushes.
pub(super) fn mock(sectors: usize) -> Rig<MockDisk> {
    Rig::new(MockDisk { bytes: pattern(sectors * 512), ..MockDisk::default() })
}

/// A device in use.
pub(super) struct Rig<B> {
    pub(super) device: BlockDevice<B>,
    pub(super) mem: GuestMemoryMmap,
    pub(super) queue: DriverQueue,
    pub(super) queues: ActiveQueues,
}

impl<B: BlockBackend> Rig<B> {
    pub(super) fn new(backend: B) -> Self {
        let (low, high) = (BORDER as usize, (MEMORY - BORDER) as usize);
        let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), low), (GuestAddress(BORDER), high)]);
        let mem = mem.unwrap();
        let queue = DriverQueue::new(&mem, 0x1000, 256);
        let queues = ActiveQueues::new(vec![Some(queue.device_queue(false))]);
        let mut device = BlockDevice::new(backend, ID);
        let features = VirtioDevice::<GuestMemoryMmap>::features(&device);
        VirtioDevice::<GuestMemoryMmap>::accept_features(&mut device, features).unwrap();
        Self { device, mem, queue, queues }
    }

    pub(super) fn process(&mut self) -> Result<Progress, QueueError> {
        self.device.process_queue(0, &mut self.queues, &self.mem)
    }

    pub(super) fn write_header(&self, type_: u32, sector: u64) {
        self.mem.write_slice(&type_.to_le_bytes(), GuestAddress(HEADER)).unwrap();
        self.mem.write_slice(&[0; 4], GuestAddress(HEADER + 4)).unwrap();
        self.mem.write_slice(&sector.to_le_bytes(), GuestAddress(HEADER + 8)).unwrap();
    }

    /// A request as Linux makes it: header, data, status; gives the status and the used length.
    pub(super) fn request(&mut self, type_: u32, sector: u64, data: &[Segment]) -> (u8, u32) {
        let mut chain = vec![Segment::readable(HEADER, 16)];
        chain.extend_from_slice(data);
        chain.push(Segment::writable(STATUS, 1));
        self.write_header(type_, sector);
        self.mem.write_slice(&[0xee], GuestAddress(STATUS)).unwrap();
        self.queue.add(&chain).expect("room in the queue");
        self.process().expect("a good queue");
        let used = self.queue.next_used().expect("an answer");
        let mut status = [0];
        self.mem.read_slice(&mut status, GuestAddress(STATUS)).unwrap();
        (status[0], used.len)
    }

    /// Reads `len` bytes from `sector` on, into a buffer that is cut as told.
    pub(super) fn read(&mut self, sector: u64, len: u32, cuts: &[u32]) -> (u8, Vec<u8>) {
        self.mem.write_slice(&vec![0xdd; len as usize], GuestAddress(DATA)).unwrap();
        let (status, used) = self.request(IN, sector, &cut(DATA, len, cuts, true));
        assert_eq!(used, if status == OK { len + 1 } else { u32::from(len == 0) });
        (status, self.data(len))
    }

    /// Writes `bytes` at `sector`, from a buffer that is cut as told.
    pub(super) fn write(&mut self, sector: u64, bytes: &[u8], cuts: &[u32]) -> u8 {
        self.mem.write_slice(bytes, GuestAddress(DATA)).unwrap();
        let len = u32::try_from(bytes.len()).unwrap();
        let (status, used) = self.request(OUT, sector, &cut(DATA, len, cuts, false));
        assert_eq!(used, 1);
        status
    }

    /// DISCARD or WRITE_ZEROES of segments: sector, sectors, flags.
    pub(super) fn segments(&mut self, type_: u32, segments: &[(u64, u32, u32)]) -> u8 {
        let mut bytes = Vec::new();
        for (sector, sectors, flags) in segments {
            bytes.extend(sector.to_le_bytes());
            bytes.extend(sectors.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
        }
        self.mem.write_slice(&bytes, GuestAddress(DATA)).unwrap();
        let len = u32::try_from(bytes.len()).unwrap();
        self.request(type_, 0, &[Segment::readable(DATA, len)]).0
    }

    pub(super) fn data(&self, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.mem.read_slice(&mut bytes, GuestAddress(DATA)).unwrap();
        bytes
    }

    pub(super) fn config(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xff; len];
        VirtioDevice::<GuestMemoryMmap>::read_config(&self.device, offset, &mut bytes);
        bytes
    }

    pub(super) fn features(&self) -> u64 {
        VirtioDevice::<GuestMemoryMmap>::features(&self.device)
    }
}
