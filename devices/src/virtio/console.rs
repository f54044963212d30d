//! The console device (virtio 1.2, 5.3): one port, for a guest's log and terminal.
//!
//! Queue 0 carries input to the guest, queue 1 its output. Output goes to a [`ConsoleSink`] as it comes; of
//! one chain at most [`OUTPUT_MAX`] bytes, which is more than Linux ever puts into one, and the rest of a
//! longer one is dropped and counted. Input waits in a buffer of [`INPUT_MAX`] bytes until the guest offers
//! room; what does not fit is for the caller to keep.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::GuestMemory;

use super::buffers::gather;
use super::device::{Progress, VirtioDevice, read_space};
use super::queue::{ActiveQueue, ActiveQueues, QueueError};
use crate::sink::ConsoleSink;

#[cfg(test)]
mod tests;

/// Bytes of one chain that are printed at most.
pub const OUTPUT_MAX: usize = 64 * 1024;

/// Bytes of input that wait at most.
pub const INPUT_MAX: usize = 4096;

/// Version of [`ConsoleState`]. Another version is not read.
pub const STATE_VERSION: u32 = 1;

/// Number of the queue of input.
pub const RX_QUEUE: u16 = 0;
/// Number of the queue of output.
pub const TX_QUEUE: u16 = 1;

/// VIRTIO_CONSOLE_F_SIZE: the configuration space holds the size of the terminal.
const F_SIZE: u32 = 0;

/// Bytes that one call prints at most, but for its last chain.
const CALL_BYTES: usize = 4 * OUTPUT_MAX;

/// Bytes that are taken out of guest memory at a time.
const PIECE: usize = 4096;

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ConsoleCounters {
    /// Bytes that the guest printed.
    pub bytes_out: u64,
    /// Bytes that were too many in one chain.
    pub dropped: u64,
    /// Bytes that the guest was given.
    pub bytes_in: u64,
    /// Chains that led outside memory, or had no room where they should have had some.
    pub malformed: u64,
}

/// What a snapshot keeps of a console.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsoleState {
    /// [`STATE_VERSION`] when it was saved.
    pub version: u32,
    /// Input that the guest has not taken.
    pub input: Vec<u8>,
    /// Width of the terminal in characters.
    pub columns: u16,
    /// Height of the terminal in characters.
    pub rows: u16,
}

/// Why a saved state cannot be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConsoleStateError {
    /// Saved by another version of this code.
    #[error("console state: saved by version {0}")]
    Version(u32),
    /// More input than the device holds.
    #[error("console state: {0} bytes of input, of which the device holds {INPUT_MAX}")]
    Input(usize),
}

/// A virtio console with one port.
pub struct ConsoleDevice {
    sink: Box<dyn ConsoleSink>,
    input: VecDeque<u8>,
    size: (u16, u16),
    counters: ConsoleCounters,
}

impl ConsoleDevice {
    /// Sizes of the input and the output queue.
    pub const QUEUE_SIZES: [u16; 2] = [64, 64];

    /// A console of 80 columns and 24 rows, whose output goes to `sink`.
    pub fn new(sink: Box<dyn ConsoleSink>) -> Self {
        Self { sink, input: VecDeque::new(), size: (80, 24), counters: ConsoleCounters::default() }
    }

    /// Gives the guest bytes to read; gives how many there is room for. Process the input queue next.
    pub fn push_input(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(INPUT_MAX - self.input.len());
        self.input.extend(&bytes[..taken]);
        taken
    }

    /// Bytes of input that wait for the guest.
    pub fn pending_input(&self) -> usize {
        self.input.len()
    }

    /// Changes the terminal's size. Tell the driver by [`Progress::config_changed`].
    pub fn set_size(&mut self, columns: u16, rows: u16) {
        self.size = (columns, rows);
    }

    /// What has happened so far.
    pub fn counters(&self) -> ConsoleCounters {
        self.counters
    }

