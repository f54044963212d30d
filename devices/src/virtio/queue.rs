//! Split virtqueues (virtio 1.2, 2.7), as two types with a one-way street between them.
//!
//! ```text
//!   QueueRegisters ──── freeze, at DRIVER_OK ────► ActiveQueue
//!   (the driver writes, nothing is used)           (devices use, nobody writes)
//!          ▲                                            │
//!          └──────────────── reset: a new one ──────────┘
//! ```
//!
//! Size and addresses of a queue that is in use cannot change, because the type that devices see has no way
//! to change them. (Registers that stayed writable after activation have let guests out of their machines;
//! CVE-2026-5747.) Freezing checks that all three rings lie in guest memory and are aligned; from then on a
//! ring access can only fail if the driver breaks an index.
//!
//! Ring indices and chain heads stay in the driver's hands. They are read with the needed ordering, checked
//! against the size, and never trusted twice; all this is virtio-queue's work.

use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use thiserror::Error;
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory};

/// What a driver did to a queue that makes it unusable.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// An index or head in a ring is out of range.
    #[error("the driver broke a queue: {0}")]
    Broken(#[from] virtio_queue::Error),
    /// A ring is not inside guest memory as a whole, or not aligned.
    #[error(
        "a queue of {size} descriptors has rings outside guest memory or unaligned: descriptors at \
         {descriptors:#x}, available ring at {available:#x}, used ring at {used:#x}"
    )]
    Ring {
        /// Number of descriptors.
        size: u16,
        /// Guest address of the descriptor table.
        descriptors: u64,
        /// Guest address of the available ring.
        available: u64,
        /// Guest address of the used ring.
        used: u64,
    },
}

/// The parts of a queue, each with an address of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// The descriptor table, aligned to 16 bytes.
    Descriptors,
    /// The driver's ring, aligned to 2 bytes.
    Available,
    /// The device's ring, aligned to 4 bytes.
    Used,
}

/// A queue that the driver is setting up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRegisters {
    max_size: u16,
    size: u16,
    ready: bool,
    descriptors: u64,
    available: u64,
    used: u64,
}

impl QueueRegisters {
    /// A queue after reset, for at most `max_size` descriptors (a power of two up to 32768).
    pub fn new(max_size: u16) -> Self {
        debug_assert!(max_size.is_power_of_two());
        Self { max_size, size: max_size, ready: false, descriptors: 0, available: 0, used: 0 }
    }

    /// Most descriptors that the device takes.
    pub fn max_size(&self) -> u16 {
        self.max_size
    }

    /// Whether the driver has set it up.
    pub fn ready(&self) -> bool {
        self.ready
    }

    /// Sets the number of descriptors: a power of two up to the largest size. Gives whether it was taken;
    /// a queue that is ready takes nothing.
    #[must_use]
    pub fn set_size(&mut self, size: u32) -> bool {
        let size = u16::try_from(size).ok().filter(|n| n.is_power_of_two() && *n <= self.max_size);
        match size {
            Some(size) if !self.ready => self.size = size,
            _ => return false,
        }
        true
    }

    /// Sets the lower or the upper half of a ring's address. Gives whether it was taken; a queue that is
    /// ready takes nothing.
    #[must_use]
    pub fn set_address(&mut self, ring: Ring, upper: bool, half: u32) -> bool {
        if self.ready {
            return false;
        }
        let address = match ring {
            Ring::Descriptors => &mut self.descriptors,
            Ring::Available => &mut self.available,
            Ring::Used => &mut self.used,
        };
        let half = u64::from(half);
        *address = if upper { *address & 0xffff_ffff | half << 32 } else { *address & !0xffff_ffff | half };
        true
    }

    /// Says whether the queue is to be used once the driver is ready.
    pub fn set_ready(&mut self, ready: bool) {
        self.ready = ready;
    }

