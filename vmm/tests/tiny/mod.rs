//! Guests of a few instructions in whole machines of the monitor: an ELF kernel that does what a script says, to the
//! devices that Linux guests have. Part of test programs in several packages, which include this file by its path.
//!
//! ```text
//! guest-physical 0x10_0000  the program, see `unsafe_interpreter.rs`
//!                0x11_0000  three page directories, which map the 2nd to the 4th GiB to themselves (the monitor maps the 1st)
//!                0x12_0000  the script
//!                0x20_0000  data of the test's choice
//! ```
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod driver;
pub(crate) mod hostile;
mod unsafe_interpreter;

use std::path::Path;

use hayfork_vmm::backend::{Backend, BackendError, MIN_MEMORY_MIB, Machine, MachineSpec};
use hayfork_vmm::hypervisor::probe::{Verdict, probe};
use hayfork_vmm::memory::layout::{DEVICE_STRIDE, DEVICES, SERIAL_PORT};
use hayfork_vmm::monitor::Monitor;
use tempfile::TempDir;

/// Where the program lies.
const PROGRAM: u64 = 0x10_0000;
const DIRECTORIES: u64 = 0x11_0000;
const SCRIPT: u64 = 0x12_0000;
/// Room for what a test puts into the guest's memory.
pub(crate) const DATA: u64 = 0x20_0000;
/// The monitor's table of the GiBs (`memory::layout::PAGE_TABLES`, its second page).
const GIBS: u64 = 0xa000;
/// Bytes of a record.
const RECORD: u64 = 32;

/// One thing that the guest does. Accesses have their width in bytes: 1, 2, 4 or 8.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// Asks for a reset, which ends the machine.
    Reset,
    /// Writes a value to an address, several times.
    Write { width: u8, at: u64, value: u64, times: u64 },
    /// Reads an address several times.
    Read { width: u8, at: u64, times: u64 },
    /// Writes a byte to a port, several times.
    Out { port: u16, value: u8, times: u64 },
    /// Reads 4 bytes from a port, several times.
    In { port: u16, times: u64 },
    /// Writes bytes of memory to a port by one instruction.
    OutString { port: u16, at: u64, bytes: u64 },
    /// Goes back to this act, so that what stands between is done so many times; 0: for ever. May stand in another's range.
    Repeat { from: usize, times: u64 },
    /// Reads and writes at random places: `at` plus a random number of which the bits of `mask` count.
    Random { at: u64, mask: u64, times: u64 },
    /// Counts.
    Spin { times: u64 },
    /// Executes an undefined instruction, with nobody to handle it.
    Fault,
    /// Halts with interrupts off.
    Halt,
    /// Adds to 2 bytes of memory.
    Add { at: u64, value: u16 },
    /// Waits until 2 bytes of memory have this value.
    Await { at: u64, value: u16 },
}

impl Act {
    /// Its record: what, and three arguments.
    fn record(self) -> [u64; 4] {
        let width_number = |width: u8| u64::from(width.trailing_zeros());
        match self {
            Self::Reset => [0, 0, 0, 0],
            Self::Write { width, at, value, times } => [1 + width_number(width), at, value, times],
            Self::Read { width, at, times } => [5 + width_number(width), at, 0, times],
            Self::Out { port, value, times } => [9, port.into(), value.into(), times],
            Self::In { port, times } => [10, port.into(), 0, times],
            Self::OutString { port, at, bytes } => [11, port.into(), at, bytes],
            // Behind the three acts that map memory.
            Self::Repeat { from, times } => [12, SCRIPT + (from as u64 + 3) * RECORD, times, times],
            Self::Random { at, mask, times } => [13, at, mask, times],
            Self::Spin { times } => [14, 0, 0, times],
            Self::Fault => [15, 0, 0, 0],
            Self::Halt => [16, 0, 0, 0],
            Self::Add { at, value } => [17, at, value.into(), 0],
            Self::Await { at, value } => [18, at, value.into(), 0],
        }
    }
}

/// Writes 4 bytes once.
pub(crate) fn write(at: u64, value: u32) -> Act {
    Act::Write { width: 4, at, value: value.into(), times: 1 }
}

/// Writes text to the serial port. It lies at `at`, where the guest must have it.
pub(crate) fn say(at: u64, text: &str) -> Act {
    Act::OutString { port: SERIAL_PORT, at, bytes: text.len() as u64 }
}

/// The register file of a device: 0 vsock, 1 entropy, 2 console, 3 block if there is a root image.
pub(crate) fn device(index: u64) -> u64 {
    DEVICES.0 + index * DEVICE_STRIDE
}

/// What a guest does, and what lies in its memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) acts: Vec<Act>,
    /// Bytes at guest addresses from [`DATA`] on.
    pub(crate) data: Vec<(u64, Vec<u8>)>,
}

