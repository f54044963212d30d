//! Reading and setting a whole virtual CPU, and the parts that take more than one call.
//!
//! # Order of reading
//!
//! The MP state first, since reading it makes KVM take a waiting INIT or SIPI, which changes registers; pending events
//! last, since nothing read before may add one.
//!
//! # Order of setting
//!
//! What depends on no moment ([`set_lasting`]):
//!
//! 1. CPUID: KVM checks control registers, XCR0 and model-specific registers against it. The frequency of the time stamp
//!    counter, if it is another than this host's.
//! 2. MP state, general and system registers. These hold IA32_APIC_BASE, which switches the local APIC on.
//! 3. XCR0, then the XSAVE area that it governs; debug registers.
//! 4. Model-specific registers, but for the time stamp counter and its deadline. Those of KVM's clock say where the guest reads it; KVM
//!    writes it there when the virtual CPU runs next.
//!
//! The rest, when it is about to run ([`set_momentary`]):
//!
//! 5. The local APIC: its timer may run from here on, and it must be there before a deadline is set for it.
//! 6. IA32_TSC, then IA32_TSC_DEADLINE.
//! 7. Pending events last: setting registers forgets a pending exception.
//!
//! The system registers are those of `KVM_GET_SREGS`, which has no page directory pointers (PDPTRs): KVM then reads them
//! from memory again. They matter to 32-bit guests with PAE only, and none of ours is one.
//!
//! # Time
//!
//! The deadline of the local APIC's timer is a value of the time stamp counter. Where the counter cannot be set it is the
//! host's, and a restored guest sees another value than the saved one; where it can be set, some time passes while
//! this runs. So an armed deadline is written back as now + (saved deadline - saved counter), with now as the guest
//! would read it. One that has passed fires at once.

use kvm_ioctls::VcpuFd;

use super::vcpu::KvmVcpu;
use super::{convert, failed, unsafe_xsave};
use crate::hypervisor::HypervisorError;
use crate::hypervisor::x86_64::{CpuidEntry, Msr, Segment, SystemRegisters, VcpuState, X86Vcpu, msr};

/// CPUID entries that are read back at most (`KVM_MAX_CPUID_ENTRIES`).
const MAX_CPUID: usize = kvm_bindings::KVM_MAX_CPUID_ENTRIES;

/// Cycles that are some minutes at least.
const FAR: u64 = 1 << 42;

/// See the [module](self).
pub(super) fn get(vcpu: &KvmVcpu) -> Result<VcpuState, HypervisorError> {
    let fd = &vcpu.fd;
    let mp_state = vcpu.mp_state()?;
    let registers = vcpu.registers()?;
    let mut system = vcpu.system_registers()?;
    if vcpu.vm.host.facts.is_pvm && registers.rip >> 63 == 1 && system.cs.dpl != 0 {
        as_kernel(&mut system);
    }
    let xsave = unsafe_xsave::get(&vcpu.vm.fd, fd)?;
    let xcrs = convert::xcrs(&fd.get_xcrs().map_err(failed("KVM_GET_XCRS"))?);
    let debug = (&fd.get_debug_regs().map_err(failed("KVM_GET_DEBUGREGS"))?).into();
    let local_apic = vcpu.local_apic()?;
    let tsc_khz = vcpu.tsc_khz()?;
    let cpuid = fd.get_cpuid2(MAX_CPUID).map_err(failed("KVM_GET_CPUID2"))?;
    let msrs = get_msrs(fd, &vcpu.vm.host.msrs)?;
    let events = (&fd.get_vcpu_events().map_err(failed("KVM_GET_VCPU_EVENTS"))?).into();
    Ok(VcpuState {
        cpuid: cpuid.as_slice().iter().map(Into::into).collect(),
        tsc_khz,
        msrs,
        registers,
        system,
        xsave,
        xcrs,
        debug,
        local_apic,
        events,
        mp_state,
    })
}

