//! Making a restored machine again what it was when it was restored, in its place.
//!
//! A machine that is spent still has what takes long to make and to take apart: the virtual machine in the hypervisor, its
//! memory slots, interrupt chip, doorbells, threads. All of it can serve another guest if nothing is left of the last one:
//!
//! ```text
//!  1  processors and devices come to rest                                    (as for a capture)
//!  2  processors forget what no saved state has                              (Vcpu::forget)
//!  3  memory: pages of the machine's own are dropped, the template's remain; the working set is made again
//!  4  console, counters; devices, with the template's state and other host ends: streams of the last guest end here
//!  5  interrupt chip, clock, processors get the template's state; everything goes
//! ```
//! The devices' thread goes on with other subscribers, so that no event that was meant for the last guest reaches the next.
//! What rang before lies in counters that are drained when everything is at rest.
//!
//! # Page tables by software
//! Where the hypervisor translates the guest's page tables by software, it has copies of them, which follow the guest's
//! writes. Step 3 changes them behind its back: it sees that pages are gone, and forgets what points at them, but not that a
//! page table has other entries. So there the memory slots are taken away before step 3 and set again after it, which makes KVM
//! drop all of its tables (`kvm_arch_flush_shadow_memslot`). With page tables in two dimensions it has none of the guest's.
//!
//! # What fails
//! A machine of which a step has failed is in no known state, and ends. Whoever wanted it makes another.

use std::sync::Arc;

use super::snapshot::Template;
use super::{Machine, prepare, vcpu_error};
use crate::backend::BackendError;
use crate::hypervisor::{HypervisorError, MappedRegion, Vcpu, Vm};

impl<V: Vm> Machine<V> {
    /// Makes it what [`Machine::resume_from`] would make of `template`, which must be the one that it was made of.
    /// Its owner's stream to the agent ends, and [`Machine::take_channel`] has the new one.
    ///
    /// # Errors
    /// It has ended, was made of something else, or the host refuses something. Then it has ended, or is about to.
    pub fn reset_to(&mut self, template: &Template) -> Result<(), BackendError> {
        let done = self.try_reset(template);
        if done.is_err() {
            self.kill();
        }
        done
    }

    fn try_reset(&mut self, template: &Template) -> Result<(), BackendError> {
        // Its owner has no business with this guest any more.
        self.channel = None;
        self.rest()?;
        let forgotten = self.vcpus.on_each(|_, vcpu| vcpu.forget()).map_err(vcpu_error)?;
        forgotten.into_iter().collect::<Result<(), HypervisorError>>()?;

        let is_shadowed = self.is_shadowed;
        let (vm, ram) = self.slow.as_mut().ok_or(BackendError::Killed)?;
        if !ram.base().is_some_and(|base| Arc::ptr_eq(base, template.memory())) {
            return Err(prepare(OtherTemplate));
        }
        let slots = || (0u32..).zip(ram.regions().to_vec());
        if is_shadowed {
            slots().try_for_each(|(slot, _)| vm.unmap_memory(slot))?;
        }
        let slots = slots();
        ram.rewind().map_err(|source| BackendError::Spawn { what: "dropping a guest's memory", source })?;
        if is_shadowed {
            for (slot, region) in slots {
                vm.map_memory(slot, &MappedRegion::from_mmap(&region))?;
            }
        }
        ram.populate(&template.working_set);

        self.console.clear();
        self.vcpus.forget_exits();
        self.channel = Some(self.kept.rewind(&template.state.devices, &self.devices)?);
        self.go_on_as(&template.state, V::Vcpu::set_state)
    }
}

/// A machine of one template is to become one of another.
#[derive(Debug, thiserror::Error)]
#[error("the machine was not made of this template")]
struct OtherTemplate;
