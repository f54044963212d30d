//! `/dev/kvm` itself: opened once by whoever keeps a [`KvmHypervisor`], asked what it can do once in the process.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Cap, Kvm, VcpuFd, VmFd};

use super::vm::KvmVm;
use super::{convert, failed, state, unsafe_kick};
use crate::hypervisor::x86_64::{CpuidEntry, Msr, X86Hypervisor, msr};
use crate::hypervisor::{HostFacts, Hypervisor, HypervisorError};

/// The device.
const DEVICE: &str = "/dev/kvm";

/// `KVM_GET_API_VERSION` has answered this since Linux 2.6.22.
const API_VERSION: i32 = 12;

/// What is needed, and how to name it when it is missing.
const NEEDED: [(Cap, &str); 6] = [
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
    (Cap::Ioeventfd, "KVM_CAP_IOEVENTFD"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::AdjustClock, "KVM_CAP_ADJUST_CLOCK"),
    (Cap::VcpuEvents, "KVM_CAP_VCPU_EVENTS"),
];

/// How far the time stamp counter is set ahead to see whether it can be set: 2^42 cycles are more than 10 minutes, which
/// KVM does not take for an attempt to keep several processors in step, and the guest that sees it executes nothing.
const TSC_JUMP: u64 = 1 << 42;

/// `KVM_CREATE_VM` fails with EINTR when a signal comes at the wrong moment. Tried so often.
const CREATE_ATTEMPTS: u32 = 16;

/// What was found out about `/dev/kvm`; the same for all of its users in this process.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) facts: HostFacts,
    /// What CPUID may say in a guest.
    pub(super) cpuid: Vec<CpuidEntry>,
    /// The model-specific registers that are part of a virtual CPU's state.
    pub(super) msrs: Vec<u32>,
    /// Those that are not, and that a guest can write all the same, as they are in a new one.
    pub(super) unlisted: Vec<Msr>,
}

/// Filled by the first who opens [`DEVICE`].
static HOST: Mutex<Option<Arc<Host>>> = Mutex::new(None);

/// KVM, opened.
#[derive(Debug)]
pub struct KvmHypervisor {
    kvm: Kvm,
    host: Arc<Host>,
}

impl KvmHypervisor {
    /// Opens `/dev/kvm`. The first time in a process, a throw-away virtual machine shows what it can do (1 ms).
    ///
    /// # Errors
    /// It cannot be opened, speaks another version of the interface, or lacks a capability that is needed.
    pub fn open() -> Result<Self, HypervisorError> {
        let kvm = open_device(Path::new(DEVICE))?;
        let mut known = HOST.lock().unwrap_or_else(PoisonError::into_inner);
        let host = if let Some(host) = &*known {
            Arc::clone(host)
        } else {
            let host = Arc::new(examine(&kvm)?);
            *known = Some(Arc::clone(&host));
            host
        };
        Ok(Self { kvm, host })
    }
}

impl Hypervisor for KvmHypervisor {
    type Vm = KvmVm;

    fn facts(&self) -> &HostFacts {
        &self.host.facts
    }

    fn create_vm(&self) -> Result<KvmVm, HypervisorError> {
        // Each time, since other code may have taken the signal since.
        unsafe_kick::install()?;
        let vm = create_vm(&self.kvm)?;
        // Intel processors without "unrestricted guest" run real mode in a task of their own, which needs four pages that
        // no guest uses: below the 4 GiB line, where the firmware of a PC would be. Both are free elsewhere.
        vm.set_identity_map_address(0xfffb_c000).map_err(failed("KVM_SET_IDENTITY_MAP_ADDR"))?;
        vm.set_tss_address(0xfffb_d000).map_err(failed("KVM_SET_TSS_ADDR"))?;
        Ok(KvmVm::new(vm, Arc::clone(&self.host)))
    }
}

impl X86Hypervisor for KvmHypervisor {
    fn supported_cpuid(&self) -> &[CpuidEntry] {
        &self.host.cpuid
    }
}

/// Opens a device node.
fn open_device(device: &Path) -> Result<Kvm, HypervisorError> {
    let not_opened = |source| HypervisorError::NotOpened { device: device.display().to_string(), source };
    let path = CString::new(device.as_os_str().as_bytes())
        .map_err(|_| not_opened(std::io::ErrorKind::InvalidInput.into()))?;
    let kvm = Kvm::new_with_path(path)
        .map_err(|error| not_opened(std::io::Error::from_raw_os_error(error.errno())))?;
    if kvm.get_api_version() != API_VERSION {
        return Err(HypervisorError::Lacks { what: "version 12 of the KVM interface" });
    }
    for (capability, what) in NEEDED {
        if !kvm.check_extension(capability) {
            return Err(HypervisorError::Lacks { what });
        }
    }
    Ok(kvm)
}

