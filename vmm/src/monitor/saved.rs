//! The monitor's machines at rest in [snapshot files](crate::snapshot).
//!
//! What is the same for all machines that a file can be loaded for is its identity; what differs is in its state, which is
//! serialised by postcard, bounded, and checked before anything is made of it, and once more by each part that is restored.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::{BackendError, ImageDigests, KernelFlavour, MAX_CONSOLE_BYTES, MAX_MEMORY_MIB};
use crate::hypervisor::HostFacts;
use crate::hypervisor::x86_64::CpuidEntry;
use crate::machine::{MachineState, STATE_VERSION, Template, device_names};
use crate::memory::MemoryImage;
use crate::snapshot::{
    self, Admitted, Contents, Identity, LoadedMemory, Memory, SnapshotError, SnapshotFile, Source, StateKind,
};

/// The name of loaded memory, in /proc only.
const NAME: &str = "hayfork-template";

/// A machine's state in a file.
#[derive(Serialize, Deserialize)]
struct Saved<S> {
    /// Bytes of RAM.
    ram: u64,
    /// Bytes of console output that its clones keep.
    console_bytes: u64,
    machine: S,
}

/// What must be the same where a machine goes on.
///
/// # Errors
/// The host does not say which boot this is, where that matters.
pub(super) fn identity(
    facts: &HostFacts,
    cpuid: &[CpuidEntry],
    flavour: KernelFlavour,
    images: &ImageDigests,
) -> Result<Identity, BackendError> {
    let identity = Identity::new("monitor")
        .with("version of the machine's state", STATE_VERSION.to_string())
        .with("hypervisor", facts.name)
        .with("kernel flavour", flavour.name())
        .with("kernel", &*images.kernel)
        .with("initramfs", &*images.initramfs)
        .with("root image", images.root.as_deref().unwrap_or("none"))
        .with("devices", device_names(images.root.is_some()))
        .with("processor", processor(cpuid));
    if facts.can_set_tsc {
        return Ok(identity);
    }
    // The guest's counter is the host's, so its time can go on for as long as that does.
    let boot = snapshot::boot_id()
        .map_err(|source| BackendError::Spawn { what: "asking for the boot of this host", source })?;
    Ok(identity.with("boot of the host", boot))
}

