//! The console between a hostile guest and a careless host. What is held stays within its bounds, and input
//! arrives in order or not at all.
#![no_main]

use arbitrary::Arbitrary;
use hayfork_devices::sink::Tail;
use hayfork_devices::virtio::VirtioDevice;
use hayfork_devices::virtio::console::{ConsoleDevice, INPUT_MAX};
use hayfork_devices::virtio::queue::ActiveQueues;
use hayfork_fuzz::{Ring, RingAction, memory};
use libfuzzer_sys::fuzz_target;
use vm_memory::GuestMemoryMmap;

#[derive(Debug, Arbitrary)]
enum Action {
    Ring { queue: bool, action: RingAction },
    Input { len: u16 },
    Size { columns: u16, rows: u16 },
    Config { offset: u64, len: u8 },
    Reset { event_idx: bool },
    Restore,
}

struct World {
    mem: GuestMemoryMmap,
    device: ConsoleDevice,
    rings: [Ring; 2],
    queues: ActiveQueues,
    tail: Tail,
}

impl World {
    fn new() -> Self {
        let mem = memory();
        let tail = Tail::new(1000);
        let device = ConsoleDevice::new(Box::new(tail.clone()));
        let rings = [Ring::new(&mem, 0x1000, 64), Ring::new(&mem, 0x4000, 64)];
        let queues = ActiveQueues::new(vec![]);
        let mut world = Self { mem, device, rings, queues, tail };
        world.reset(false);
        world
    }

    fn reset(&mut self, event_idx: bool) {
        VirtioDevice::<GuestMemoryMmap>::reset(&mut self.device);
        let mem = &self.mem;
        let queues = self.rings.iter_mut().map(|ring| {
            ring.renew(mem);
            Some(ring.queue.device_queue(event_idx))
        });
        self.queues = ActiveQueues::new(queues.collect());
        assert_eq!(self.device.pending_input(), 0);
    }

    fn run(&mut self) {
        for queue in [0, 1] {
            for round in 0.. {
                assert!(round < 1000, "the device spins");
                let waiting = self.device.pending_input();
                match self.device.process_queue(queue, &mut self.queues, &self.mem) {
                    Err(_) => return self.reset(false),
                    Ok(progress) => {
                        assert!(self.device.pending_input() <= waiting);
                        if !progress.again {
                            break;
                        }
                    }
                }
            }
        }
        // Not looked at: a guest can have its input put into its own rings.
        for ring in &mut self.rings {
            ring.reap(|_, _| ());
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Ring { queue, action } => self.rings[usize::from(*queue)].apply(action),
            Action::Input { len } => {
                let room = INPUT_MAX - self.device.pending_input();
                let len = usize::from(*len);
                assert_eq!(self.device.push_input(&vec![7; len]), len.min(room));
            }
            Action::Size { columns, rows } => self.device.set_size(*columns, *rows),
            Action::Config { offset, len } => {
                let device: &dyn VirtioDevice<GuestMemoryMmap> = &self.device;
                device.read_config(*offset, &mut vec![0; usize::from(*len)]);
            }
            Action::Reset { event_idx } => self.reset(*event_idx),
            Action::Restore => {
                let state = self.device.save();
                self.device = ConsoleDevice::new(Box::new(self.tail.clone()));
                self.device.restore(&state).expect("a saved state can be restored");
                assert_eq!(self.device.save(), state);
            }
        }
    }
}

fuzz_target!(|actions: Vec<Action>| {
    let mut world = World::new();
    for action in actions.iter().take(200) {
        world.act(action);
        world.run();
        assert!(world.device.pending_input() <= INPUT_MAX);
        assert!(world.tail.bytes().len() <= 1000);
    }
});
