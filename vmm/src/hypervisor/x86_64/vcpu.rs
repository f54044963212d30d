//! A virtual CPU as a whole, and setting parts of one before the first run.

use hayfork_devices::bounded::at_most;
use serde::{Deserialize, Serialize};

use super::{DebugRegisters, ExtendedControlRegister, Registers, SystemRegisters};
use crate::hypervisor::{Hypervisor, HypervisorError, Vcpu};

/// What CPUID returns for a leaf and, where it has some, a subleaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // Registers, named as everywhere.
pub struct CpuidEntry {
    /// Leaf: EAX of the request.
    pub function: u32,
    /// Subleaf: ECX of the request, where [`Self::INDEX_MATTERS`].
    pub index: u32,
    /// [`Self::INDEX_MATTERS`] or 0; other bits are the hypervisor's.
    pub flags: u32,
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

impl CpuidEntry {
    /// Flag: this entry is for one subleaf (`KVM_CPUID_FLAG_SIGNIFCANT_INDEX`).
    pub const INDEX_MATTERS: u32 = 1;
}

/// A model-specific register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Msr {
    /// Its number.
    pub index: u32,
    /// Its value.
    pub value: u64,
}

/// Registers of a local APIC: a page's first KiB, where each 16 bytes hold one register of 4 (SDM volume 3, table 11-1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalApic(pub Vec<u8>);

impl LocalApic {
    /// Length in bytes.
    pub const LENGTH: usize = 1024;

    /// The register at `offset` of the page; `None` outside it.
    pub fn register(&self, offset: usize) -> Option<u32> {
        let bytes = self.0.get(offset..offset.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Sets the register at `offset` of the page; does nothing outside it.
    pub fn set_register(&mut self, offset: usize, value: u32) {
        if let Some(bytes) = offset.checked_add(4).and_then(|end| self.0.get_mut(offset..end)) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// What a processor is doing in a machine of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpState {
    /// Executes.
    #[default]
    Runnable,
    /// Waits for INIT, as all but the first do in the beginning.
    Uninitialized,
    /// Got INIT, waits for SIPI.
    InitReceived,
    /// Executed HLT.
    Halted,
    /// Got SIPI, is about to execute.
    SipiReceived,
}

/// An exception that is on its way into the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingException {
    /// It is being delivered.
    pub injected: bool,
    /// It is to be delivered.
    pub pending: bool,
    /// Vector.
    pub vector: u8,
    /// Error code, where the vector has one.
    pub error_code: Option<u32>,
    /// What it will put into CR2 or DR6, where that has not happened yet.
    pub payload: Option<u64>,
}

/// An interrupt that is on its way into the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingInterrupt {
    /// It is being delivered.
    pub injected: bool,
    /// Vector.
    pub vector: u8,
    /// By an INT instruction.
    pub soft: bool,
    /// Interrupts wait for the end of the next instruction: bit 0 after MOV SS, bit 1 after STI.
    pub shadow: u8,
}

/// Non-maskable interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingNmi {
    /// One is being delivered.
    pub injected: bool,
    /// Those that wait.
    pub pending: u8,
    /// The handler runs.
    pub masked: bool,
}

/// System management mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in KVM, which emulates it; no guest of ours enters it.
pub struct PendingSmi {
    pub in_smm: bool,
    pub pending: bool,
    pub inside_nmi: bool,
    pub latched_init: bool,
}

/// What is on its way into the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingEvents {
    /// Exception.
    pub exception: PendingException,
    /// Interrupt.
    pub interrupt: PendingInterrupt,
    /// Non-maskable interrupt.
    pub nmi: PendingNmi,
    /// System management interrupt.
    pub smi: PendingSmi,
    /// The vector of the last SIPI.
    pub sipi_vector: u32,
    /// A triple fault that nobody has been told of yet.
    pub triple_fault: bool,
    /// Which of these the hypervisor that wrote them knows (`KVM_VCPUEVENT_VALID_*`).
    pub valid: u32,
}

