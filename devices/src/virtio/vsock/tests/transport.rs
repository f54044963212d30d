//! The device behind virtio-mmio, as the monitor has it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::packet::Op;
use super::super::testing::{Guest, MockConnector, from_guest};
use super::super::{CloseReason, Event, Readiness, VsockState};
use super::{Device, data, device};
use crate::virtio::testing::mmio::MmioDriver;
use crate::virtio::transport::mmio::MmioDevice;

type Transport = MmioDevice<Device, vm_memory::GuestMemoryMmap>;

fn behind_mmio(device: Device, guest: &Guest) -> (Transport, Arc<AtomicU32>) {
    let pulses = Arc::new(AtomicU32::new(0));
    let line = pulses.clone();
    let line = Box::new(move || {
        line.fetch_add(1, Ordering::SeqCst);
    });
    (MmioDevice::new(device, guest.mem.clone(), line, Box::new(|_| {})), pulses)
}

#[test]
fn a_stream_passes_through_the_transport() {
    let mut guest = Guest::new(false);
    let (transport, pulses) = behind_mmio(device(), &guest);
    let driver = MmioDriver(&transport);
    assert_eq!(driver.config(0, 8), [3, 0, 0, 0, 0, 0, 0, 0]);
    driver.start(driver.offered() & !(1 << 29), &[&guest.rx, &guest.tx, &guest.event]);
    guest.offer_all(4096);
    guest.send(&from_guest(1000, 52, Op::Request), &[], &[]).unwrap();
    // One kick of the transmit queue brings the answer in the receive queue.
    assert!(transport.process_queue(Device::TX_QUEUE).interrupt);
    assert_eq!(pulses.load(Ordering::SeqCst), 1);
    assert_eq!(guest.receive().unwrap().0.op(), Some(Op::Response));
    let token = transport.device(|vsock| match vsock.next_event() {
        Some(Event::Opened { token, .. }) => token,
        event => panic!("{event:?}"),
    });
    let mut host = transport.device(|vsock| vsock.connector_mut().accepted.pop_front()).unwrap().1;
    guest.send(&data(1000, 52, 5), b"hello", &[]).unwrap();
    transport.process_queue(Device::TX_QUEUE);
    assert_eq!(host.read_available().0, b"hello");
    // A host socket becomes ready: no kick, but an interrupt.
    host.write_all(b"world").unwrap();
    pulses.store(0, Ordering::SeqCst);
    transport.with_device(|vsock, queues, mem| {
        vsock.host_ready(token, Readiness::READABLE);
        ((), vsock.process_data(queues.unwrap(), mem))
    });
    assert_eq!(pulses.load(Ordering::SeqCst), 1);
    assert_eq!(guest.receive().unwrap().1, b"world");
    // A driver's reset ends everything.
    driver.reset();
    let ends = transport.device(|vsock| std::iter::from_fn(|| vsock.next_event()).collect::<Vec<_>>());
    assert!(ends.iter().any(|e| matches!(e, Event::Closed { reason: CloseReason::DeviceReset, .. })));
    drop(ends);
    assert!(host.hung_up());
}

#[test]
fn transport_and_device_are_restored_together() {
    let mut guest = Guest::new(false);
    let (old, _) = behind_mmio(device(), &guest);
    MmioDriver(&old).start(1 << 32, &[&guest.rx, &guest.tx, &guest.event]);
    guest.offer_all(4096);
    guest.send(&from_guest(1000, 52, Op::Request), &[], &[]).unwrap();
    old.process_queue(Device::TX_QUEUE);
    guest.receive().unwrap();
    let (state, vsock): (_, VsockState) = (old.save(), old.device(|vsock| vsock.save()));
    let mut far = None;
    let config = old.device(|vsock| vsock.config().clone());
    let (restored, carried) = Device::restore(config, MockConnector::default(), vsock, |_| {
        let (ours, theirs) = super::testing::pair(1000);
        far = Some(theirs);
        Some(ours)
    })
    .unwrap();
    assert_eq!(carried.len(), 1);
    let (new, _) = behind_mmio(restored, &guest);
    new.restore(&state).unwrap();
    new.resume();
    guest.send(&data(1000, 52, 3), b"abc", &[]).unwrap();
    new.process_queue(Device::TX_QUEUE);
    assert_eq!(far.unwrap().read_available().0, b"abc");
}
