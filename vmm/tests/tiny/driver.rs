//! Acts of a virtio driver (virtio 1.2, 2.7 and 4.2), good and bad.

use super::{Act, device, write};

/// Registers (virtio 1.2, table 4.1).
pub(crate) const QUEUE_NOTIFY: u64 = 0x50;
const DRIVER_FEATURES: u64 = 0x20;
const DRIVER_FEATURES_SEL: u64 = 0x24;
const QUEUE_SEL: u64 = 0x30;
const QUEUE_NUM: u64 = 0x38;
const QUEUE_READY: u64 = 0x44;
const STATUS: u64 = 0x70;
const QUEUE_DESC: u64 = 0x80;
const QUEUE_DRIVER: u64 = 0x90;
const QUEUE_DEVICE: u64 = 0xa0;

/// Flags of a descriptor.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Entries of all queues here: as many as the smallest queue of a device has at most.
pub(crate) const SIZE: u16 = 16;

/// Where the parts of a queue are said to lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rings {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

impl Rings {
    /// A page for the queue at `at`.
    pub(crate) fn at(at: u64) -> Self {
        Self { descriptors: at, available: at + 0x400, used: at + 0x800 }
    }
}

/// A descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// The bytes of descriptors.
pub(crate) fn table(descriptors: &[Descriptor]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for descriptor in descriptors {
        bytes.extend(descriptor.address.to_le_bytes());
        bytes.extend(descriptor.len.to_le_bytes());
        bytes.extend(descriptor.flags.to_le_bytes());
        bytes.extend(descriptor.next.to_le_bytes());
    }
    bytes
}

/// The bytes of a page with descriptors and, in the available ring, these heads; all but `index` of them are on offer.
pub(crate) fn page(descriptors: &[Descriptor], heads: &[u16], index: u16) -> Vec<u8> {
    let mut bytes = table(descriptors);
    bytes.resize(0x400, 0);
    for half in [0, index].iter().chain(heads) {
        bytes.extend(half.to_le_bytes());
    }
    bytes.resize(0x1000, 0);
    bytes
}

/// Resets device `index`.
pub(crate) fn reset(index: u64) -> Act {
    write(device(index) + STATUS, 0)
}

/// Makes device `index` ready with these queues, by their numbers. No features but VERSION_1.
pub(crate) fn bring_up(index: u64, queues: &[(u32, Rings)]) -> Vec<Act> {
    let at = device(index);
    let mut acts = vec![
        reset(index),
        write(at + STATUS, 1),
        write(at + STATUS, 3),
        write(at + DRIVER_FEATURES_SEL, 0),
        write(at + DRIVER_FEATURES, 0),
        write(at + DRIVER_FEATURES_SEL, 1),
        write(at + DRIVER_FEATURES, 1),
        write(at + STATUS, 0xb),
    ];
    for (number, rings) in queues {
        acts.extend([write(at + QUEUE_SEL, *number), write(at + QUEUE_NUM, SIZE.into())]);
        for (register, address) in
            [(QUEUE_DESC, rings.descriptors), (QUEUE_DRIVER, rings.available), (QUEUE_DEVICE, rings.used)]
        {
            let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap();
            acts.extend([write(at + register, half(address)), write(at + register + 4, half(address >> 32))]);
        }
        acts.push(write(at + QUEUE_READY, 1));
    }
    acts.push(write(at + STATUS, 0xf));
    acts
}

/// Rings the doorbell of a queue, so many times.
pub(crate) fn notify(index: u64, queue: u32, times: u64) -> Act {
    Act::Write { width: 4, at: device(index) + QUEUE_NOTIFY, value: queue.into(), times }
}
