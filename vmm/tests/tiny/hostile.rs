//! Guests that mean harm, by way of everything that a guest can reach. All go on for ever.

use hayfork_vmm::memory::layout::{DEVICES, SERIAL_PORT};

use super::driver::{Descriptor, INDIRECT, NEXT, Rings, SIZE, WRITE, bring_up, notify, page, reset, table};
use super::{Act, DATA, Script, device};

/// Devices of a machine with a root image.
const VSOCK: u64 = 0;
const ENTROPY: u64 = 1;
const CONSOLE: u64 = 2;
const BLOCK: u64 = 3;
/// Each with the number of its queues.
const DEVICES_AND_QUEUES: [(u64, u32); 4] = [(VSOCK, 3), (ENTROPY, 1), (CONSOLE, 2), (BLOCK, 1)];

/// Where a device's queues lie: a page for each.
fn rings_of(device: u64, queue: u32) -> Rings {
    Rings::at(page_of(device, queue))
}

fn page_of(device: u64, queue: u32) -> u64 {
    DATA + 0x1_0000 + (device * 4 + u64::from(queue)) * 0x1000
}

/// A buffer in RAM.
const BUFFER: u64 = DATA + 0x4_0000;

/// Acts, and then from `from` on again and again.
fn for_ever(mut acts: Vec<Act>, from: usize, data: Vec<(u64, Vec<u8>)>) -> Script {
    acts.push(Act::Repeat { from, times: 0 });
    Script { acts, data }
}

/// All of them, with their names.
pub(crate) fn all() -> Vec<(&'static str, Script)> {
    vec![
        ("console flood by port", flood_by_port()),
        ("console flood by port, byte by byte", flood_by_bytes()),
        ("console flood by queue", flood_by_queue()),
        ("doorbells without drivers", doorbells(false)),
        ("doorbells of live devices", doorbells(true)),
        ("resets of devices at work", resets()),
        ("rings at wild addresses", wild_rings()),
        ("descriptors of wild content", wild_descriptors()),
        ("indices that jump", wild_indices()),
        ("vsock packets of nonsense", wild_packets()),
        ("accesses all over the register files", all_over(0x3fff)),
        ("accesses all over the device gap", all_over(0x3fff_ffff)),
        ("accesses to all ports", ports()),
    ]
}

fn flood_by_port() -> Script {
    let text = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n".repeat(64);
    let act = Act::OutString { port: SERIAL_PORT, at: DATA, bytes: text.len() as u64 };
    for_ever(vec![act], 0, vec![(DATA, text)])
}

fn flood_by_bytes() -> Script {
    for_ever(vec![Act::Out { port: SERIAL_PORT, value: b'x', times: 1000 }], 0, Vec::new())
}

/// Offers chains as fast as the device may take them, and begins anew now and then, also because it was too fast.
fn flood_by_queue() -> Script {
    let text = b"the quick brown fox jumps over the lazy dog\n".repeat(1000);
    let buffer = |address| Descriptor { address, len: u32::try_from(text.len()).unwrap(), flags: 0, next: 0 };
    let heads: Vec<u16> = (0..SIZE).collect();
    let rings = rings_of(CONSOLE, 1);
    let mut acts = vec![Act::Write { width: 2, at: rings.available + 2, value: 0, times: 1 }];
    acts.extend(bring_up(CONSOLE, &[(1, rings)]));
    let from = acts.len();
    acts.extend([
        Act::Add { at: rings.available + 2, value: 1 },
        notify(CONSOLE, 1, 1),
        Act::Spin { times: 300 },
        Act::Repeat { from, times: 1000 },
    ]);
    let data =
        vec![(page_of(CONSOLE, 1), page(&vec![buffer(BUFFER); SIZE.into()], &heads, 0)), (BUFFER, text)];
    for_ever(acts, 0, data)
}

