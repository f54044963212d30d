//! The traits of the seam. The table in the [module above](super) says what each call is on which hypervisor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::arch::{ClockState, InterruptChipState, VcpuState};
use super::{Exit, HypervisorError, MappedRegion};

/// A hypervisor of this host.
pub trait Hypervisor: Send + Sync {
    /// Its virtual machines.
    type Vm: Vm;

    /// What it is and can do. Found out once.
    fn facts(&self) -> &HostFacts;

    /// Creates a virtual machine without memory and virtual CPUs.
    ///
    /// # Errors
    /// The hypervisor refuses, the process has a machine already where there may be one only, or (KVM) the kick signal
    /// is [taken](HypervisorError::KickSignalTaken).
    fn create_vm(&self) -> Result<Self::Vm, HypervisorError>;
}

/// What a hypervisor is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostFacts {
    /// `kvm`, `kvm_pvm` or `hvf`.
    pub name: &'static str,
    /// kvm_pvm: only a guest kernel made for it runs at full speed.
    pub is_pvm: bool,
    /// Most virtual CPUs of one machine.
    pub max_vcpus: usize,
    /// Whether the hypervisor keeps page tables of its own for those of a guest, by software, and so has to see every change of
    /// them: memory that the host changes must be taken from the guest and given to it again. Also where that is not known.
    pub is_shadowed: bool,
    /// Whether a guest's time stamp counter can be set (and so differ from the host's). Where it cannot, a restored guest
    /// sees the host's, and must not take its time from it.
    pub can_set_tsc: bool,
    /// Whether [`Vm::doorbell`] makes any.
    pub has_doorbells: bool,
    /// Guest memory is to be aligned to this and come in multiples of it, in bytes.
    pub page_size: u64,
}

/// A virtual machine. Dropping it destroys it as soon as its virtual CPUs are gone too.
///
/// Methods that change the machine may be called while its virtual CPUs run; those that read or set state of the
/// interrupt chip and the clock give a consistent picture only while none does.
pub trait Vm: Send + Sync + 'static {
    /// Its virtual CPUs.
    type Vcpu: Vcpu;

    /// Makes a region guest memory. `slot` is a number of the caller's choice. The memory is not inherited by a process
    /// made with `fork`.
    ///
    /// # Errors
    /// The slot is in use, the region is empty, not aligned to pages, or overlaps another.
    fn map_memory(&self, slot: u32, region: &MappedRegion) -> Result<(), HypervisorError>;

    /// Takes a region from the guest again; accesses to it become device accesses.
    ///
    /// # Errors
    /// There is nothing in the slot, or the hypervisor refuses.
    fn unmap_memory(&self, slot: u32) -> Result<(), HypervisorError>;

    /// Creates the interrupt controllers inside the hypervisor: two PICs, an I/O APIC and a local APIC for each virtual
    /// CPU on x86, a GICv3 on arm64. After the memory, before the first virtual CPU.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn create_interrupt_chip(&self) -> Result<(), HypervisorError>;

    /// Creates virtual CPU number `index`, for the calling thread.
    ///
    /// # Errors
    /// The index is in use or too high, or the hypervisor refuses.
    fn create_vcpu(&self, index: u8) -> Result<Self::Vcpu, HypervisorError>;

    /// Makes an input of the interrupt chip that can be raised from any thread. Edge triggered: one
    /// [`raise`](InterruptTrigger::raise) is one interrupt, but for those that come before the guest took the last.
    ///
    /// `line` is an input of the I/O APIC (0 to 23) on x86, and a shared peripheral interrupt on arm64.
    ///
    /// # Errors
    /// There is no such line, or no interrupt chip.
    fn interrupt_line(&self, line: u32) -> Result<Box<dyn InterruptTrigger>, HypervisorError>;

    /// Makes a descriptor that counts the guest's 4-byte writes to `addr` (or, with a `value`, those that write that),
    /// without an exit. `None` where the hypervisor cannot: then the writes arrive as exits, as all others do.
    ///
    /// It lasts as long as the machine, whether or not the result is dropped.
    ///
    /// # Errors
    /// The address has one for this value already, or the hypervisor refuses.
    fn doorbell(&self, addr: u64, value: Option<u32>) -> Result<Option<Doorbell>, HypervisorError>;

    /// The machine's clock, from which the guest computes its time.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn clock(&self) -> Result<ClockState, HypervisorError>;

    /// Sets the clock: the guest's monotonic time goes on from there, as if none had passed.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn set_clock(&self, state: &ClockState) -> Result<(), HypervisorError>;

    /// State of the interrupt controllers, but for what belongs to each virtual CPU.
    ///
    /// # Errors
    /// There is no interrupt chip.
    fn interrupt_chip_state(&self) -> Result<InterruptChipState, HypervisorError>;

    /// Sets it. To be done when the virtual CPUs have been made, before their own state is set and before they run
    /// (Hypervisor.framework takes it at no other time).
    ///
    /// # Errors
    /// There is no interrupt chip, or the state is not one of it.
    fn set_interrupt_chip_state(&self, state: &InterruptChipState) -> Result<(), HypervisorError>;
}

