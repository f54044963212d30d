//! What a processor tells about itself: the host's features that KVM can give, as a processor of this machine.
//!
//! | leaf | change |
//! |---|---|
//! | 1 | number and count of processors; no monitor/mwait, no debug store, no performance counters; a hypervisor is there |
//! | 4, 0x8000_001d | caches are shared as by the cores of one package, one thread each |
//! | 6 | only that the APIC timer never stops: nothing of the host's power management |
//! | 7 | no transactional memory, no SGX, no processor trace, no memory protection extensions |
//! | 0xa | no performance counters |
//! | 0xb, 0x1f | the topology: one thread for each core, all cores in one package |
//! | 0x15, 0x16 | frequencies of time stamp counter and APIC timer, so that the kernel need not measure them |
//! | 0x4000_0001 | KVM's own: clock, and end of interrupt without an exit. Nothing that a snapshot would have to wait for (page faults told later, stolen time), and on kvm_pvm nothing that needs VMCALL, which it does not have |
//! | 0x4000_0010 | the frequencies again, where other systems look |
//!
//! Sources: SDM volume 2, CPUID; KVM API documentation, x86/cpuid.rst.

use crate::hypervisor::x86_64::CpuidEntry;

/// Frequency of the local APIC's timer under KVM, in Hz: it counts nanoseconds.
const APIC_HZ: u32 = 1_000_000_000;

const LEAF_1_ECX_OFF: u32 = bits(&[2, 3, 4, 5, 6, 7, 8, 10, 11, 15, 18]);
const HYPERVISOR: u32 = 1 << 31;
const HYPER_THREADING: u32 = 1 << 28;
/// EBX of leaf 7: SGX, HLE, RTM, MPX, processor trace, PQM, PQE.
const LEAF_7_EBX_OFF: u32 = bits(&[2, 4, 11, 12, 14, 15, 25]);
/// ECX of leaf 7: WAITPKG, SGX launch control, protection keys for supervisors.
const LEAF_7_ECX_OFF: u32 = bits(&[5, 30, 31]);
/// Numbered address spaces: kvm_pvm tells of them and refuses CR4.PCIDE.
const PCID: u32 = 1 << 17;
const INVPCID: u32 = 1 << 10;
const ALWAYS_RUNNING_TIMER: u32 = 1 << 2;

/// EAX of leaf `0x4000_0001`: the clock (both interfaces), delays by port are needless, PV EOI, flush by request, stable clock.
const KVM_FEATURES: u32 = bits(&[0, 1, 3, 6, 24]);
/// The same where the kernel's calls to the hypervisor work.
const KVM_FEATURES_BY_CALL: u32 = bits(&[7, 11, 13]);

const fn bits(numbers: &[u32]) -> u32 {
    let (mut mask, mut index) = (0, 0);
    while index < numbers.len() {
        mask |= 1 << numbers[index];
        index += 1;
    }
    mask
}

/// What the leaves depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    /// How many there are.
    pub count: u8,
    /// Frequency of the time stamp counter, in kHz.
    pub tsc_khz: u32,
    /// kvm_pvm: VMCALL must not be used.
    pub pvm: bool,
}

