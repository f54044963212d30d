//! Which packets go to the guest next.

use super::{Muxer, Reset};
use crate::virtio::vsock::connection::{Core, Outgoing};
use crate::virtio::vsock::host::HostSocket;
use crate::virtio::vsock::packet::{Header, Op, SHUTDOWN_BOTH, TYPE_STREAM};
use crate::virtio::vsock::{HOST_CID, MAX_PAYLOAD};

impl<S: HostSocket> Muxer<S> {
    /// Bytes of payload that the next call of [`Muxer::produce`] could use.
    pub(in super::super) fn wanted_room(&self) -> usize {
        if !self.resets.is_empty() {
            return 0;
        }
        let first = self.ring.front().and_then(|t| self.connections.get(t));
        first.map_or(0, |connection| connection.data_room().min(connection.burst.max(1)))
    }

    /// Makes the next packets, all of one connection, for receive buffers that hold `rooms` bytes of
    /// payload each (each at least 1). Headers go to `headers`, at most one per room; the payloads
    /// lie one behind the other in the slice that is returned.
    ///
    /// One read from the host socket fills several buffers, since Linux offers small ones (4 KiB with
    /// its header). The size of the read doubles while reads fill it.
    pub(in super::super) fn produce(&mut self, rooms: &[usize], headers: &mut Vec<Header>) -> &[u8] {
        headers.clear();
        if let Some(reset) = self.resets.pop_front() {
            self.counters.resets_sent += 1;
            self.counters.packets_sent += 1;
            headers.push(self.reset_header(reset));
            return &[];
        }
        while let Some(token) = self.ring.pop_front() {
            let room = rooms.iter().sum::<usize>().min(MAX_PAYLOAD);
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            connection.queued = false;
            let outgoing = connection.next_packet(&mut self.scratch[..room]);
            let mut length = 0;
            match outgoing {
                Outgoing::Nothing => {}
                Outgoing::Control(op, flags) => {
                    headers.push(header(self.config.guest_cid, &mut connection.core, op, flags));
                }
                Outgoing::Data(read) => {
                    length = read;
                    connection.burst = next_burst(read, room);
                    let template = header(self.config.guest_cid, &mut connection.core, Op::Data, 0);
                    split(&template, read, rooms, headers);
                }
            }
            let closing = outgoing == Outgoing::Control(Op::Shutdown, SHUTDOWN_BOTH);
            self.counters.resets_sent += u64::from(matches!(outgoing, Outgoing::Control(Op::Reset, _)));
            self.counters.packets_sent += headers.len() as u64;
            self.counters.bytes_sent += length as u64;
            if closing {
                self.arm(token, self.config.close_timeout);
            }
            self.update(token);
            if !headers.is_empty() {
                return &self.scratch[..length];
            }
        }
        &[]
    }

    fn reset_header(&self, reset: Reset) -> Header {
        Header {
            src_cid: reset.src_cid,
            dst_cid: self.config.guest_cid,
            src_port: reset.src_port,
            dst_port: reset.dst_port,
            type_: reset.type_,
            op: Op::Reset as u16,
            ..Header::default()
        }
    }
}

/// The header of a packet of a connection; the guest learns of our credit by it.
fn header(guest_cid: u64, core: &mut Core, op: Op, flags: u32) -> Header {
    Header {
        src_cid: HOST_CID,
        dst_cid: guest_cid,
        src_port: core.ports.host,
        dst_port: core.ports.guest,
        len: 0,
        type_: TYPE_STREAM,
        op: op as u16,
        flags,
        buf_alloc: core.receive.buf_alloc(),
        fwd_cnt: core.receive.announce(),
    }
}

/// Divides `length` bytes over receive buffers: one header for each buffer that is used.
fn split(template: &Header, mut length: usize, rooms: &[usize], headers: &mut Vec<Header>) {
    for room in rooms {
        let part = length.min(*room);
        if part == 0 {
            break;
        }
        length -= part;
        headers.push(Header { len: u32::try_from(part).unwrap_or(u32::MAX), ..*template });
    }
}

/// How much to ask for next, after a read of `read` bytes into `room`.
fn next_burst(read: usize, room: usize) -> usize {
    if read == room { (room * 2).min(MAX_PAYLOAD) } else { read }
}
