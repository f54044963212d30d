//! A virtual CPU of KVM.

use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use kvm_ioctls::{VcpuExit, VcpuFd};

use super::unsafe_kick::{self, Target};
use super::unsafe_run_page::{ExitFlag, RunPage};
use super::vm::Inner;
use super::{failed, state};
use crate::after_fork::Released;
use crate::hypervisor::x86_64::{
    CpuidEntry, LocalApic, MpState, Msr, Registers, SystemRegisters, VcpuState, X86Vcpu,
};
use crate::hypervisor::{Exit, HypervisorError, Kick, Vcpu};

/// A virtual CPU, for the thread that made it.
///
/// Fields drop in the order written: the descriptor closes before the machine, and with it the guest's memory, may go.
pub struct KvmVcpu {
    _released: Released,
    pub(super) fd: VcpuFd,
    page: RunPage,
    flag: ExitFlag,
    target: Arc<Target>,
    pub(super) vm: Arc<Inner>,
    /// Not `Send`: the kick goes to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl KvmVcpu {
    pub(super) fn new(vm: &Arc<Inner>, index: u8) -> Result<Self, HypervisorError> {
        unsafe_kick::unblock_on_this_thread()?;
        let mut fd = vm.fd.create_vcpu(u64::from(index)).map_err(failed("KVM_CREATE_VCPU"))?;
        let released = Released::of(fd.as_raw_fd());
        let page = RunPage::map(&mut fd, vm.fd.run_size())?;
        let flag = page.exit_flag();
        let target = Arc::new(Target::this_thread());
        Ok(Self { _released: released, fd, page, flag, target, vm: Arc::clone(vm), _thread: PhantomData })
    }
}

impl Drop for KvmVcpu {
    fn drop(&mut self) {
        self.target.clear();
    }
}

impl std::fmt::Debug for KvmVcpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvmVcpu").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Vcpu for KvmVcpu {
    type Kicker = KvmKicker;

    fn run(&mut self) -> Result<Exit<'_>, HypervisorError> {
        match self.fd.run() {
            // Comes with an error number, which the crate has taken away.
            Ok(VcpuExit::MemoryFault { gpa, .. }) => {
                Err(HypervisorError::GuestMemoryGone { address: Some(gpa) })
            }
            Ok(_) => Ok(self.page.exit()),
            Err(error) => match error.errno() {
                libc::EINTR => {
                    self.flag.clear();
                    Ok(Exit::Kicked)
                }
                // A virtual CPU that waited for its start got an INIT or SIPI.
                libc::EAGAIN => Ok(Exit::Retry),
                libc::EFAULT | libc::EHWPOISON => Err(HypervisorError::GuestMemoryGone { address: None }),
                _ => Err(failed("KVM_RUN")(error)),
            },
        }
    }

    fn settle(&mut self) -> Result<Exit<'_>, HypervisorError> {
        self.flag.set();
        self.run()
    }

    fn kicker(&self) -> KvmKicker {
        KvmKicker { flag: self.flag.clone(), target: Arc::clone(&self.target) }
    }

    fn program_counter(&self) -> Result<u64, HypervisorError> {
        Ok(self.registers()?.rip)
    }

    fn tell_paused(&self) -> Result<(), HypervisorError> {
        match self.fd.kvmclock_ctrl() {
            Ok(()) => Ok(()),
            // The guest has not switched kvm-clock on.
            Err(error) if error.errno() == libc::EINVAL => Ok(()),
            Err(error) => Err(failed("KVM_KVMCLOCK_CTRL")(error)),
        }
    }

    fn state(&self) -> Result<VcpuState, HypervisorError> {
        state::get(self)
    }

    fn forget(&mut self) -> Result<(), HypervisorError> {
        state::forget(self)
    }

    fn set_lasting_state(&mut self, state: &VcpuState) -> Result<(), HypervisorError> {
        state::set_lasting(self, state)
    }

    fn set_momentary_state(&mut self, state: &VcpuState) -> Result<(), HypervisorError> {
        state::set_momentary(self, state)
    }
}

impl X86Vcpu for KvmVcpu {
    fn set_cpuid(&mut self, entries: &[CpuidEntry]) -> Result<(), HypervisorError> {
        state::set_cpuid(&self.fd, entries)
    }

    fn registers(&self) -> Result<Registers, HypervisorError> {
        Ok((&self.fd.get_regs().map_err(failed("KVM_GET_REGS"))?).into())
    }

    fn set_registers(&mut self, registers: &Registers) -> Result<(), HypervisorError> {
        self.fd.set_regs(&registers.into()).map_err(failed("KVM_SET_REGS"))
    }

    fn system_registers(&self) -> Result<SystemRegisters, HypervisorError> {
        Ok((&self.fd.get_sregs().map_err(failed("KVM_GET_SREGS"))?).into())
    }

    fn set_system_registers(&mut self, registers: &SystemRegisters) -> Result<(), HypervisorError> {
        self.fd.set_sregs(&registers.into()).map_err(failed("KVM_SET_SREGS"))
    }

    fn msrs(&self, indices: &[u32]) -> Result<Vec<Msr>, HypervisorError> {
        state::get_msrs(&self.fd, indices)
    }

    fn set_msrs(&mut self, msrs: &[Msr]) -> Result<(), HypervisorError> {
        state::set_msrs(&self.fd, msrs)
    }

    fn local_apic(&self) -> Result<LocalApic, HypervisorError> {
        Ok((&self.fd.get_lapic().map_err(failed("KVM_GET_LAPIC"))?).into())
    }

    fn set_local_apic(&mut self, state: &LocalApic) -> Result<(), HypervisorError> {
        self.fd.set_lapic(&state.try_into()?).map_err(failed("KVM_SET_LAPIC"))
    }

    fn tsc_khz(&self) -> Result<u32, HypervisorError> {
        self.fd.get_tsc_khz().map_err(failed("KVM_GET_TSC_KHZ"))
    }

    fn mp_state(&self) -> Result<MpState, HypervisorError> {
        (&self.fd.get_mp_state().map_err(failed("KVM_GET_MP_STATE"))?).try_into()
    }

    fn set_mp_state(&mut self, state: MpState) -> Result<(), HypervisorError> {
        self.fd.set_mp_state(state.into()).map_err(failed("KVM_SET_MP_STATE"))
    }
}

/// Interrupts a [`KvmVcpu`] from any thread.
#[derive(Clone)]
pub struct KvmKicker {
    flag: ExitFlag,
    target: Arc<Target>,
}

impl Kick for KvmKicker {
    fn kick(&self) {
        self.flag.set();
        self.target.send();
    }
}
