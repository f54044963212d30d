//! Credit-based flow control (virtio 1.2, 5.10.6.3).
//!
//! Each side tells the other the size of its receive buffer (`buf_alloc`) and how many bytes it has
//! taken out of it so far (`fwd_cnt`). A sender counts what it sent (`tx_cnt`) and may have at most
//! `buf_alloc` bytes under way: `free = buf_alloc - (tx_cnt - fwd_cnt)`. The counters run freely
//! modulo 2^32.
//!
//! [`ReceiveWindow`] is our buffer: it catches a guest that sends more than it was offered.
//! [`SendWindow`] is our view of the guest's buffer: it catches a guest that claims to have taken
//! bytes that were never sent.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Largest window, in bytes, that is ever used. It keeps the distance of any two honest counters
/// below 2^31, so that "before" and "after" have a meaning modulo 2^32.
pub const WINDOW_MAX: u32 = 1 << 30;

/// The guest broke the rules of flow control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CreditError {
    /// It sent more bytes than it had been offered room for.
    #[error("the guest sent {sent} bytes into a buffer with {free} bytes free")]
    Exceeded {
        /// Payload of the packet.
        sent: u32,
        /// Room that was left.
        free: u32,
    },
    /// It says that it has taken bytes that it was never sent.
    #[error("the guest claims to have taken {excess} bytes more than were sent to it")]
    Impossible {
        /// How far `fwd_cnt` is ahead of what was sent.
        excess: u32,
    },
}

/// Our receive buffer, as the guest is told about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveWindow {
    buf_alloc: u32,
    received: u32,
    forwarded: u32,
    announced: u32,
}

impl ReceiveWindow {
    /// A window of `buf_alloc` bytes, at most [`WINDOW_MAX`].
    pub fn new(buf_alloc: u32) -> Self {
        Self { buf_alloc: buf_alloc.min(WINDOW_MAX), received: 0, forwarded: 0, announced: 0 }
    }

    /// Size of the buffer in bytes.
    pub fn buf_alloc(&self) -> u32 {
        self.buf_alloc
    }

    /// Bytes received and not forwarded yet.
    pub fn in_flight(&self) -> u32 {
        self.received.wrapping_sub(self.forwarded)
    }

    /// Whether the counters can have come from this code (for state read from a file).
    pub fn is_consistent(&self) -> bool {
        self.buf_alloc <= WINDOW_MAX
            && self.in_flight() <= self.buf_alloc
            && self.forwarded.wrapping_sub(self.announced) <= self.received_since_announced()
    }

    fn received_since_announced(&self) -> u32 {
        self.received.wrapping_sub(self.announced)
    }

    /// Counts a payload of `len` bytes.
    ///
    /// # Errors
    /// [`CreditError::Exceeded`] if there was no room for it; nothing is counted then.
    ///
    /// The room is measured by what was forwarded, not by what the guest was told: what it was
    /// told is never more.
    pub fn receive(&mut self, len: u32) -> Result<(), CreditError> {
        let free = self.buf_alloc - self.in_flight();
        if len > free {
            return Err(CreditError::Exceeded { sent: len, free });
        }
        self.received = self.received.wrapping_add(len);
        Ok(())
    }

    /// Counts `len` bytes that left the buffer.
    pub fn forward(&mut self, len: u32) {
        debug_assert!(len <= self.in_flight());
        self.forwarded = self.forwarded.wrapping_add(len);
    }

    /// Whether the guest should be told about new room by a packet of its own.
    ///
    /// Yes if it believes less than half of the buffer to be free, and would learn of a quarter or
    /// more, or that the buffer is empty. A sender that waits for room is therefore always woken (the
    /// buffer gets empty at last), and not for a few bytes at a time.
    pub fn update_due(&self) -> bool {
        let believed_free = self.buf_alloc - self.received_since_announced().min(self.buf_alloc);
        let news = self.forwarded.wrapping_sub(self.announced);
        news > 0
            && believed_free < self.buf_alloc.div_ceil(2)
            && (news >= self.buf_alloc / 4 || self.in_flight() == 0)
    }

    /// The `fwd_cnt` for a header; the guest counts as told.
    pub fn announce(&mut self) -> u32 {
        self.announced = self.forwarded;
        self.forwarded
    }
}

/// The guest's receive buffer, as we know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SendWindow {
    buf_alloc: u32,
    fwd_cnt: u32,
    tx_cnt: u32,
}

impl SendWindow {
    /// Bytes sent that the guest has not taken yet, as far as we know.
    pub fn in_flight(&self) -> u32 {
        self.tx_cnt.wrapping_sub(self.fwd_cnt)
    }

    /// Whether the counters can have come from this code (for state read from a file).
    pub fn is_consistent(&self) -> bool {
        self.in_flight() <= WINDOW_MAX && self.buf_alloc <= WINDOW_MAX
    }

    /// Takes over the credit fields of a header.
    ///
    /// A `fwd_cnt` older than the one known is ignored: two CPUs of a guest may queue their packets in
    /// another order than they filled in the headers. A shrinking `buf_alloc` is taken as it comes.
    ///
    /// # Errors
    /// [`CreditError::Impossible`] if `fwd_cnt` is ahead of what was sent.
    pub fn update(&mut self, buf_alloc: u32, fwd_cnt: u32) -> Result<(), CreditError> {
        let ahead = fwd_cnt.wrapping_sub(self.tx_cnt);
        if ahead != 0 && ahead < 1 << 31 {
            return Err(CreditError::Impossible { excess: ahead });
        }
        self.buf_alloc = buf_alloc.min(WINDOW_MAX);
        if self.tx_cnt.wrapping_sub(fwd_cnt) < self.in_flight() {
            self.fwd_cnt = fwd_cnt;
        }
        Ok(())
    }

    /// Bytes that may be sent now.
    pub fn free(&self) -> u32 {
        self.buf_alloc.saturating_sub(self.in_flight())
    }

    /// Counts `len` sent bytes, at most [`SendWindow::free`].
    pub fn send(&mut self, len: u32) {
        debug_assert!(len <= self.free());
        self.tx_cnt = self.tx_cnt.wrapping_add(len);
    }
}