    /// The device's state.
    pub fn save(&self) -> ConsoleState {
        ConsoleState {
            version: STATE_VERSION,
            input: self.input.iter().copied().collect(),
            columns: self.size.0,
            rows: self.size.1,
        }
    }

    /// Puts the device into a saved state.
    ///
    /// # Errors
    /// [`ConsoleStateError`]; the device is as before then.
    pub fn restore(&mut self, state: &ConsoleState) -> Result<(), ConsoleStateError> {
        if state.version != STATE_VERSION {
            return Err(ConsoleStateError::Version(state.version));
        }
        if state.input.len() > INPUT_MAX {
            return Err(ConsoleStateError::Input(state.input.len()));
        }
        self.input = state.input.iter().copied().collect();
        self.size = (state.columns, state.rows);
        Ok(())
    }

    fn process_tx<M: GuestMemory>(
        &mut self,
        queue: &mut ActiveQueue,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        let (mut budget, mut printed, mut used) = (queue.size(), 0, false);
        while printed < CALL_BYTES
            && let Some(chain) = queue.next_or_listen(mem, &mut budget)?
        {
            let head = chain.head_index();
            if let Some(mut buffers) = gather(chain, mem, usize::from(queue.size())) {
                let mut piece = [0; PIECE];
                let mut left = buffers.readable.len().min(OUTPUT_MAX);
                printed += left;
                self.counters.bytes_out += left as u64;
                self.counters.dropped += (buffers.readable.len() - left) as u64;
                while left > 0 {
                    let part = left.min(PIECE);
                    buffers.readable.read(&mut piece[..part]);
                    self.sink.write(&piece[..part]);
                    left -= part;
                }
            } else {
                self.counters.malformed += 1;
            }
            queue.add_used(mem, head, 0)?;
            used = true;
        }
        let again = budget == 0 || printed >= CALL_BYTES;
        Ok(Progress { interrupt: used && queue.needs_interrupt(mem)?, again, ..Progress::default() })
    }

    fn process_rx<M: GuestMemory>(
        &mut self,
        queue: &mut ActiveQueue,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        let (mut budget, mut used) = (queue.size(), false);
        while !self.input.is_empty()
            && let Some(chain) = queue.next_or_listen(mem, &mut budget)?
        {
            let head = chain.head_index();
            let mut written = 0;
            if let Some(mut buffers) = gather(chain, mem, usize::from(queue.size()))
                && buffers.writable.len() > 0
            {
                written = buffers.writable.write(self.input.make_contiguous());
                self.input.drain(..written);
                self.counters.bytes_in += written as u64;
            } else {
                self.counters.malformed += 1;
            }
            queue.add_used(mem, head, u32::try_from(written).unwrap_or(u32::MAX))?;
            used = true;
        }
        let again = budget == 0 && !self.input.is_empty();
        Ok(Progress { interrupt: used && queue.needs_interrupt(mem)?, again, ..Progress::default() })
    }
}

impl<M: GuestMemory> VirtioDevice<M> for ConsoleDevice {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_CONSOLE
    }

    fn queue_sizes(&self) -> &[u16] {
        &Self::QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << F_SIZE
    }

    /// Columns and rows; the number of ports and the emergency register behind them belong to features that
    /// are not on offer.
    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let mut space = [0; 12];
        space[..2].copy_from_slice(&self.size.0.to_le_bytes());
        space[2..4].copy_from_slice(&self.size.1.to_le_bytes());
        space[4] = 1;
        read_space(&space, offset, data);
    }

    /// Input for the driver before is not for the next one.
    fn reset(&mut self) {
        self.input.clear();
    }

    fn process_queue(
        &mut self,
        index: u16,
        queues: &mut ActiveQueues,
        mem: &M,
    ) -> Result<Progress, QueueError> {
        match (index, queues.get_mut(index)) {
            (RX_QUEUE, Some(queue)) => self.process_rx(queue, mem),
            (TX_QUEUE, Some(queue)) => self.process_tx(queue, mem),
            _ => Ok(Progress::default()),
        }
    }
}
