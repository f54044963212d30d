//! What the device targets share: a driver that writes anything anywhere.

use arbitrary::Arbitrary;
use hayfork_devices::virtio::testing::{DriverQueue, Segment};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Bytes of guest memory, in two regions with a border inside the data.
pub const MEMORY: u64 = 1 << 20;
const BORDER: u64 = 0x5_0064;

/// Guest memory of the targets.
pub fn memory() -> GuestMemoryMmap {
    let size = |n: u64| usize::try_from(n).expect("small");
    let ranges = [(GuestAddress(0), size(BORDER)), (GuestAddress(BORDER), size(MEMORY - BORDER))];
    GuestMemoryMmap::from_ranges(&ranges).expect("memory")
}

/// Something that a driver does to a queue, right or wrong.
#[derive(Debug, Arbitrary)]
pub enum RingAction {
    /// A chain in guest memory, or out of it.
    Chain {
        segments: Vec<(Place, u16, bool)>,
    },
    /// A chain by way of a table.
    Indirect {
        table: Place,
        segments: Vec<(Place, u16, bool)>,
    },
    /// A descriptor of any content, and whether its chain is offered.
    Descriptor {
        index: u8,
        addr: u64,
        len: u32,
        flags: u16,
        next: u16,
        offer: bool,
    },
    /// A head that may be none.
    Offer {
        head: u16,
    },
    /// The index of the available ring, from where it is.
    AvailIdx {
        by: u16,
    },
    /// When to interrupt.
    UsedEvent {
        idx: u16,
    },
    Flags {
        flags: u16,
    },
}

/// An address: mostly in memory.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Place {
    Low(u16),
    Data(u16),
    AtBorder(i8),
    AtEnd(i8),
    Any(u64),
}

impl Place {
    /// The address.
    pub fn address(self) -> u64 {
        match self {
            Self::Low(at) => at.into(),
            Self::Data(at) => 0x4_0000 + 2 * u64::from(at),
            Self::AtBorder(by) => BORDER.wrapping_add_signed(by.into()),
            Self::AtEnd(by) => MEMORY.wrapping_add_signed(by.into()),
            Self::Any(at) => at,
        }
    }
}

impl RingAction {
    /// Does it. `position` is the available index that the driver wrote last.
    pub fn apply(&self, queue: &mut DriverQueue, position: &mut u16) {
        let cut = |segments: &[(Place, u16, bool)]| -> Vec<Segment> {
            let segments = segments.iter().take(40);
            segments
                .map(|(place, len, writable)| Segment {
                    addr: place.address(),
                    len: (*len).into(),
                    writable: *writable,
                })
                .collect()
        };
        match self {
            Self::Chain { segments } => {
                if queue.add(&cut(segments)).is_some() {
                    *position = position.wrapping_add(1);
                }
            }
            Self::Indirect { table, segments } => {
                let table = table.address();
                let segments = cut(segments);
                let room = MEMORY.checked_sub(segments.len() as u64 * 16);
                if room.is_some_and(|last| table <= last)
                    && !segments.is_empty()
                    && queue.add_indirect(table, &segments).is_some()
                {
                    *position = position.wrapping_add(1);
                }
            }
            Self::Descriptor { index, addr, len, flags, next, offer } => {
                let index = u16::from(*index) % queue.size();
                queue.write_descriptor(index, *addr, *len, *flags, *next);
                if *offer {
                    queue.offer(index);
                    *position = position.wrapping_add(1);
                }
            }
            Self::Offer { head } => {
                queue.offer(*head);
                *position = position.wrapping_add(1);
            }
            Self::AvailIdx { by } => {
                *position = position.wrapping_add(*by);
                queue.set_avail_idx(*position);
            }
            Self::UsedEvent { idx } => queue.set_used_event(*idx),
            Self::Flags { flags } => queue.set_avail_flags(*flags),
        }
    }
}

/// A driver's queue with its position.
#[derive(Debug)]
pub struct Ring {
    pub queue: DriverQueue,
    base: u64,
    size: u16,
    position: u16,
}

impl Ring {
    /// A queue of `size` at `base`, whose rings are cleared.
    pub fn new(mem: &GuestMemoryMmap, base: u64, size: u16) -> Self {
        let bytes = usize::try_from(DriverQueue::bytes_needed(size)).expect("small");
        mem.write_slice(&vec![0; bytes], GuestAddress(base)).expect("inside memory");
        Self { queue: DriverQueue::new(mem, base, size), base, size, position: 0 }
    }

    /// Does something to it.
    pub fn apply(&mut self, action: &RingAction) {
        action.apply(&mut self.queue, &mut self.position);
    }

    /// Starts anew, as after a reset.
    pub fn renew(&mut self, mem: &GuestMemoryMmap) {
        *self = Self::new(mem, self.base, self.size);
    }

    /// Takes everything used; calls `check` with head and length.
    pub fn reap(&mut self, mut check: impl FnMut(u16, u32)) {
        // The used index can be anything that the driver's other writes made of it.
        for _ in 0..0x1_0000u32 {
            let Some((head, len)) = self.queue.next_used_raw() else { break };
            check(head, len);
        }
    }
}
