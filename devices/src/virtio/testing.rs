//! A mock driver: the guest's side of a split virtqueue, for tests, benches and fuzz targets.
//!
//! It lays out rings in a `GuestMemoryMmap` as a driver would (virtio 1.2, 2.7), makes chains of any
//! shape, broken ones too, and collects what the device used.
//! It panics where a test would: on running out of descriptors or memory that a test did not provide.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod mmio;

use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};

use super::queue::ActiveQueue;

/// One descriptor: a piece of guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Guest physical address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Whether the device writes to it (else it reads it).
    pub writable: bool,
}

impl Segment {
    /// A piece that the device reads.
    pub fn readable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: false }
    }

    /// A piece that the device writes.
    pub fn writable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: true }
    }
}

/// A chain that the device has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Index of its first descriptor.
    pub head: u16,
    /// Bytes that the device says it wrote.
    pub len: u32,
    /// The chain as it was offered.
    pub segments: Vec<Segment>,
}

/// The driver's side of one virtqueue.
#[derive(Debug)]
pub struct DriverQueue {
    mem: GuestMemoryMmap,
    size: u16,
    desc: GuestAddress,
    avail: GuestAddress,
    used: GuestAddress,
    free: Vec<u16>,
    chains: HashMap<u16, (Vec<u16>, Vec<Segment>)>,
    next_avail: u16,
    last_used: u16,
}

impl DriverQueue {
    /// Bytes of guest memory that a queue of `size` chains needs.
    pub fn bytes_needed(size: u16) -> u64 {
        let size = u64::from(size);
        // Descriptors, then both rings; 16 bytes cover heads, event fields and alignment of each.
        size * 16 + (size * 2 + 16) + (size * 8 + 16)
    }

    /// A queue whose rings lie at `base`, which must be a multiple of 16.
    pub fn new(mem: &GuestMemoryMmap, base: u64, size: u16) -> Self {
        assert_eq!(base % 16, 0);
        let desc = GuestAddress(base);
        let avail = desc.unchecked_add(u64::from(size) * 16);
        let used = avail.unchecked_add((u64::from(size) * 2 + 6).next_multiple_of(8));
        Self {
            mem: mem.clone(),
            size,
            desc,
            avail,
            used,
            free: (0..size).rev().collect(),
            chains: HashMap::new(),
            next_avail: 0,
            last_used: 0,
        }
    }

    /// Number of descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Guest addresses of descriptor table, available ring and used ring.
    pub fn addresses(&self) -> [u64; 3] {
        [self.desc.raw_value(), self.avail.raw_value(), self.used.raw_value()]
    }

    /// The device's side of the queue, set up and in use.
    pub fn device_queue(&self, event_idx: bool) -> ActiveQueue {
        ActiveQueue::new(self.queue(event_idx), &self.mem).expect("rings in memory")
    }

    /// The device's side of the queue, set up and ready.
    pub fn queue(&self, event_idx: bool) -> Queue {
        let mut queue = Queue::new(self.size).unwrap();
        queue.set_size(self.size);
        queue.try_set_desc_table_address(self.desc).expect("descriptor table is aligned");
        queue.try_set_avail_ring_address(self.avail).expect("available ring is aligned");
        queue.try_set_used_ring_address(self.used).expect("used ring is aligned");
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        queue
    }

    /// Descriptors that are in no chain.
    pub fn free_descriptors(&self) -> usize {
        self.free.len()
    }

    /// Chains that were offered and not used yet.
    pub fn pending(&self) -> usize {
        self.chains.len()
    }

    /// Offers a chain; gives its head, or `None` if there are not enough descriptors.
    pub fn add(&mut self, segments: &[Segment]) -> Option<u16> {
        if segments.is_empty() || segments.len() > self.free.len() {
            return None;
        }
        let at = self.free.len() - segments.len();
        let indices = self.free.split_off(at);
        for (i, (segment, index)) in segments.iter().zip(&indices).enumerate() {
            let next = indices.get(i + 1).copied();
            let mut flags = if segment.writable { VRING_DESC_F_WRITE } else { 0 };
            flags |= if next.is_some() { VRING_DESC_F_NEXT } else { 0 };
            self.write_descriptor(
                *index,
                segment.addr,
                segment.len,
                u16::try_from(flags).unwrap(),
                next.unwrap_or(0),
            );
        }
        let head = indices[0];
        self.chains.insert(head, (indices, segments.to_vec()));
        self.offer(head);
        Some(head)
    }

