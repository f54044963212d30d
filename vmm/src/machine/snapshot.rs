//! Keeping a running machine, and making others that go on where it stood.
//!
//! # At rest
//! What is saved must hold everything: nothing may be on its way between two parts. So they come to rest in this order, and go
//! on in the other:
//!
//! ```text
//!  1  processors leave the guest, and finish the access that they were at     (vcpu: parked)
//!  2  the devices' thread finishes what it is at, and waits                   (device_loop: parked)
//!  3  processors, interrupt chip, clock, devices, memory are read
//! ```
//! Interrupts that were raised are with the interrupt chip by then: raising them is a call that ends when they are there.
//! Doorbells that rang and were not answered, and interrupts that the guest has not acknowledged, are repeated after a restore.
//!
//! # Restoring
//! Memory slots, interrupt chip, devices with their state, processors, doorbells, as for a new machine; then the state of the
//! interrupt chip, the clock, and each processor on its own thread. The guest's monotonic time goes on where it stood: no time has
//! passed for it. Its wall clock, randomness and name are the agent's to renew.
//!
//! # Streams
//! None is carried over. A guest sees its vsock connections reset, and the agent is connected to anew, as at boot. That
//! costs a round trip, and works whatever was on its way.

use std::fs::File;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use hayfork_devices::bounded::at_most;
use serde::{Deserialize, Serialize};

use super::{DevicesState, Machine, Shell, prepare, vcpu_error, working_set};
use crate::backend::{BackendError, MAX_VCPUS};
use crate::hypervisor::x86_64::{ClockState, InterruptChipState, MAX_ENTRIES, VcpuState};
use crate::hypervisor::{Hypervisor, HypervisorError, Vcpu, Vm};
use crate::memory::{GuestRam, ImageError, MemoryImage, layout};

/// Pages between two written ones that count as written: one call makes a whole range.
const GAP: u64 = 4;

/// Version of [`MachineState`]. Another version is not read.
pub const STATE_VERSION: u32 = 2;

/// How long processors and devices may take to come to rest. Only a disk that does not answer takes longer than some
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Everything about a machine at rest but its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineState {
    /// [`STATE_VERSION`] when it was saved.
    pub version: u32,
    /// Virtual CPUs, in order.
    #[serde(deserialize_with = "at_most::<MOST_VCPUS, _, _>")]
    pub vcpus: Vec<VcpuState>,
    /// Interrupt controllers.
    pub interrupt_chip: InterruptChipState,
    /// The clock.
    pub clock: ClockState,
    /// Devices.
    pub devices: DevicesState,
}

const MOST_VCPUS: usize = MAX_VCPUS as usize;

/// The largest XSAVE area, in bytes; a processor with AMX has 11 KiB.
const MAX_XSAVE: usize = 64 << 10;

impl MachineState {
    /// Looks at a state that was read from a file: what each part checks when it is set is not looked at here.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.version != STATE_VERSION {
            return Err("its state is of another version");
        }
        if !(1..=usize::from(MAX_VCPUS)).contains(&self.vcpus.len()) {
            return Err("its machine has no processors, or more than any can have");
        }
        // Also where a state was not read but made.
        let bounded = |vcpu: &VcpuState| {
            let lists = [vcpu.cpuid.len(), vcpu.msrs.len(), vcpu.xcrs.len(), vcpu.local_apic.0.len()];
            lists.into_iter().all(|length| length <= MAX_ENTRIES) && vcpu.xsave.len() <= MAX_XSAVE
        };
        if !self.vcpus.iter().all(bounded) {
            return Err("its processors have more registers than there are");
        }
        if self.devices.transports.len() > layout::MAX_DEVICES {
            return Err("its machine has more devices than any can have");
        }
        Ok(())
    }
}

/// A machine at rest, to make others of. Nobody can change it.
#[derive(Clone, Debug)]
pub struct Template {
    pub(crate) state: Arc<MachineState>,
    pub(crate) memory: Arc<MemoryImage>,
    pub(crate) root: Option<Arc<File>>,
    pub(crate) console_bytes: usize,
    /// Pages that a clone writes to before it is of use, by guest address.
    pub(crate) working_set: Vec<Range<u64>>,
}

impl Template {
    /// The same, with these pages for each clone ahead, by guest address: those that one was seen to write.
    #[must_use]
    pub fn with_working_set(&self, working_set: Vec<Range<u64>>) -> Self {
        Self { working_set, ..self.clone() }
    }

    /// Everything but the memory.
    pub fn state(&self) -> &MachineState {
        &self.state
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<MemoryImage> {
        &self.memory
    }

    /// Bytes that each clone gets ahead.
    pub fn working_set_bytes(&self) -> u64 {
        self.working_set.iter().map(|range| range.end - range.start).sum()
    }
}

impl<V: Vm> Machine<V> {
    /// Keeps the machine as it is now, and lets it go on.
    ///
    /// # Errors
    /// The machine has ended or does not come to rest, or there is no memory for the copy. The machine goes on in each case in
    /// which it can.
    pub fn capture(&self) -> Result<Template, BackendError> {
        let result = self.rest().and_then(|()| self.read());
        // What has ended stays so, and says how.
        let going = self.go();
        let template = result?;
        going?;
        Ok(template)
    }

