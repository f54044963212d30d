//! The packet header (virtio 1.2, 5.10.6: `struct virtio_vsock_hdr`) and how it lies in a chain.
//!
//! A packet is 44 bytes of little-endian header followed by `len` bytes of payload. Neither need
//! match the borders of descriptors: Linux sends a payload above about 32 KiB as several
//! descriptors, and a driver may as well split the header. So chains are only ever seen through
//! virtio-queue's `Reader` and `Writer`, which hide descriptors altogether. The header is copied out
//! once and never read from guest memory again, since the guest can change it at any time.

use std::io::{self, Read, Write};

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 44;

/// The only socket type that this device offers: a byte stream.
pub const TYPE_STREAM: u16 = 1;

/// `flags` of a shutdown: the sender of the packet will receive no more data.
pub const SHUTDOWN_RECEIVE: u32 = 1;
/// `flags` of a shutdown: the sender of the packet will send no more data.
pub const SHUTDOWN_SEND: u32 = 2;
/// Both directions are over.
pub const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// What a packet asks for (virtio 1.2, 5.10.6, `op`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Op {
    /// Connect, please.
    Request = 1,
    /// Connected.
    Response = 2,
    /// The connection does not exist (any more).
    Reset = 3,
    /// One or both directions end; see [`SHUTDOWN_RECEIVE`] and [`SHUTDOWN_SEND`].
    Shutdown = 4,
    /// Payload.
    Data = 5,
    /// Nothing but the credit fields that each header has.
    CreditUpdate = 6,
    /// Tell me your credit fields.
    CreditRequest = 7,
}

impl Op {
    /// The operation with this number; `None` if the specification has none.
    pub fn from_u16(value: u16) -> Option<Self> {
        Some(match value {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Reset,
            4 => Self::Shutdown,
            5 => Self::Data,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }
}

/// A header in the host's byte order. `op` stays a number: it comes from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Address of the sender.
    pub src_cid: u64,
    /// Address of the receiver.
    pub dst_cid: u64,
    /// Port of the sender.
    pub src_port: u32,
    /// Port of the receiver.
    pub dst_port: u32,
    /// Bytes of payload behind the header.
    pub len: u32,
    /// Socket type; see [`TYPE_STREAM`].
    pub type_: u16,
    /// Operation; see [`Op`].
    pub op: u16,
    /// Flags; defined for [`Op::Shutdown`] alone.
    pub flags: u32,
    /// Size of the sender's receive buffer for this connection, in bytes.
    pub buf_alloc: u32,
    /// Bytes that the sender has taken out of that buffer so far, modulo 2^32.
    pub fwd_cnt: u32,
}

impl Header {
    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Self {
            src_cid: u64_at(0),
            dst_cid: u64_at(8),
            src_port: u32_at(16),
            dst_port: u32_at(20),
            len: u32_at(24),
            type_: u16_at(28),
            op: u16_at(30),
            flags: u32_at(32),
            buf_alloc: u32_at(36),
            fwd_cnt: u32_at(40),
        }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&self.src_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.type_.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.op.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        bytes
    }

    /// Reads a header off the front of a chain, leaving the payload.
    ///
    /// # Errors
    /// `UnexpectedEof` if the chain is shorter than a header.
    pub fn read_from(chain: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; HEADER_LEN];
        chain.read_exact(&mut bytes)?;
        Ok(Self::decode(&bytes))
    }

    /// Writes the header to the front of a chain.
    ///
    /// # Errors
    /// `WriteZero` if the chain is shorter than a header.
    pub fn write_to(&self, chain: &mut impl Write) -> io::Result<()> {
        chain.write_all(&self.encode())
    }

    /// The operation; `None` if the specification has none of that number.
    pub fn op(&self) -> Option<Op> {
        Op::from_u16(self.op)
    }
}
