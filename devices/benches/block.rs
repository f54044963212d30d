//! The block device's cost for each request: a file in the page cache, straight into guest memory, and the
//! same bytes by way of the buffer that a backend without a file needs.

use std::fs::File;
use std::io;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hayfork_devices::virtio::VirtioDevice;
use hayfork_devices::virtio::block::{BlockBackend, BlockDevice, FileBackend};
use hayfork_devices::virtio::queue::ActiveQueues;
use hayfork_devices::virtio::testing::{DriverQueue, Segment};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const DISK: u64 = 64 << 20;
const HEADERS: u64 = 0x1_0000;
const STATUS: u64 = 0x2_0000;
const DATA: u64 = 1 << 20;
/// Bytes of one round.
const ROUND: u64 = 1 << 20;

/// Hides that it has a file.
struct Buffered(FileBackend);

impl BlockBackend for Buffered {
    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, data)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, may_unmap: bool) -> io::Result<()> {
        self.0.write_zeroes(offset, len, may_unmap)
    }
}

fn disk() -> File {
    let file = tempfile::tempfile().expect("a file");
    let zeros = vec![0x5a; 1 << 20];
    for i in 0..DISK >> 20 {
        std::os::unix::fs::FileExt::write_all_at(&file, &zeros, i << 20).expect("room for the disk");
    }
    file
}

fn run(criterion: &mut Criterion, name: &str, backend: impl BlockBackend, write: bool) {
    let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).expect("memory");
    // Touched once, as a guest's page cache is.
    mem.write_slice(&vec![1; 3 << 20], GuestAddress(DATA)).expect("inside memory");
    let mut queue = DriverQueue::new(&mem, 0x1000, 256);
    let mut queues = ActiveQueues::new(vec![Some(queue.device_queue(false))]);
    let mut device = BlockDevice::new(backend, [0; 20]);
    VirtioDevice::<GuestMemoryMmap>::accept_features(&mut device, 1 << 32 | 1 << 9).expect("offered");
    let mut group = criterion.benchmark_group(format!("block {name}"));
    group.throughput(Throughput::Bytes(ROUND));
    let mut sector = 0;
    // What a guest reads of a file system at random, in pages of a readahead, and in one piece.
    for (label, len, piece) in
        [("4 KiB", 4096, 4096), ("128 KiB in pages", 128 << 10, 4096), ("128 KiB whole", 128 << 10, 64 << 10)]
    {
        group.bench_function(BenchmarkId::from_parameter(label), |bencher| {
            bencher.iter(|| {
                let mut offered = 0;
                while offered < ROUND {
                    // As many as fit into the queue at once.
                    while offered < ROUND && queue.free_descriptors() > 34 {
                        let header = HEADERS + 16 * (offered / len);
                        mem.write_obj(u32::from(write), GuestAddress(header)).expect("inside memory");
                        mem.write_obj(sector, GuestAddress(header + 8)).expect("inside memory");
                        sector = (sector + len / 512 * 7) % ((DISK - len) / 512);
                        let mut chain = vec![Segment::readable(header, 16)];
                        let pieces = (0..len / piece).map(|i| Segment {
                            addr: DATA + offered + i * piece,
                            len: u32::try_from(piece).expect("small"),
                            writable: !write,
                        });
                        chain.extend(pieces);
                        chain.push(Segment::writable(STATUS, 1));
                        queue.add(&chain).expect("room in the queue");
                        offered += len;
                    }
                    while device.process_queue(0, &mut queues, &mem).expect("a good queue").again {}
                    while queue.next_used().is_some() {}
                }
            });
        });
    }
    group.finish();
    let counters = device.counters();
    assert_eq!((counters.failed, counters.refused, counters.malformed), (0, 0, 0));
}

fn block(criterion: &mut Criterion) {
    let file = disk();
    let open = || FileBackend::writable(file.try_clone().expect("a descriptor")).expect("a file");
    run(criterion, "read", open(), false);
    run(criterion, "read through a buffer", Buffered(open()), false);
    run(criterion, "write", open(), true);
}

criterion_group!(benches, block);
criterion_main!(benches);
