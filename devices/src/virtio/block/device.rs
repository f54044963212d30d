//! The device: configuration space, and one request after the other.

use std::io;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP,
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::DescriptorChain;
use vm_memory::GuestMemory;
use vm_memory::bitmap::BitmapSlice;

use super::backend::BlockBackend;
use super::{
    DISCARD_SECTORS_MAX, DISCARD_SEGMENTS_MAX, ID_BYTES, REQUEST_BYTES_MAX, SECTOR, SEGMENT_BYTES_MAX,
    SEGMENTS_MAX, ZEROES_SECTORS_MAX, ZEROES_SEGMENTS_MAX, transfer,
};
use crate::virtio::buffers::{Buffers, ChainBuffers, gather};
use crate::virtio::device::{FeatureError, Progress, VirtioDevice, check_features, read_space};
use crate::virtio::queue::{ActiveQueues, QueueError};

/// Cost after which a call stops, in bytes of data moved: that of the largest request.
const CALL_COST: u64 = REQUEST_BYTES_MAX as u64;

/// What a flush costs, in bytes of data: both take milliseconds.
const FLUSH_COST: u64 = 1 << 20;

/// What a discarded segment costs, in bytes of data.
const DISCARD_COST: u64 = 64 << 10;

/// Length of a segment of DISCARD and WRITE_ZEROES in bytes.
const SEGMENT: usize = 16;

/// Length of the configuration space as far as this device uses it (virtio 1.2, 5.2.4).
const CONFIG_BYTES: usize = 60;

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BlockCounters {
    /// Requests with an answer.
    pub requests: u64,
    /// Bytes read by the guest.
    pub bytes_read: u64,
    /// Bytes written by the guest.
    pub bytes_written: u64,
    /// Requests that were refused: out of range, of a wrong size, or writing to a read-only disk.
    pub refused: u64,
    /// Requests on which the backend failed.
    pub failed: u64,
    /// Chains that held no request.
    pub malformed: u64,
}

/// How a request did not succeed.
#[derive(Debug)]
enum Failure {
    /// The request is not one that may be done.
    Refused,
    /// The device does not know it.
    Unknown,
    /// The backend failed.
    Backend,
}

impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Self {
        Self::Backend
    }
}

/// A virtio block device over `B`.
#[derive(Debug)]
pub struct BlockDevice<B> {
    backend: B,
    capacity: u64,
    read_only: bool,
    id: [u8; ID_BYTES],
    features: u64,
    /// The driver does not flush: a write is finished when it is safe (virtio 1.2, 5.2.6.2).
    write_through: bool,
    bounce: Vec<u8>,
    /// What the requests of this call have cost so far.
    cost: u64,
    counters: BlockCounters,
}

impl<B: BlockBackend> BlockDevice<B> {
    /// The size of the one queue.
    pub const QUEUE_SIZES: [u16; 1] = [256];

