//! Between KVM's structs and ours.

use kvm_bindings::{
    CpuId, KVM_MP_STATE_HALTED, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_RUNNABLE,
    KVM_MP_STATE_SIPI_RECEIVED, KVM_MP_STATE_UNINITIALIZED, Msrs, kvm_cpuid_entry2, kvm_debugregs,
    kvm_dtable, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs,
};

use crate::hypervisor::HypervisorError;
use crate::hypervisor::x86_64::{
    CpuidEntry, DebugRegisters, DescriptorTable, ExtendedControlRegister, LocalApic, MpState, Msr,
    PendingEvents, PendingException, PendingInterrupt, PendingNmi, PendingSmi, Registers, Segment,
    SystemRegisters,
};

/// Both directions between two structs whose fields have the same names and types.
macro_rules! same_fields {
    ($ours:ident, $theirs:ident: $($field:ident),*) => {
        impl From<&$theirs> for $ours {
            fn from(theirs: &$theirs) -> Self {
                Self { $($field: theirs.$field),* }
            }
        }

        impl From<&$ours> for $theirs {
            #[allow(clippy::needless_update)] // Some have padding, some have none.
            fn from(ours: &$ours) -> Self {
                Self { $($field: ours.$field,)* ..Default::default() }
            }
        }
    };
}

same_fields!(Registers, kvm_regs: rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags);
same_fields!(DescriptorTable, kvm_dtable: base, limit);
same_fields!(CpuidEntry, kvm_cpuid_entry2: function, index, flags, eax, ebx, ecx, edx);
same_fields!(DebugRegisters, kvm_debugregs: db, dr6, dr7);

impl From<&kvm_segment> for Segment {
    fn from(s: &kvm_segment) -> Self {
        Self {
            base: s.base,
            limit: s.limit,
            selector: s.selector,
            kind: s.type_,
            present: s.present,
            dpl: s.dpl,
            db: s.db,
            s: s.s,
            l: s.l,
            g: s.g,
            avl: s.avl,
            unusable: s.unusable,
        }
    }
}

impl From<&Segment> for kvm_segment {
    fn from(s: &Segment) -> Self {
        Self {
            base: s.base,
            limit: s.limit,
            selector: s.selector,
            type_: s.kind,
            present: s.present,
            dpl: s.dpl,
            db: s.db,
            s: s.s,
            l: s.l,
            g: s.g,
            avl: s.avl,
            unusable: s.unusable,
            padding: 0,
        }
    }
}

/// As [`same_fields`], for the one struct whose fields are partly structs themselves.
macro_rules! system_registers {
    (structs: $($part:ident),*; values: $($value:ident),*) => {
        impl From<&kvm_sregs> for SystemRegisters {
            fn from(theirs: &kvm_sregs) -> Self {
                Self { $($part: (&theirs.$part).into(),)* $($value: theirs.$value),* }
            }
        }

        impl From<&SystemRegisters> for kvm_sregs {
            fn from(ours: &SystemRegisters) -> Self {
                Self { $($part: (&ours.$part).into(),)* $($value: ours.$value),* }
            }
        }
    };
}

system_registers!(
    structs: cs, ds, es, fs, gs, ss, tr, ldt, gdt, idt;
    values: cr0, cr2, cr3, cr4, cr8, efer, apic_base, interrupt_bitmap
);

/// KVM's list of CPUID entries.
pub(super) fn cpuid_list(entries: &[CpuidEntry]) -> Result<CpuId, HypervisorError> {
    let entries: Vec<kvm_cpuid_entry2> = entries.iter().map(Into::into).collect();
    CpuId::from_entries(&entries)
        .map_err(|_| HypervisorError::BadState { what: "it has too many CPUID entries" })
}

/// KVM's list of model-specific registers.
pub(super) fn msr_list(msrs: &[Msr]) -> Result<Msrs, HypervisorError> {
    let entries: Vec<kvm_msr_entry> = msrs
        .iter()
        .map(|msr| kvm_msr_entry { index: msr.index, data: msr.value, ..Default::default() })
        .collect();
    Msrs::from_entries(&entries)
        .map_err(|_| HypervisorError::BadState { what: "it has too many model-specific registers" })
}

impl From<&kvm_lapic_state> for LocalApic {
    fn from(state: &kvm_lapic_state) -> Self {
        Self(state.regs.iter().map(|&byte| byte.cast_unsigned()).collect())
    }
}

impl TryFrom<&LocalApic> for kvm_lapic_state {
    type Error = HypervisorError;

    fn try_from(state: &LocalApic) -> Result<Self, HypervisorError> {
        let mut regs = [0; LocalApic::LENGTH];
        if state.0.len() != regs.len() {
            return Err(HypervisorError::BadState { what: "the local APIC does not have 1024 bytes" });
        }
        for (register, &byte) in regs.iter_mut().zip(&state.0) {
            *register = byte.cast_signed();
        }
        Ok(Self { regs })
    }
}

