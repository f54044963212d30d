//! Register accesses of any kind, order and size, between the steps of a good driver, against several devices
//! behind the transport; memory and rings written in between, states saved and restored. Nothing may panic; the
//! status is always one that can be; queues in use never change; a stopped device works no more.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::Arbitrary;
use hayfork_devices::sink::Discard;
use hayfork_devices::virtio::VirtioDevice;
use hayfork_devices::virtio::console::ConsoleDevice;
use hayfork_devices::virtio::rng::{EntropySource, RngDevice};
use hayfork_devices::virtio::testing::mmio::MmioDriver;
use hayfork_devices::virtio::transport::mmio::{
    ACKNOWLEDGE, DRIVER, DRIVER_OK, FAILED, FEATURES_OK, MmioDevice, MmioState, NEEDS_RESET,
};
use hayfork_devices::virtio::vsock::testing::MockConnector;
use hayfork_devices::virtio::vsock::{VsockConfig, VsockDevice};
use hayfork_fuzz::{MEMORY, Place, Ring, RingAction, memory};
use libfuzzer_sys::fuzz_target;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

#[derive(Debug, Arbitrary)]
struct Input {
    device: u8,
    /// Begin with a live device, with or without EVENT_IDX.
    live: Option<bool>,
    actions: Vec<Action>,
}

#[derive(Debug, Arbitrary)]
enum Action {
    /// A register, and a value that means something there more often than not.
    Write {
        register: u8,
        value: u8,
    },
    WriteAny {
        offset: u16,
        bytes: Vec<u8>,
    },
    Read {
        offset: u16,
        len: u8,
    },
    Status {
        bits: u8,
    },
    Features {
        low: u32,
        high: u32,
    },
    /// Addresses for the selected queue.
    Addresses {
        places: [Place; 3],
    },
    /// A good driver starts, with what it likes of the features.
    Start {
        event_idx: bool,
        queues: u8,
    },
    Ring {
        queue: u8,
        action: RingAction,
    },
    Memory {
        at: Place,
        bytes: Vec<u8>,
    },
    Process {
        queue: u8,
    },
    ConfigChanged,
    Acknowledge {
        bits: u8,
    },
    SaveRestore {
        resume: bool,
    },
    RestoreAny {
        field: u8,
        value: u64,
    },
}

struct Zeros;

impl EntropySource for Zeros {
    fn fill(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        bytes.fill(0);
        Ok(())
    }
}

fn device(n: u8) -> Box<dyn VirtioDevice<GuestMemoryMmap>> {
    match n % 3 {
        0 => Box::new(RngDevice::new(Zeros)),
        1 => Box::new(ConsoleDevice::new(Box::new(Discard))),
        _ => Box::new(VsockDevice::new(VsockConfig::new(3), MockConnector::default()).expect("good limits")),
    }
}

type Transport = MmioDevice<Box<dyn VirtioDevice<GuestMemoryMmap>>, GuestMemoryMmap>;

struct World {
    number: u8,
    mem: GuestMemoryMmap,
    transport: Transport,
    pulses: Arc<AtomicU64>,
    rings: Vec<Ring>,
}

impl World {
    fn new(number: u8) -> Self {
        let mem = memory();
        let (transport, pulses) = Self::transport(number, &mem);
        let rings = [0x1000, 0x4000, 0x8000].map(|base| Ring::new(&mem, base, 16)).into();
        Self { number, mem, transport, pulses, rings }
    }

    fn transport(number: u8, mem: &GuestMemoryMmap) -> (Transport, Arc<AtomicU64>) {
        let pulses = Arc::new(AtomicU64::new(0));
        let line = pulses.clone();
        let line = Box::new(move || {
            line.fetch_add(1, Ordering::Relaxed);
        });
        (MmioDevice::new(device(number), mem.clone(), line, Box::new(|_| ())), pulses)
    }

