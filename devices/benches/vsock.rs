//! The vsock device's own cost for each byte and packet, both ways: a mock driver whose memory is filled
//! beforehand, and host sockets that cost nothing.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hayfork_devices::virtio::testing::Segment;
use hayfork_devices::virtio::vsock::packet::{HEADER_LEN, Header, Op};
use hayfork_devices::virtio::vsock::testing::{GUEST_CID, Guest, from_guest};
use hayfork_devices::virtio::vsock::{Event, HostSocket, Readiness, VsockConfig, VsockDevice};
use vm_memory::{Bytes, GuestAddress};

/// Chains in one round.
const ROUND: u32 = 64;
/// Length of a packet's header in bytes.
const HEADER: u32 = 44;
const _: () = assert!(HEADER_LEN == HEADER as usize);
const PORTS: (u32, u32) = (1000, 52);
/// Where the mock guest's packets and buffers lie; see `testing.rs`.
const BUFFERS: u64 = 6 << 20;

/// Takes everything, and has bytes without end, or none.
struct Endless {
    has_bytes: bool,
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.has_bytes { Ok(buf.len()) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

impl Write for Endless {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl HostSocket for Endless {
    fn shutdown(&mut self, _how: Shutdown) -> io::Result<()> {
        Ok(())
    }
}

type Device = VsockDevice<Endless, Box<dyn FnMut(u32) -> io::Result<Endless>>>;

/// A guest and a device with one open connection.
fn connected(has_bytes: bool) -> (Guest, Device) {
    let mut guest = Guest::new(false);
    let connector: Box<dyn FnMut(u32) -> io::Result<Endless>> = Box::new(move |_| Ok(Endless { has_bytes }));
    let mut device = Device::new(VsockConfig::new(GUEST_CID), connector).expect("good limits");
    let request = Header { buf_alloc: 1 << 30, ..from_guest(PORTS.0, PORTS.1, Op::Request) };
    guest.send(&request, &[], &[]).expect("room in the queue");
    guest.offer(4096, &[]).expect("room in the queue");
    guest.run(&mut device).expect("a good queue");
    assert_eq!(guest.reap(), 1);
    assert_eq!(guest.receive().map(|(header, _)| header.op()), Some(Some(Op::Response)));
    (guest, device)
}

fn transmit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("vsock guest to host");
    for payload in [4 << 10, 64 << 10] {
        // One descriptor after the header, or pieces of a page as Linux may send them.
        for (shape, piece) in [("whole", payload), ("pages", 4 << 10)] {
            if shape == "pages" && payload == piece {
                continue;
            }
            let (mut guest, mut device) = connected(false);
            let header = Header { len: payload, ..from_guest(PORTS.0, PORTS.1, Op::Data) };
            let address = GuestAddress(BUFFERS);
            guest.mem.write_slice(&header.encode(), address).expect("inside memory");
            let mut chain = vec![Segment::readable(BUFFERS, HEADER)];
            let data = BUFFERS + 4096;
            chain.extend((0..payload / piece).map(|i| Segment::readable(data + u64::from(i * piece), piece)));
            let round = ROUND.min(256 / u32::try_from(chain.len()).expect("a short chain"));
            group.throughput(Throughput::Bytes(u64::from(payload * round)));
            let name = format!("{} KiB {shape}", payload >> 10);
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter(|| {
                    for _ in 0..round {
                        guest.tx.add(&chain).expect("room in the queue");
                    }
                    device.process_tx(&mut guest.tx_queue, &guest.mem).expect("a good queue");
                    assert_eq!(guest.reap(), round as usize);
                });
            });
            assert_eq!(device.counters().violations, 0);
        }
    }
    group.finish();
}

fn receive(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("vsock host to guest");
    for payload in [4u32 << 10, 64 << 10] {
        let (mut guest, mut device) = connected(true);
        let Some(Event::Opened { token, .. }) = device.next_event() else {
            panic!("no connection");
        };
        let length = payload + HEADER;
        let mut taken = 0u32;
        group.throughput(Throughput::Bytes(u64::from(payload * ROUND)));
        let name = format!("{} KiB", payload >> 10);
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                for i in 0..ROUND {
                    let at = BUFFERS + u64::from(i * length);
                    guest.rx.add(&[Segment::writable(at, length)]).expect("room in the queue");
                }
                device.host_ready(token, Readiness::READABLE);
                device.process_rx(&mut guest.rx_queue, &guest.mem).expect("a good queue");
                while let Some(used) = guest.rx.next_used() {
                    taken = taken.wrapping_add(used.len - HEADER);
                }
                // The guest has taken all: tell the device.
                let credit = Header {
                    buf_alloc: 1 << 30,
                    fwd_cnt: taken,
                    ..from_guest(PORTS.0, PORTS.1, Op::CreditUpdate)
                };
                guest.send(&credit, &[], &[]).expect("room in the queue");
                device.process_tx(&mut guest.tx_queue, &guest.mem).expect("a good queue");
                guest.reap();
            });
        });
        assert_eq!(device.counters().violations, 0);
        assert!(device.counters().bytes_sent > 0);
    }
    group.finish();
}

criterion_group!(benches, transmit, receive);
criterion_main!(benches);