/// The most entries that a processor's lists have: KVM takes no more of CPUID, and knows some 150 registers.
pub(crate) const MAX_ENTRIES: usize = 1024;

/// Everything that makes up a virtual CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuState {
    /// What CPUID returns.
    #[serde(deserialize_with = "at_most::<MAX_ENTRIES, _, _>")]
    pub cpuid: Vec<CpuidEntry>,
    /// Frequency of the time stamp counter in kHz.
    pub tsc_khz: u32,
    /// Model-specific registers.
    #[serde(deserialize_with = "at_most::<MAX_ENTRIES, _, _>")]
    pub msrs: Vec<Msr>,
    /// General registers.
    pub registers: Registers,
    /// Segments, tables, control registers.
    pub system: SystemRegisters,
    /// Floating-point and vector registers: an XSAVE area in standard format (SDM volume 1, 13.4), at least 4 KiB.
    pub xsave: Vec<u8>,
    /// XCR0 and its like.
    #[serde(deserialize_with = "at_most::<MAX_ENTRIES, _, _>")]
    pub xcrs: Vec<ExtendedControlRegister>,
    /// Debug registers.
    pub debug: DebugRegisters,
    /// Local APIC.
    pub local_apic: LocalApic,
    /// Pending events.
    pub events: PendingEvents,
    /// Whether it runs, is halted, or waits to be started.
    pub mp_state: MpState,
}

/// What a hypervisor of an x86-64 host says about its processor.
pub trait X86Hypervisor: Hypervisor {
    /// Every CPUID entry that a guest can be given, with the values that the hypervisor supports. Read once.
    fn supported_cpuid(&self) -> &[CpuidEntry];
}

/// What the boot of an x86-64 guest sets before the first run. CPUID comes first: the hypervisor checks the rest against it.
pub trait X86Vcpu: Vcpu {
    /// Sets what CPUID returns. To be done before the first run.
    ///
    /// # Errors
    /// The hypervisor refuses, for one a change after that.
    fn set_cpuid(&mut self, entries: &[CpuidEntry]) -> Result<(), HypervisorError>;

    /// General registers.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn registers(&self) -> Result<Registers, HypervisorError>;

    /// Sets the general registers. Forgets an exception that was to be delivered.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn set_registers(&mut self, registers: &Registers) -> Result<(), HypervisorError>;

    /// Segments, tables, control registers.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn system_registers(&self) -> Result<SystemRegisters, HypervisorError>;

    /// Sets them.
    ///
    /// # Errors
    /// The hypervisor refuses, for one because the guest's CPUID lacks a feature that they switch on.
    fn set_system_registers(&mut self, registers: &SystemRegisters) -> Result<(), HypervisorError>;

    /// The values of these model-specific registers, without those that the hypervisor does not know.
    ///
    /// # Errors
    /// The hypervisor refuses altogether.
    fn msrs(&self, indices: &[u32]) -> Result<Vec<Msr>, HypervisorError>;

    /// Sets model-specific registers, in this order.
    ///
    /// # Errors
    /// [`MsrRefused`](HypervisorError::MsrRefused) names the first that the hypervisor does not take; those before it
    /// are set.
    fn set_msrs(&mut self, msrs: &[Msr]) -> Result<(), HypervisorError>;

    /// The local APIC. There must be an interrupt chip.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn local_apic(&self) -> Result<LocalApic, HypervisorError>;

    /// Sets it.
    ///
    /// # Errors
    /// It has another length, or the hypervisor refuses.
    fn set_local_apic(&mut self, state: &LocalApic) -> Result<(), HypervisorError>;

    /// Frequency of the time stamp counter in kHz, as the guest sees it.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn tsc_khz(&self) -> Result<u32, HypervisorError>;

    /// Whether it runs, is halted, or waits to be started.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn mp_state(&self) -> Result<MpState, HypervisorError>;

    /// Sets it.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn set_mp_state(&mut self, state: MpState) -> Result<(), HypervisorError>;
}
