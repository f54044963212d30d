//! A machine for tiny guests.
//!
//! ```text
//! guest-physical 0x0_1000  PML4, PDPT and four page directories: 4 GiB mapped to themselves in pages of 2 MiB
//!                0x0_8000  interrupt descriptor table: vector 0x40, which is line 5 of the interrupt chip
//!                0x0_9000  global descriptor table
//!                0x1_0000  code; 256 bytes after it the handler of the interrupt
//!                0x2_0000  its stack, downwards
//!                0x3_0000  data
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hayfork_vmm::hypervisor::kvm::{KvmHypervisor, KvmVcpu, KvmVm};
use hayfork_vmm::hypervisor::probe::{Verdict, probe};
use hayfork_vmm::hypervisor::x86_64::{
    DescriptorTable, MpState, Registers, Segment, SystemRegisters, X86Hypervisor, X86Vcpu,
};
use hayfork_vmm::hypervisor::{Hypervisor, HypervisorError, MappedRegion, Vm};
use hayfork_vmm::vcpu::{End, Exits, Flow, StopCause, VcpuThreads};
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
const IDT: u64 = 0x8000;
const GDT: u64 = 0x9000;
const HANDLER: u64 = CODE + 0x100;

/// The vector of the interrupt that guests handle.
pub(crate) const VECTOR: u8 = 0x40;
/// The input of the interrupt chip that gives it, after [`Machine::route_interrupt`].
pub(crate) const LINE: u32 = 5;
/// Spurious interrupt vector register of a local APIC: bit 8 switches it on (SDM volume 3, 11.9).
pub(crate) const APIC_SPURIOUS: usize = 0xf0;

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
        machine.write_tables();
        machine.memory.write_slice(code, GuestAddress(CODE)).unwrap();
        machine
    }

    fn write_tables(&self) {
        let write = |value: u64, at: u64| self.memory.write_obj(value, GuestAddress(at)).unwrap();
        write(PDPT | 0b11, PML4);
        for directory in 0..4 {
            write((PD + directory * 0x1000) | 0b11, PDPT + directory * 8);
        }
        for page in 0..2048 {
            // Present, writable, large.
            write((page << 21) | 0b1000_0011, PD + page * 8);
        }
        // Null, code, data (SDM volume 3, 3.4.5).
        for (index, descriptor) in (0..).zip([0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff]) {
            write(descriptor, GDT + index * 8);
        }
        // An interrupt gate in 64-bit mode (SDM volume 3, figure 6-8).
        let gate = (HANDLER & 0xffff) | 0x8 << 16 | 0x8e00 << 32 | (HANDLER >> 16 & 0xffff) << 48;
        write(gate, IDT + u64::from(VECTOR) * 16);
        write(HANDLER >> 32, IDT + u64::from(VECTOR) * 16 + 8);
    }

    /// Has the guest's handler handle the fault or interrupt of this vector too.
    pub(crate) fn handle(&self, vector: u8) {
        for half in [0, 8] {
            let gate = self.word(IDT + u64::from(VECTOR) * 16 + half);
            self.memory.write_obj(gate, GuestAddress(IDT + u64::from(vector) * 16 + half)).unwrap();
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
        prepare(&self.hypervisor, vcpu).unwrap();
    }

    /// Virtual CPUs on threads, parked, each about to execute at [`CODE`].
    pub(crate) fn threads<E: Exits>(&self, count: u8, exits: &Arc<E>) -> VcpuThreads<KvmVm> {
        let hypervisor = Arc::clone(&self.hypervisor);
        VcpuThreads::create(&self.vm, count, exits, move |_, vcpu| prepare(&hypervisor, vcpu)).unwrap()
    }

    /// Makes [`LINE`] interrupt the first virtual CPU with [`VECTOR`], edge triggered.
    pub(crate) fn route_interrupt(&self) {
        let mut chip = self.vm.interrupt_chip_state().unwrap();
        // The PICs have the lines too, and nothing masked as they come out of reset.
        for pic in &mut chip.pics {
            pic.imr = 0xff;
        }
        chip.io_apic.redirection[usize::try_from(LINE).unwrap()] = u64::from(VECTOR);
        self.vm.set_interrupt_chip_state(&chip).unwrap();
    }

    /// A word of guest memory.
    pub(crate) fn word(&self, at: u64) -> u64 {
        self.memory.read_obj(GuestAddress(at)).unwrap()
    }
}

