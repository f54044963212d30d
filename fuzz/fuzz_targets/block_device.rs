//! The block device against requests of any shape. Good ones are compared with an array; bad ones may do
//! nothing but fail; a read-only disk never changes; no byte outside a request's sectors changes.
#![no_main]

use std::io;

use arbitrary::Arbitrary;
use hayfork_devices::virtio::VirtioDevice;
use hayfork_devices::virtio::block::{BlockBackend, BlockDevice};
use hayfork_devices::virtio::queue::ActiveQueues;
use hayfork_devices::virtio::testing::{Segment, cut};
use hayfork_fuzz::{Ring, RingAction, memory};
use libfuzzer_sys::fuzz_target;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const SECTORS: u64 = 64;
const HEADER: u64 = 0x1_0000;
const STATUS: u64 = 0x1_1000;
const DATA: u64 = 0x4_0000;

#[derive(Debug, Arbitrary)]
struct Input {
    read_only: bool,
    event_idx: bool,
    flush: bool,
    actions: Vec<Action>,
}

#[derive(Debug, Arbitrary)]
enum Action {
    /// A request of good shape, with any values.
    Request {
        type_: u8,
        sector: u16,
        len: u16,
        whole: bool,
        cuts: Vec<u8>,
        byte: u8,
    },
    /// DISCARD or WRITE_ZEROES.
    Segments {
        zeroes: bool,
        segments: Vec<(u8, u8, u8)>,
        odd: bool,
    },
    /// A header of any content.
    Header {
        bytes: [u8; 16],
        len: u16,
        readable: bool,
    },
    Ring(RingAction),
    Fail(bool),
    Reset,
}

/// A disk in memory that checks what the device promises.
struct Disk {
    bytes: Vec<u8>,
    read_only: bool,
    failing: bool,
}

impl Disk {
    fn range(&self, offset: u64, len: u64) -> io::Result<std::ops::Range<usize>> {
        let end = offset.checked_add(len).expect("no overflow");
        assert!(end <= self.bytes.len() as u64, "outside the disk");
        if self.failing {
            return Err(io::ErrorKind::Other.into());
        }
        Ok(usize::try_from(offset).expect("small")..usize::try_from(end).expect("small"))
    }

    fn write_range(&self, offset: u64, len: u64) -> io::Result<std::ops::Range<usize>> {
        assert!(!self.read_only, "written though read-only");
        self.range(offset, len)
    }
}

impl BlockBackend for Disk {
    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let range = self.range(offset, data.len() as u64)?;
        data.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let range = self.write_range(offset, data.len() as u64)?;
        self.bytes[range].copy_from_slice(data);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_range(0, 0).map(drop)
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.write_range(offset, len).map(drop)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, _may_unmap: bool) -> io::Result<()> {
        let range = self.write_range(offset, len)?;
        self.bytes[range].fill(0);
        Ok(())
    }
}

struct World {
    mem: GuestMemoryMmap,
    device: BlockDevice<Disk>,
    ring: Ring,
    queues: ActiveQueues,
    features: u64,
    event_idx: bool,
}

impl World {
    fn new(input: &Input) -> Self {
        let mem = memory();
        let bytes = (0..SECTORS * 512).map(|i| (i % 251) as u8).collect();
        let disk = Disk { bytes, read_only: input.read_only, failing: false };
        let device = BlockDevice::new(disk, *b"fuzzed--------------");
        let mut features = VirtioDevice::<GuestMemoryMmap>::features(&device);
        if !input.flush {
            features &= !(1 << 9);
        }
        let ring = Ring::new(&mem, 0x1000, 256);
        let mut world = Self {
            queues: ActiveQueues::new(vec![]),
            mem,
            device,
            ring,
            features,
            event_idx: input.event_idx,
        };
        world.reset();
        world
    }

    fn reset(&mut self) {
        let device: &mut dyn VirtioDevice<GuestMemoryMmap> = &mut self.device;
        device.reset();
        device.accept_features(self.features).expect("its own features");
        self.ring.renew(&self.mem);
        self.queues = ActiveQueues::new(vec![Some(self.ring.queue.device_queue(self.event_idx))]);
    }

    /// Gives what was used last, or `None` if the driver broke the queue.
    fn run(&mut self) -> Option<u32> {
        let mut last = None;
        for round in 0.. {
            assert!(round < 1000, "the device spins");
            match self.device.process_queue(0, &mut self.queues, &self.mem) {
                Err(_) => {
                    self.reset();
                    return None;
                }
                Ok(progress) if progress.again => {}
                Ok(_) => break,
            }
        }
        self.ring.reap(|_, len| last = Some(len));
        last
    }

    fn status(&self) -> u8 {
        self.mem.read_obj(GuestAddress(STATUS)).expect("inside memory")
    }