    /// Steps 1 and 2 of the [module](self).
    pub(super) fn rest(&self) -> Result<(), BackendError> {
        self.vcpus.pause(PATIENCE).map_err(vcpu_error)?;
        if !self.devices.park(PATIENCE) {
            return Err(prepare(NotAtRest));
        }
        Ok(())
    }

    fn read(&self) -> Result<Template, BackendError> {
        let Some((vm, ram)) = &self.slow else { return Err(BackendError::Killed) };
        let vcpus = self.vcpus.on_each(|_, vcpu| vcpu.state()).map_err(vcpu_error)?;
        let state = MachineState {
            version: STATE_VERSION,
            vcpus: vcpus.into_iter().collect::<Result<_, HypervisorError>>()?,
            interrupt_chip: vm.interrupt_chip_state()?,
            clock: vm.clock()?,
            devices: self.kept.save(),
        };
        Ok(Template {
            state: Arc::new(state),
            memory: Arc::new(ram.capture().map_err(memory)?),
            root: self.root.clone(),
            console_bytes: self.console_bytes,
            working_set: Vec::new(),
        })
    }

    /// Makes a machine that goes on where the one of `template` stood.
    ///
    /// # Errors
    /// The state does not fit this host, or the host refuses something. Nothing is left behind.
    pub fn resume_from<H>(hypervisor: &H, template: &Template) -> Result<Self, BackendError>
    where
        H: Hypervisor<Vm = V>,
    {
        Self::resume_on(hypervisor, template, None)
    }

    /// The same with the device's end of the agent's stream from elsewhere, as [`Machine::start_on`].
    ///
    /// # Errors
    /// As [`Machine::resume_from`].
    pub fn resume_on<H>(
        hypervisor: &H,
        template: &Template,
        agent: Option<UnixStream>,
    ) -> Result<Self, BackendError>
    where
        H: Hypervisor<Vm = V>,
    {
        Shell::with_ram(hypervisor, template, agent, |ram| ram.populate(&template.working_set))?.start()
    }

    /// The same, for a machine of which [`Machine::working_set`] is asked later. Its pages are not made ahead, so that those that it
    /// uses can be told; and come in one by one where those that it only reads count as well, which is where page tables are kept by
    /// software.
    ///
    /// # Errors
    /// As [`Machine::resume_from`].
    pub fn resume_observed<H>(hypervisor: &H, template: &Template) -> Result<Self, BackendError>
    where
        H: Hypervisor<Vm = V>,
    {
        let is_shadowed = hypervisor.facts().is_shadowed;
        let prepare_ram = |ram: &mut GuestRam| {
            if is_shadowed {
                ram.observe();
            }
        };
        Shell::with_ram(hypervisor, template, None, prepare_ram)?.start()
    }

    /// Gives interrupt chip and clock their state, has `set` give the processors theirs, and lets everything go. Memory and devices have
    /// theirs, and all are parked.
    pub(super) fn go_on_as(
        &self,
        state: &Arc<MachineState>,
        set: impl Fn(&mut V::Vcpu, &VcpuState) -> Result<(), HypervisorError> + Send + Sync + 'static,
    ) -> Result<(), BackendError> {
        let (vm, _) = self.slow.as_ref().ok_or(BackendError::Killed)?;
        vm.set_interrupt_chip_state(&state.interrupt_chip)?;
        vm.set_clock(&state.clock)?;
        let (saved, resume_devices, resume_loop) =
            (Arc::clone(state), self.kept.resumer(), self.devices.resumer());
        let set = move |index: u8, vcpu: &mut V::Vcpu| {
            set(vcpu, &saved.vcpus[usize::from(index)])?;
            // A guest without the clock that this is told by has no watchdog that it would calm.
            let _ = vcpu.tell_paused();
            Ok::<_, HypervisorError>(())
        };
        let go = move || {
            resume_devices();
            resume_loop();
        };
        Ok(self.vcpus.resume_after(set, go).map_err(vcpu_error)??)
    }

    /// Guest addresses of pages that a machine like this one should have ahead, by what this one has used since it was made; see
    /// [`working_set`].
    ///
    /// # Errors
    /// The machine has been taken apart, or the kernel does not say.
    pub fn working_set(&self) -> Result<Vec<Range<u64>>, BackendError> {
        let (_, ram) = self.slow.as_ref().ok_or(BackendError::Killed)?;
        // Only a machine on such a host is.
        if ram.is_observed() {
            let (touched, written) = (ram.touched().map_err(memory)?, ram.written(0).map_err(memory)?);
            Ok(working_set::of(&touched, &written, ram.len()))
        } else {
            ram.written(GAP).map_err(memory)
        }
    }

    /// Guest addresses of pages that the guest has written since it was made, in whole pages; those less than `gap` pages apart
    /// come as one.
    ///
    /// # Errors
    /// The machine has been taken apart, or the kernel does not say.
    pub fn written(&self, gap: u64) -> Result<Vec<Range<u64>>, BackendError> {
        let (_, ram) = self.slow.as_ref().ok_or(BackendError::Killed)?;
        ram.written(gap).map_err(memory)
    }
}

fn memory(error: ImageError) -> BackendError {
    let ImageError::Io { what, source } = error;
    BackendError::Spawn { what, source }
}

/// The devices' thread is held up.
#[derive(Debug, thiserror::Error)]
#[error("the virtual machine's devices do not come to rest within {} s", PATIENCE.as_secs())]
struct NotAtRest;
