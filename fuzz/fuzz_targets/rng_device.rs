//! The entropy device against any queue. No buffer gets more than it has room for or than a page; a source
//! that has nothing gives nothing.
#![no_main]

use std::io;

use arbitrary::Arbitrary;
use hayfork_devices::virtio::VirtioDevice;
use hayfork_devices::virtio::queue::ActiveQueues;
use hayfork_devices::virtio::rng::{EntropySource, FILL_MAX, RngDevice};
use hayfork_fuzz::{Ring, RingAction, memory};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Input {
    event_idx: bool,
    actions: Vec<RingAction>,
    /// At which calls the source has nothing.
    dry: u64,
}

struct Source {
    dry: u64,
}

impl EntropySource for Source {
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        assert!(!bytes.is_empty() && bytes.len() <= FILL_MAX);
        let dry = self.dry & 1 != 0;
        self.dry >>= 1;
        bytes.fill(0x55);
        if dry { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

fuzz_target!(|input: Input| {
    let mem = memory();
    let mut device = RngDevice::new(Source { dry: input.dry });
    let mut ring = Ring::new(&mem, 0x1000, 64);
    let mut queues = ActiveQueues::new(vec![Some(ring.queue.device_queue(input.event_idx))]);
    for action in input.actions.iter().take(200) {
        ring.apply(action);
        for round in 0.. {
            assert!(round < 100, "the device spins");
            match device.process_queue(0, &mut queues, &mem) {
                Err(_) => {
                    ring.renew(&mem);
                    queues = ActiveQueues::new(vec![Some(ring.queue.device_queue(input.event_idx))]);
                    break;
                }
                Ok(progress) if progress.again => {}
                Ok(_) => break,
            }
        }
        ring.reap(|_, _| ());
    }
});