/// The leaves for processor `index`, from those that the hypervisor supports.
pub fn leaves(supported: &[CpuidEntry], index: u8, processors: Processors) -> Vec<CpuidEntry> {
    let Processors { count, tsc_khz, pvm } = processors;
    let id = u32::from(index);
    let highest = supported.iter().find(|entry| entry.function == 0).map_or(0, |entry| entry.eax);
    let mut all: Vec<CpuidEntry> = supported
        .iter()
        .filter(|entry| !matches!(entry.function, 0xb | 0x15 | 0x16 | 0x1f | 0x4000_0010))
        .copied()
        .collect();
    for entry in &mut all {
        match entry.function {
            // Leaf 0x16 must be within reach.
            0 => entry.eax = entry.eax.max(0x16),
            1 => {
                entry.ebx = entry.ebx & 0xffff | u32::from(count) << 16 | id << 24;
                entry.ecx = entry.ecx & !LEAF_1_ECX_OFF | HYPERVISOR;
                entry.edx &= !(1 << 21); // debug store
                if pvm {
                    entry.ecx &= !PCID;
                }
                entry.edx =
                    if count > 1 { entry.edx | HYPER_THREADING } else { entry.edx & !HYPER_THREADING };
            }
            4 | 0x8000_001d if entry.eax & 0x1f != 0 => {
                let level = entry.eax >> 5 & 7;
                let sharing = if level >= 3 { u32::from(count) - 1 } else { 0 };
                let cores = if entry.function == 4 { (u32::from(count) - 1) << 26 } else { 0 };
                entry.eax = entry.eax & 0x3fff | sharing << 14 | cores;
            }
            6 => {
                entry.eax &= ALWAYS_RUNNING_TIMER;
                (entry.ebx, entry.ecx, entry.edx) = (0, 0, 0);
            }
            7 if entry.index == 0 => {
                entry.ebx &= !LEAF_7_EBX_OFF;
                entry.ecx &= !LEAF_7_ECX_OFF;
                if pvm {
                    entry.ebx &= !INVPCID;
                }
            }
            0xa | 0x23 => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
            0x4000_0000 => entry.eax = entry.eax.max(0x4000_0010),
            0x4000_0001 => entry.eax &= if pvm { KVM_FEATURES } else { KVM_FEATURES | KVM_FEATURES_BY_CALL },
            0x8000_0008 => entry.ecx = entry.ecx & !0xff | (u32::from(count) - 1),
            0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (id, id & 0xff, 0),
            _ => {}
        }
    }
    let shift = u32::from(count).next_power_of_two().trailing_zeros();
    for function in [0xb, 0x1f] {
        if function == 0x1f && highest < 0x1f {
            continue;
        }
        // One thread for each core; then the package; then the end.
        all.push(entry(function, 0, [0, 1, 1 << 8, id]));
        all.push(entry(function, 1, [shift, u32::from(count), 2 << 8 | 1, id]));
        all.push(entry(function, 2, [0, 0, 2, id]));
    }
    if tsc_khz > 0 {
        all.push(entry(0x15, 0, [APIC_HZ / 1000, tsc_khz, APIC_HZ, 0]));
        all.push(entry(0x16, 0, [tsc_khz / 1000, tsc_khz / 1000, 0, 0]));
        all.push(entry(0x4000_0010, 0, [tsc_khz, APIC_HZ / 1000, 0, 0]));
    }
    // A leaf that is not there reads as zeroes, up to the highest; each one that is there takes time whenever they are set.
    all.retain(|leaf| leaf.function == 0 || (leaf.eax | leaf.ebx | leaf.ecx | leaf.edx) != 0);
    all
}

/// KVM_CPUID_FLAG_SIGNIFCANT_INDEX: the leaf has several parts.
const INDEXED: u32 = 1;

