//! The monitor's state of a file, for tests that feed it anything.

use std::path::Path;

use hayfork_devices::serial::{self, SerialState};
use hayfork_devices::virtio::console::{self, ConsoleState};
use hayfork_devices::virtio::transport::mmio::{self, MmioState};
use hayfork_devices::virtio::vsock::state as vsock;

use super::{NAME, Saved, restored, save, state};
use crate::backend::BackendError;
use crate::hypervisor::x86_64::{
    ClockState, CpuidEntry, DebugRegisters, InterruptChipState, LocalApic, MpState, Msr, PendingEvents,
    Registers, SystemRegisters, VcpuState,
};
use crate::machine::{DevicesState, MachineState, STATE_VERSION};
use crate::memory::MemoryImage;
use crate::snapshot::{Admitted, Identity, SnapshotFile, Source, StateKind};

/// Writes what the file `from` holds to `to`, with its identity and its machine's state changed by `edit`.
///
/// # Errors
/// Whatever is wrong with the file, or it cannot be written.
pub fn rewrite(
    from: &Path,
    to: &Path,
    edit: impl FnOnce(Identity, &mut MachineState) -> Identity,
) -> Result<(), BackendError> {
    let file = SnapshotFile::open(from)?;
    let identity = file.identity().clone();
    let file = file.admit(&identity, StateKind::Monitor)?;
    let (mut saved, working_set) = state(&file)?;
    let identity = edit(identity, &mut saved.machine);
    let template = restored(&file, saved, working_set, None)?;
    save(&template, &identity, to, &file.into_about())
}

/// Reads all that a file says about a monitor's machine, as [`Backend::load`](crate::backend::Backend::load) does, and gives
/// nothing back.
///
/// # Errors
/// Whatever is wrong with it.
pub fn examine<S: Source>(file: &Admitted<S>) -> Result<(), BackendError> {
    let (saved, _) = state(file)?;
    let loaded = file.memory(NAME)?;
    let memory =
        MemoryImage::loaded(saved.ram, loaded.length, loaded.memory).map_err(super::super::prepare)?;
    memory.map(drop).ok_or_else(|| file.bad_state("its memory is not that of its machine").into())
}

/// The state of a small machine that never ran, with `ram` bytes of RAM.
pub fn sample(ram: u64) -> Vec<u8> {
    postcard::to_allocvec(&Saved { ram, console_bytes: 4096, machine: machine() }).unwrap_or_default()
}

/// Processors and devices of a small machine that never ran.
pub(crate) fn machine() -> MachineState {
    let vcpu = VcpuState {
        cpuid: vec![CpuidEntry::default(); 3],
        tsc_khz: 2_000_000,
        msrs: vec![Msr { index: 0x10, value: 1 }; 2],
        registers: Registers::default(),
        system: SystemRegisters::default(),
        xsave: vec![0; 4096],
        xcrs: Vec::new(),
        debug: DebugRegisters::default(),
        local_apic: LocalApic(vec![0; LocalApic::LENGTH]),
        events: PendingEvents::default(),
        mp_state: MpState::default(),
    };
    let transport = MmioState {
        version: mmio::STATE_VERSION,
        device_type: 19,
        status: 0,
        interrupt_status: 0,
        config_generation: 0,
        device_features_sel: 0,
        driver_features_sel: 0,
        driver_features: 0,
        alien_features: false,
        queue_sel: 0,
        queues: Vec::new(),
    };
    MachineState {
        version: STATE_VERSION,
        vcpus: vec![vcpu],
        interrupt_chip: InterruptChipState::default(),
        clock: ClockState::default(),
        devices: DevicesState {
            transports: vec![transport],
            vsock: vsock::VsockState {
                version: vsock::STATE_VERSION,
                guest_cid: 3,
                acked_features: 0,
                event_due: false,
                next_host_port: 1024,
                connections: Vec::new(),
                resets: Vec::new(),
            },
            console: ConsoleState {
                version: console::STATE_VERSION,
                input: Vec::new(),
                columns: 80,
                rows: 25,
            },
            block: None,
            serial: SerialState {
                version: serial::STATE_VERSION,
                baud_divisor_low: 0,
                baud_divisor_high: 0,
                interrupt_enable: 0,
                interrupt_identification: 0,
                line_control: 0,
                line_status: 0,
                modem_control: 0,
                modem_status: 0,
                scratch: 0,
                input: Vec::new(),
            },
        },
    }
}