    /// Makes the queue that devices use, at its beginning.
    ///
    /// # Errors
    /// [`QueueError::Ring`], if a ring is not in guest memory.
    pub fn freeze<M: GuestMemory>(&self, event_idx: bool, mem: &M) -> Result<ActiveQueue, QueueError> {
        let bad = |_| self.ring_error();
        let mut queue = Queue::new(self.max_size)?;
        queue.try_set_size(self.size)?;
        queue.try_set_desc_table_address(GuestAddress(self.descriptors)).map_err(bad)?;
        queue.try_set_avail_ring_address(GuestAddress(self.available)).map_err(bad)?;
        queue.try_set_used_ring_address(GuestAddress(self.used)).map_err(bad)?;
        queue.set_event_idx(event_idx);
        queue.set_ready(self.ready);
        ActiveQueue::new(queue, mem)
    }

    fn ring_error(&self) -> QueueError {
        QueueError::Ring {
            size: self.size,
            descriptors: self.descriptors,
            available: self.available,
            used: self.used,
        }
    }

    pub(super) fn save(&self) -> QueueState {
        QueueState {
            size: self.size,
            ready: self.ready,
            descriptors: self.descriptors,
            available: self.available,
            used: self.used,
            next_available: 0,
            next_used: 0,
        }
    }

    /// The registers of a saved queue; `None` if it cannot have been one with this largest size.
    pub(super) fn restore(max_size: u16, state: &QueueState) -> Option<Self> {
        if !state.size.is_power_of_two() || state.size > max_size {
            return None;
        }
        Some(Self {
            max_size,
            size: state.size,
            ready: state.ready,
            descriptors: state.descriptors,
            available: state.available,
            used: state.used,
        })
    }
}

/// What a snapshot keeps of a queue. Untrusted until it was checked by the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// Number of descriptors.
    pub size: u16,
    /// Whether the driver had set it up.
    pub ready: bool,
    /// Guest address of the descriptor table.
    pub descriptors: u64,
    /// Guest address of the available ring.
    pub available: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// Index in the available ring of the next chain to take.
    pub next_available: u16,
    /// Index in the used ring of the next chain to give back.
    pub next_used: u16,
}

/// A queue in use. Its settings are fixed; a device takes chains from it and gives them back.
#[derive(Debug, PartialEq, Eq)]
pub struct ActiveQueue {
    queue: Queue,
}

impl ActiveQueue {
    /// Takes over a queue that is ready, wherever it comes from.
    ///
    /// # Errors
    /// [`QueueError::Ring`] if it is not ready, or a ring is not inside guest memory.
    pub fn new<M: GuestMemory>(queue: Queue, mem: &M) -> Result<Self, QueueError> {
        let this = Self { queue };
        // Address 0 is what an address register holds that was never written.
        if this.queue.is_valid(mem) && this.queue.avail_ring() != 0 {
            Ok(this)
        } else {
            let state = this.save();
            Err(QueueError::Ring {
                size: state.size,
                descriptors: state.descriptors,
                available: state.available,
                used: state.used,
            })
        }
    }

    /// Gives the queue back to whoever provides it with each call.
    pub fn into_inner(self) -> Queue {
        self.queue
    }

