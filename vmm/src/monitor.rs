//! The monitor as a [`Backend`]: machines run in this process.
//!
//! [`Monitor::check`](Backend::check) looks at `/dev/kvm` once, and refuses it where it only emulates: a guest would not get
//! through its boot. On kvm_pvm it boots the kernel that is made for that. Kernel and initramfs are read once and kept for the next guest.
//!
//! In a child made by `fork` without `exec` a machine's handle is inert. Its threads are the parent's, and so are its memory
//! (not inherited) and its virtual CPUs (KVM refuses every call); dropping the handle there forgets everything, so that
//! nothing is closed or unmapped that the child has in the same place by then.

mod images;
mod machine;
mod reaper;
mod saved;
mod template;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::{
    Accelerator, Backend, BackendError, Capabilities, ImageDigests, Machine as BackendMachine, MachineSpec,
    SpecError, Template as BackendTemplate,
};
use crate::device_loop::AGENT_PORT;
use crate::hypervisor::kvm::KvmHypervisor;
use crate::hypervisor::probe::{self, Verdict};
use crate::hypervisor::x86_64::X86Hypervisor;
use crate::hypervisor::{HostFacts, Hypervisor};
use crate::machine::{Blueprint, Machine, Template};
use crate::snapshot::Identity;

use self::images::Images;
pub(crate) use self::machine::MonitorMachine;
pub(crate) use self::template::MonitorTemplate;
pub use reaper::settle;
#[cfg(any(test, feature = "testing"))]
pub use saved::testing;

/// Most processors of a guest: as many as its kernel is built for.
const MAX_VCPUS: u8 = 8;

/// Room in the table of descriptors: the usual limit. A machine takes about 30.
const DESCRIPTORS: i32 = 1024;

/// Runs machines in this process.
#[derive(Debug, Default)]
pub struct Monitor {
    /// What the check found; empty until it has succeeded.
    ready: Mutex<Option<Arc<Ready>>>,
    images: Images,
}

#[derive(Debug)]
struct Ready {
    hypervisor: KvmHypervisor,
    capabilities: Capabilities,
}

impl Ready {
    /// What must be the same where a machine of these images goes on.
    fn identity(&self, images: &ImageDigests) -> Result<Identity, BackendError> {
        let flavour = self.capabilities.kernel;
        saved::identity(self.hypervisor.facts(), self.hypervisor.supported_cpuid(), flavour, images)
    }

    /// Writes a template of a machine of these images.
    fn save(
        &self,
        template: &Template,
        digests: Option<&ImageDigests>,
        path: &Path,
        about: &[u8],
    ) -> Result<(), BackendError> {
        let Some(digests) = digests else {
            return Err(BackendError::Unsupported {
                what: "a machine whose files are not named by digests cannot be saved",
            });
        };
        saved::save(template, &self.identity(digests)?, path, about)
    }
}

/// Says what does not fit.
#[allow(clippy::needless_pass_by_value)] // Handed over by `map_err`.
fn prepare(error: impl std::error::Error) -> BackendError {
    BackendError::Prepare { detail: error.to_string() }
}

impl Monitor {
    /// A monitor that has not looked at the host yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The hypervisor, opened at the first call, and again as long as that fails.
    fn ready(&self) -> Result<Arc<Ready>, BackendError> {
        // Assigned whole or not at all, so a panic elsewhere leaves it good.
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = &*ready {
            return Ok(Arc::clone(ready));
        }
        let opened = KvmHypervisor::open();
        // kvm_pvm says so itself; what others are is found out by running a guest. That also says why nothing opens.
        if !opened.as_ref().is_ok_and(|hypervisor| hypervisor.facts().is_pvm) {
            let verdict = probe::verdict();
            if !matches!(verdict, Verdict::Hardware { .. } | Verdict::KvmPvm { .. }) {
                return Err(BackendError::AcceleratorUnusable {
                    detail: verdict.to_string(),
                    remedy: verdict.remedy().unwrap_or("Use another backend."),
                });
            }
        }
        let hypervisor = opened?;
        grow_descriptor_table();
        let capabilities = capabilities(hypervisor.facts());
        Ok(Arc::clone(ready.insert(Arc::new(Ready { hypervisor, capabilities }))))
    }
}

