//! What a virtual CPU comes back with. Here the test's own thread runs it.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hayfork_vmm::hypervisor::x86_64::X86Vcpu;
use hayfork_vmm::hypervisor::{Exit, HypervisorError, Kick, MappedRegion, Vcpu, Vm};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestRegionMmap, MmapRegion};

use crate::machine::{CODE, DATA, Machine, REGISTER, hypervisor};
use crate::unsafe_guests;

/// The port by which guests say that they are done.
const DONE: u16 = 0xf4;

#[test]
fn a_guest_computes() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::adds(), false);
    let mut vcpu = machine.vcpu(0);
    assert_eq!(vcpu.run().unwrap(), Exit::PortOut { port: 0x10, size: 1, data: &[5] });
}

#[test]
fn a_guest_and_its_host_share_memory() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::increments(), false);
    machine.memory.write_obj(41u64, GuestAddress(DATA)).unwrap();
    let mut vcpu = machine.vcpu(0);
    assert_eq!(vcpu.run().unwrap(), Exit::PortOut { port: 0x10, size: 1, data: &[42] });
    assert_eq!(machine.word(DATA + 8), 42);
}

#[test]
fn accesses_come_with_their_width_and_bytes() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::touches_everything(), false);
    let mut vcpu = machine.vcpu(0);
    let bytes = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
    for (offset, width) in [(0, 1), (2, 2), (4, 4), (8, 8)] {
        let expected = Exit::MmioWrite { addr: REGISTER + offset, data: &bytes[..width] };
        assert_eq!(vcpu.run().unwrap(), expected);
    }
    for width in [1, 2, 4, 8] {
        match vcpu.run().unwrap() {
            Exit::MmioRead { addr: REGISTER, data } if data.len() == width => {
                data.copy_from_slice(&bytes[..width]);
            }
            other => panic!("{other:?}"),
        }
    }
    for width in [1u8, 2, 4] {
        let data = &bytes[..usize::from(width)];
        assert_eq!(vcpu.run().unwrap(), Exit::PortOut { port: 0x300, size: width, data });
    }
    for width in [1u8, 2, 4] {
        match vcpu.run().unwrap() {
            Exit::PortIn { port: 0x300, size, data } if size == width && data.len() == usize::from(width) => {
                data.copy_from_slice(&bytes[..usize::from(width)]);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(vcpu.run().unwrap(), Exit::PortOut { port: DONE, .. }));
    let registers = vcpu.registers().unwrap();
    // What it has read: 8 bytes from the device, 4 from the port.
    assert_eq!((registers.rbx, registers.rax), (0x8877_6655_4433_2211, 0x4433_2211));
}

#[test]
fn string_instructions_keep_the_order_of_their_elements() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::moves_strings(), false);
    let mut vcpu = machine.vcpu(0);
    let (mut written, mut next, mut exits) = (Vec::new(), 0u16, 0);
    loop {
        exits += 1;
        match vcpu.run().unwrap() {
            Exit::PortOut { port: 0x3f8, size: 1, data } => written.extend_from_slice(data),
            Exit::PortIn { port: 0x300, size: 2, data } => {
                assert!(!data.is_empty() && data.len().is_multiple_of(2));
                for element in data.chunks_exact_mut(2) {
                    element.copy_from_slice(&next.to_le_bytes());
                    next += 1;
                }
            }
            Exit::PortOut { port: DONE, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    println!("{exits} exits");
    assert_eq!(written, b"0123456789");
    let read: Vec<u16> =
        (0..6).map(|i| machine.memory.read_obj(GuestAddress(DATA + i * 2)).unwrap()).collect();
    assert_eq!(read, [0, 1, 2, 3, 4, 5]);
}

/// State read right after an exit is that of before the instruction; settling finishes it, in as many parts as it has.
#[test]
fn settling_finishes_an_access_and_executes_nothing_else() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::reads_a_vector(), false);
    let mut vcpu = machine.vcpu(0);
    let mut parts = 0u8;
    let mut exit = vcpu.run().unwrap();
    loop {
        match exit {
            Exit::MmioRead { addr, data } => {
                assert_eq!((addr, data.len()), (REGISTER + u64::from(parts) * 8, 8));
                parts += 1;
                data.fill(parts);
            }
            Exit::Kicked => break,
            other => panic!("{other:?}"),
        }
        exit = vcpu.settle().unwrap();
    }
    assert_eq!(parts, 2);
    let at = vcpu.program_counter().unwrap();
    // `mov edi, imm32` has 5 bytes, `movups xmm0, [rdi]` 3.
    assert_eq!(at, CODE + 8, "the instruction is over, and the next is not");
    // Nothing more to do, as often as one asks.
    assert_eq!(vcpu.settle().unwrap(), Exit::Kicked);
    assert_eq!(vcpu.program_counter().unwrap(), at);
    // And settling does not keep it from going on.
    assert!(matches!(vcpu.run().unwrap(), Exit::PortOut { port: DONE, .. }));
    assert_eq!(machine.word(DATA), 0x0101_0101_0101_0101);
    assert_eq!(machine.word(DATA + 8), 0x0202_0202_0202_0202);
}

