//! Interrupt controllers: KVM's structs for them are unions.

#![allow(unsafe_code)]

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_ioapic_state,
    kvm_ioapic_state__bindgen_ty_1, kvm_irqchip, kvm_irqchip__bindgen_ty_1, kvm_pic_state,
};
use kvm_ioctls::VmFd;

use super::failed;
use crate::hypervisor::HypervisorError;
use crate::hypervisor::x86_64::{InterruptChipState, IoApicState, PicState};

/// Which chips, in the order of [`InterruptChipState::pics`].
const PICS: [u32; 2] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE];

/// Reads one chip.
fn get_chip(vm: &VmFd, chip_id: u32) -> Result<kvm_irqchip__bindgen_ty_1, HypervisorError> {
    let mut request = kvm_irqchip { chip_id, ..Default::default() };
    vm.get_irqchip(&mut request).map_err(failed("KVM_GET_IRQCHIP"))?;
    Ok(request.chip)
}

/// Reads all of them.
pub(super) fn get(vm: &VmFd) -> Result<InterruptChipState, HypervisorError> {
    let mut state = InterruptChipState::default();
    for (pic, chip_id) in state.pics.iter_mut().zip(PICS) {
        let chip = get_chip(vm, chip_id)?;
        // SAFETY: for this chip the kernel fills this member, of integers only.
        *pic = from_pic(&unsafe { chip.pic });
    }
    let chip = get_chip(vm, KVM_IRQCHIP_IOAPIC)?;
    // SAFETY: for this chip the kernel fills this member, of integers only.
    let io_apic = unsafe { chip.ioapic };
    state.io_apic = IoApicState {
        base_address: io_apic.base_address,
        register_select: io_apic.ioregsel,
        id: io_apic.id,
        irr: io_apic.irr,
        // SAFETY: both members of the union are the same 8 bytes, of integers.
        redirection: io_apic.redirtbl.map(|entry| unsafe { entry.bits }),
    };
    Ok(state)
}

/// Sets all of them.
pub(super) fn set(vm: &VmFd, state: &InterruptChipState) -> Result<(), HypervisorError> {
    for (pic, chip_id) in state.pics.iter().zip(PICS) {
        let chip = kvm_irqchip__bindgen_ty_1 { pic: to_pic(pic) };
        set_chip(vm, chip_id, chip)?;
    }
    let io_apic = kvm_ioapic_state {
        base_address: state.io_apic.base_address,
        ioregsel: state.io_apic.register_select,
        id: state.io_apic.id,
        irr: state.io_apic.irr,
        pad: 0,
        redirtbl: state.io_apic.redirection.map(|bits| kvm_ioapic_state__bindgen_ty_1 { bits }),
    };
    set_chip(vm, KVM_IRQCHIP_IOAPIC, kvm_irqchip__bindgen_ty_1 { ioapic: io_apic })
}

/// Sets one chip.
#[allow(clippy::large_types_passed_by_value)] // It goes into the request, which the call takes by reference.
fn set_chip(vm: &VmFd, chip_id: u32, chip: kvm_irqchip__bindgen_ty_1) -> Result<(), HypervisorError> {
    vm.set_irqchip(&kvm_irqchip { chip_id, pad: 0, chip }).map_err(failed("KVM_SET_IRQCHIP"))
}

/// Converts between the two structs of a PIC, which have the same fields.
macro_rules! pic_fields {
    ($($field:ident),*) => {
        fn from_pic(pic: &kvm_pic_state) -> PicState {
            PicState { $($field: pic.$field),* }
        }

        fn to_pic(pic: &PicState) -> kvm_pic_state {
            kvm_pic_state { $($field: pic.$field),* }
        }
    };
}

pic_fields!(
    last_irr,
    irr,
    imr,
    isr,
    priority_add,
    irq_base,
    read_reg_select,
    poll,
    special_mask,
    init_state,
    auto_eoi,
    rotate_on_auto_eoi,
    special_fully_nested_mode,
    init4,
    elcr,
    elcr_mask
);