fn entry(function: u32, index: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> CpuidEntry {
    let flags = if matches!(function, 0xb | 0x1f) { INDEXED } else { 0 };
    CpuidEntry { function, index, flags, eax, ebx, ecx, edx }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supported() -> Vec<CpuidEntry> {
        vec![
            entry(0, 0, [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            entry(1, 0, [0x806f8, 0x0500_0800, u32::MAX, u32::MAX]),
            entry(4, 0, [0xfc00_4121, 0, 0, 0]),
            entry(4, 3, [0xfc00_c163, 0, 0, 0]),
            entry(6, 0, [u32::MAX; 4]),
            entry(7, 0, [2, u32::MAX, u32::MAX, u32::MAX]),
            entry(0xa, 0, [0x0730_0405, 1, 2, 3]),
            entry(0xb, 0, [1, 2, 0x100, 9]),
            entry(0x15, 0, [2, 200, 0, 0]),
            entry(0x4000_0000, 0, [0x4000_0001, 0x4b4d_564b, 0x564b_4d56, 0x4d]),
            entry(0x4000_0001, 0, [u32::MAX, 0, 0, 0]),
        ]
    }

    fn get(all: &[CpuidEntry], function: u32, index: u32) -> [u32; 4] {
        let found: Vec<_> =
            all.iter().filter(|entry| (entry.function, entry.index) == (function, index)).collect();
        assert_eq!(found.len(), 1, "leaf {function:#x}.{index}");
        [found[0].eax, found[0].ebx, found[0].ecx, found[0].edx]
    }

    #[test]
    fn topology_of_several_processors() {
        for count in [1u8, 2, 3, 8] {
            for index in 0..count {
                let all = leaves(&supported(), index, Processors { count, tsc_khz: 2_000_000, pvm: false });
                let [_, ebx, _, edx] = get(&all, 1, 0);
                assert_eq!((ebx >> 24, ebx >> 16 & 0xff), (u32::from(index), u32::from(count)));
                assert_eq!(edx & HYPER_THREADING != 0, count > 1);
                for leaf in [0xb, 0x1f] {
                    let [_, threads, kind, id] = get(&all, leaf, 0);
                    assert_eq!((threads, kind, id), (1, 0x100, u32::from(index)));
                    let [shift, cores, kind, _] = get(&all, leaf, 1);
                    assert_eq!((cores, kind), (u32::from(count), 0x201));
                    assert!(1 << shift >= cores && (shift == 0 || 1 << (shift - 1) < cores));
                }
                assert_eq!(get(&all, 4, 0)[0] >> 14 & 0xfff, 0, "a first-level cache of its own");
                assert_eq!(
                    get(&all, 4, 3)[0] >> 14 & 0xfff,
                    u32::from(count) - 1,
                    "the third level is shared"
                );
            }
        }
    }

    #[test]
    fn nothing_that_is_taken_away_is_there() {
        let all = leaves(&supported(), 0, Processors { count: 1, tsc_khz: 2_000_000, pvm: true });
        let [_, _, ecx, _] = get(&all, 1, 0);
        assert_eq!(ecx & (1 << 5 | 1 << 3 | 1 << 15), 0, "VMX, MONITOR, PDCM");
        assert_ne!(ecx & (1 << 24 | 1 << 21), 0, "TSC deadline, x2APIC");
        assert!(all.iter().all(|leaf| leaf.function != 0xa), "a leaf of zeroes need not be there");
        assert_eq!(get(&all, 6, 0), [4, 0, 0, 0]);
        assert_eq!(get(&all, 7, 0)[1] & (1 << 2 | 1 << 4 | 1 << 11 | 1 << 25), 0);
        assert_eq!(get(&all, 0x4000_0001, 0)[0], KVM_FEATURES, "on kvm_pvm");
        let all = leaves(&supported(), 0, Processors { count: 1, tsc_khz: 2_000_000, pvm: false });
        assert_eq!(get(&all, 0x4000_0001, 0)[0] & (1 << 4 | 1 << 5 | 1 << 14), 0, "nothing asynchronous");
    }

    #[test]
    fn frequencies_are_told_as_linux_computes_them() {
        let all = leaves(&supported(), 0, Processors { count: 1, tsc_khz: 2_445_406, pvm: false });
        let [denominator, numerator, crystal, _] = get(&all, 0x15, 0);
        assert_eq!(u64::from(crystal) / 1000 * u64::from(numerator) / u64::from(denominator), 2_445_406);
        assert_eq!(crystal, APIC_HZ, "the APIC's timer runs at the crystal's frequency");
        assert_eq!(get(&all, 0x4000_0010, 0), [2_445_406, 1_000_000, 0, 0]);
        assert_eq!(get(&all, 0, 0)[0], 0x20);
        let all = leaves(&supported(), 0, Processors { count: 1, tsc_khz: 0, pvm: false });
        assert!(all.iter().all(|entry| entry.function != 0x15), "an unknown frequency is not told");
    }
}