/// Makes room for the descriptors of machines once. The kernel doubles a process's table whenever it is full and, in a process
/// with threads, waits until no processor looks at the old one: tens of milliseconds in the middle of a start.
fn grow_descriptor_table() {
    let Ok(file) = std::fs::File::open("/dev/null") else { return };
    // Dropped at once; the table stays. Where the limit is lower, machines will meet it anyway.
    let _ = rustix::io::fcntl_dupfd_cloexec(&file, DESCRIPTORS - 1);
}

fn capabilities(facts: &HostFacts) -> Capabilities {
    let description = format!("hayfork's monitor on {}", facts.name);
    let mut capabilities = Capabilities::new("monitor", description, Accelerator::Kvm);
    if facts.is_pvm {
        capabilities = capabilities.on_kvm_pvm();
    }
    capabilities.max_vcpus = u8::try_from(facts.max_vcpus).unwrap_or(u8::MAX).min(MAX_VCPUS);
    capabilities
}

impl Backend for Monitor {
    fn name(&self) -> &'static str {
        "monitor"
    }

    fn check(&self) -> Result<Capabilities, BackendError> {
        Ok(self.ready()?.capabilities.clone())
    }

    fn launch(&self, spec: &MachineSpec) -> Result<Box<dyn BackendMachine>, BackendError> {
        Ok(Box::new(self.start(spec)?))
    }

    fn load(
        &self,
        path: &Path,
        images: &ImageDigests,
        root_image: Option<&Path>,
    ) -> Result<(Arc<dyn BackendTemplate>, Vec<u8>), BackendError> {
        let (template, about) = self.load_template(path, images, root_image)?;
        Ok((Arc::new(self.template(template, Some(images.clone()))?), about))
    }
}

impl Monitor {
    /// As [`Backend::launch`], for whoever makes the machines.
    pub(crate) fn start(&self, spec: &MachineSpec) -> Result<MonitorMachine, BackendError> {
        let ready = self.ready()?;
        let blueprint = self.blueprint(spec, ready.capabilities.max_vcpus)?;
        let machine = Machine::start(&ready.hypervisor, blueprint)?;
        tracing::debug!(name = spec.name, "started a virtual machine");
        Ok(MonitorMachine::new(ready, machine, spec.digests.clone()))
    }

    /// A guest at rest as a template of this monitor.
    pub(crate) fn template(
        &self,
        template: Template,
        digests: Option<ImageDigests>,
    ) -> Result<MonitorTemplate, BackendError> {
        Ok(MonitorTemplate::new(self.ready()?, template, digests))
    }

    /// As [`Backend::load`], for whoever makes the machines.
    pub(crate) fn load_template(
        &self,
        path: &Path,
        images: &ImageDigests,
        root_image: Option<&Path>,
    ) -> Result<(Template, Vec<u8>), BackendError> {
        let identity = self.ready()?.identity(images)?;
        let root = root_image.map(|path| images::open("root image", path)).transpose()?;
        saved::load(path, &identity, root)
    }

    /// As [`BackendTemplate::save`].
    pub(crate) fn save_template(
        &self,
        template: &Template,
        digests: Option<&ImageDigests>,
        path: &Path,
        about: &[u8],
    ) -> Result<(), BackendError> {
        self.ready()?.save(template, digests, path, about)
    }

    /// Checks a spec, and gets everything that its machine is made of. `most` processors are to be had.
    pub(crate) fn blueprint(&self, spec: &MachineSpec, most: u8) -> Result<Blueprint, BackendError> {
        spec.validate()?;
        if spec.vcpus > most {
            return Err(BackendError::BadSpec(SpecError::VcpusHere { given: spec.vcpus, most }));
        }
        let kernel = self.images.kernel(&spec.kernel)?;
        let initramfs = self.images.initramfs(&spec.initramfs)?;
        let root = spec.root_image.as_deref().map(|path| images::open("root image", path)).transpose()?;
        Ok(Blueprint {
            ram: u64::from(spec.memory_mib) << 20,
            vcpus: spec.vcpus,
            kernel,
            initramfs_len: initramfs.len,
            initramfs: Arc::clone(&initramfs.image),
            root,
            command_line: spec.command_line(&format!("vsock:{AGENT_PORT}")),
            console_bytes: spec.console_bytes,
        })
    }
}
