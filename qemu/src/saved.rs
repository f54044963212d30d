//! QEMU's machines at rest in [snapshot files](hayfork_vmm::snapshot).
//!
//! The container's identity holds what must be the same: QEMU to the last digit of its version, since its migration stream is read
//! by the version that wrote it, the images, and what executes the guest. The state is the little that differs from machine to
//! machine, checked, and QEMU's stream behind it, which QEMU checks.
//!
//! # Clocks
//! A translated guest was told at its boot how fast the host's time stamp counter is, which is its own. It goes on wherever that is
//! as fast; each process measures it, so that is a matter of tolerance, and not of the identity.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use hayfork_vmm::backend::{
    Accelerator, BackendError, ImageDigests, MAX_CONSOLE_BYTES, MAX_MEMORY_MIB, MAX_VCPUS, MIN_MEMORY_MIB,
    MachineSpec,
};
use hayfork_vmm::snapshot::{
    self, Admitted, Contents, Identity, LoadedMemory, Memory, SnapshotError, SnapshotFile, Source, StateKind,
};
use serde::{Deserialize, Serialize};

use crate::binary::Binary;
use crate::command::{Engine, Port};
use crate::machine::{Blueprint, failed};
use crate::ram::{IMAGE_NAME, Image};
use crate::snapshot::QemuTemplate;

/// Version of [`Saved`] and of the devices on QEMU's command line. Another version is not read.
const STATE_VERSION: &str = "1";

/// By how much the counter's frequency may differ: 1 in 1,000, ten times what two measurements differ by at most.
const TOLERANCE: u32 = 1000;

/// What a file holds of a machine besides its memory.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Saved<'a> {
    memory_mib: u32,
    vcpus: u8,
    console_bytes: u64,
    port: Port,
    /// Frequency of the host's time stamp counter as the guest was told it.
    tsc_khz: Option<u32>,
    /// QEMU's migration stream.
    devices: &'a [u8],
}

/// What must be the same where a machine goes on.
///
/// # Errors
/// The host does not say what it is, where that matters.
fn identity(binary: &Binary, engine: &Engine, images: &ImageDigests) -> Result<Identity, BackendError> {
    let identity = Identity::new("qemu")
        .with("version of the machine's state", STATE_VERSION)
        .with("version of QEMU", binary.version.to_string())
        .with("accelerator", engine.accelerator.to_string())
        .with("kernel", &*images.kernel)
        .with("initramfs", &*images.initramfs)
        .with("root image", images.root.as_deref().unwrap_or("none"));
    if engine.accelerator == Accelerator::Tcg {
        // QEMU's own processor.
        return Ok(identity);
    }
    let cpuinfo =
        std::fs::read_to_string("/proc/cpuinfo").map_err(failed("asking for the host's processor"))?;
    let boot = snapshot::boot_id().map_err(failed("asking for the boot of this host"))?;
    Ok(identity.with("processor", processor(&cpuinfo)).with("boot of the host", boot))
}

/// What tells processors apart in the text of `/proc/cpuinfo`.
fn processor(cpuinfo: &str) -> String {
    let wanted = ["vendor_id", "cpu family", "model", "stepping", "microcode", "flags"];
    let first = cpuinfo.lines().take_while(|line| !line.is_empty());
    let parts =
        first.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.trim(), value.trim()));
    let parts = parts.filter(|(name, _)| wanted.contains(name)).map(|(_, value)| value);
    parts.collect::<Vec<_>>().join("; ")
}

/// Writes a template.
pub(crate) fn save(template: &QemuTemplate, path: &Path, about: &[u8]) -> Result<(), BackendError> {
    let Blueprint { binary, engine, spec, .. } = &*template.blueprint;
    let Some(images) = &spec.digests else {
        return Err(BackendError::Unsupported {
            what: "a machine whose files are not named by digests cannot be saved",
        });
    };
    let identity = identity(binary, engine, images)?;
    let saved = Saved {
        memory_mib: spec.memory_mib,
        vcpus: spec.vcpus,
        console_bytes: spec.console_bytes as u64,
        port: template.port,
        tsc_khz: engine.tsc_khz,
        devices: &template.state,
    };
    let state =
        postcard::to_allocvec(&saved).map_err(|error| BackendError::Prepare { detail: error.to_string() })?;
    let pieces = template.ram.pieces().map_err(failed("looking for the memory's content"))?;
    let contents = Contents {
        identity: &identity,
        about,
        kind: StateKind::Qemu,
        state: &state,
        memory: Memory { length: u64::from(spec.memory_mib) << 20, pieces },
        working_set: &[],
    };
    Ok(snapshot::write(path, &contents)?)
}