#[test]
fn without_an_interrupt_chip_a_halt_comes_back() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::halts(), false);
    assert_eq!(machine.vcpu(0).run().unwrap(), Exit::Halt);
}

#[test]
fn a_fault_without_handlers_is_a_triple_fault() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::faults(), false);
    assert_eq!(machine.vcpu(0).run().unwrap(), Exit::TripleFault);
}

#[test]
fn instructions_in_a_device_are_an_internal_error() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::jumps_to_a_device(), false);
    let mut vcpu = machine.vcpu(0);
    match vcpu.run().unwrap() {
        Exit::InternalError { suberror, data } => {
            println!("suberror {suberror}, data {data:x?}");
            // KVM_INTERNAL_ERROR_EMULATION.
            assert_eq!(suberror, 1);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(vcpu.program_counter().unwrap(), REGISTER);
}

#[test]
fn memory_comes_and_goes_while_the_machine_lives() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::uses_the_second_mib(), false);
    machine.vm.unmap_memory(0).unwrap();
    let half = |address| {
        let mapping = MmapRegion::<()>::new(1 << 20).unwrap();
        Arc::new(GuestRegionMmap::new(mapping, GuestAddress(address)).unwrap())
    };
    let (low, high) = (half(0), half(1 << 20));
    // The tables and the code.
    let mut bytes = vec![0; 1 << 20];
    machine.memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    low.write_slice(&bytes, vm_memory::MemoryRegionAddress(0)).unwrap();
    machine.vm.map_memory(0, &MappedRegion::from_mmap(&low)).unwrap();
    let mut vcpu = machine.vcpu(0);
    let start = vcpu.registers().unwrap();

    // No memory there: a device.
    assert_eq!(vcpu.run().unwrap(), Exit::MmioWrite { addr: 1 << 20, data: &[0x5a] });
    assert!(matches!(vcpu.run().unwrap(), Exit::MmioRead { addr: 0x10_0000, data: [_] }));
    assert!(matches!(vcpu.run().unwrap(), Exit::PortOut { port: DONE, .. }));

    // Read-only memory: writes go to a device, reads to the memory.
    high.write_obj(0x77u8, vm_memory::MemoryRegionAddress(0)).unwrap();
    machine.vm.map_memory(1, &MappedRegion::from_mmap(&high).read_only()).unwrap();
    vcpu.set_registers(&start).unwrap();
    assert_eq!(vcpu.run().unwrap(), Exit::MmioWrite { addr: 1 << 20, data: &[0x5a] });
    assert_eq!(vcpu.run().unwrap(), Exit::PortOut { port: DONE, size: 1, data: &[0x77] });

    // Writable memory. The machine keeps it, whoever else lets go.
    machine.vm.unmap_memory(1).unwrap();
    machine.vm.map_memory(1, &MappedRegion::from_mmap(&high)).unwrap();
    let weak = Arc::downgrade(&high);
    drop(high);
    vcpu.set_registers(&start).unwrap();
    assert_eq!(vcpu.run().unwrap(), Exit::PortOut { port: DONE, size: 1, data: &[0x5a] });
    assert_eq!(weak.upgrade().unwrap().read_obj::<u8>(vm_memory::MemoryRegionAddress(0)).unwrap(), 0x5a);
    machine.vm.unmap_memory(1).unwrap();
    assert!(weak.upgrade().is_none(), "an unmapped region is let go");
}

