//! The console against Linux's way of using it, and against guests that flood it.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{
    ConsoleDevice, ConsoleState, ConsoleStateError, INPUT_MAX, OUTPUT_MAX, RX_QUEUE, STATE_VERSION, TX_QUEUE,
};
use crate::sink::Tail;
use crate::virtio::Progress;
use crate::virtio::testing::mmio::MmioDriver;
use crate::virtio::testing::{DriverQueue, Segment, cut};
use crate::virtio::transport::mmio::{INTERRUPT_CONFIG, MmioDevice, NEEDS_RESET};

const MEMORY: u32 = 4 << 20;
const TEXT: u64 = 0x10_0000;
const ROOM: u64 = 0x20_0000;

struct Rig {
    mem: GuestMemoryMmap,
    device: MmioDevice<ConsoleDevice, GuestMemoryMmap>,
    printed: Tail,
    rx: DriverQueue,
    tx: DriverQueue,
}

impl Rig {
    fn new() -> Self {
        let mem = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap();
        let printed = Tail::new(1 << 20);
        let console = ConsoleDevice::new(Box::new(printed.clone()));
        let device = MmioDevice::new(console, mem.clone(), Box::new(|| ()), Box::new(|_| ()));
        let (rx, tx) = (DriverQueue::new(&mem, 0x1000, 64), DriverQueue::new(&mem, 0x2000, 64));
        MmioDriver(&device).start(1 << 32 | 1, &[&rx, &tx]);
        Self { mem, device, printed, rx, tx }
    }

    fn print(&mut self, text: &[u8], cuts: &[u32]) -> Progress {
        self.mem.write_slice(text, GuestAddress(TEXT)).unwrap();
        self.tx.add(&cut(TEXT, u32::try_from(text.len()).unwrap(), cuts, false)).unwrap();
        self.device.process_queue(TX_QUEUE)
    }

    fn push(&self, bytes: &[u8]) -> usize {
        let taken = self.device.device(|console| console.push_input(bytes));
        self.device.process_queue(RX_QUEUE);
        taken
    }

    fn taken(&mut self) -> Option<Vec<u8>> {
        let used = self.rx.next_used()?;
        let mut bytes = vec![0; used.len as usize];
        self.mem.read_slice(&mut bytes, GuestAddress(used.segments[0].addr)).unwrap();
        Some(bytes)
    }
}

#[test]
fn what_is_printed_arrives_in_order() {
    let mut rig = Rig::new();
    assert!(rig.print(b"Linux version 6.12\n", &[]).interrupt);
    rig.print(b"second line\n", &[1, 0, 3]);
    rig.print(b"", &[]);
    assert_eq!(rig.printed.bytes(), b"Linux version 6.12\nsecond line\n");
    for _ in 0..3 {
        assert_eq!(rig.tx.next_used().unwrap().len, 0);
    }
    let long: Vec<u8> = (0..60_000u32).map(|i| i.to_le_bytes()[0]).collect();
    rig.print(&long, &[100; 30]);
    assert!(rig.printed.bytes().ends_with(&long));
}

#[test]
fn input_waits_for_room_and_loses_nothing() {
    let mut rig = Rig::new();
    assert_eq!(rig.push(b"hello world"), 11);
    assert_eq!(rig.taken(), None);
    rig.rx.add(&[Segment::writable(ROOM, 5)]).unwrap();
    rig.rx.add(&[Segment::writable(ROOM + 64, 4096)]).unwrap();
    assert!(rig.device.process_queue(RX_QUEUE).interrupt);
    assert_eq!(rig.taken().unwrap(), b"hello");
    assert_eq!(rig.taken().unwrap(), b" world");
    rig.rx.add(&[Segment::writable(ROOM, 4096)]).unwrap();
    assert!(!rig.device.process_queue(RX_QUEUE).interrupt, "nothing to give");
    rig.push(b"x");
    assert_eq!(rig.taken().unwrap(), b"x");
}

#[test]
fn input_is_bounded() {
    let mut rig = Rig::new();
    assert_eq!(rig.push(&[1; 10_000]), INPUT_MAX);
    assert_eq!(rig.push(&[1; 10_000]), 0);
    rig.rx.add(&[Segment::writable(ROOM, 100)]).unwrap();
    rig.device.process_queue(RX_QUEUE);
    assert_eq!(rig.taken().unwrap().len(), 100);
    assert_eq!(rig.push(&[1; 10_000]), 100);
}

/// A chain that says it is 4 GiB long, over and over the same memory.
#[test]
fn output_of_one_chain_is_bounded() {
    let mut rig = Rig::new();
    let many = vec![Segment::readable(0, MEMORY); 60];
    rig.tx.add(&many).unwrap();
    rig.device.process_queue(TX_QUEUE);
    assert_eq!(rig.tx.next_used().unwrap().len, 0);
    assert_eq!(rig.printed.bytes().len(), OUTPUT_MAX);
    let counters = rig.device.device(|console| console.counters());
    assert_eq!(counters.bytes_out, OUTPUT_MAX as u64);
    assert_eq!(counters.dropped, 60 * u64::from(MEMORY) - OUTPUT_MAX as u64);
}