/// Reads a template, and what was saved with it. `root` is the open root image.
pub(crate) fn load(
    path: &Path,
    binary: &Binary,
    engine: Engine,
    images: &ImageDigests,
    root: Option<File>,
) -> Result<(QemuTemplate, Vec<u8>), BackendError> {
    let file = SnapshotFile::open(path)?.admit(&identity(binary, &engine, images)?, StateKind::Qemu)?;
    let bytes = file.state()?;
    let saved = examine(&file, &bytes)?;
    if !is_as_fast(saved.tsc_khz, engine.tsc_khz) {
        let say = |khz: Option<u32>| khz.map(|khz| format!("{khz} kHz"));
        return Err(BackendError::Snapshot(SnapshotError::Foreign {
            path: path.to_path_buf(),
            part: "frequency of the time stamp counter".to_owned(),
            saved: say(saved.tsc_khz),
            here: say(engine.tsc_khz),
        }));
    }
    let LoadedMemory { memory, length, extents: _ } = file.memory(IMAGE_NAME)?;
    if length != u64::from(saved.memory_mib) << 20 {
        return Err(file.bad_state("its memory is not that of its machine").into());
    }
    let ram = Image::loaded(memory).map_err(failed("sealing the machine's memory"))?;
    let mut spec = MachineSpec::new("", "");
    spec.memory_mib = saved.memory_mib;
    spec.vcpus = saved.vcpus;
    spec.console_bytes = usize::try_from(saved.console_bytes).unwrap_or(MAX_CONSOLE_BYTES);
    spec.digests = Some(images.clone());
    let engine = Engine { tsc_khz: saved.tsc_khz, ..engine };
    let template = QemuTemplate {
        blueprint: Arc::new(Blueprint { binary: binary.clone(), engine, spec, root_image: root }),
        port: saved.port,
        state: saved.devices.to_vec(),
        ram: Arc::new(ram),
    };
    Ok((template, file.into_about()))
}

/// What a file says about its machine, checked.
fn examine<'a, S: Source>(file: &Admitted<S>, bytes: &'a [u8]) -> Result<Saved<'a>, SnapshotError> {
    let Ok((saved, [])) = postcard::take_from_bytes::<Saved<'_>>(bytes) else {
        return Err(file.bad_state("its state cannot be read"));
    };
    let fits = (MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&saved.memory_mib)
        && (1..=MAX_VCPUS).contains(&saved.vcpus)
        && (1..=MAX_CONSOLE_BYTES as u64).contains(&saved.console_bytes);
    if fits { Ok(saved) } else { Err(file.bad_state("its machine is larger than any can be")) }
}

/// Whether a guest that was told one frequency keeps time with the other.
fn is_as_fast(told: Option<u32>, here: Option<u32>) -> bool {
    match (told, here) {
        (Some(told), Some(here)) => told.abs_diff(here) <= told / TOLERANCE,
        (told, here) => told == here,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_goes_on_where_its_counter_is_as_fast() {
        assert!(is_as_fast(Some(2_445_406), Some(2_445_434)));
        assert!(!is_as_fast(Some(2_445_406), Some(2_500_000)));
        assert!(!is_as_fast(None, Some(2_500_000)));
        assert!(!is_as_fast(Some(2_500_000), None));
        assert!(is_as_fast(None, None));
    }

    #[test]
    fn processors_are_told_apart_by_what_they_can() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 1\ncpu MHz\t\t: 2445.4\nflags\t\t: fpu sse\n\n";
        assert_eq!(
            processor(&format!("{text}processor\t: 1\nflags\t\t: other\n")),
            "AuthenticAMD; 1; fpu sse"
        );
        assert_eq!(processor(text), processor(&text.replace("2445.4", "1200.0")));
        assert_ne!(processor(text), processor(&text.replace("sse", "sse2")));
    }

    #[test]
    fn a_state_is_read_as_it_was_written_and_not_otherwise() {
        let saved = Saved {
            memory_mib: 128,
            vcpus: 2,
            console_bytes: 4096,
            port: Port::Second,
            tsc_khz: Some(7),
            devices: b"QEVM",
        };
        let bytes = postcard::to_allocvec(&saved).unwrap();
        let read = |bytes: &[u8]| postcard::take_from_bytes::<Saved<'_>>(bytes).is_ok();
        assert_eq!(postcard::take_from_bytes::<Saved<'_>>(&bytes).unwrap().0, saved);
        assert!((0..bytes.len()).all(|length| !read(&bytes[..length])));
    }
}
