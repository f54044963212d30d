//! Interrupt controllers and the clock of a machine.

use serde::{Deserialize, Serialize};

/// One of the two 8259A interrupt controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // Internals of the chip, named as in its data sheet and in KVM.
pub struct PicState {
    pub last_irr: u8,
    pub irr: u8,
    pub imr: u8,
    pub isr: u8,
    pub priority_add: u8,
    pub irq_base: u8,
    pub read_reg_select: u8,
    pub poll: u8,
    pub special_mask: u8,
    pub init_state: u8,
    pub auto_eoi: u8,
    pub rotate_on_auto_eoi: u8,
    pub special_fully_nested_mode: u8,
    pub init4: u8,
    pub elcr: u8,
    pub elcr_mask: u8,
}

/// The I/O APIC (82093AA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApicState {
    /// Guest-physical address of its registers.
    pub base_address: u64,
    /// The register selected for access.
    pub register_select: u32,
    /// Its identification.
    pub id: u32,
    /// A bit for each input that waits for delivery.
    pub irr: u32,
    /// Redirection table, as the guest sees it.
    pub redirection: [u64; 24],
}

/// State of the interrupt controllers that all virtual CPUs share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptChipState {
    /// The first and the second PIC.
    pub pics: [PicState; 2],
    /// The I/O APIC.
    pub io_apic: IoApicState,
}

/// The clock of a machine, from which kvm-clock computes the guest's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockState {
    /// Nanoseconds; starts at 0 with the machine.
    pub nanoseconds: u64,
}
