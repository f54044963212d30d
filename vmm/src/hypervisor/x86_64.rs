//! What an x86-64 virtual CPU and its interrupt controllers consist of, as plain structs.
//!
//! None of these is a struct of KVM: those have flexible arrays, padding and sizes that depend on the kernel, and are not
//! to be read from a file. Conversions live in the back end. Everything here can be serialised; lengths are checked when
//! a state is set.

mod chip;
mod registers;
mod vcpu;

pub use chip::{ClockState, InterruptChipState, IoApicState, PicState};
pub use registers::{
    DebugRegisters, DescriptorTable, ExtendedControlRegister, Registers, Segment, SystemRegisters,
};
pub(crate) use vcpu::MAX_ENTRIES;
pub use vcpu::{
    CpuidEntry, LocalApic, MpState, Msr, PendingEvents, PendingException, PendingInterrupt, PendingNmi,
    PendingSmi, VcpuState, X86Hypervisor, X86Vcpu,
};

/// The model-specific registers that this crate itself sets or reads (Intel SDM volume 4; KVM's in
/// `Documentation/virt/kvm/x86/msr.rst`).
pub mod msr {
    /// Time stamp counter.
    pub const IA32_TSC: u32 = 0x10;
    /// The time stamp at which the local APIC's timer fires; 0 if it is not armed.
    pub const IA32_TSC_DEADLINE: u32 = 0x6e0;
    /// kvm_pvm: the page through which a guest made for it talks to the hypervisor. In no list, and needed for a restore.
    pub const PVM_GUEST_PAGE: u32 = 0x4b56_4d10;
    /// kvm_pvm: reads [`PVM_SIGNATURE`].
    pub const PVM_SIGNATURE_REGISTER: u32 = 0x4b56_4d11;
    /// "PVM".
    pub const PVM_SIGNATURE: u64 = 0x4d_5650;
}
