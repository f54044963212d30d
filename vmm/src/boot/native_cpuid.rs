//! Features that a guest's kernel sees and must not use: kvm_pvm on processors whose CPUID cannot be intercepted.
//!
//! Such a guest's kernel mode runs as a user program of the host. CPUID is no privileged instruction, and where the processor
//! has no "CPUID faulting" it so tells what the host has, whatever the virtual CPU was set up to say. Most of that can be used
//! as well; what takes a control register, a model-specific register or a privileged instruction that KVM does not emulate
//! ends in a fault. The kernel is told on its command line not to use those (`clearcpuid=`).
//!
//! XSAVES and XSAVEC are among them since the sizes that CPUID tells are those of the host's settings then; the plain format
//! has the same size for both. Without that the kernel would find its own computation wrong, stop using XSAVE, and let vector
//! registers leak from one process into the next.

use crate::hypervisor::x86_64::CpuidEntry;

/// Registers of a leaf.
#[derive(Clone, Copy)]
enum Register {
    Eax = 0,
    Ebx,
    Ecx,
    Edx,
}
use Register::{Eax, Ebx, Ecx, Edx};

/// Name for Linux, leaf, subleaf, register, bit (SDM volume 2, CPUID; AMD64 manual volume 3, appendix E).
const PRIVILEGED: &[(&str, u32, u32, Register, u32)] = &[
    ("monitor", 1, 0, Ecx, 3),
    ("vmx", 1, 0, Ecx, 5),
    ("pcid", 1, 0, Ecx, 17),
    ("fsgsbase", 7, 0, Ebx, 0),
    ("tsc_adjust", 7, 0, Ebx, 1),
    ("smep", 7, 0, Ebx, 7),
    ("invpcid", 7, 0, Ebx, 10),
    ("smap", 7, 0, Ebx, 20),
    ("umip", 7, 0, Ecx, 2),
    ("user_shstk", 7, 0, Ecx, 7),
    ("la57", 7, 0, Ecx, 16),
    ("rdpid", 7, 0, Ecx, 22),
    ("ibt", 7, 0, Edx, 20),
    ("xsavec", 0xd, 1, Eax, 1),
    ("xsaves", 0xd, 1, Eax, 3),
    ("svm", 0x8000_0001, 0, Ecx, 2),
    ("mwaitx", 0x8000_0001, 0, Ecx, 29),
    ("pdpe1gb", 0x8000_0001, 0, Edx, 26),
    ("rdtscp", 0x8000_0001, 0, Edx, 27),
];

/// The names of features that the processor has and `supported`, what KVM can give, has not. `native` executes CPUID for
/// a leaf and a subleaf.
pub fn refused(
    supported: &[CpuidEntry],
    native: impl Fn(u32, u32) -> [u32; 4],
) -> impl Iterator<Item = &'static str> {
    let given = |function, index| -> [u32; 4] {
        let entry = supported.iter().find(|entry| {
            entry.function == function
                && (entry.index == index || entry.flags & CpuidEntry::INDEX_MATTERS == 0)
        });
        entry.map_or([0; 4], |entry| [entry.eax, entry.ebx, entry.ecx, entry.edx])
    };
    let names: Vec<&'static str> = PRIVILEGED
        .iter()
        .filter(|&&(_, function, index, register, bit)| {
            let here = native(function, index)[register as usize];
            let there = given(function, index)[register as usize];
            here & !there & 1 << bit != 0
        })
        .map(|&(name, ..)| name)
        .collect();
    names.into_iter()
}

/// CPUID of this processor.
#[cfg(target_arch = "x86_64")]
pub fn native(function: u32, index: u32) -> [u32; 4] {
    let highest = std::arch::x86_64::__cpuid(function & 0x8000_0000).eax;
    if function > highest {
        return [0; 4];
    }
    let result = std::arch::x86_64::__cpuid_count(function, index);
    [result.eax, result.ebx, result.ecx, result.edx]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(function: u32, index: u32, flags: u32, [eax, ebx, ecx, edx]: [u32; 4]) -> CpuidEntry {
        CpuidEntry { function, index, flags, eax, ebx, ecx, edx }
    }

    #[test]
    fn what_both_have_or_neither_is_no_matter() {
        let all = |_: u32, _: u32| [u32::MAX; 4];
        let supported: Vec<CpuidEntry> = PRIVILEGED
            .iter()
            .map(|&(_, function, index, ..)| entry(function, index, 1, [u32::MAX; 4]))
            .collect();
        assert_eq!(refused(&supported, all).count(), 0);
        assert_eq!(refused(&[], |_, _| [0; 4]).count(), 0);
        assert_eq!(refused(&[], all).count(), PRIVILEGED.len());
    }

    #[test]
    fn each_subleaf_counts_for_itself() {
        let native = |function, index| if (function, index) == (0xd, 1) { [0xf, 0, 0, 0] } else { [0; 4] };
        let other = [entry(0xd, 0, 1, [0xf; 4])];
        assert_eq!(refused(&other, native).collect::<Vec<_>>(), ["xsavec", "xsaves"]);
        let same = [entry(0xd, 0, 1, [0; 4]), entry(0xd, 1, 1, [0x2, 0, 0, 0])];
        assert_eq!(refused(&same, native).collect::<Vec<_>>(), ["xsaves"]);
    }

    #[test]
    fn leaves_beyond_the_processors_last_say_nothing() {
        assert_eq!(native(0x7fff_ffff, 0), [0; 4]);
        assert_ne!(native(0, 0)[0], 0);
    }
}
