//! What a machine is made of, and the limits of that.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::BackendError;

/// The least guest memory, in MiB, with which kernel, agent and an interpreter come up.
pub const MIN_MEMORY_MIB: u32 = 96;
/// Guest memory, in MiB, if nothing is said.
pub const DEFAULT_MEMORY_MIB: u32 = 256;
/// The most guest memory, in MiB.
pub const MAX_MEMORY_MIB: u32 = 64 * 1024;
/// The most virtual CPUs.
pub const MAX_VCPUS: u8 = 32;
/// The longest machine name, in bytes.
pub const MAX_NAME: usize = 64;
/// The longest [`MachineSpec::extra_command_line`], in bytes. Linux takes 2,048 on x86, of which hayfork and the
/// device list use up to 800.
pub const MAX_COMMAND_LINE: usize = 1200;
/// Size of the console ring if nothing is said, in bytes.
pub const DEFAULT_CONSOLE_BYTES: usize = 64 * 1024;
/// The largest console ring, in bytes.
pub const MAX_CONSOLE_BYTES: usize = 16 * 1024 * 1024;
/// Linger time if nothing is said.
pub const DEFAULT_LINGER: Duration = Duration::from_secs(1);
/// The longest linger time.
pub const MAX_LINGER: Duration = Duration::from_secs(24 * 3600);
/// The name of the virtio-serial port that carries the agent channel where there is no vsock.
pub const AGENT_PORT_NAME: &str = "org.hayfork.agent";
/// The name of the port that carries it instead in a machine that goes on where one stood whose host was at the first, and so in turn.
pub const SECOND_AGENT_PORT_NAME: &str = "org.hayfork.agent.2";

/// How much the guest kernel writes to the console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsoleVerbosity {
    /// Errors and panics only. Console output costs boot time, so this is the default.
    #[default]
    Quiet,
    /// Everything down to informational messages.
    Verbose,
    /// Debug messages as well.
    Debug,
}

/// The files that a machine is made of, by their BLAKE3 digests (64 hexadecimal digits), as the manifest of an image set gives
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDigests {
    /// The kernel.
    pub kernel: String,
    /// The initramfs.
    pub initramfs: String,
    /// The root image, if there is one.
    pub root: Option<String>,
}

impl ImageDigests {
    /// Reads the files, for callers without a manifest.
    ///
    /// # Errors
    /// [`BackendError::ImageUnreadable`]
    pub fn of_files(kernel: &Path, initramfs: &Path, root: Option<&Path>) -> Result<Self, BackendError> {
        let digest = |what, path: &Path| {
            let mut hasher = blake3::Hasher::new();
            let read = File::open(path).and_then(|mut file| io::copy(&mut file, &mut hasher));
            read.map_err(|source| BackendError::ImageUnreadable { what, path: path.to_path_buf(), source })?;
            Ok::<_, BackendError>(hasher.finalize().to_hex().to_string())
        };
        Ok(Self {
            kernel: digest("kernel", kernel)?,
            initramfs: digest("initramfs", initramfs)?,
            root: root.map(|root| digest("root image", root)).transpose()?,
        })
    }
}

/// A machine to launch. [`MachineSpec::new`] fills in defaults; the fields are free to change until launch.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// For people and process lists; 1 to [`MAX_NAME`] bytes of ASCII letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The uncompressed ELF kernel (`vmlinux`, with a PVH entry).
    pub kernel: PathBuf,
    /// The initramfs (cpio, as the kernel takes it) whose `/init` is the agent.
    pub initramfs: PathBuf,
    /// The read-only root image (EROFS), the guest's `/dev/vda`; `None` for a guest that needs none.
    pub root_image: Option<PathBuf>,
    /// What these files are. Without it the machine runs, but cannot be [saved](super::Template::save).
    pub digests: Option<ImageDigests>,
    /// Guest memory in MiB, [`MIN_MEMORY_MIB`] to [`MAX_MEMORY_MIB`].
    pub memory_mib: u32,
    /// Virtual CPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: u8,
    /// How long the guest lives on after the host's end of the channel has closed; whole seconds, rounded up; zero:
    /// for ever.
    pub linger: Duration,
    /// Further kernel parameters, separated by blanks, after all others so that they win.
    pub extra_command_line: String,
    /// What the kernel says on the console.
    pub console: ConsoleVerbosity,
    /// How much console output is kept, in bytes: 1 to [`MAX_CONSOLE_BYTES`].
    pub console_bytes: usize,
}