impl TryFrom<&kvm_mp_state> for MpState {
    type Error = HypervisorError;

    fn try_from(state: &kvm_mp_state) -> Result<Self, HypervisorError> {
        Ok(match state.mp_state {
            KVM_MP_STATE_RUNNABLE => Self::Runnable,
            KVM_MP_STATE_UNINITIALIZED => Self::Uninitialized,
            KVM_MP_STATE_INIT_RECEIVED => Self::InitReceived,
            KVM_MP_STATE_HALTED => Self::Halted,
            KVM_MP_STATE_SIPI_RECEIVED => Self::SipiReceived,
            _ => return Err(HypervisorError::BadState { what: "the processor is in an unknown MP state" }),
        })
    }
}

impl From<MpState> for kvm_mp_state {
    fn from(state: MpState) -> Self {
        let mp_state = match state {
            MpState::Runnable => KVM_MP_STATE_RUNNABLE,
            MpState::Uninitialized => KVM_MP_STATE_UNINITIALIZED,
            MpState::InitReceived => KVM_MP_STATE_INIT_RECEIVED,
            MpState::Halted => KVM_MP_STATE_HALTED,
            MpState::SipiReceived => KVM_MP_STATE_SIPI_RECEIVED,
        };
        Self { mp_state }
    }
}

impl From<&kvm_vcpu_events> for PendingEvents {
    fn from(events: &kvm_vcpu_events) -> Self {
        let exception = &events.exception;
        Self {
            exception: PendingException {
                injected: exception.injected != 0,
                pending: exception.pending != 0,
                vector: exception.nr,
                error_code: (exception.has_error_code != 0).then_some(exception.error_code),
                payload: (events.exception_has_payload != 0).then_some(events.exception_payload),
            },
            interrupt: PendingInterrupt {
                injected: events.interrupt.injected != 0,
                vector: events.interrupt.nr,
                soft: events.interrupt.soft != 0,
                shadow: events.interrupt.shadow,
            },
            nmi: PendingNmi {
                injected: events.nmi.injected != 0,
                pending: events.nmi.pending,
                masked: events.nmi.masked != 0,
            },
            smi: PendingSmi {
                in_smm: events.smi.smm != 0,
                pending: events.smi.pending != 0,
                inside_nmi: events.smi.smm_inside_nmi != 0,
                latched_init: events.smi.latched_init != 0,
            },
            sipi_vector: events.sipi_vector,
            triple_fault: events.triple_fault.pending != 0,
            valid: events.flags,
        }
    }
}

impl From<&PendingEvents> for kvm_vcpu_events {
    fn from(ours: &PendingEvents) -> Self {
        let mut events = Self { sipi_vector: ours.sipi_vector, flags: ours.valid, ..Default::default() };
        events.exception.injected = ours.exception.injected.into();
        events.exception.pending = ours.exception.pending.into();
        events.exception.nr = ours.exception.vector;
        events.exception.has_error_code = ours.exception.error_code.is_some().into();
        events.exception.error_code = ours.exception.error_code.unwrap_or(0);
        events.exception_has_payload = ours.exception.payload.is_some().into();
        events.exception_payload = ours.exception.payload.unwrap_or(0);
        events.interrupt.injected = ours.interrupt.injected.into();
        events.interrupt.nr = ours.interrupt.vector;
        events.interrupt.soft = ours.interrupt.soft.into();
        events.interrupt.shadow = ours.interrupt.shadow;
        events.nmi.injected = ours.nmi.injected.into();
        events.nmi.pending = ours.nmi.pending;
        events.nmi.masked = ours.nmi.masked.into();
        events.smi.smm = ours.smi.in_smm.into();
        events.smi.pending = ours.smi.pending.into();
        events.smi.smm_inside_nmi = ours.smi.inside_nmi.into();
        events.smi.latched_init = ours.smi.latched_init.into();
        events.triple_fault.pending = ours.triple_fault.into();
        events
    }
}

/// KVM's extended control registers, as a list.
pub(super) fn xcrs(theirs: &kvm_xcrs) -> Vec<ExtendedControlRegister> {
    let count = (theirs.nr_xcrs as usize).min(theirs.xcrs.len());
    theirs.xcrs[..count]
        .iter()
        .map(|xcr| ExtendedControlRegister { number: xcr.xcr, value: xcr.value })
        .collect()
}

/// The list as KVM's struct.
pub(super) fn to_xcrs(ours: &[ExtendedControlRegister]) -> Result<kvm_xcrs, HypervisorError> {
    let mut theirs = kvm_xcrs::default();
    if ours.len() > theirs.xcrs.len() {
        return Err(HypervisorError::BadState { what: "it has too many extended control registers" });
    }
    for (place, xcr) in theirs.xcrs.iter_mut().zip(ours) {
        place.xcr = xcr.number;
        place.value = xcr.value;
        theirs.nr_xcrs += 1;
    }
    Ok(theirs)
}
