//! The probe's guest: four pages, 64-bit kernel mode (CPL 0), a counted loop that ends in a port write.
//!
//! ```text
//! guest-physical 0x0000  code: 1: dec ecx; jnz 1b; out 0x10, al
//!                0x1000  PML4[0]   -> 0x2000
//!                0x2000  PDPT[0]   -> 0x3000
//!                0x3000  PD[0]     -> 0x0, one page of 2 MiB
//! ```
//! No interrupt chip and no descriptor tables: segments are given in their loaded form, and nothing in the loop faults.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, Msrs, kvm_msr_entry, kvm_segment};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use rustix::time::{ClockId, clock_gettime};
use vm_memory::{Bytes, GuestAddress};

use super::unsafe_slot::Slot;
use super::{HARDWARE_RATE, RUN_BUDGET, Verdict};
use crate::hypervisor::x86_64::msr::{PVM_SIGNATURE, PVM_SIGNATURE_REGISTER};

/// Loop iterations of one run; each is two instructions. 3 to 7 ms for an interpreter, microseconds for hardware.
const ITERATIONS: u32 = 2_000;
/// The least number of runs before the verdict is "no hardware": where the host is a virtual machine on a busy host
/// itself, single runs are disturbed by what it does not see.
const LEAST_RUNS: u32 = 4;
/// The port that the guest writes when it is done.
const DONE_PORT: u8 = 0x10;
/// `1: dec ecx; jnz 1b; out DONE_PORT, al`
const CODE: [u8; 6] = [0xff, 0xc9, 0x75, 0xfc, 0xe6, DONE_PORT];

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PD: u64 = 0x3000;
const MEMORY: usize = 0x4000;

/// Page table entry flags: present, writable, and for the last level a large page.
const TABLE: u64 = 0b11;
const LARGE_PAGE: u64 = 0b1000_0011;

// Control register bits (Intel SDM volume 3, 2.5) and EFER bits (2.2.1).
const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

/// Opens the device and measures.
pub(super) fn measure(device: &Path) -> Verdict {
    let Ok(path) = CString::new(device.as_os_str().as_bytes()) else {
        return Verdict::Absent;
    };
    let kvm = match Kvm::new_with_path(path) {
        Ok(kvm) => kvm,
        Err(error) => return not_opened(error.errno()),
    };
    match run_guest(&kvm) {
        Ok((rate, _)) if rate >= HARDWARE_RATE => Verdict::Hardware { rate },
        Ok((rate, true)) => Verdict::KvmPvm { rate },
        Ok((rate, false)) => Verdict::Emulating { rate },
        Err(detail) => Verdict::Broken { detail },
    }
}

/// What an error of `open` says about the device.
pub(super) fn not_opened(errno: i32) -> Verdict {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOTDIR => Verdict::Absent,
        Errno::ACCESS | Errno::PERM => Verdict::NoPermission,
        other => Verdict::Broken { detail: format!("opening it: {other}") },
    }
}

/// Runs the loop; instructions a second of the best run, and whether this is kvm_pvm.
fn run_guest(kvm: &Kvm) -> Result<(f64, bool), String> {
    let version = kvm.get_api_version();
    // KVM_API_VERSION has been 12 since Linux 2.6.22 and is not to change.
    if version != 12 {
        return Err(format!("it speaks version {version} of the interface, not 12"));
    }
    let vm = kvm.create_vm().map_err(failed("creating a virtual machine"))?;
    let slot = Slot::new(vm, MEMORY)?;
    let memory = slot.memory();
    let write = |bytes: &[u8], at: u64| {
        memory.write_slice(bytes, GuestAddress(at)).map_err(|error| format!("filling guest memory: {error}"))
    };
    write(&CODE, 0)?;
    write(&(PDPT | TABLE).to_le_bytes(), PML4)?;
    write(&(PD | TABLE).to_le_bytes(), PDPT)?;
    write(&LARGE_PAGE.to_le_bytes(), PD)?;

    let mut vcpu = slot.vm().create_vcpu(0).map_err(failed("creating a virtual CPU"))?;
    // A virtual CPU that was told of no features has no 64-bit mode.
    let features =
        kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(failed("reading the supported features"))?;
    vcpu.set_cpuid2(&features).map_err(failed("setting the features"))?;
    enter_long_mode(&vcpu)?;
    let is_pvm = is_pvm(&vcpu);

    let start = Instant::now();
    let mut best = 0.0f64;
    let mut runs = 0;
    while best < HARDWARE_RATE && (runs < LEAST_RUNS || start.elapsed() < RUN_BUDGET) {
        let time = one_run(&mut vcpu)?;
        // Two instructions each iteration, and the port write.
        best = best.max((2.0 * f64::from(ITERATIONS) + 1.0) / time.as_secs_f64().max(1e-9));
        runs += 1;
    }
    Ok((best, is_pvm))
}