/// Stores all doorbells of all devices, and some numbers that no queue has.
fn doorbells(is_live: bool) -> Script {
    let mut acts = Vec::new();
    let mut data = Vec::new();
    if is_live {
        for (device, queues) in DEVICES_AND_QUEUES {
            let queues: Vec<_> = (0..queues).map(|queue| (queue, rings_of(device, queue))).collect();
            acts.extend(bring_up(device, &queues));
            data.extend(queues.iter().map(|(_, rings)| (rings.descriptors, page(&[], &[], 0))));
        }
    }
    let from = acts.len();
    for (device, queues) in DEVICES_AND_QUEUES {
        acts.extend((0..queues).map(|queue| notify(device, queue, 500)));
        acts.extend([3, 0xffff, 0x1_0000, u32::MAX].map(|queue| notify(device, queue, 10)));
    }
    for_ever(acts, from, data)
}

/// Gives devices much to do, and resets them at once.
fn resets() -> Script {
    let (mut acts, data) = work();
    // One after the other, some at once and some a little later.
    for device in [BLOCK, CONSOLE, ENTROPY, VSOCK] {
        acts.extend([reset(device), Act::Spin { times: 100 }]);
    }
    for_ever(acts, 0, data)
}

/// Gives devices much to do, waits until they have done it, and says so, with what it read from the disk. A driver that
/// works: what the others do must not be harmless for a silly reason.
pub(crate) fn sane() -> Script {
    let (mut acts, mut data) = work();
    acts.extend(
        WORKING.map(|(device, queue)| Act::Await { at: rings_of(device, queue).used + 2, value: SIZE }),
    );
    // All of it is printed by then.
    let done = b"\nread ";
    data.push((DATA + 0x100, done.to_vec()));
    acts.extend([
        Act::OutString { port: SERIAL_PORT, at: DATA + 0x100, bytes: done.len() as u64 },
        Act::OutString { port: SERIAL_PORT, at: DISK_BUFFER, bytes: 8 },
        Act::Reset,
    ]);
    Script { acts, data }
}

/// Queues that [`work`] fills.
const WORKING: [(u64, u32); 3] = [(ENTROPY, 0), (CONSOLE, 1), (BLOCK, 0)];
const DISK_BUFFER: u64 = BUFFER + (1 << 20);

/// Makes devices live, with 16 chains on offer each: bytes of entropy, bytes to print, reads of the disk.
fn work() -> (Vec<Act>, Vec<(u64, Vec<u8>)>) {
    let heads: Vec<u16> = (0..SIZE).collect();
    let mut acts = Vec::new();
    let mut data = Vec::new();
    for (device, queue, flags) in [(ENTROPY, 0, WRITE), (CONSOLE, 1, 0)] {
        let buffers = vec![Descriptor { address: BUFFER, len: 1 << 20, flags, next: 0 }; SIZE.into()];
        data.push((page_of(device, queue), page(&buffers, &heads, SIZE)));
    }
    // Chains of three: a header, room for the data (the whole disk), room for the answer.
    let header = DATA;
    let chain = [
        Descriptor { address: header, len: 16, flags: NEXT, next: 1 },
        Descriptor { address: DISK_BUFFER, len: 1 << 20, flags: NEXT | WRITE, next: 2 },
        Descriptor { address: header + 16, len: 1, flags: WRITE, next: 0 },
    ];
    data.push((page_of(BLOCK, 0), page(&chain, &vec![0; SIZE.into()], SIZE)));
    data.push((header, vec![0; 32]));
    for (device, queue) in WORKING {
        acts.extend(bring_up(device, &[(queue, rings_of(device, queue))]));
        acts.push(notify(device, queue, 1));
    }
    (acts, data)
}

/// Addresses that no ring should have: the end of RAM, none, devices, beyond everything, odd ones.
const WILD: [u64; 10] = [
    0,
    1,
    (96 << 20) - 8,
    96 << 20,
    0xc000_0000,
    0xfee0_0000,
    0xffff_ffff,
    1 << 40,
    u64::MAX - 0xfff,
    u64::MAX,
];