/// See the [module](self).
pub(super) fn set_lasting(vcpu: &mut KvmVcpu, state: &VcpuState) -> Result<(), HypervisorError> {
    set_cpuid(&vcpu.fd, &state.cpuid)?;
    set_tsc_khz(vcpu, state.tsc_khz)?;
    vcpu.set_mp_state(state.mp_state)?;
    vcpu.set_registers(&state.registers)?;
    vcpu.set_system_registers(&state.system)?;
    let fd = &vcpu.fd;
    fd.set_xcrs(&convert::to_xcrs(&state.xcrs)?).map_err(failed("KVM_SET_XCRS"))?;
    unsafe_xsave::set(&vcpu.vm.fd, fd, &state.xsave)?;
    fd.set_debug_regs(&(&state.debug).into()).map_err(failed("KVM_SET_DEBUGREGS"))?;
    let lasting = |msr: &&Msr| msr.index != msr::IA32_TSC && msr.index != msr::IA32_TSC_DEADLINE;
    set_msrs(&vcpu.fd, &state.msrs.iter().filter(lasting).copied().collect::<Vec<_>>())
}

/// See the [module](self).
pub(super) fn set_momentary(vcpu: &mut KvmVcpu, state: &VcpuState) -> Result<(), HypervisorError> {
    vcpu.set_local_apic(&state.local_apic)?;
    set_time(vcpu, &state.msrs)?;
    vcpu.fd.set_vcpu_events(&(&state.events).into()).map_err(failed("KVM_SET_VCPU_EVENTS"))
}

/// Model-specific registers that a guest can write and that are in no list of KVM: memory types (SDM volume 4, table 2-2:
/// IA32_MTRR_...), the banks of machine check (IA32_MC0_CTL2, ..., IA32_MC0_CTL, ...), and AMD's workarounds (OSVW). Linux guests as
/// ours use none of them, so nobody saves them; but a guest could leave a message there for the next one. Found by a guest that
/// writes all there are (`tests/bare_metal/reset.rs`).
const UNLISTED: [std::ops::RangeInclusive<u32>; 8] = [
    0x200..=0x21f,
    0x250..=0x250,
    0x258..=0x259,
    0x268..=0x26f,
    0x280..=0x29f,
    0x2ff..=0x2ff,
    0x400..=0x47f,
    0xc001_0140..=0xc001_0141,
];

/// Those of [`UNLISTED`] that this hypervisor knows, as they are in a virtual CPU that was just made.
pub(super) fn unlisted(fd: &VcpuFd) -> Result<Vec<Msr>, HypervisorError> {
    get_msrs(fd, &UNLISTED.into_iter().flatten().collect::<Vec<_>>())
}

/// KVM's registers for pages of the guest that KVM writes (Documentation/virt/kvm/x86/msr.rst): the clock, stolen time, ends of
/// interrupts, and asynchronous page faults, of which those under way are forgotten by this.
const PAGES_OF_KVM: [u32; 4] = [0x4b56_4d01, 0x4b56_4d03, 0x4b56_4d04, 0x4b56_4d02];

/// See [`Vcpu::forget`](crate::hypervisor::Vcpu::forget).
///
/// The time stamp counter is set far away: KVM takes a value less than a second from what it expects for an attempt to keep
/// processors in step, and a machine that goes back by less than that would keep the time that it had (`kvm_synchronize_tsc`).
pub(super) fn forget(vcpu: &mut KvmVcpu) -> Result<(), HypervisorError> {
    // Takes an INIT or SIPI that waits.
    vcpu.mp_state()?;
    let known = |index: &u32| vcpu.vm.host.msrs.contains(index);
    let off: Vec<Msr> = PAGES_OF_KVM.into_iter().filter(known).map(|index| Msr { index, value: 0 }).collect();
    set_msrs(&vcpu.fd, &off)?;
    let new = &vcpu.vm.host.unlisted;
    let now = get_msrs(&vcpu.fd, &new.iter().map(|msr| msr.index).collect::<Vec<_>>())?;
    let left: Vec<Msr> = new.iter().zip(&now).filter(|(new, now)| new != now).map(|(new, _)| *new).collect();
    set_msrs(&vcpu.fd, &left)?;
    if vcpu.vm.host.facts.can_set_tsc
        && let Some(&counter) = vcpu.msrs(&[msr::IA32_TSC])?.first()
    {
        set_msrs(&vcpu.fd, &[Msr { value: counter.value.wrapping_add(FAR), ..counter }])?;
    }
    Ok(())
}