    /// A disk over `backend` with the name `id`, in ASCII, filled up with zeros; Linux shows it as
    /// /sys/block/*/serial.
    pub fn new(backend: B, id: [u8; ID_BYTES]) -> Self {
        let read_only = backend.is_read_only();
        let mut bits =
            vec![VIRTIO_F_VERSION_1, VIRTIO_RING_F_EVENT_IDX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_SEG_MAX];
        if read_only {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        Self {
            capacity: backend.capacity() / SECTOR * SECTOR,
            read_only,
            backend,
            id,
            features: bits.into_iter().fold(0, |features, bit| features | 1 << bit),
            write_through: true,
            bounce: Vec::new(),
            cost: 0,
            counters: BlockCounters::default(),
        }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether nothing can be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The name.
    pub fn id(&self) -> &[u8; ID_BYTES] {
        &self.id
    }

    /// What has happened so far.
    pub fn counters(&self) -> BlockCounters {
        self.counters
    }

    /// What the disk is kept in.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    #[cfg(test)]
    pub(super) fn write_through(&self) -> bool {
        self.write_through
    }

    fn config(&self) -> [u8; CONFIG_BYTES] {
        let mut space = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.capacity / SECTOR).to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        if !self.read_only {
            put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
            put(40, &DISCARD_SEGMENTS_MAX.to_le_bytes());
            // Alignment of discards: a sector. What is smaller than a block of the file is kept.
            put(44, &1u32.to_le_bytes());
            put(48, &ZEROES_SECTORS_MAX.to_le_bytes());
            put(52, &ZEROES_SEGMENTS_MAX.to_le_bytes());
            put(56, &[1]);
        }
        space
    }

    /// Handles one chain; gives the bytes that were written into it from its beginning on.
    fn handle<M: GuestMemory>(&mut self, chain: DescriptorChain<&M>, mem: &M) -> usize {
        // No driver makes longer chains: it would need more descriptors than the queue has.
        let buffers = gather(chain, mem, usize::from(Self::QUEUE_SIZES[0]));
        let taken = buffers.and_then(|mut buffers| {
            let status = buffers.writable.take_last()?;
            Some((buffers, status))
        });
        let Some((mut buffers, status)) = taken else {
            self.counters.malformed += 1;
            return 0;
        };
        let room = buffers.writable.len();
        let result = self.request(&mut buffers);
        self.counters.requests += 1;
        let (code, written) = match result {
            Ok(()) => (VIRTIO_BLK_S_OK, room - buffers.writable.len()),
            Err(failure) => {
                let code = match failure {
                    Failure::Unknown => VIRTIO_BLK_S_UNSUPP,
                    Failure::Refused | Failure::Backend => VIRTIO_BLK_S_IOERR,
                };
                match failure {
                    Failure::Backend => self.counters.failed += 1,
                    Failure::Refused | Failure::Unknown => self.counters.refused += 1,
                }
                (code, 0)
            }
        };
        status.copy_from(&[u8::try_from(code).unwrap_or(u8::MAX)]);
        // The length counts from the first writable byte on, without gaps.
        if written == room { room + 1 } else { written }
    }

    fn request<S: BitmapSlice>(&mut self, buffers: &mut ChainBuffers<'_, S>) -> Result<(), Failure> {
        let mut header = [0; 16];
        if buffers.readable.read(&mut header) < header.len() {
            return Err(Failure::Refused);
        }
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let (type_, sector) = (u32::from_le_bytes([t0, t1, t2, t3]), u64::from_le_bytes(sector));
        match type_ {
            VIRTIO_BLK_T_IN => {
                let data = &mut buffers.writable;
                let offset = self.range_of(sector, data.len())?;
                let len = data.len() as u64;
                transfer::read(&mut self.backend, offset, data, &mut self.bounce)?;
                self.counters.bytes_read += len;
                self.cost += len;
                Ok(())
            }
            VIRTIO_BLK_T_GET_ID => {
                buffers.writable.write(&self.id);
                Ok(())
            }
            VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_FLUSH | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES
                if self.read_only =>
            {
                Err(Failure::Refused)
            }
            VIRTIO_BLK_T_OUT => {
                let data = &mut buffers.readable;
                let offset = self.range_of(sector, data.len())?;
                let len = data.len() as u64;
                transfer::write(&mut self.backend, offset, data, &mut self.bounce)?;
                self.counters.bytes_written += len;
                self.cost += len;
                self.written()
            }
            VIRTIO_BLK_T_FLUSH => self.flush(),
            VIRTIO_BLK_T_DISCARD => self.discard(&mut buffers.readable),
            VIRTIO_BLK_T_WRITE_ZEROES => self.write_zeroes(&mut buffers.readable),
            _ => Err(Failure::Unknown),
        }
    }

    /// The offset of data of `len` bytes at `sector`, if that is whole sectors inside the disk.
    fn range_of(&self, sector: u64, len: usize) -> Result<u64, Failure> {
        if len > REQUEST_BYTES_MAX || !(len as u64).is_multiple_of(SECTOR) {
            return Err(Failure::Refused);
        }
        self.offset_of(sector, len as u64)
    }

    /// The offset of `len` bytes at `sector`, if they are inside the disk.
    fn offset_of(&self, sector: u64, len: u64) -> Result<u64, Failure> {
        let offset = sector.checked_mul(SECTOR).ok_or(Failure::Refused)?;
        let end = offset.checked_add(len).ok_or(Failure::Refused)?;
        if end > self.capacity { Err(Failure::Refused) } else { Ok(offset) }
    }

    fn written(&mut self) -> Result<(), Failure> {
        if self.write_through { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.cost += FLUSH_COST;
        Ok(self.backend.flush()?)
    }

    fn discard<S: BitmapSlice>(&mut self, data: &mut Buffers<'_, S>) -> Result<(), Failure> {
        for segment in self.segments(data, DISCARD_SEGMENTS_MAX, DISCARD_SECTORS_MAX)? {
            // The unmap bit is of no use here, and must be 0 (virtio 1.2, 5.2.6.2).
            if segment.flags != 0 {
                return Err(Failure::Unknown);
            }
            self.cost += DISCARD_COST;
            self.backend.discard(segment.offset, segment.len)?;
        }
        Ok(())
    }

    fn write_zeroes<S: BitmapSlice>(&mut self, data: &mut Buffers<'_, S>) -> Result<(), Failure> {
        for segment in self.segments(data, ZEROES_SEGMENTS_MAX, ZEROES_SECTORS_MAX)? {
            if segment.flags & !VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0 {
                return Err(Failure::Unknown);
            }
            self.cost += segment.len;
            self.backend.write_zeroes(segment.offset, segment.len, segment.flags != 0)?;
        }
        self.written()
    }

    /// Reads and checks all segments before anything is done for one of them.
    fn segments<S: BitmapSlice>(
        &self,
        data: &mut Buffers<'_, S>,
        segments_max: u32,
        sectors_max: u32,
    ) -> Result<Vec<Segment>, Failure> {
        if data.len() == 0
            || !data.len().is_multiple_of(SEGMENT)
            || data.len() / SEGMENT > segments_max as usize
        {
            return Err(Failure::Refused);
        }
        let mut segments = Vec::new();
        let mut bytes = [0; SEGMENT];
        while data.read(&mut bytes) == SEGMENT {
            let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = bytes;
            let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
            let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
            if sectors > sectors_max {
                return Err(Failure::Refused);
            }
            let len = u64::from(sectors) * SECTOR;
            let offset = self.offset_of(sector, len)?;
            segments.push(Segment { offset, len, flags: u32::from_le_bytes(flags) });
        }
        Ok(segments)
    }
}

/// A range of DISCARD or WRITE_ZEROES, inside the disk.
struct Segment {
    offset: u64,
    len: u64,
    flags: u32,
}

impl<M: GuestMemory, B: BlockBackend> VirtioDevice<M> for BlockDevice<B> {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn queue_sizes(&self) -> &[u16] {
        &Self::QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn accept_features(&mut self, features: u64) -> Result<(), FeatureError> {
        check_features(features, self.features)?;
        self.write_through = features & 1 << VIRTIO_BLK_F_FLUSH == 0;
        Ok(())
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        read_space(&self.config(), offset, data);
    }

    fn reset(&mut self) {
        self.write_through = true;
    }

    fn process_queue(
        &mut self,
        index: u16,
        queues: &mut ActiveQueues,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        let mut progress = Progress::default();
        let Some(queue) = queues.get_mut(index) else {
            return Ok(progress);
        };
        let mut budget = queue.size();
        let mut used = false;
        self.cost = 0;
        while self.cost < CALL_COST
            && let Some(chain) = queue.next_or_listen(mem, &mut budget)?
        {
            let head = chain.head_index();
            let len = self.handle(chain, mem);
            queue.add_used(mem, head, u32::try_from(len).unwrap_or(u32::MAX))?;
            used = true;
        }
        progress.again = budget == 0 || self.cost >= CALL_COST;
        progress.interrupt = used && queue.needs_interrupt(mem)?;
        Ok(progress)
    }
}