#[test]
fn impossible_memory_is_refused() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), false);
    let region = |size, address| {
        let region =
            GuestRegionMmap::new(MmapRegion::<()>::new(size).unwrap(), GuestAddress(address)).unwrap();
        MappedRegion::from_mmap(&Arc::new(region))
    };
    let refused = |slot, region: &MappedRegion| match machine.vm.map_memory(slot, region) {
        Err(HypervisorError::Memory { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(0, &region(4096, 1 << 30)), "the slot is in use");
    assert_eq!(refused(1, &region(4096, 0x10_0000)), "it overlaps another");
    assert!(refused(1, &region(4096, (1 << 30) + 0x800)).contains("not aligned"));
    assert!(refused(1, &region(100, 1 << 30)).contains("not aligned"));
    assert!(refused(1 << 30, &region(4096, 1 << 30)).contains("too high"));
    assert!(matches!(machine.vm.unmap_memory(7), Err(HypervisorError::Memory { slot: 7, .. })));
    // None of this has left anything behind.
    machine.vm.map_memory(1, &region(4096, 1 << 30)).unwrap();
}

#[test]
fn memory_whose_file_is_cut_short_is_an_error_and_not_a_signal() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::uses_the_second_mib(), false);
    machine.vm.unmap_memory(0).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(2 << 20).unwrap();
    let mut bytes = vec![0; 1 << 20];
    machine.memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    let mapping = MmapRegionBuilder::<()>::new(2 << 20)
        .with_file_offset(FileOffset::new(file.try_clone().unwrap(), 0))
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_SHARED)
        .build()
        .unwrap();
    let region = Arc::new(GuestRegionMmap::new(mapping, GuestAddress(0)).unwrap());
    region.write_slice(&bytes, vm_memory::MemoryRegionAddress(0)).unwrap();
    machine.vm.map_memory(0, &MappedRegion::from_mmap(&region)).unwrap();
    let mut vcpu = machine.vcpu(0);
    file.set_len(1 << 20).unwrap();
    match vcpu.run() {
        Err(HypervisorError::GuestMemoryGone { address }) => println!("gone at {address:x?}"),
        // Where KVM interprets the instruction, it takes memory that it cannot reach for none.
        Ok(Exit::MmioWrite { addr: 0x10_0000, data: [0x5a] }) => println!("gone, like a device"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kick_comes_through_before_during_and_after_the_guest() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), false);
    let mut vcpu = machine.vcpu(0);
    let kicker = vcpu.kicker();
    // Before: the signal has been handled by the time the guest is entered, and the flag is what counts.
    kicker.kick();
    assert_eq!(vcpu.run().unwrap(), Exit::Kicked);
    // During.
    for delay in [1, 20, 3, 7] {
        let kicker = kicker.clone();
        let kicking = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(delay));
            kicker.kick();
        });
        let start = Instant::now();
        assert_eq!(vcpu.run().unwrap(), Exit::Kicked);
        assert!(start.elapsed() < Duration::from_secs(5));
        kicking.join().unwrap();
    }
    // After: nobody is there, and nothing happens.
    drop(vcpu);
    drop(machine);
    kicker.kick();
}

#[test]
fn interrupt_lines_and_doorbells_that_cannot_be_are_refused() {
    let Some(hypervisor) = hypervisor() else { return };
    let machine = Machine::new(hypervisor, unsafe_guests::spins(), false);
    assert!(machine.vm.interrupt_line(5).is_err(), "there is no interrupt chip");
    assert!(machine.vm.interrupt_chip_state().is_err());
    machine.vm.create_interrupt_chip().unwrap();
    machine.vm.interrupt_line(23).unwrap();
    assert!(matches!(machine.vm.interrupt_line(24), Err(HypervisorError::Lacks { .. })));
    let bell = machine.vm.doorbell(0xd000_0050, Some(1)).unwrap().unwrap();
    assert!(bell.as_raw_fd() >= 0);
    machine.vm.doorbell(0xd000_0050, Some(2)).unwrap().unwrap();
    let taken = machine.vm.doorbell(0xd000_0050, Some(1)).unwrap_err();
    assert_eq!(taken.raw_os_error(), Some(libc::EEXIST), "{taken}");
    machine.vm.doorbell(0xd000_0150, None).unwrap().unwrap();
    let taken = machine.vm.doorbell(0xd000_0150, None).unwrap_err();
    assert_eq!(taken.raw_os_error(), Some(libc::EEXIST), "{taken}");
    assert!(machine.vm.create_vcpu(0).is_ok());
    assert!(machine.vm.create_vcpu(0).is_err());
}