/// A virtual CPU. It belongs to the thread that made it, and is not `Send` where an implementation takes that literally.
pub trait Vcpu {
    /// What brings it out of the guest.
    type Kicker: Kick;

    /// Executes the guest until something happens that is not the hypervisor's business.
    ///
    /// # Errors
    /// The guest cannot be executed at all; the machine is to be given up.
    fn run(&mut self) -> Result<Exit<'_>, HypervisorError>;

    /// Finishes the access that the last exit handed out, and executes no further instruction.
    ///
    /// [`Exit::Kicked`] says that nothing is left; every other exit is another part of the same access (a wide one comes
    /// in pieces), to be handled as one of [`run`](Vcpu::run), whereupon this is to be called again. State must not be
    /// read before `Kicked`: until then the guest's instruction is half done, in places that no state struct has.
    ///
    /// # Errors
    /// As [`run`](Vcpu::run).
    fn settle(&mut self) -> Result<Exit<'_>, HypervisorError>;

    /// A handle for other threads to interrupt [`run`](Vcpu::run) with.
    fn kicker(&self) -> Self::Kicker;

    /// The address of the next instruction, for reports.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn program_counter(&self) -> Result<u64, HypervisorError>;

    /// Tells the guest, where there is a way to, that it was stopped for a while, so that its watchdogs do not bark.
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn tell_paused(&self) -> Result<(), HypervisorError>;

    /// Everything that makes up this virtual CPU. It must be [settled](Vcpu::settle).
    ///
    /// # Errors
    /// The hypervisor refuses.
    fn state(&self) -> Result<VcpuState, HypervisorError>;

    /// Prepares one that has run for the state of another: what no [`VcpuState`] holds, and the guest can have changed, becomes
    /// what it is in one that was just made. It must be [settled](Vcpu::settle), and [set](Vcpu::set_state) before it runs again;
    /// all virtual CPUs of a machine are forgotten before any is set.
    ///
    /// # Errors
    /// The hypervisor refuses. The virtual CPU is not to be used any more then.
    fn forget(&mut self) -> Result<(), HypervisorError>;

    /// Makes this virtual CPU one that was saved. The machine's memory, interrupt chip and clock come first. One that has
    /// run keeps its features: then only a state with the same ones is taken.
    ///
    /// # Errors
    /// The state does not fit this hypervisor or processor. The virtual CPU is in no usable state then.
    fn set_state(&mut self, state: &VcpuState) -> Result<(), HypervisorError> {
        self.set_lasting_state(state)?;
        self.set_momentary_state(state)
    }

    /// The part of a state that depends on no moment, which may come long before the rest. The machine's memory and interrupt chip
    /// come first.
    ///
    /// # Errors
    /// As [`set_state`](Vcpu::set_state).
    fn set_lasting_state(&mut self, state: &VcpuState) -> Result<(), HypervisorError>;

    /// The rest of it, right before the virtual CPU runs: timers, time counters, and what is about to happen to it.
    ///
    /// # Errors
    /// As [`set_state`](Vcpu::set_state).
    fn set_momentary_state(&mut self, state: &VcpuState) -> Result<(), HypervisorError>;
}

/// Brings a virtual CPU out of the guest. Handles outlive the virtual CPU and do nothing then.
pub trait Kick: Clone + Send + Sync + 'static {
    /// The current [`run`](Vcpu::run), or else the next one, returns [`Exit::Kicked`] soon. Never blocks.
    fn kick(&self);
}

/// An input of the interrupt chip.
pub trait InterruptTrigger: Send + Sync {
    /// Raises the interrupt. When this returns, it has reached the interrupt chip, and is part of its state and that of the virtual
    /// CPUs. Never blocks, and there is nothing that the caller could do about a failure.
    fn raise(&self);
}

/// Counts guest writes to one address; readable when there were some.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// An eventfd, not blocking.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Takes the writes since the last call; 0 if there were none.
    pub fn drain(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<Doorbell> for OwnedFd {
    fn from(doorbell: Doorbell) -> Self {
        doorbell.0
    }
}