    /// Number of descriptors, and of chains that can be in the queue at most.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Index in the available ring of the next chain.
    pub fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Takes the next chain, if the driver has offered one.
    ///
    /// # Errors
    /// If the driver offers more chains than the queue is long.
    pub fn next_chain<'m, M: GuestMemory>(
        &mut self,
        mem: &'m M,
    ) -> Result<Option<DescriptorChain<&'m M>>, QueueError> {
        Ok(self.queue.iter(mem)?.next())
    }

    /// Takes the next chain, or has the driver tell of it when there is none, as a loop over a queue needs it:
    /// notifications are off while there are chains. `budget` is the number of looks at the queue that are
    /// left; at 0 there is no chain, so that a driver which adds chains for ever, or moves its index to and
    /// fro, keeps nobody in such a loop.
    ///
    /// # Errors
    /// As [`Self::next_chain`].
    pub fn next_or_listen<'m, M: GuestMemory>(
        &mut self,
        mem: &'m M,
        budget: &mut u16,
    ) -> Result<Option<DescriptorChain<&'m M>>, QueueError> {
        while *budget > 0 {
            *budget -= 1;
            self.disable_notification(mem)?;
            if let Some(chain) = self.next_chain(mem)? {
                return Ok(Some(chain));
            }
            if !self.enable_notification(mem)? {
                break;
            }
        }
        Ok(None)
    }

    /// Puts the chain back that was taken last.
    pub fn put_back(&mut self) {
        self.queue.go_to_previous_position();
    }

    /// Gives a chain back to the driver; `len` is the number of bytes that were written into it, from its
    /// first writable byte on.
    ///
    /// # Errors
    /// If `head` is no descriptor of this queue: the driver had offered it all the same.
    pub fn add_used<M: GuestMemory>(&mut self, mem: &M, head: u16, len: u32) -> Result<(), QueueError> {
        Ok(self.queue.add_used(mem, head, len)?)
    }

    /// Asks the driver to tell of new chains. Gives whether there are some already.
    ///
    /// # Errors
    /// If the rings are not in guest memory any more.
    pub fn enable_notification<M: GuestMemory>(&mut self, mem: &M) -> Result<bool, QueueError> {
        Ok(self.queue.enable_notification(mem)?)
    }

    /// Asks the driver not to tell of new chains; it may do so nevertheless.
    ///
    /// # Errors
    /// As [`Self::enable_notification`].
    pub fn disable_notification<M: GuestMemory>(&mut self, mem: &M) -> Result<(), QueueError> {
        Ok(self.queue.disable_notification(mem)?)
    }

    /// Whether the driver wants to be interrupted for the chains that were given back since the last call
    /// (virtio 1.2, 2.7.7 and 2.7.10).
    ///
    /// # Errors
    /// As [`Self::enable_notification`].
    pub fn needs_interrupt<M: GuestMemory>(&mut self, mem: &M) -> Result<bool, QueueError> {
        // Orders our write of the used index before the reads of what the driver wants, in both cases.
        if !self.queue.needs_notification(mem)? {
            return Ok(false);
        }
        if self.queue.event_idx_enabled() {
            return Ok(true);
        }
        let flags: u16 = mem
            .load(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed)
            .map_err(virtio_queue::Error::GuestMemory)?;
        Ok(u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
    }

    pub(super) fn save(&self) -> QueueState {
        QueueState {
            size: self.queue.size(),
            ready: self.queue.ready(),
            descriptors: self.queue.desc_table(),
            available: self.queue.avail_ring(),
            used: self.queue.used_ring(),
            next_available: self.queue.next_avail(),
            next_used: self.queue.next_used(),
        }
    }

    pub(super) fn set_position(&mut self, next_available: u16, next_used: u16) {
        self.queue.set_next_avail(next_available);
        self.queue.set_next_used(next_used);
    }
}

/// All queues of a device whose driver is ready. Those that the driver did not set up are missing.
#[derive(Debug, PartialEq, Eq)]
pub struct ActiveQueues {
    queues: Vec<Option<ActiveQueue>>,
}

impl ActiveQueues {
    /// The queues in their order.
    pub fn new(queues: Vec<Option<ActiveQueue>>) -> Self {
        Self { queues }
    }

    /// Number of queues that the device has.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether the device has no queues at all.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The queue with this number, if the driver set it up.
    pub fn get(&self, index: u16) -> Option<&ActiveQueue> {
        self.queues.get(usize::from(index))?.as_ref()
    }

    /// The queue with this number, if the driver set it up.
    pub fn get_mut(&mut self, index: u16) -> Option<&mut ActiveQueue> {
        self.queues.get_mut(usize::from(index))?.as_mut()
    }

    /// Two queues at once; none if both are the same.
    pub fn pair_mut(&mut self, a: u16, b: u16) -> (Option<&mut ActiveQueue>, Option<&mut ActiveQueue>) {
        match self.queues.get_disjoint_mut([usize::from(a), usize::from(b)]) {
            Ok([a, b]) => (a.as_mut(), b.as_mut()),
            Err(_) => (None, None),
        }
    }
}

#[cfg(test)]
mod tests;