fn wild_rings() -> Script {
    let mut acts = Vec::new();
    let mut data = Vec::new();
    for (device, queues) in DEVICES_AND_QUEUES {
        data.extend((0..queues).map(|queue| (page_of(device, queue), page(&[], &[], 0))));
        let queue = queues - 1;
        let good = rings_of(device, queue);
        for (number, address) in WILD.into_iter().enumerate() {
            // All of the fields in turn; not all of the pairs, since a script has an end.
            let rings = match number % 3 {
                0 => Rings { descriptors: address, ..good },
                1 => Rings { available: address, ..good },
                _ => Rings { used: address, ..good },
            };
            acts.extend(bring_up(device, &[(queue, rings)]));
            acts.push(notify(device, queue, 3));
        }
        let all = Rings { descriptors: u64::MAX << 12, available: u64::MAX << 12, used: u64::MAX << 12 };
        acts.extend(bring_up(device, &[(queue, all)]));
    }
    for_ever(acts, 0, data)
}

/// Every kind of broken descriptor for every queue.
fn wild_descriptors() -> Script {
    let wild = |number: usize, address: u64| {
        let len = [0, 1, 0xfff, 1 << 20, u32::MAX][number % 5];
        let flags = [0, NEXT, WRITE, INDIRECT, NEXT | WRITE, NEXT | INDIRECT, u16::MAX][number % 7];
        let next = [0, 1, SIZE - 1, SIZE, u16::MAX][number % 5];
        Descriptor { address, len, flags, next }
    };
    let mut descriptors: Vec<_> = WILD.into_iter().enumerate().map(|(n, address)| wild(n, address)).collect();
    descriptors.extend([
        // To itself, and in a circle.
        Descriptor { address: BUFFER, len: 64, flags: NEXT, next: 10 },
        Descriptor { address: BUFFER, len: 64, flags: NEXT | WRITE, next: 12 },
        Descriptor { address: BUFFER, len: 64, flags: NEXT, next: 11 },
        // A table of these very descriptors, one of a length that is no multiple, and one that is much too long.
        Descriptor { address: page_of(BLOCK, 0), len: 256, flags: INDIRECT, next: 0 },
        Descriptor { address: page_of(BLOCK, 0), len: 255, flags: INDIRECT, next: 0 },
        Descriptor { address: BUFFER, len: 1 << 24, flags: INDIRECT | NEXT, next: 13 },
    ]);
    assert_eq!(descriptors.len(), usize::from(SIZE));
    let heads: Vec<u16> = (0..SIZE).collect();
    let mut data = vec![(BUFFER, table(&descriptors))];
    let mut acts = Vec::new();
    for (device, queues) in DEVICES_AND_QUEUES {
        let queues: Vec<_> = (0..queues).map(|queue| (queue, rings_of(device, queue))).collect();
        for (queue, rings) in &queues {
            data.push((rings.descriptors, page(&descriptors, &heads, SIZE)));
            let _ = queue;
        }
        acts.extend(bring_up(device, &queues));
        acts.extend(queues.iter().map(|(queue, _)| notify(device, *queue, 2)));
    }
    acts.push(Act::Spin { times: 2000 });
    for_ever(acts, 0, data)
}