    fn act(&mut self, action: &Action) {
        let before = self.transport.save();
        let driver = MmioDriver(&self.transport);
        match action {
            Action::Write { register, value } => driver.write(u32::from(*register) * 4, (*value).into()),
            Action::WriteAny { offset, bytes } => {
                self.transport.write((*offset).into(), &bytes[..bytes.len().min(20)]);
            }
            Action::Read { offset, len } => {
                self.transport.read((*offset).into(), &mut vec![0; usize::from(*len % 20)]);
                assert_eq!(self.transport.save(), before, "reading changes nothing");
            }
            Action::Status { bits } => drop(driver.add_status((*bits).into())),
            Action::Features { low, high } => {
                for (half, value) in [(0, low), (1, high)] {
                    driver.write(0x24, half);
                    driver.write(0x20, *value);
                }
            }
            Action::Addresses { places } => driver.set_addresses(places.map(Place::address)),
            Action::Start { event_idx, queues } => {
                for ring in &mut self.rings {
                    ring.renew(&self.mem);
                }
                let count = usize::from(self.transport.queue_count());
                let queues: Vec<_> =
                    self.rings.iter().take(count.min(usize::from(*queues))).map(|r| &r.queue).collect();
                let driver = MmioDriver(&self.transport);
                driver.start(1 << 32 | u64::from(*event_idx) << 29, &queues);
                return;
            }
            Action::Ring { queue, action } => {
                let n = usize::from(*queue) % self.rings.len();
                self.rings[n].apply(action);
                // A driver rings after that.
                self.process(u16::try_from(n).expect("few queues"));
            }
            Action::Memory { at, bytes } => {
                let room = MEMORY.saturating_sub(at.address());
                let len = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
                if len > 0 {
                    self.mem.write_slice(&bytes[..len], GuestAddress(at.address())).expect("inside memory");
                }
            }
            Action::Process { queue } => self.process((*queue).into()),
            Action::ConfigChanged => self.transport.config_changed(),
            Action::Acknowledge { bits } => driver.write(0x64, (*bits).into()),
            Action::SaveRestore { resume } => self.save_restore(*resume),
            // May change anything.
            Action::RestoreAny { field, value } => return self.restore_any(*field, *value),
        }
        self.check(&before);
    }

    fn process(&mut self, queue: u16) {
        for round in 0.. {
            assert!(round < 100, "the device spins");
            if !self.transport.process_queue(queue).again {
                break;
            }
        }
    }

    fn save_restore(&mut self, resume: bool) {
        let state = self.transport.save();
        let (transport, pulses) = Self::transport(self.number, &self.mem);
        transport.restore(&state).expect("a saved state can be restored");
        assert_eq!(transport.save(), state);
        (self.transport, self.pulses) = (transport, pulses);
        assert_eq!(self.pulses.load(Ordering::Relaxed), 0);
        if resume {
            self.transport.resume();
            let expected = u64::from(state.interrupt_status != 0);
            assert_eq!(self.pulses.load(Ordering::Relaxed), expected);
        }
    }

    /// A state with one field from somewhere else: refused, or one that can be.
    fn restore_any(&mut self, field: u8, value: u64) {
        let mut state = self.transport.save();
        let low = u32::try_from(value & 0xffff_ffff).expect("a half");
        let short = low as u16;
        let n = usize::from(short) % state.queues.len();
        match field % 12 {
            0 => state.status = low,
            1 => state.interrupt_status = low,
            2 => state.driver_features = value,
            3 => state.alien_features = !state.alien_features,
            4 => state.queues[n].size = short,
            5 => state.queues[n].ready = !state.queues[n].ready,
            6 => state.queues[n].descriptors = value,
            7 => state.queues[n].available = value,
            8 => state.queues[n].used = value,
            9 => state.queues[n].next_available = short,
            10 => state.queues[n].next_used = short,
            _ => state.queues.truncate(n),
        }
        let before = self.transport.save();
        match self.transport.restore(&state) {
            Ok(()) => assert!(possible(self.transport.status())),
            Err(_) => assert_eq!(self.transport.save(), before),
        }
    }

    fn check(&mut self, before: &MmioState) {
        let after = self.transport.save();
        assert!(possible(after.status), "{:#x}", after.status);
        assert!(after.interrupt_status & !3 == 0);
        // From one state of a live device to the next only positions move.
        let live = |state: &MmioState| state.status & (DRIVER_OK | NEEDS_RESET | FAILED) == DRIVER_OK;
        if live(before) && live(&after) {
            for (old, new) in before.queues.iter().zip(&after.queues) {
                let fixed = |q: &hayfork_devices::virtio::queue::QueueState| {
                    (q.size, q.ready, q.descriptors, q.available, q.used)
                };
                assert_eq!(fixed(old), fixed(new));
            }
        }
    }
}

fn possible(status: u32) -> bool {
    let steps = [ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK];
    steps.windows(2).all(|s| status & s[1] == 0 || status & s[0] != 0)
        && (status & NEEDS_RESET == 0 || status & DRIVER_OK != 0)
        && status & !(0xf | NEEDS_RESET | FAILED) == 0
}

fuzz_target!(|input: Input| {
    let mut world = World::new(input.device);
    if let Some(event_idx) = input.live {
        world.act(&Action::Start { event_idx, queues: 3 });
    }
    for action in input.actions.iter().take(200) {
        world.act(action);
    }
    // Whatever happened can be saved, and there is always a way out.
    world.save_restore(true);
    world.act(&Action::Start { event_idx: false, queues: 3 });
    assert_eq!(world.transport.status(), ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
});
