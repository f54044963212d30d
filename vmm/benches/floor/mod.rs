//! What a restore cannot avoid: the hypervisor's calls that make a machine and give it its state, and the copies of the pages that
//! its guest uses. Without devices, threads, or anything to keep and check, in the order that is fastest.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hayfork_vmm::hypervisor::kvm::KvmHypervisor;
use hayfork_vmm::hypervisor::{Hypervisor, MappedRegion, Vcpu, Vm};
use hayfork_vmm::memory::{GuestRam, MemoryImage, layout};
use vm_memory::{Bytes, GuestAddress};

/// Queues of the devices that every machine has: vsock 3, entropy 1, console 2, disk 1.
const QUEUES: [u32; 4] = [3, 1, 2, 1];

/// Memory to make machines of.
pub(crate) struct Floor {
    hypervisor: KvmHypervisor,
    image: Arc<MemoryImage>,
    pages: Vec<Range<u64>>,
}

/// Of one machine.
pub(crate) struct Cost {
    /// All calls that make it and give it its state.
    pub(crate) calls: Duration,
    /// Mapping its memory, and copying the pages.
    pub(crate) pages: Duration,
}

impl Floor {
    /// Of machines with so much memory, each of which gets these pages ahead.
    pub(crate) fn new(ram: u64, pages: Vec<Range<u64>>) -> Self {
        let content = GuestRam::new(ram).unwrap();
        for address in pages.iter().flat_map(|range| range.clone().step_by(4096)) {
            content.memory().write_obj(address, GuestAddress(address)).unwrap();
        }
        let image = Arc::new(content.capture().unwrap());
        Self { hypervisor: KvmHypervisor::open().unwrap(), image, pages }
    }

    /// Makes one and drops it.
    pub(crate) fn one(&self) -> Cost {
        let start = Instant::now();
        let ram = GuestRam::of_image(&self.image).unwrap();
        ram.populate(&self.pages);
        let pages = start.elapsed();
        let start = Instant::now();
        let vm = self.hypervisor.create_vm().unwrap();
        for (slot, region) in (0u32..).zip(ram.regions()) {
            vm.map_memory(slot, &MappedRegion::from_mmap(region)).unwrap();
        }
        vm.create_interrupt_chip().unwrap();
        let mut vcpu = vm.create_vcpu(0).unwrap();
        let mut calls = start.elapsed();
        // Reading the state that is set below is no part of a restore.
        let (chip, clock, state) =
            (vm.interrupt_chip_state().unwrap(), vm.clock().unwrap(), vcpu.state().unwrap());
        let start = Instant::now();
        for (device, queues) in QUEUES.into_iter().enumerate() {
            for queue in 0..queues {
                vm.doorbell(layout::device_address(device).0 + 0x50, Some(queue)).unwrap();
            }
        }
        vm.set_interrupt_chip_state(&chip).unwrap();
        vm.set_clock(&clock).unwrap();
        vcpu.set_state(&state).unwrap();
        calls += start.elapsed();
        Cost { calls, pages }
    }
}