/// Heads out of range, and indices that run away from their device.
fn wild_indices() -> Script {
    let heads = [0, SIZE, 0x7fff, 0x8000, u16::MAX, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let mut data = Vec::new();
    let mut acts = Vec::new();
    for (device, queues) in DEVICES_AND_QUEUES {
        for queue in 0..queues {
            let rings = rings_of(device, queue);
            let buffer = Descriptor { address: BUFFER, len: 512, flags: WRITE, next: 0 };
            data.push((rings.descriptors, page(&vec![buffer; SIZE.into()], &heads, 0)));
            for step in [1, SIZE, SIZE + 1, 0x8000, u16::MAX] {
                acts.extend(bring_up(device, &[(queue, rings)]));
                acts.extend([
                    Act::Add { at: rings.available + 2, value: step },
                    notify(device, queue, 2),
                    Act::Spin { times: 200 },
                ]);
            }
        }
    }
    for_ever(acts, 0, data)
}

/// Packets of every operation with senseless fields (virtio 1.2, 5.10.6), with and without room for answers.
fn wild_packets() -> Script {
    let mut data = Vec::new();
    let mut packets = Vec::new();
    for operation in 0..SIZE {
        let at = BUFFER + u64::from(operation) * 64;
        // To the host (cid 2) from the guest (3), port 1024; every third with wild cids, lengths that lie.
        let is_odd = operation % 3 == 2;
        let mut packet = Vec::new();
        packet.extend(if is_odd { u64::MAX } else { 3u64 }.to_le_bytes());
        packet.extend(2u64.to_le_bytes());
        for word in [1024u32, 1024, if is_odd { u32::MAX } else { 20 }] {
            packet.extend(word.to_le_bytes());
        }
        for half in [1u16, operation] {
            packet.extend(half.to_le_bytes());
        }
        for word in [u32::MAX, 0, u32::MAX] {
            packet.extend(word.to_le_bytes());
        }
        packet.resize(64, 0x41);
        data.push((at, packet));
        packets.push(Descriptor { address: at, len: 64, flags: 0, next: 0 });
    }
    let room = vec![Descriptor { address: BUFFER + 0x1000, len: 44, flags: WRITE, next: 0 }; SIZE.into()];
    let heads: Vec<u16> = (0..SIZE).collect();
    data.push((page_of(VSOCK, 0), page(&room, &heads, 0)));
    data.push((page_of(VSOCK, 1), page(&packets, &heads, 0)));
    data.push((page_of(VSOCK, 2), page(&room, &heads, SIZE)));
    let queues: Vec<_> = (0..3).map(|queue| (queue, rings_of(VSOCK, queue))).collect();
    let index_of = |queue| rings_of(VSOCK, queue).available + 2;
    let zero = |queue| Act::Write { width: 2, at: index_of(queue), value: 0, times: 1 };
    let mut acts = vec![zero(0), zero(1)];
    acts.extend(bring_up(VSOCK, &queues));
    let from = acts.len();
    acts.extend([
        Act::Add { at: index_of(1), value: SIZE / 2 },
        notify(VSOCK, 1, 1),
        Act::Spin { times: 1000 },
        Act::Add { at: index_of(0), value: 1 },
        notify(VSOCK, 0, 1),
        Act::Repeat { from, times: 50 },
    ]);
    for_ever(acts, 0, data)
}

fn all_over(mask: u64) -> Script {
    let mut acts = Vec::new();
    // Live at first.
    for (device, queues) in DEVICES_AND_QUEUES {
        let queues: Vec<_> = (0..queues).map(|queue| (queue, rings_of(device, queue))).collect();
        acts.extend(bring_up(device, &queues));
    }
    let data = (page_of(VSOCK, 0)..page_of(BLOCK, 1)).step_by(0x1000).map(|at| (at, page(&[], &[], 0)));
    let data = data.collect();
    let from = acts.len();
    acts.push(Act::Random { at: DEVICES.0, mask, times: 2000 });
    // Beyond the last device too.
    acts.push(Act::Random { at: device(4), mask: 0xfff, times: 100 });
    for_ever(acts, from, data)
}

/// All but the command that resets the machine.
fn ports() -> Script {
    let mut acts: Vec<Act> = (0..0x400).map(|port| Act::In { port, times: 1 }).collect();
    acts.extend((0..0x80).chain(0x3f0..0x400).map(|port| Act::Out { port, value: 0xfd, times: 2 }));
    acts.extend([0x4ff, 0xcf8, 0xcfc, 0x8000, 0xffff].map(|port| Act::In { port, times: 1 }));
    for_ever(acts, 0, Vec::new())
}
