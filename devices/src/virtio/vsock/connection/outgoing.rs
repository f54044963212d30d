//! Packets to the guest.

use super::{Connection, GuestEnd};
use crate::virtio::vsock::host::HostSocket;
use crate::virtio::vsock::packet::{Op, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};

/// The next packet of a connection to its guest.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Outgoing {
    /// Nothing to say.
    Nothing,
    /// A packet without payload.
    Control(Op, u32),
    /// This many bytes were read from the host socket.
    Data(usize),
}

impl<S: HostSocket> Connection<S> {
    /// Shutdown flags that the guest should know of.
    pub(super) fn wanted_flags(&self) -> u32 {
        let mut flags = 0;
        if self.core.host_eof {
            flags |= SHUTDOWN_SEND;
        }
        let nothing_comes = self.core.guest_flags & SHUTDOWN_SEND != 0;
        if self.core.host_deaf || (self.core.host_eof && nothing_comes && self.core.buffer.is_empty()) {
            flags |= SHUTDOWN_RECEIVE;
        }
        flags
    }

    /// Whether a call of [`Connection::next_packet`] may give one.
    pub(in super::super) fn has_packets(&self) -> bool {
        match self.core.guest {
            GuestEnd::Gone | GuestEnd::Closing => false,
            GuestEnd::Resetting => true,
            GuestEnd::Requesting => self.core.due.request,
            GuestEnd::Open => {
                let due = self.core.due;
                due.response
                    || due.credit_update
                    || due.credit_request
                    || self.core.receive.update_due()
                    || self.wanted_flags() != self.core.host_flags
                    || (self.may_read()
                        && self.readable
                        && (self.core.send.free() > 0 || !self.asked_for_credit))
            }
        }
    }

    /// Bytes of data that [`Connection::next_packet`] may read now.
    pub(in super::super) fn data_room(&self) -> usize {
        if self.core.guest == GuestEnd::Open && !self.core.due.response && self.readable {
            self.core.send.free() as usize
        } else {
            0
        }
    }

    /// Takes the next packet; data is read into `space`.
    pub(in super::super) fn next_packet(&mut self, space: &mut [u8]) -> Outgoing {
        match self.core.guest {
            GuestEnd::Gone | GuestEnd::Closing => return Outgoing::Nothing,
            GuestEnd::Resetting => {
                self.core.guest = GuestEnd::Gone;
                self.settle();
                return Outgoing::Control(Op::Reset, 0);
            }
            GuestEnd::Requesting => {
                return if std::mem::take(&mut self.core.due.request) {
                    Outgoing::Control(Op::Request, 0)
                } else {
                    Outgoing::Nothing
                };
            }
            GuestEnd::Open => {}
        }
        if std::mem::take(&mut self.core.due.response) {
            return Outgoing::Control(Op::Response, 0);
        }
        if self.may_read() && self.readable {
            if self.core.send.free() > 0 {
                let read = self.read(space);
                if read > 0 {
                    return Outgoing::Data(read);
                }
            } else if !std::mem::replace(&mut self.asked_for_credit, true) {
                self.core.due.credit_request = true;
            }
        }
        let flags = self.wanted_flags();
        if flags != self.core.host_flags {
            self.core.host_flags = flags;
            if flags == SHUTDOWN_BOTH {
                self.core.guest = GuestEnd::Closing;
            }
            return Outgoing::Control(Op::Shutdown, flags);
        }
        if std::mem::take(&mut self.core.due.credit_request) {
            return Outgoing::Control(Op::CreditRequest, 0);
        }
        if std::mem::take(&mut self.core.due.credit_update) || self.core.receive.update_due() {
            return Outgoing::Control(Op::CreditUpdate, 0);
        }
        Outgoing::Nothing
    }
}