#[test]
fn a_flood_is_handled_in_bounded_calls() {
    let mut rig = Rig::new();
    for _ in 0..64 {
        rig.tx.add(&[Segment::readable(0, MEMORY)]).unwrap();
    }
    let mut calls = 0;
    while rig.device.process_queue(TX_QUEUE).again {
        calls += 1;
        let printed = rig.device.device(|console| console.counters().bytes_out);
        assert!(printed <= calls * 5 * OUTPUT_MAX as u64);
    }
    assert!(calls >= 12, "{calls}");
    assert_eq!(rig.printed.bytes().len(), 1 << 20, "the sink keeps its bound");
}

#[test]
fn chains_of_the_wrong_kind_come_back() {
    let mut rig = Rig::new();
    for bad in [
        &[Segment::readable(u64::from(MEMORY) - 1, 2)][..],
        &[Segment::readable(1 << 40, 10)],
        &[Segment::readable(TEXT, 1), Segment::readable(u64::MAX, 10)],
    ] {
        rig.tx.add(bad).unwrap();
        rig.device.process_queue(TX_QUEUE);
        assert_eq!(rig.tx.next_used().unwrap().len, 0);
    }
    // A writable piece of an output chain is neither printed nor written.
    rig.tx.add(&[Segment::writable(TEXT, 100)]).unwrap();
    rig.device.process_queue(TX_QUEUE);
    assert_eq!(rig.printed.bytes(), b"");
    rig.push(b"in");
    for bad in
        [&[Segment::readable(ROOM, 100)][..], &[Segment::writable(ROOM, 0)], &[Segment::writable(1 << 40, 9)]]
    {
        rig.rx.add(bad).unwrap();
        rig.device.process_queue(RX_QUEUE);
        assert_eq!(rig.rx.next_used().unwrap().len, 0);
    }
    assert_eq!(rig.device.device(|console| console.counters().malformed), 6);
    rig.rx.add(&[Segment::writable(ROOM, 9)]).unwrap();
    rig.device.process_queue(RX_QUEUE);
    assert_eq!(rig.taken().unwrap(), b"in", "input was kept for a good buffer");
    // Loops.
    rig.tx.write_descriptor(3, TEXT, 10, 1, 3);
    rig.tx.offer(3);
    rig.device.process_queue(TX_QUEUE);
    while rig.tx.next_used_raw().is_some_and(|(head, _)| head != 3) {}
    assert_eq!(rig.printed.bytes(), b"");
    rig.tx.set_avail_idx(999);
    rig.device.process_queue(TX_QUEUE);
    assert_ne!(rig.device.status() & NEEDS_RESET, 0);
}

#[test]
fn a_new_size_is_told() {
    let rig = Rig::new();
    let driver = MmioDriver(&rig.device);
    assert_eq!(driver.config(0, 12), [80, 0, 24, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    rig.device.with_device(|console, _, _| {
        console.set_size(300, 50);
        ((), Ok(Progress { config_changed: true, ..Progress::default() }))
    });
    assert_eq!(driver.take_interrupts(), INTERRUPT_CONFIG);
    assert_eq!(driver.config(0, 4), [44, 1, 50, 0]);
    rig.device.write(0x108, b"emer");
    assert_eq!(rig.printed.bytes(), b"");
}

#[test]
fn a_reset_forgets_input() {
    let mut rig = Rig::new();
    rig.push(b"secret");
    MmioDriver(&rig.device).reset();
    let (rx, tx) = (DriverQueue::new(&rig.mem, 0x1000, 64), DriverQueue::new(&rig.mem, 0x2000, 64));
    (rig.rx, rig.tx) = (rx, tx);
    MmioDriver(&rig.device).start(1 << 32, &[&rig.rx, &rig.tx]);
    rig.rx.add(&[Segment::writable(ROOM, 100)]).unwrap();
    rig.device.process_queue(RX_QUEUE);
    assert_eq!(rig.taken(), None);
}

#[test]
fn input_survives_a_snapshot() {
    let mut rig = Rig::new();
    rig.push(b"pending");
    let text = serde_json::to_string(&rig.device.device(|console| console.save())).unwrap();
    let state: ConsoleState = serde_json::from_str(&text).unwrap();
    let transport = rig.device.save();
    let printed = Tail::new(100);
    let mut console = ConsoleDevice::new(Box::new(printed.clone()));
    console.restore(&state).unwrap();
    rig.device = MmioDevice::new(console, rig.mem.clone(), Box::new(|| ()), Box::new(|_| ()));
    rig.device.restore(&transport).unwrap();
    assert_eq!(rig.device.device(|console| console.save()), state);
    rig.rx.add(&[Segment::writable(ROOM, 100)]).unwrap();
    rig.device.process_queue(RX_QUEUE);
    assert_eq!(rig.taken().unwrap(), b"pending");
    rig.print(b"on", &[]);
    assert_eq!(printed.bytes(), b"on");
}

#[test]
fn a_state_that_cannot_be_changes_nothing() {
    let mut console = ConsoleDevice::new(Box::new(crate::sink::Discard));
    let good = ConsoleState { version: STATE_VERSION, input: vec![1; INPUT_MAX], columns: 1, rows: 2 };
    console.restore(&good).unwrap();
    let bad = ConsoleState { input: vec![1; INPUT_MAX + 1], ..good.clone() };
    assert_eq!(console.restore(&bad), Err(ConsoleStateError::Input(INPUT_MAX + 1)));
    let bad = ConsoleState { version: 7, ..good.clone() };
    assert_eq!(console.restore(&bad), Err(ConsoleStateError::Version(7)));
    assert_eq!(console.save(), good);
}
