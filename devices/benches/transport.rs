//! What the transport adds: registers that an interrupt handler uses, a notification that finds nothing to
//! do, and a notification with one chain, through the entropy device and the console.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hayfork_devices::serial::SerialPort;
use hayfork_devices::sink::Discard;
use hayfork_devices::virtio::VirtioDevice;
use hayfork_devices::virtio::console::{ConsoleDevice, TX_QUEUE};
use hayfork_devices::virtio::rng::RngDevice;
use hayfork_devices::virtio::testing::mmio::MmioDriver;
use hayfork_devices::virtio::testing::{DriverQueue, Segment};
use hayfork_devices::virtio::transport::mmio::MmioDevice;
use vm_memory::{GuestAddress, GuestMemoryMmap};

struct Rig<D> {
    device: MmioDevice<D, GuestMemoryMmap>,
    queues: Vec<DriverQueue>,
}

fn rig<D: VirtioDevice<GuestMemoryMmap>>(device: D) -> Rig<D> {
    let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).expect("memory");
    let count = device.queue_sizes().len();
    let queues: Vec<_> =
        [0x1000, 0x4000].iter().take(count).map(|base| DriverQueue::new(&mem, *base, 64)).collect();
    let device = MmioDevice::new(device, mem, Box::new(|| ()), Box::new(|_| ()));
    MmioDriver(&device).start(1 << 32, &queues.iter().collect::<Vec<_>>());
    Rig { device, queues }
}

fn registers(criterion: &mut Criterion) {
    let rng = rig(RngDevice::default());
    let driver = MmioDriver(&rng.device);
    criterion.bench_function("mmio interrupt status and ACK", |b| b.iter(|| driver.take_interrupts()));
    criterion.bench_function("mmio QueueReady, behind the lock", |b| b.iter(|| driver.read(0x44)));
    criterion.bench_function("mmio notification with nothing to do", |b| {
        b.iter(|| rng.device.process_queue(0));
    });
    criterion.bench_function("mmio save", |b| b.iter(|| rng.device.save()));
}

fn devices(criterion: &mut Criterion) {
    let mut rng = rig(RngDevice::default());
    let mut group = criterion.benchmark_group("rng");
    for len in [64u32, 4096] {
        group.throughput(Throughput::Bytes(len.into()));
        group.bench_function(format!("{len} bytes"), |b| {
            b.iter(|| {
                rng.queues[0].add(&[Segment::writable(1 << 20, len)]).expect("room in the queue");
                rng.device.process_queue(0);
                rng.queues[0].next_used().expect("an answer")
            });
        });
    }
    group.finish();
    let mut console = rig(ConsoleDevice::new(Box::new(Discard)));
    let mut group = criterion.benchmark_group("console output");
    for len in [80u32, 4096] {
        group.throughput(Throughput::Bytes(len.into()));
        group.bench_function(format!("{len} bytes"), |b| {
            b.iter(|| {
                console.queues[1].add(&[Segment::readable(1 << 20, len)]).expect("room in the queue");
                console.device.process_queue(TX_QUEUE);
                console.queues[1].next_used().expect("an answer")
            });
        });
    }
    group.finish();
    let serial = SerialPort::new(Box::new(Discard), Box::new(|| ()));
    criterion.bench_function("serial output, one byte", |b| b.iter(|| serial.write(0, b"x")));
}

criterion_group!(benches, registers, devices);
criterion_main!(benches);
