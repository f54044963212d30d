//! Messages between the hayfork host and its guest agent: the one definition that both sides use.
//!
//! Everything travels over **one ordered byte stream**, so that any carrier will do: virtio-vsock in
//! the monitor, one virtio-serial port under QEMU. The crate does no I/O and knows no carrier; it
//! turns bytes into typed events and typed calls into bytes.
//!
//! ```text
//!  host                                                     guest agent
//!  ────                                                     ───────────
//!  Handshake (magic, nonce, HostHello)  ───────────────────►  scan for magic, answer
//!                                       ◄───────────────────  (magic, nonce, GuestHello)
//!  Mux::open(Request)   ── OPEN stream n ──────────────────►  start the operation
//!  Mux::send_data       ── DATA stream n, stdin ───────────►
//!                       ◄─ DATA stream n, stdout / CREDIT ──  as it runs
//!                       ◄─ MESSAGE stream n, Event ─────────
//!                       ◄─ CLOSE stream n ──────────────────  the operation's end is a message
//! ```
//!
//! * [`frame`]: the wire format, a length-prefixed frame with a typed header, and its decoder.
//! * [`handshake`]: finding each other in a stream that may still hold an earlier session's bytes,
//!   and agreeing on a version.
//! * [`message`]: requests, control messages and events, encoded with postcard.
//! * [`change`]: what a watch on a folder reports, as data within its stream.
//! * [`mux`]: streams with ids and credit over the frames, a state machine without I/O.
//! * [`limits`]: every bound in one place.
//!
//! Input from the other side is never trusted: lengths are checked before anything is stored,
//! unknown kinds end the session with a typed error, and what a peer can make this side hold is
//! bounded by the credit that this side granted.

pub mod change;
pub mod frame;
pub mod handshake;
pub mod limits;
pub mod message;
pub mod mux;

pub use frame::{Channel, Frame, FrameError, Kind};
pub use handshake::{GuestHello, HandshakeError, HostHello};
pub use message::{Control, Event, Request};
pub use mux::{Incoming, Mux, MuxError, Role, StreamId};