/// `KVM_CREATE_VM`, again when a signal comes in between.
fn create_vm(kvm: &Kvm) -> Result<VmFd, HypervisorError> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match kvm.create_vm() {
            Ok(vm) => return Ok(vm),
            Err(error) if error.errno() == libc::EINTR && attempts < CREATE_ATTEMPTS => {}
            Err(error) => return Err(failed("KVM_CREATE_VM")(error)),
        }
    }
}

/// Asks KVM what it can do, partly by trying it on a virtual CPU that never runs.
fn examine(kvm: &Kvm) -> Result<Host, HypervisorError> {
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
    let vm = create_vm(kvm)?;
    let vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
    // Which registers there are depends on the features.
    vcpu.set_cpuid2(&cpuid).map_err(failed("KVM_SET_CPUID2"))?;

    let is_pvm = read_msr(&vcpu, msr::PVM_SIGNATURE_REGISTER) == Some(msr::PVM_SIGNATURE);
    let listed = kvm.get_msr_index_list().map_err(failed("KVM_GET_MSR_INDEX_LIST"))?;
    let own = is_pvm.then_some(msr::PVM_GUEST_PAGE);
    let msrs = listed
        .as_slice()
        .iter()
        .copied()
        .chain(own)
        .filter(|&index| read_msr(&vcpu, index).is_some())
        .collect();
    let mut cpuid: Vec<CpuidEntry> = cpuid.as_slice().iter().map(Into::into).collect();
    if kvm.check_extension(Cap::TscDeadlineTimer) {
        offer_deadline_timer(&mut cpuid);
    }
    let facts = HostFacts {
        name: if is_pvm { "kvm_pvm" } else { "kvm" },
        is_pvm,
        max_vcpus: kvm.get_max_vcpus(),
        is_shadowed: is_pvm || !has_two_dimensional_paging(),
        can_set_tsc: can_set_tsc(&vcpu),
        has_doorbells: true,
        page_size: 4096,
    };
    Ok(Host { facts, cpuid, msrs, unlisted: state::unlisted(&vcpu)? })
}

/// Whether the processor walks the guest's page tables itself (EPT, NPT). KVM's modules say so, if they are there to be asked.
fn has_two_dimensional_paging() -> bool {
    ["/sys/module/kvm_intel/parameters/ept", "/sys/module/kvm_amd/parameters/npt"]
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .any(|text| matches!(text.trim(), "Y" | "1"))
}

/// Says that the local APIC's timer takes a deadline in terms of the time stamp counter.
///
/// The interrupt chip inside KVM has that on every processor, but KVM tells of it by a capability of its own (KVM API,
/// 4.46), and only newer kernels among the supported features too. Without it Linux has to know the timer's frequency,
/// which it reads on Intel processors alone; on others it measures it against a timer that our machines lack, and goes
/// without any.
fn offer_deadline_timer(cpuid: &mut [CpuidEntry]) {
    for entry in cpuid.iter_mut().filter(|entry| entry.function == 1) {
        entry.ecx |= 1 << 24;
    }
}

/// Whether a time stamp that is written reads back: on kvm_pvm the write succeeds and does nothing.
fn can_set_tsc(vcpu: &VcpuFd) -> bool {
    let Some(before) = read_msr(vcpu, msr::IA32_TSC) else {
        return false;
    };
    let Ok(entry) = convert::msr_list(&[crate::hypervisor::x86_64::Msr {
        index: msr::IA32_TSC,
        value: before.wrapping_add(TSC_JUMP),
    }]) else {
        return false;
    };
    let written = matches!(vcpu.set_msrs(&entry), Ok(1));
    written && read_msr(vcpu, msr::IA32_TSC).is_some_and(|now| now.wrapping_sub(before) >= TSC_JUMP)
}

/// One register; `None` if the hypervisor does not know it.
fn read_msr(vcpu: &VcpuFd, index: u32) -> Option<u64> {
    let mut list = convert::msr_list(&[crate::hypervisor::x86_64::Msr { index, value: 0 }]).ok()?;
    match vcpu.get_msrs(&mut list) {
        Ok(1) => list.as_slice().first().map(|entry| entry.data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuidEntry, offer_deadline_timer};

    #[test]
    fn the_deadline_timer_is_a_feature_of_leaf_1_alone() {
        let entry = |function| CpuidEntry { function, ..CpuidEntry::default() };
        let mut cpuid = [entry(0), entry(1), entry(7)];
        offer_deadline_timer(&mut cpuid);
        assert_eq!(cpuid.map(|entry| entry.ecx), [0, 1 << 24, 0]);
    }
}