/// Puts a virtual CPU into 64-bit mode at [`CODE`], whatever it was before.
pub(crate) fn prepare(hypervisor: &KvmHypervisor, vcpu: &mut KvmVcpu) -> Result<(), HypervisorError> {
    vcpu.set_cpuid(hypervisor.supported_cpuid())?;
    let system = vcpu.system_registers()?;
    vcpu.set_system_registers(&long_mode(&system))?;
    vcpu.set_registers(&Registers { rip: CODE, rsp: STACK, rflags: 2, ..Registers::default() })?;
    // There is a local APIC only where there is an interrupt chip.
    if let Ok(mut apic) = vcpu.local_apic() {
        apic.set_register(APIC_SPURIOUS, 0x1ff);
        vcpu.set_local_apic(&apic)?;
        // All but the first wait for a start.
        vcpu.set_mp_state(MpState::Runnable)?;
    }
    Ok(())
}

/// Waits for the end of a machine, and fails if that takes long.
pub(crate) fn wait_for_end(threads: &VcpuThreads<KvmVm>) -> &End {
    wait_until("the end", || threads.end().is_some());
    threads.end().unwrap()
}

/// Waits for something, and fails if that takes long: 10 seconds, since machines are busy and guests interpreted.
pub(crate) fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
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
        cr0: 0x8000_0033, // PG, NE, ET, MP, PE
        cr3: PML4,
        gdt: DescriptorTable { base: GDT, limit: 3 * 8 - 1 },
        idt: DescriptorTable { base: IDT, limit: (u16::from(VECTOR) + 1) * 16 - 1 },
        cr4: 0x620,  // OSXMMEXCPT, OSFXSR, PAE
        efer: 0x500, // LMA, LME
        ..*system
    }
}

/// An access of the guest, as the threads' tests note it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read(u64, usize),
    Write(u64, Vec<u8>),
    In(u16, usize),
    Out(u16, Vec<u8>),
}

/// One register of memory at 0x1000_0000, and all ports; notes the accesses up to a limit. 0xfe to port 0x64 is a reset,
/// a byte to port 0xf4 the end of a test.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) accesses: Mutex<Vec<Access>>,
    pub(crate) register: AtomicU32,
}

/// Most accesses that are noted.
const NOTED: usize = 10_000;

impl Recorder {
    fn note(&self, access: Access) {
        let mut accesses = self.accesses.lock().unwrap();
        if accesses.len() < NOTED {
            accesses.push(access);
        }
    }

    pub(crate) fn accesses(&self) -> Vec<Access> {
        self.accesses.lock().unwrap().clone()
    }
}

/// Where [`Recorder`] has its register.
pub(crate) const REGISTER: u64 = 0x1000_0000;

impl Exits for Recorder {
    fn mmio_read(&self, addr: u64, data: &mut [u8]) -> Flow {
        self.note(Access::Read(addr, data.len()));
        data.fill(0xff);
        if addr == REGISTER && data.len() == 4 {
            data.copy_from_slice(&self.register.load(Ordering::SeqCst).to_le_bytes());
        }
        Flow::Continue(())
    }

    fn mmio_write(&self, addr: u64, data: &[u8]) -> Flow {
        self.note(Access::Write(addr, data.to_vec()));
        if let (REGISTER, Ok(bytes)) = (addr, data.try_into()) {
            self.register.store(u32::from_le_bytes(bytes), Ordering::SeqCst);
        }
        Flow::Continue(())
    }

    fn port_in(&self, port: u16, data: &mut [u8]) -> Flow {
        self.note(Access::In(port, data.len()));
        data.fill(0xff);
        Flow::Continue(())
    }

    fn port_out(&self, port: u16, data: &[u8]) -> Flow {
        self.note(Access::Out(port, data.to_vec()));
        match (port, data) {
            (0x64, [0xfe]) => Flow::Break(StopCause::Reset),
            (0xf4, _) => Flow::Break(StopCause::PowerOff),
            _ => Flow::Continue(()),
        }
    }
}