    /// A request with header and status in their places; `None` if it did not get through.
    fn request(&mut self, header: &[u8; 16], data: &[Segment]) -> Option<u8> {
        // What hostile actions left in the queue goes first.
        self.reset();
        self.mem.write_slice(header, GuestAddress(HEADER)).expect("inside memory");
        self.mem.write_slice(&[0xee], GuestAddress(STATUS)).expect("inside memory");
        let mut chain = vec![Segment::readable(HEADER, 16)];
        chain.extend_from_slice(data);
        chain.push(Segment::writable(STATUS, 1));
        self.ring.queue.add(&chain)?;
        self.run().expect("a good queue, an answer");
        let status = self.status();
        assert!(status <= 2, "no status was written");
        Some(status)
    }

    fn act(&mut self, action: &Action) {
        let before = self.device.backend_mut().bytes.clone();
        match action {
            Action::Request { type_, sector, len, whole, cuts, byte } => {
                self.good_request(*type_, u64::from(*sector % 80), *len, *whole, cuts, *byte, &before);
            }
            Action::Segments { zeroes, segments, odd } => self.segments(*zeroes, segments, *odd, &before),
            Action::Header { bytes, len, readable } => {
                let len = u32::from(*len);
                let data =
                    if *readable { Segment::readable(DATA, len) } else { Segment::writable(DATA, len) };
                self.request(bytes, &[data]);
            }
            Action::Ring(action) => {
                self.ring.apply(action);
                self.run();
            }
            Action::Fail(failing) => self.device.backend_mut().failing = *failing,
            Action::Reset => self.reset(),
        }
        if self.device.is_read_only() {
            assert!(self.device.backend_mut().bytes == before);
        }
    }

    fn good_request(
        &mut self,
        type_: u8,
        sector: u64,
        len: u16,
        whole: bool,
        cuts: &[u8],
        byte: u8,
        before: &[u8],
    ) {
        let len = if whole { u32::from(len) / 512 * 512 } else { u32::from(len) };
        let write = type_ % 2 == 1;
        let type_ = u8::from(write);
        self.mem.write_slice(&vec![byte; len as usize], GuestAddress(DATA)).expect("inside memory");
        let cuts: Vec<u32> = cuts.iter().take(100).map(|cut| u32::from(*cut) * 7).collect();
        let mut header = [0; 16];
        header[0] = type_;
        header[8..].copy_from_slice(&sector.to_le_bytes());
        let Some(status) = self.request(&header, &cut(DATA, len, &cuts, !write)) else { return };
        let inside = sector * 512 + u64::from(len) <= SECTORS * 512;
        let read_only = self.device.is_read_only();
        let failing = self.device.backend_mut().failing;
        // A disk without flushes that fails to flush has written, and says that it failed.
        let good = inside && len % 512 == 0 && !(write && read_only);
        if !good {
            assert_eq!(status, 1);
        } else if !failing || (len == 0 && !write) {
            assert_eq!(status, 0);
        }
        let mut expected = before.to_vec();
        if status == 0 {
            let at = usize::try_from(sector * 512).expect("small");
            let range = at..at + len as usize;
            if write {
                expected[range].fill(byte);
            } else {
                let mut data = vec![0; len as usize];
                self.mem.read_slice(&mut data, GuestAddress(DATA)).expect("inside memory");
                assert!(data == before[range]);
            }
        }
        assert!(self.device.backend_mut().bytes == expected);
    }

    fn segments(&mut self, zeroes: bool, segments: &[(u8, u8, u8)], odd: bool, before: &[u8]) {
        let mut bytes = Vec::new();
        for (sector, sectors, flags) in segments.iter().take(20) {
            bytes.extend(u64::from(*sector).to_le_bytes());
            bytes.extend(u32::from(*sectors).to_le_bytes());
            bytes.extend(u32::from(*flags & 3).to_le_bytes());
        }
        bytes.extend(odd.then_some(0));
        self.mem.write_slice(&bytes, GuestAddress(DATA)).expect("inside memory");
        let mut header = [0; 16];
        header[0] = if zeroes { 13 } else { 11 };
        let len = u32::try_from(bytes.len()).expect("short");
        let Some(status) = self.request(&header, &[Segment::readable(DATA, len)]) else { return };
        let mut expected = before.to_vec();
        if status == 0 && zeroes {
            let (sector, sectors, _) = segments[0];
            let at = usize::from(sector) * 512;
            expected[at..at + usize::from(sectors) * 512].fill(0);
        }
        if !self.device.backend_mut().failing {
            assert!(self.device.backend_mut().bytes == expected);
        }
    }
}

fuzz_target!(|input: Input| {
    let mut world = World::new(&input);
    for action in input.actions.iter().take(100) {
        world.act(action);
    }
});
