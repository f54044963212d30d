//! A machine that is made ahead: everything that can be there before anybody wants it.
//!
//! Most of a restore is independent of who it is for: the virtual machine in the hypervisor, its memory slots with the template's
//! memory behind them and the working set in it, interrupt chip, processors and their threads with most of their state, devices with
//! theirs. A shell has all of it, at rest. What is left is what belongs to the moment: the clock, the processors' timers and time
//! counters, what waits for them, and letting go.
//!
//! ```text
//!  Shell::of ── RAM, slots, chip, processors, devices ──► (waits, any time) ── Shell::start ── chip, clock, timers ──► runs
//! ```
//! A restore without a shell is both in a row. No guest has run in a shell, so there is nothing in it that could be left over.

use std::any::Any;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::snapshot::{MachineState, STATE_VERSION, Template};
use super::{Machine, Parts, prepare};
use crate::backend::BackendError;
use crate::hypervisor::{Hypervisor, MappedRegion, Vcpu, Vm};
use crate::memory::GuestRam;

/// A machine of one template that has not begun. Dropping it takes it apart.
pub struct Shell<V: Vm> {
    machine: Machine<V>,
    state: Arc<MachineState>,
}

impl<V: Vm> Shell<V> {
    /// Makes one of `template`, with the working set in its memory.
    ///
    /// # Errors
    /// The state does not fit this host, or the host refuses something. Nothing is left behind.
    pub fn of<H>(hypervisor: &H, template: &Template) -> Result<Self, BackendError>
    where
        H: Hypervisor<Vm = V>,
    {
        Self::with_ram(hypervisor, template, None, |ram| ram.populate(&template.working_set))
    }

    /// The same, with the memory prepared in another way, and perhaps the agent's stream from elsewhere as for
    /// [`Machine::start_on`].
    pub(super) fn with_ram<H>(
        hypervisor: &H,
        template: &Template,
        agent: Option<UnixStream>,
        prepare_ram: impl FnOnce(&mut GuestRam),
    ) -> Result<Self, BackendError>
    where
        H: Hypervisor<Vm = V>,
    {
        let state = &template.state;
        let count = u8::try_from(state.vcpus.len()).map_err(prepare)?;
        if state.version != STATE_VERSION || count == 0 {
            return Err(prepare(Foreign));
        }
        let mut ram = GuestRam::of_image(&template.memory).map_err(prepare)?;
        prepare_ram(&mut ram);
        let vm = Arc::new(hypervisor.create_vm()?);
        for (slot, region) in (0u32..).zip(ram.regions()) {
            vm.map_memory(slot, &MappedRegion::from_mmap(region))?;
        }
        vm.create_interrupt_chip()?;
        let (root, console_bytes) = (template.root.clone(), template.console_bytes);
        let is_shadowed = hypervisor.facts().is_shadowed;
        let parts = Parts { root, console_bytes, saved: Some(&state.devices), agent, is_shadowed };
        let saved = Arc::clone(state);
        let set =
            move |index: u8, vcpu: &mut V::Vcpu| vcpu.set_lasting_state(&saved.vcpus[usize::from(index)]);
        let machine = Machine::assemble(Arc::clone(&vm), ram, parts, count, set)?;
        Ok(Self { machine, state: Arc::clone(state) })
    }

    /// Lets it go on where the template's machine stood.
    ///
    /// # Errors
    /// The host refuses something. Nothing is left behind.
    pub fn start(self) -> Result<Machine<V>, BackendError> {
        self.machine.go_on_as(&self.state, V::Vcpu::set_momentary_state)?;
        Ok(self.machine)
    }

    /// Ends all threads, and returns what is slow to drop.
    pub fn take_apart(mut self) -> Option<Box<dyn Any + Send>> {
        self.machine.kill();
        self.machine.take_apart()
    }

    /// As [`Machine::disown`].
    pub fn disown(mut self) {
        self.machine.disown();
    }
}

/// Not a state of this version.
#[derive(Debug, thiserror::Error)]
#[error("the saved machine is of another version of hayfork")]
struct Foreign;
