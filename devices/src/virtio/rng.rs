//! The entropy device (virtio 1.2, 5.4): one queue of buffers that it fills with random bytes.
//!
//! A buffer gets at most [`FILL_MAX`] bytes, which the specification allows ("at least one"), and a call
//! handles at most as many buffers as the queue is long. So however large the buffers are that a guest
//! offers, the device holds a page and a call makes a bounded number of random bytes. It has no state: what
//! a snapshot needs is in the transport.

use std::io::{self, Write};

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::GuestMemory;

use super::device::{Progress, VirtioDevice};
use super::queue::{ActiveQueues, QueueError};

#[cfg(test)]
mod tests;

/// Bytes that one buffer gets at most.
pub const FILL_MAX: usize = 4096;

/// Where random bytes come from.
pub trait EntropySource: Send {
    /// Fills `bytes`.
    ///
    /// # Errors
    /// If there are none; the guest waits then, and asks again.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The host kernel's generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostEntropy;

impl EntropySource for HostEntropy {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(io::Error::other)
    }
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RngCounters {
    /// Random bytes given.
    pub bytes: u64,
    /// Buffers without a byte that the device may write.
    pub malformed: u64,
    /// Times that the source had nothing.
    pub failures: u64,
}

/// An entropy device.
#[derive(Debug)]
pub struct RngDevice<E = HostEntropy> {
    source: E,
    counters: RngCounters,
    bytes: Box<[u8; FILL_MAX]>,
}

impl Default for RngDevice {
    fn default() -> Self {
        Self::new(HostEntropy)
    }
}

impl<E: EntropySource> RngDevice<E> {
    /// The size of the one queue. Linux has one buffer in it at a time.
    pub const QUEUE_SIZES: [u16; 1] = [64];

    /// A device that gives bytes of `source`.
    pub fn new(source: E) -> Self {
        Self { source, counters: RngCounters::default(), bytes: Box::new([0; FILL_MAX]) }
    }

    /// What has happened so far.
    pub fn counters(&self) -> RngCounters {
        self.counters
    }
}

impl<M: GuestMemory, E: EntropySource> VirtioDevice<M> for RngDevice<E> {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn queue_sizes(&self) -> &[u16] {
        &Self::QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX
    }

    fn read_config(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn reset(&mut self) {}

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
        while let Some(chain) = queue.next_or_listen(mem, &mut budget)? {
            let head = chain.head_index();
            let mut filled = 0;
            match chain.writer(mem) {
                Ok(mut writer) if writer.available_bytes() > 0 => {
                    let bytes = &mut self.bytes[..writer.available_bytes().min(FILL_MAX)];
                    if self.source.fill(bytes).is_err() {
                        // Never a buffer of bytes that are not random.
                        self.counters.failures += 1;
                        queue.put_back();
                        queue.enable_notification(mem)?;
                        break;
                    }
                    filled = if writer.write_all(bytes).is_ok() { bytes.len() } else { 0 };
                    self.counters.bytes += filled as u64;
                }
                _ => self.counters.malformed += 1,
            }
            queue.add_used(mem, head, u32::try_from(filled).unwrap_or(u32::MAX))?;
            used = true;
        }
        progress.again = budget == 0;
        progress.interrupt = used && queue.needs_interrupt(mem)?;
        Ok(progress)
    }
}