/// Makes the segments those of a guest that executes its kernel.
///
/// kvm_pvm runs a guest's kernel at CPL3, and gives the segments of user mode for one that was entered by a system call: it
/// knows by itself which of the two it executes. Restored like that, it takes the kernel for user code, and the next interrupt
/// finds a kernel without its stack and its own data. User code has no addresses in the upper half.
fn as_kernel(system: &mut SystemRegisters) {
    let flat = Segment { base: 0, limit: u32::MAX, present: 1, s: 1, g: 1, dpl: 0, ..Segment::default() };
    // The selectors that SYSCALL loads (SDM volume 3, 5.8.8), as Linux has them: __KERNEL_CS, __KERNEL_DS.
    system.cs = Segment { selector: 0x10, kind: 0xb, l: 1, ..flat };
    system.ss = Segment { selector: 0x18, kind: 0x3, db: 1, ..flat };
}

/// Makes the time stamp counter run at the saved frequency.
fn set_tsc_khz(vcpu: &KvmVcpu, saved: u32) -> Result<(), HypervisorError> {
    let own = vcpu.tsc_khz()?;
    // What KVM itself takes for the same: 250 parts in a million (`tsc_tolerance_ppm`). Two measures of one crystal differ.
    if u64::from(own.abs_diff(saved)) * 1_000_000 <= u64::from(own) * 250 {
        return Ok(());
    }
    vcpu.fd.set_tsc_khz(saved).map_err(|_| HypervisorError::BadState {
        what: "its time stamp counter runs at another frequency than this processor's",
    })
}

/// Sets the time stamp counter, where it can be set, and the deadline, moved.
fn set_time(vcpu: &mut KvmVcpu, msrs: &[Msr]) -> Result<(), HypervisorError> {
    let find = |index| msrs.iter().find(|msr| msr.index == index);
    let counter = find(msr::IA32_TSC);
    if let (Some(counter), true) = (counter, vcpu.vm.host.facts.can_set_tsc) {
        set_msrs(&vcpu.fd, std::slice::from_ref(counter))?;
    }
    match find(msr::IA32_TSC_DEADLINE) {
        // Not armed. A virtual CPU that has run may have another one armed.
        Some(&deadline) if deadline.value == 0 => set_msrs(&vcpu.fd, &[deadline]),
        Some(&deadline) => {
            let now = vcpu.msrs(&[msr::IA32_TSC])?.first().map(|msr| msr.value);
            let value = moved_deadline(deadline.value, counter.map(|msr| msr.value), now);
            set_msrs(&vcpu.fd, &[Msr { value, ..deadline }])
        }
        None => Ok(()),
    }
}

/// What to write into IA32_TSC_DEADLINE. 0 stays 0: not armed.
fn moved_deadline(deadline: u64, saved_counter: Option<u64>, now: Option<u64>) -> u64 {
    match (deadline, saved_counter, now) {
        (0, _, _) | (_, None, _) | (_, _, None) => deadline,
        (deadline, Some(saved), Some(now)) => {
            // The difference has a sign: a deadline in the past stays in the past, and never becomes 0, "not armed".
            now.wrapping_add(deadline.wrapping_sub(saved)).max(1)
        }
    }
}

