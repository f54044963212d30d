//! The backend: checks once, then launches.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hayfork_vmm::backend::{
    Accelerator, Backend, BackendError, Capabilities, ImageDigests, Machine, MachineSpec, Place, Template,
};
use hayfork_vmm::hypervisor::probe;

use crate::accel::{self, AcceleratorChoice};
use crate::binary::{self, Binary};
use crate::command::{DEFAULT_TRANSLATION_BUFFER_MIB, Engine};
use crate::host_clock::{Reading, khz_since};
use crate::machine::QemuMachine;
use crate::{images, saved};

/// How to run QEMU. The default finds everything by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuOptions {
    /// The binary; `None`: `HAYFORK_QEMU`, then `PATH`.
    pub binary: Option<PathBuf>,
    /// What executes the guest's instructions.
    pub accelerator: AcceleratorChoice,
    /// Size of the translator's buffer in MiB, which bounds a part of QEMU's private memory.
    pub translation_buffer_mib: u32,
}

impl Default for QemuOptions {
    fn default() -> Self {
        Self {
            binary: None,
            accelerator: AcceleratorChoice::Auto,
            translation_buffer_mib: DEFAULT_TRANSLATION_BUFFER_MIB,
        }
    }
}

/// Runs machines under QEMU.
#[derive(Debug, Default)]
pub struct Qemu {
    options: QemuOptions,
    /// What the check found; empty until it has succeeded.
    checked: Mutex<Option<Checked>>,
}

/// What the check finds out.
#[derive(Clone, Debug)]
struct Checked {
    binary: Binary,
    engine: Engine,
    capabilities: Capabilities,
}

impl Qemu {
    /// A backend with these options. Looks at nothing yet.
    pub fn new(options: QemuOptions) -> Self {
        Self { options, checked: Mutex::default() }
    }

    /// The binary and what it can do; looked for at the first call, and again as long as that failed.
    fn checked(&self) -> Result<Checked, BackendError> {
        // Assigned whole or not at all, so a panic elsewhere leaves it good.
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*checked {
            return Ok(found.clone());
        }
        let start = Reading::now();
        let binary = binary::find(self.options.binary.as_deref())?;
        let (accelerator, notes) = accel::choose(self.options.accelerator, probe::verdict)?;
        let engine = Engine {
            accelerator,
            translation_buffer_mib: self.options.translation_buffer_mib,
            tsc_khz: (accelerator == Accelerator::Tcg).then(|| khz_since(start)).flatten(),
        };
        let description = format!("QEMU {} ({})", binary.version, binary.path.display());
        let mut capabilities = Capabilities::new(self.name(), description, accelerator);
        capabilities.notes = notes;
        capabilities.place = Place::Qemu;
        // QEMU stops a guest's clock with its processors (`stop`, `cont`).
        capabilities.clock_stands = true;
        Ok(checked.insert(Checked { binary, engine, capabilities }).clone())
    }
}

impl Backend for Qemu {
    fn name(&self) -> &'static str {
        "qemu"
    }

    fn check(&self) -> Result<Capabilities, BackendError> {
        Ok(self.checked()?.capabilities)
    }

    fn launch(&self, spec: &MachineSpec) -> Result<Box<dyn Machine>, BackendError> {
        spec.validate()?;
        let Checked { binary, engine, .. } = self.checked()?;
        Ok(Box::new(QemuMachine::launch(&binary, engine, spec)?))
    }

    fn load(
        &self,
        path: &Path,
        images: &ImageDigests,
        root_image: Option<&Path>,
    ) -> Result<(Arc<dyn Template>, Vec<u8>), BackendError> {
        let Checked { binary, engine, .. } = self.checked()?;
        let root = root_image.map(|path| images::open("root image", path)).transpose()?;
        let (template, about) = saved::load(path, &binary, engine, images, root)?;
        Ok((Arc::new(template), about))
    }
}