/// A digest of what guests can be told about the processor, without what tells one core from another.
fn processor(cpuid: &[CpuidEntry]) -> String {
    let mut entries: Vec<CpuidEntry> = cpuid.iter().copied().map(without_core).collect();
    entries.sort_unstable_by_key(|entry| (entry.function, entry.index));
    let mut hasher = blake3::Hasher::new_derive_key("hayfork 2026 processor of a snapshot");
    for CpuidEntry { function, index, flags, eax, ebx, ecx, edx } in entries {
        for word in [function, index, flags & CpuidEntry::INDEX_MATTERS, eax, ebx, ecx, edx] {
            hasher.update(&word.to_le_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}

/// KVM gives some values of the core that it was asked on (SDM volume 2, CPUID; AMD manual 40332, E.4).
fn without_core(mut entry: CpuidEntry) -> CpuidEntry {
    match entry.function {
        // Initial APIC id.
        1 => entry.ebx &= 0x00ff_ffff,
        // x2APIC id.
        0xb | 0x1f => entry.edx = 0,
        // Size of the XSAVE area with what is switched on at the moment.
        0xd if entry.index <= 1 => entry.ebx = 0,
        // Extended APIC id, and unit and node.
        0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (0, entry.ebx & 0xffff_ff00, entry.ecx & !0xff),
        _ => {}
    }
    entry
}

/// Writes a template.
pub(super) fn save(
    template: &Template,
    identity: &Identity,
    path: &Path,
    about: &[u8],
) -> Result<(), BackendError> {
    let memory = template.memory();
    let saved =
        Saved { ram: memory.ram(), console_bytes: template.console_bytes as u64, machine: &*template.state };
    let state = postcard::to_allocvec(&saved).map_err(super::prepare)?;
    let contents = Contents {
        identity,
        about,
        kind: StateKind::Monitor,
        state: &state,
        memory: Memory { length: memory.span(), pieces: memory.pieces() },
        working_set: &template.working_set,
    };
    Ok(snapshot::write(path, &contents)?)
}

/// Reads a template, and what was saved with it. `root` is the open root image.
pub(super) fn load(
    path: &Path,
    identity: &Identity,
    root: Option<File>,
) -> Result<(Template, Vec<u8>), BackendError> {
    let file = SnapshotFile::open(path)?.admit(identity, StateKind::Monitor)?;
    let (saved, working_set) = state(&file)?;
    let template = restored(&file, saved, working_set, root)?;
    Ok((template, file.into_about()))
}

/// The template of a file whose state was read and checked.
fn restored<S: Source>(
    file: &Admitted<S>,
    saved: Saved<MachineState>,
    working_set: Vec<Range<u64>>,
    root: Option<File>,
) -> Result<Template, BackendError> {
    let LoadedMemory { memory, length, extents: _ } = file.memory(NAME)?;
    let memory = MemoryImage::loaded(saved.ram, length, memory).map_err(super::prepare)?;
    let memory = memory.ok_or_else(|| file.bad_state("its memory is not that of its machine"))?;
    Ok(Template {
        state: Arc::new(saved.machine),
        memory: Arc::new(memory),
        root: root.map(Arc::new),
        console_bytes: usize::try_from(saved.console_bytes).unwrap_or(MAX_CONSOLE_BYTES),
        working_set,
    })
}

/// What a file says about its machine, checked.
fn state<S: Source>(file: &Admitted<S>) -> Result<(Saved<MachineState>, Vec<Range<u64>>), SnapshotError> {
    let bytes = file.state()?;
    let Ok((saved, [])) = postcard::take_from_bytes::<Saved<MachineState>>(&bytes) else {
        return Err(file.bad_state("its state cannot be read"));
    };
    let ram_fits = saved.ram <= u64::from(MAX_MEMORY_MIB) << 20;
    if !ram_fits || !(1..=MAX_CONSOLE_BYTES as u64).contains(&saved.console_bytes) {
        return Err(file.bad_state("its machine is larger than any can be"));
    }
    saved.machine.check().map_err(|what| file.bad_state(what))?;
    Ok((saved, file.working_set()?))
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::testing::{Parts, encode, words};

    const RAM: u64 = 64 << 10;

    fn verdict(parts: &Parts) -> Result<(), &'static str> {
        let bytes = parts.forge(StateKind::Monitor);
        let file = SnapshotFile::of(&bytes[..], Path::new("f")).map_err(|error| error.code())?;
        let file = file.admit(&Identity::new("t"), StateKind::Monitor).map_err(|error| error.code())?;
        testing::examine(&file).map_err(|error| error.code())
    }

    fn sample() -> Parts {
        Parts {
            identity: encode(&Identity::new("t")),
            extents: words(&[RAM, 0, 4096]),
            memory: vec![1; 4096],
            state: testing::sample(RAM),
            ..Parts::default()
        }
    }

    #[test]
    fn a_state_that_cannot_be_is_refused_though_its_digest_is_right() {
        verdict(&sample()).unwrap();
        let states = [
            Vec::new(),
            testing::sample(0),
            testing::sample(RAM + 1),
            testing::sample(RAM * 2),
            testing::sample(u64::MAX),
            [testing::sample(RAM), vec![0]].concat(),
        ];
        for state in states {
            assert_eq!(verdict(&Parts { state, ..sample() }), Err("snapshot_corrupt"));
        }
        let good = testing::sample(RAM);
        for length in (0..300).chain((300..good.len()).step_by(61)) {
            assert!(verdict(&Parts { state: good[..length].to_vec(), ..sample() }).is_err(), "{length}");
        }
        let edited = |edit: fn(&mut MachineState)| {
            let mut saved: Saved<MachineState> = postcard::from_bytes(&good).unwrap();
            edit(&mut saved.machine);
            verdict(&Parts { state: postcard::to_allocvec(&saved).unwrap(), ..sample() })
        };
        edited(|_| ()).unwrap();
        for edit in [
            (|machine| machine.version += 1) as fn(&mut MachineState),
            |machine| machine.vcpus.clear(),
            |machine| machine.vcpus = vec![machine.vcpus[0].clone(); 33],
            |machine| machine.vcpus[0].msrs = vec![machine.vcpus[0].msrs[0]; 1025],
            |machine| machine.vcpus[0].xsave = vec![0; 65 << 10],
            |machine| machine.devices.transports = vec![machine.devices.transports[0].clone(); 20],
        ] {
            assert_eq!(edited(edit), Err("snapshot_corrupt"));
        }
    }

    proptest! {
        #[test]
        fn no_state_makes_the_reader_panic(at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..12)) {
            let mut parts = sample();
            let at = at.index(parts.state.len());
            for (place, byte) in parts.state[at..].iter_mut().zip(bytes) {
                *place = byte;
            }
            let _ = verdict(&parts);
        }
    }

    #[test]
    fn the_core_that_was_asked_makes_no_difference_and_a_feature_does() {
        let entry = |function, ebx, ecx, edx| CpuidEntry { function, ebx, ecx, edx, ..Default::default() };
        let one = [entry(1, 0x0308_0800, 7, 9), entry(0xb, 1, 2, 3), entry(7, 5, 0, 0)];
        let same = [entry(7, 5, 0, 0), entry(0xb, 1, 2, 8), entry(1, 0x7008_0800, 7, 9)];
        assert_eq!(processor(&one), processor(&same));
        for other in [
            [entry(1, 0x0308_0800, 6, 9), one[1], one[2]],
            [one[0], entry(0xb, 2, 2, 3), one[2]],
            [one[0], one[1], entry(7, 4, 0, 0)],
        ] {
            assert_ne!(processor(&one), processor(&other));
        }
    }
}
