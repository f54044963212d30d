//! What a virtual CPU comes back with.

use hayfork_vmm::hypervisor::{Exit, Vcpu};
use vm_memory::{Bytes, GuestAddress};

use crate::machine::{DATA, Machine, hypervisor};
use crate::unsafe_guests;

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
