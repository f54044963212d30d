//! A machine for tiny guests.
//!
//! ```text
//! guest-physical 0x0_1000  PML4, PDPT and four page directories: 4 GiB mapped to themselves in pages of 2 MiB
//!                0x0_8000  interrupt descriptor table
//!                0x1_0000  code of the first virtual CPU
//!                0x2_0000  its stack, downwards
//!                0x3_0000  data
//! ```

use std::sync::Arc;

use hayfork_vmm::hypervisor::kvm::{KvmHypervisor, KvmVcpu, KvmVm};
use hayfork_vmm::hypervisor::probe::{Verdict, probe};
use hayfork_vmm::hypervisor::x86_64::{Registers, Segment, SystemRegisters, X86Hypervisor, X86Vcpu};
use hayfork_vmm::hypervisor::{Hypervisor, MappedRegion, Vm};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Bytes of guest memory, from address 0.
pub(crate) const MEMORY: usize = 2 << 20;
/// Where guests start.
pub(crate) const CODE: u64 = 0x1_0000;
/// Top of the stack.
pub(crate) const STACK: u64 = 0x2_0000;
/// Free for tests.
pub(crate) const DATA: u64 = 0x3_0000;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;

/// The hypervisor of this host; `None`, having said so, where there is none.
pub(crate) fn hypervisor() -> Option<KvmHypervisor> {
    match KvmHypervisor::open() {
        Ok(hypervisor) => Some(hypervisor),
        Err(error) => {
            assert!(std::env::var_os("HAYFORK_REQUIRE_KVM").is_none(), "{error}");
            let verdict = probe().verdict;
            let excused = matches!(verdict, Verdict::Absent | Verdict::NoPermission);
            assert!(excused, "the probe says {verdict}, but: {error}");
            eprintln!("skipped: {verdict}");
            None
        }
    }
}

/// A machine with memory, and with or without an interrupt chip.
pub(crate) struct Machine {
    pub(crate) vm: Arc<KvmVm>,
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) hypervisor: Arc<KvmHypervisor>,
}

impl Machine {
    /// A machine with `code` at [`CODE`].
    pub(crate) fn new(hypervisor: KvmHypervisor, code: &[u8], interrupt_chip: bool) -> Self {
        let vm = hypervisor.create_vm().unwrap();
        let mapping = MmapRegion::<()>::new(MEMORY).unwrap();
        let region = Arc::new(GuestRegionMmap::new(mapping, GuestAddress(0)).unwrap());
        vm.map_memory(0, &MappedRegion::from_mmap(&region)).unwrap();
        if interrupt_chip {
            vm.create_interrupt_chip().unwrap();
        }
        let memory = GuestMemoryMmap::from_arc_regions(vec![region]).unwrap();
        let machine = Self { vm: Arc::new(vm), memory, hypervisor: Arc::new(hypervisor) };
        machine.write_page_tables();
        machine.memory.write_slice(code, GuestAddress(CODE)).unwrap();
        machine
    }

    fn write_page_tables(&self) {
        let write = |value: u64, at: u64| self.memory.write_obj(value, GuestAddress(at)).unwrap();
        write(PDPT | 0b11, PML4);
        for directory in 0..4 {
            write((PD + directory * 0x1000) | 0b11, PDPT + directory * 8);
        }
        for page in 0..2048 {
            // Present, writable, large.
            write((page << 21) | 0b1000_0011, PD + page * 8);
        }
    }

    /// A virtual CPU for this thread, about to execute at [`CODE`].
    pub(crate) fn vcpu(&self, index: u8) -> KvmVcpu {
        let mut vcpu = self.vm.create_vcpu(index).unwrap();
        self.prepare(&mut vcpu);
        vcpu
    }

    /// Puts a virtual CPU into 64-bit mode at [`CODE`].
    pub(crate) fn prepare(&self, vcpu: &mut KvmVcpu) {
        vcpu.set_cpuid(self.hypervisor.supported_cpuid()).unwrap();
        let system = vcpu.system_registers().unwrap();
        vcpu.set_system_registers(&long_mode(&system)).unwrap();
        let registers = Registers { rip: CODE, rsp: STACK, rflags: 2, ..Registers::default() };
        vcpu.set_registers(&registers).unwrap();
    }

    /// A word of guest memory.
    pub(crate) fn word(&self, at: u64) -> u64 {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }
}

/// 64-bit mode at privilege level 0 over our page tables.
pub(crate) fn long_mode(system: &SystemRegisters) -> SystemRegisters {
    let code = Segment {
        base: 0,
        limit: u32::MAX,
        selector: 0x8,
        kind: 0b1011,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Segment::default()
    };
    let data = Segment { selector: 0x10, kind: 0b0011, db: 1, l: 0, ..code };
    SystemRegisters {
        cs: code,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        cr0: 0x8000_0031, // PG, NE, ET, PE
        cr3: PML4,
        cr4: 0x20,   // PAE
        efer: 0x500, // LMA, LME
        ..*system
    }
}