/// Puts the virtual CPU into 64-bit mode at privilege level 0, paging on.
fn enter_long_mode(vcpu: &VcpuFd) -> Result<(), String> {
    let mut registers = vcpu.get_sregs().map_err(failed("reading registers"))?;
    let code = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: 0x8,
        type_: 0b1011, // code, readable, accessed
        present: 1,
        dpl: 0,
        db: 0,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 0x10, type_: 0b0011, db: 1, l: 0, ..code };
    registers.cs = code;
    registers.ds = data;
    registers.es = data;
    registers.fs = data;
    registers.gs = data;
    registers.ss = data;
    registers.cr0 = CR0_PE | CR0_ET | CR0_NE | CR0_PG;
    registers.cr3 = PML4;
    registers.cr4 = CR4_PAE;
    registers.efer = EFER_LME | EFER_LMA;
    vcpu.set_sregs(&registers).map_err(failed("setting system registers"))
}

/// Whether the signature register is there and reads as kvm_pvm's.
fn is_pvm(vcpu: &VcpuFd) -> bool {
    let entry = kvm_msr_entry { index: PVM_SIGNATURE_REGISTER, ..Default::default() };
    let Ok(mut registers) = Msrs::from_entries(&[entry]) else {
        return false;
    };
    // KVM reads as many as it knows: 0 on an ordinary one (or 1 and the value 0, with kvm.ignore_msrs).
    matches!(vcpu.get_msrs(&mut registers), Ok(1))
        && registers.as_slice().first().is_some_and(|entry| entry.data == PVM_SIGNATURE)
}

/// Runs the loop once from its start; the time this thread spent in it. The thread's own clock, since on a loaded host
/// others run in between.
fn one_run(vcpu: &mut VcpuFd) -> Result<Duration, String> {
    let mut registers = vcpu.get_regs().map_err(failed("reading registers"))?;
    registers.rip = 0;
    registers.rcx = u64::from(ITERATIONS);
    registers.rflags = 2; // bit 1 is always set
    vcpu.set_regs(&registers).map_err(failed("setting registers"))?;
    let start = thread_time();
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(port, _)) if port == u16::from(DONE_PORT) => break,
            Ok(VcpuExit::Intr) => {}
            Ok(exit) => return Err(format!("the probe's guest stopped by {exit:?}")),
            // A signal for this thread; its handler has run by now.
            Err(error) if error.errno() == rustix::io::Errno::INTR.raw_os_error() => {}
            Err(error) => return Err(failed("running the probe's guest")(error)),
        }
    }
    let time = thread_time().saturating_sub(start);
    // The write must have come at the end of the loop, else the measure means nothing.
    let registers = vcpu.get_regs().map_err(failed("reading registers"))?;
    if registers.rcx & 0xffff_ffff != 0 {
        return Err(format!("the probe's guest stopped with {} iterations left", registers.rcx));
    }
    Ok(time)
}

/// Processor time of this thread, in user and kernel mode.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The clock starts at 0 with the thread, so neither part is negative.
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Says what failed.
fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> String {
    move |error| format!("{what}: {error}")
}