/// What is impossible about a [`MachineSpec`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The name is empty, too long, or has other characters than letters, digits, `-`, `_` and `.`.
    #[error("name {0:?} is not 1 to {MAX_NAME} letters, digits, '-', '_' or '.'")]
    Name(String),
    /// More memory than [`MAX_MEMORY_MIB`].
    #[error("{0} MiB of memory is more than {MAX_MEMORY_MIB} MiB")]
    MemoryTooLarge(u32),
    /// No virtual CPU, or more than [`MAX_VCPUS`].
    #[error("{0} virtual CPUs are not 1 to {MAX_VCPUS}")]
    Vcpus(u8),
    /// More virtual CPUs than this backend gives on this host.
    #[error("{given} virtual CPUs are more than the {most} that a machine can have here")]
    VcpusHere {
        /// Asked for.
        given: u8,
        /// Most that there can be.
        most: u8,
    },
    /// A linger time beyond [`MAX_LINGER`].
    #[error("a linger time of {} s is more than {} s", .0.as_secs(), MAX_LINGER.as_secs())]
    Linger(Duration),
    /// Kernel parameters that are too long.
    #[error("{0} bytes of kernel parameters are more than {MAX_COMMAND_LINE}")]
    CommandLineTooLong(usize),
    /// Kernel parameters with control or non-ASCII characters.
    #[error("kernel parameters may hold printable ASCII characters only")]
    CommandLineCharacter,
    /// An empty or too large console ring.
    #[error("a console buffer of {0} bytes is not 1 to {MAX_CONSOLE_BYTES} bytes")]
    ConsoleBytes(usize),
}

impl MachineSpec {
    /// A machine of [`DEFAULT_MEMORY_MIB`] and one virtual CPU, without a root image.
    pub fn new(kernel: impl Into<PathBuf>, initramfs: impl Into<PathBuf>) -> Self {
        Self {
            name: String::from("hayfork"),
            kernel: kernel.into(),
            initramfs: initramfs.into(),
            root_image: None,
            digests: None,
            memory_mib: DEFAULT_MEMORY_MIB,
            vcpus: 1,
            linger: DEFAULT_LINGER,
            extra_command_line: String::new(),
            console: ConsoleVerbosity::default(),
            console_bytes: DEFAULT_CONSOLE_BYTES,
        }
    }

    /// Checks every limit; files are looked at by launch only.
    ///
    /// # Errors
    /// [`BackendError::MemoryTooSmall`] or [`BackendError::BadSpec`] for the first thing that is wrong.
    pub fn validate(&self) -> Result<(), BackendError> {
        if self.memory_mib < MIN_MEMORY_MIB {
            return Err(BackendError::MemoryTooSmall { given: self.memory_mib, minimum: MIN_MEMORY_MIB });
        }
        let name_fits = (1..=MAX_NAME).contains(&self.name.len())
            && self
                .name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        let problem = if !name_fits {
            SpecError::Name(self.name.clone())
        } else if self.memory_mib > MAX_MEMORY_MIB {
            SpecError::MemoryTooLarge(self.memory_mib)
        } else if !(1..=MAX_VCPUS).contains(&self.vcpus) {
            SpecError::Vcpus(self.vcpus)
        } else if self.linger > MAX_LINGER {
            SpecError::Linger(self.linger)
        } else if self.extra_command_line.len() > MAX_COMMAND_LINE {
            SpecError::CommandLineTooLong(self.extra_command_line.len())
        } else if !self.extra_command_line.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            SpecError::CommandLineCharacter
        } else if !(1..=MAX_CONSOLE_BYTES).contains(&self.console_bytes) {
            SpecError::ConsoleBytes(self.console_bytes)
        } else {
            return Ok(());
        };
        Err(BackendError::BadSpec(problem))
    }

    /// The part of the kernel command line that is the same for every backend: verbosity, what the agent must know,
    /// what shortens its boot, the extra parameters. `carrier` is how the agent reaches the host: `virtio-serial:NAME` or `vsock:PORT`.
    ///
    /// `rcupdate.rcu_expedited=1`: who waits for all processors to have passed a quiet state asks them instead of waiting for
    /// some ticks. Mounting the cgroup file system took 10 ms, an eighth of the boot; a guest's few processors are asked quickly.
    pub fn command_line(&self, carrier: &str) -> String {
        let mut line = String::from(match self.console {
            ConsoleVerbosity::Quiet => "quiet",
            ConsoleVerbosity::Verbose => "loglevel=7",
            ConsoleVerbosity::Debug => "loglevel=8 ignore_loglevel",
        });
        let linger = self.linger.as_secs() + u64::from(self.linger.subsec_nanos() > 0);
        // Writing to a String cannot fail.
        let _ = write!(line, " rcupdate.rcu_expedited=1 hayfork.carrier={carrier} hayfork.linger={linger}");
        if self.root_image.is_some() {
            line.push_str(" hayfork.root=/dev/vda");
        }
        if !self.extra_command_line.is_empty() {
            line.push(' ');
            line.push_str(&self.extra_command_line);
        }
        line
    }
}