impl Script {
    /// A script that needs no data.
    pub(crate) fn of(acts: impl Into<Vec<Act>>) -> Self {
        Self { acts: acts.into(), data: Vec::new() }
    }

    /// Writes this text to the serial port, then does `acts`.
    pub(crate) fn saying(text: &str, acts: &[Act]) -> Self {
        let acts = [&[say(DATA, text)], acts].concat();
        Self { acts, data: vec![(DATA, text.as_bytes().to_vec())] }
    }

    /// The kernel that does it.
    fn kernel(&self) -> Vec<u8> {
        const LARGE_WRITABLE: u64 = 0b1000_0011;
        let directories: Vec<u8> =
            (512..2048u64).flat_map(|page| (page << 21 | LARGE_WRITABLE).to_le_bytes()).collect();
        let maps = (1..4u64).map(|gib| Act::Write {
            width: 8,
            at: GIBS + gib * 8,
            value: (DIRECTORIES + (gib - 1) * 0x1000) | 0b11,
            times: 1,
        });
        let script: Vec<u8> = maps
            .chain(self.acts.iter().copied())
            .flat_map(|act| act.record().map(u64::to_le_bytes))
            .flatten()
            .collect();
        assert!(script.len() < 0xe_0000, "{} bytes of script", script.len());
        let program = unsafe_interpreter::program();
        let mut segments: Vec<(u64, &[u8])> =
            vec![(PROGRAM, program), (DIRECTORIES, &directories), (SCRIPT, &script)];
        segments.extend(self.data.iter().map(|(at, bytes)| (*at, &bytes[..])));
        elf(PROGRAM, &segments)
    }
}

/// An executable for x86-64 (System V ABI, ELF-64 object file format) of these segments.
pub(crate) fn elf(entry: u64, segments: &[(u64, &[u8])]) -> Vec<u8> {
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let count = u16::try_from(segments.len()).unwrap();
    for half in [2u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [entry, HEADER as u64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [HEADER, PROGRAM_HEADER, usize::from(count), 64, 0, 0] {
        file.extend(u16::try_from(half).unwrap().to_le_bytes());
    }
    let mut at = (HEADER + PROGRAM_HEADER * segments.len()) as u64;
    for (address, bytes) in segments {
        let size = bytes.len() as u64;
        // Loadable; readable, writable, executable.
        for word in [1u64 | 7 << 32, at, *address, *address, size, size, 1] {
            file.extend(word.to_le_bytes());
        }
        at += size;
    }
    file.extend(segments.iter().flat_map(|(_, bytes)| bytes.iter()));
    file
}

/// The monitor of this host, and files for its machines.
pub(crate) struct Host {
    pub(crate) monitor: Monitor,
    folder: TempDir,
}

impl Host {
    /// `None`, having said so, on a host without a hypervisor.
    pub(crate) fn new() -> Option<Self> {
        let monitor = Monitor::new();
        match monitor.check() {
            Ok(_) => {}
            Err(BackendError::AcceleratorUnusable { detail, .. }) => {
                let verdict = probe().verdict;
                let is_usable = matches!(verdict, Verdict::Hardware { .. } | Verdict::KvmPvm { .. });
                assert!(!is_usable, "the probe says that {verdict}, but: {detail}");
                assert!(std::env::var_os("HAYFORK_REQUIRE_KVM").is_none(), "{detail}");
                eprintln!("skipped: {detail}");
                return None;
            }
            Err(error) => panic!("the monitor does not work: {error}"),
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("initramfs"), b"none").unwrap();
        std::fs::write(folder.path().join("root"), b"the disk".repeat(1 << 17)).unwrap();
        Some(Self { monitor, folder })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// A machine with one virtual CPU and a root image for a guest that does `script`. Another script of the same name
    /// replaces that of an earlier one.
    pub(crate) fn spec(&self, name: &str, script: &Script) -> MachineSpec {
        let kernel = self.path(name);
        std::fs::write(&kernel, script.kernel()).unwrap();
        self.spec_of(&kernel)
    }

    /// A machine for the kernel in this file.
    pub(crate) fn spec_of(&self, kernel: &Path) -> MachineSpec {
        let mut spec = MachineSpec::new(kernel, self.path("initramfs"));
        spec.root_image = Some(self.path("root"));
        spec.memory_mib = MIN_MEMORY_MIB;
        spec
    }

    /// Starts it.
    pub(crate) fn launch(&self, spec: &MachineSpec) -> Box<dyn Machine> {
        self.monitor.launch(spec).unwrap()
    }

    /// Starts a guest that does `script`.
    pub(crate) fn start(&self, script: &Script) -> Box<dyn Machine> {
        self.launch(&self.spec("kernel", script))
    }
}