/// `KVM_SET_CPUID2`.
pub(super) fn set_cpuid(fd: &VcpuFd, entries: &[CpuidEntry]) -> Result<(), HypervisorError> {
    fd.set_cpuid2(&convert::cpuid_list(entries)?).map_err(failed("KVM_SET_CPUID2"))
}

/// `KVM_GET_MSRS`, without those that KVM does not know.
pub(super) fn get_msrs(fd: &VcpuFd, indices: &[u32]) -> Result<Vec<Msr>, HypervisorError> {
    let mut wanted: &[u32] = indices;
    let mut result = Vec::with_capacity(indices.len());
    while !wanted.is_empty() {
        let list: Vec<Msr> = wanted.iter().map(|&index| Msr { index, value: 0 }).collect();
        let mut list = convert::msr_list(&list)?;
        // KVM stops at the first that it does not know and says how many it has read.
        let read = fd.get_msrs(&mut list).map_err(failed("KVM_GET_MSRS"))?;
        let read_ones = list.as_slice().iter().take(read);
        result.extend(read_ones.map(|entry| Msr { index: entry.index, value: entry.data }));
        wanted = wanted.get(read + 1..).unwrap_or_default();
    }
    Ok(result)
}

/// `KVM_SET_MSRS`. One that KVM refuses to set is passed over if it has that value anyway: some can only be read.
pub(super) fn set_msrs(fd: &VcpuFd, msrs: &[Msr]) -> Result<(), HypervisorError> {
    let mut wanted = msrs;
    while !wanted.is_empty() {
        // KVM stops at the first that it refuses and says how many it has set.
        let set = fd.set_msrs(&convert::msr_list(wanted)?).map_err(failed("KVM_SET_MSRS"))?;
        let Some(&refused) = wanted.get(set) else {
            break;
        };
        if get_msrs(fd, &[refused.index])? != [refused] {
            return Err(HypervisorError::MsrRefused { index: refused.index, value: refused.value });
        }
        wanted = &wanted[set + 1..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{as_kernel, moved_deadline};
    use crate::hypervisor::x86_64::{Segment, SystemRegisters};

    #[test]
    fn a_kernel_that_looks_like_user_code_gets_its_own_segments() {
        let user = Segment { selector: 0xb3, dpl: 3, kind: 0xb, l: 1, ..Segment::default() };
        let gs = Segment { base: 0xffff_8880_07a0_0000, ..Segment::default() };
        let mut system = SystemRegisters { cs: user, ss: user, gs, cr3: 0x1000, ..Default::default() };
        as_kernel(&mut system);
        assert_eq!((system.cs.selector, system.cs.dpl, system.cs.l), (0x10, 0, 1));
        assert_eq!((system.ss.selector, system.ss.dpl, system.ss.kind), (0x18, 0, 3));
        assert_eq!((system.gs, system.cr3), (gs, 0x1000));
    }

    #[test]
    fn a_deadline_keeps_its_distance() {
        // Restored at a later and at an earlier counter.
        assert_eq!(moved_deadline(1_000, Some(900), Some(50_000)), 50_100);
        assert_eq!(moved_deadline(50_000, Some(49_000), Some(10)), 1_010);
        // Passed, not fired: still passed.
        assert_eq!(moved_deadline(1_000, Some(1_500), Some(50_000)), 49_500);
        // Over the end of the counter.
        assert_eq!(moved_deadline(5, Some(u64::MAX - 4), Some(100)), 110);
    }

    #[test]
    fn a_deadline_that_is_not_armed_stays_so_and_an_armed_one_is_never_disarmed() {
        assert_eq!(moved_deadline(0, Some(900), Some(50_000)), 0);
        assert_eq!(moved_deadline(1_000, Some(1_500), Some(500)), 1);
        assert_eq!(moved_deadline(1_000, None, Some(500)), 1_000);
    }
}
