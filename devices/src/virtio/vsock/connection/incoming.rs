//! Packets of the guest.

use std::io::Read;
use std::net::Shutdown;

use super::{Connection, GuestEnd};
use crate::virtio::vsock::credit::CreditError;
use crate::virtio::vsock::event::CloseReason;
use crate::virtio::vsock::host::HostSocket;
use crate::virtio::vsock::packet::{Header, Op, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};

/// What a packet of the guest did, beyond the state of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Effect {
    None,
    /// The guest accepted a connection of the host.
    Connected,
    /// The guest broke a rule, and is owed a reset.
    Violation,
}

impl<S: HostSocket> Connection<S> {
    /// Takes a packet of the guest. `payload` holds at least `header.len` bytes, `scratch` lends space
    /// for copying.
    pub(in super::super) fn receive(
        &mut self,
        header: &Header,
        payload: &mut dyn Read,
        scratch: &mut [u8],
    ) -> Effect {
        match self.core.guest {
            GuestEnd::Gone | GuestEnd::Resetting | GuestEnd::Closing => {
                self.receive_late(header);
                Effect::None
            }
            GuestEnd::Requesting => self.receive_answer(header),
            GuestEnd::Open => self.receive_open(header, payload, scratch),
        }
    }

    /// Packets after the end: the guest may have sent them before it knew.
    fn receive_late(&mut self, header: &Header) {
        match header.op() {
            Some(Op::Reset) => self.core.guest = GuestEnd::Gone,
            Some(Op::Shutdown) if self.core.guest == GuestEnd::Closing => {
                self.core.guest_flags |= header.flags & SHUTDOWN_BOTH;
                if self.core.guest_flags == SHUTDOWN_BOTH {
                    self.core.guest = GuestEnd::Resetting;
                }
            }
            _ => {}
        }
    }

    fn receive_answer(&mut self, header: &Header) -> Effect {
        match header.op() {
            Some(Op::Response) if !self.core.due.request => {
                if self.take_credit(header).is_err() {
                    return self.violate();
                }
                self.core.guest = GuestEnd::Open;
                Effect::Connected
            }
            Some(Op::Reset) => {
                self.end_guest(GuestEnd::Gone, CloseReason::Refused);
                Effect::None
            }
            _ => self.violate(),
        }
    }

    fn receive_open(&mut self, header: &Header, payload: &mut dyn Read, scratch: &mut [u8]) -> Effect {
        let op = header.op();
        if op == Some(Op::Reset) {
            self.end_guest(GuestEnd::Gone, CloseReason::GuestReset);
            return Effect::None;
        }
        if self.take_credit(header).is_err() {
            return self.violate();
        }
        match op {
            Some(Op::Data) => return self.receive_data(header.len, payload, scratch),
            Some(Op::Shutdown) => self.receive_shutdown(header.flags & SHUTDOWN_BOTH),
            Some(Op::CreditUpdate) => {}
            Some(Op::CreditRequest) => self.core.due.credit_update = true,
            Some(Op::Request | Op::Response | Op::Reset) | None => return self.violate(),
        }
        Effect::None
    }

    fn take_credit(&mut self, header: &Header) -> Result<(), CreditError> {
        self.core.send.update(header.buf_alloc, header.fwd_cnt)?;
        if self.core.send.free() > 0 {
            self.asked_for_credit = false;
        }
        Ok(())
    }

    fn receive_shutdown(&mut self, flags: u32) {
        self.core.guest_flags |= flags;
        if self.core.guest_flags & SHUTDOWN_RECEIVE != 0 && !self.core.host_eof {
            self.core.host_eof = true;
            if let Some(socket) = &mut self.socket {
                let _ = socket.shutdown(Shutdown::Read);
            }
        }
        if self.core.guest_flags == SHUTDOWN_BOTH {
            self.end_guest(GuestEnd::Resetting, CloseReason::GuestClosed);
        } else {
            self.settle();
        }
    }

    fn receive_data(&mut self, len: u32, payload: &mut dyn Read, scratch: &mut [u8]) -> Effect {
        if self.core.guest_flags & SHUTDOWN_SEND != 0 || self.core.receive.receive(len).is_err() {
            return self.violate();
        }
        let mut left = len as usize;
        while left > 0 {
            let size = left.min(scratch.len());
            let piece = &mut scratch[..size];
            if payload.read_exact(piece).is_err() {
                return self.violate();
            }
            left -= piece.len();
            self.deliver(piece);
        }
        self.settle();
        Effect::None
    }

    /// The guest broke a rule: nothing of it is forwarded any more.
    fn violate(&mut self) -> Effect {
        self.abort(CloseReason::Violation);
        Effect::Violation
    }
}