    /// Offers one descriptor that refers to a table of them at `table`.
    pub fn add_indirect(&mut self, table: u64, segments: &[Segment]) -> Option<u16> {
        let index = self.free.pop()?;
        for (i, segment) in segments.iter().enumerate() {
            let last = i + 1 == segments.len();
            let mut flags = if segment.writable { VRING_DESC_F_WRITE } else { 0 };
            flags |= if last { 0 } else { VRING_DESC_F_NEXT };
            let at = table + i as u64 * 16;
            let next = u16::try_from(i + 1).unwrap();
            self.write_descriptor_at(
                GuestAddress(at),
                segment.addr,
                segment.len,
                u16::try_from(flags).unwrap(),
                next,
            );
        }
        let len = u32::try_from(segments.len() * 16).unwrap();
        let flags = u16::try_from(VRING_DESC_F_INDIRECT).unwrap();
        self.write_descriptor(index, table, len, flags, 0);
        self.chains.insert(index, (vec![index], segments.to_vec()));
        self.offer(index);
        Some(index)
    }

    /// Writes a descriptor as it is told, for broken chains. The index is not marked as taken.
    pub fn write_descriptor(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = self.desc.unchecked_add(u64::from(index) * 16);
        self.write_descriptor_at(at, addr, len, flags, next);
    }

    fn write_descriptor_at(&self, at: GuestAddress, addr: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0u8; 16];
        bytes[0..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&next.to_le_bytes());
        self.mem.write_slice(&bytes, at).unwrap();
    }

    /// Puts `head` into the available ring, whatever it is.
    pub fn offer(&mut self, head: u16) {
        let slot = u64::from(self.next_avail % self.size);
        let at = self.avail.unchecked_add(4 + 2 * slot);
        self.mem.write_slice(&head.to_le_bytes(), at).unwrap();
        self.set_avail_idx(self.next_avail.wrapping_add(1));
    }

    /// Sets the index of the available ring, whatever it is.
    pub fn set_avail_idx(&mut self, idx: u16) {
        self.next_avail = idx;
        let at = self.avail.unchecked_add(2);
        self.mem.store(idx.to_le(), at, Ordering::Release).unwrap();
    }

    /// Sets the flags of the available ring.
    pub fn set_avail_flags(&self, flags: u16) {
        self.mem.write_slice(&flags.to_le_bytes(), self.avail).unwrap();
        fence(Ordering::SeqCst);
    }

    /// Sets the index at whose use the driver wants an interrupt (with EVENT_IDX).
    pub fn set_used_event(&self, idx: u16) {
        let at = self.avail.unchecked_add(4 + 2 * u64::from(self.size));
        self.mem.write_slice(&idx.to_le_bytes(), at).unwrap();
        fence(Ordering::SeqCst);
    }

    /// Takes the next used chain, and frees its descriptors.
    ///
    /// # Panics
    /// If the device used what was never offered by [`DriverQueue::add`].
    pub fn next_used(&mut self) -> Option<Used> {
        let used = self.next_used_raw()?;
        let (indices, segments) =
            self.chains.remove(&used.0).expect("the device used a chain that was offered");
        self.free.extend(indices);
        Some(Used { head: used.0, len: used.1, segments })
    }

    /// Takes head and length of the next used chain, whatever they are; a head that is no `u16` (a guest may
    /// have its own rings overwritten) is given as `u16::MAX`.
    pub fn next_used_raw(&mut self) -> Option<(u16, u32)> {
        let at = self.used.unchecked_add(2);
        let idx: u16 = self.mem.load(at, Ordering::Acquire).unwrap();
        if u16::from_le(idx) == self.last_used {
            return None;
        }
        let slot = u64::from(self.last_used % self.size);
        let mut bytes = [0u8; 8];
        self.mem.read_slice(&mut bytes, self.used.unchecked_add(4 + 8 * slot)).unwrap();
        self.last_used = self.last_used.wrapping_add(1);
        let head = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let len = u32::from_le_bytes(bytes[4..].try_into().unwrap());
        Some((u16::try_from(head).unwrap_or(u16::MAX), len))
    }
}

/// Divides `total` bytes at `addr` into segments whose lengths follow `cuts` in a circle; a cut of 0
/// gives an empty segment in between. The last segment takes the rest.
pub fn cut(addr: u64, total: u32, cuts: &[u32], writable: bool) -> Vec<Segment> {
    let mut segments = Vec::new();
    let (mut at, mut left) = (addr, total);
    for &len in cuts {
        let len = len.min(left);
        segments.push(Segment { addr: at, len, writable });
        at += u64::from(len);
        left -= len;
    }
    if left > 0 || segments.is_empty() {
        segments.push(Segment { addr: at, len: left, writable });
    }
    segments
}
