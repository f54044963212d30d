//! Keeping a running machine, and making others that go on where it stood.
//!
//! ```text
//!  capture                                          restore
//!    stop                                             QEMU with the same devices and no kernel, -incoming defer;
//!    xen-save-devices-state ──► memfd, some 90 KB       RAM: the image, MAP_PRIVATE; the host at the other port
//!    RAM copied into a sealed memfd (`ram`)           migrate-incoming ◄── state, over a socket pair
//!    cont                                             the guest runs, and finds its host gone and another one there
//! ```
//! # State
//! What is saved is QEMU's own migration stream, but of the devices alone. `xen-save-devices-state` has nothing to do with Xen but its
//! first user: it writes what `migrate` writes, without RAM. `migrate` with the capability `x-ignore-shared` does the same for a
//! launched machine, whose RAM is a shared file, but not for a restored one: its RAM is private, so QEMU would send all of it. One way
//! serves both, and is the faster (3 ms where `migrate` takes 7). The stream says nothing of the machine's type, so QEMU is told not
//! to expect that (`send-configuration=off`); both ends are started here, with the same command line.
//!
//! Memory that the state does not hold is that of the firmware, which is not in use after the boot.
//!
//! # Streams
//! None is carried over. A virtio-serial port stays the same port when its host goes and another comes, and a guest that is busy at
//! that moment does not notice: it would take the new host's greeting for the rest of what the old one was saying. So there are two
//! ports, and a restored machine's host is at the one that the original's was not at. Its agent sees that whenever it looks.
//!
//! # Clocks
//! QEMU's virtual clock and time stamp counter stand still while a machine is stopped and go on from where they were saved. The
//! guest's monotonic time goes on, then; its wall clock, randomness and names are the agent's to renew.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hayfork_vmm::backend::{BackendError, Machine, Template};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde_json::json;

use crate::command::{Port, Start};
use crate::machine::{Blueprint, QemuMachine, failed, lock};
use crate::qmp::{PATIENCE, Qmp, QmpError};
use crate::ram::{Image, Ram};
use crate::saved;

/// Largest state taken from QEMU, in bytes.
const MAX_STATE: u64 = 16 << 20;

/// A machine at rest, to make others of.
#[derive(Debug)]
pub(crate) struct QemuTemplate {
    pub(crate) blueprint: Arc<Blueprint>,
    /// Where the hosts of restored machines are.
    pub(crate) port: Port,
    /// QEMU's migration stream of the devices.
    pub(crate) state: Vec<u8>,
    pub(crate) ram: Arc<Image>,
}

/// Keeps a machine as it is now, and lets it go on.
///
/// # Errors
/// QEMU has ended, does not do what it is asked, or there is no memory for the copy. The machine goes on in each case in which it
/// can; a QEMU that talks nonsense is ended.
pub(crate) fn capture(machine: &QemuMachine) -> Result<QemuTemplate, BackendError> {
    let mut control = lock(&machine.control);
    let stopped = control.execute("stop", &json!({}), None).map_err(|error| machine.failure(&error));
    let kept = stopped.and_then(|_| {
        std::thread::sleep(REST);
        keep(machine, &mut control)
    });
    // A QEMU that is gone has said so before.
    let going = control.execute("cont", &json!({}), None).map_err(|error| machine.failure(&error));
    if control.is_broken() {
        // It cannot be told to go on, and what says nonsense here may be its guest.
        machine.end();
    }
    let template = kept?;
    going?;
    Ok(template)
}

/// A machine that has stopped still gives its host what its port holds for it, and marks the buffers in the guest's memory as used
/// when the host takes that. Between the device's state and the copy of the memory that would be two machines in one: QEMU refuses to
/// load them ("VQ 5 size 0x400 < last_avail_idx 0xbf - used_idx 0xc1"). Hosts take it at once.
const REST: Duration = Duration::from_millis(30);

/// Reads a machine that has stopped.
fn keep(machine: &QemuMachine, control: &mut Qmp) -> Result<QemuTemplate, BackendError> {
    let state = save(control).map_err(|error| match error {
        Unsaved::Host(source) => failed("making memory for the state")(source),
        Unsaved::Qemu(error) => machine.failure(&error),
    })?;
    let copied = match &*lock(&machine.shared.ram) {
        Some(ram) => ram.keep(machine.pid),
        // Given up when QEMU has ended.
        None => return Err(machine.failure(&QmpError::Closed)),
    };
    let ram = copied.map_err(|error| match control.execute("query-status", &json!({}), None) {
        // The memory of a process that ends cannot be read.
        Err(gone @ (QmpError::Closed | QmpError::Io(_))) => machine.failure(&gone),
        _ if error.kind() == io::ErrorKind::PermissionDenied => NOT_ALLOWED,
        _ => failed("copying the guest's memory")(error),
    })?;
    let port = machine.port.next();
    Ok(QemuTemplate { blueprint: Arc::clone(&machine.blueprint), port, state, ram: Arc::new(ram) })
}

/// For a host whose `kernel.yama.ptrace_scope` forbids to look into processes of one's own.
const NOT_ALLOWED: BackendError = BackendError::Unsupported {
    what: "a restored machine cannot be kept or forked where a process may not read the memory of its own children",
};

/// Why the devices' state could not be saved.
enum Unsaved {
    Host(io::Error),
    Qemu(QmpError),
}

impl From<QmpError> for Unsaved {
    fn from(error: QmpError) -> Self {
        Self::Qemu(error)
    }
}

/// The devices' state of a machine that has stopped.
fn save(control: &mut Qmp) -> Result<Vec<u8>, Unsaved> {
    let host = |errno: Errno| Unsaved::Host(errno.into());
    let memory = memfd_create("hayfork-state", MemfdFlags::CLOEXEC).map_err(host)?;
    // QEMU looks for a descriptor that can do what it wants and no more.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let writable = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(host)?;
    control.execute("add-fd", &json!({ "fdset-id": SET }), Some(writable.as_fd()))?;
    drop(writable);
    let file = format!("/dev/fdset/{SET}");
    control.send("xen-save-devices-state", &json!({ "filename": file, "live": false }), None)?;
    control.execute("remove-fd", &json!({ "fdset-id": SET }), None)?;
    let memory = File::from(memory);
    let size = memory.metadata().map_err(Unsaved::Host)?.len();
    if size == 0 || size > MAX_STATE {
        return Err(QmpError::Malformed("xen-save-devices-state").into());
    }
    let mut state = vec![0; usize::try_from(size).unwrap_or(0)];
    memory.read_exact_at(&mut state, 0).map_err(Unsaved::Host)?;
    Ok(state)
}

/// The number of the set of descriptors that the state goes to.
const SET: u32 = 0;

impl Template for QemuTemplate {
    fn restore(&self) -> Result<Box<dyn Machine>, BackendError> {
        let ram = Ram::Over(Arc::clone(&self.ram));
        let start = Start::Saved { port: self.port };
        // Dropping it on the way kills it.
        let machine = QemuMachine::start(Arc::clone(&self.blueprint), ram, start, &[])?;
        let (pipe, theirs) = UnixStream::pair().map_err(failed("making a way for the state"))?;
        load(&mut lock(&machine.control), &self.state, pipe, theirs)
            .map_err(|error| machine.failure(&error))?;
        Ok(Box::new(machine))
    }

    /// QEMU makes pages when the guest touches them.
    fn with_working_set(&self, _pages: Vec<Range<u64>>) -> Arc<dyn Template> {
        Arc::new(Self {
            blueprint: Arc::clone(&self.blueprint),
            port: self.port,
            state: self.state.clone(),
            ram: Arc::clone(&self.ram),
        })
    }

    fn ram(&self) -> u64 {
        u64::from(self.blueprint.spec.memory_mib) << 20
    }

    fn save(&self, path: &Path, about: &[u8]) -> Result<(), BackendError> {
        saved::save(self, path, about)
    }
}

/// Gives a QEMU that waits for it the state, and waits until the guest runs.
fn load(control: &mut Qmp, state: &[u8], pipe: UnixStream, theirs: UnixStream) -> Result<(), QmpError> {
    control.execute("getfd", &json!({ "fdname": "state" }), Some(theirs.as_fd()))?;
    drop(theirs);
    control.send("migrate-incoming", &json!({ "uri": "fd:state" }), None)?;
    pour(&pipe, state)?;
    drop(pipe);
    control.wait_for("RESUME")
}

/// Sends all of it.
fn pour(pipe: &UnixStream, mut bytes: &[u8]) -> Result<(), QmpError> {
    pipe.set_write_timeout(Some(PATIENCE)).map_err(QmpError::Io)?;
    while !bytes.is_empty() {
        match send(pipe, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(QmpError::Late("migrate-incoming")),
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(QmpError::Closed),
            Err(errno) => return Err(QmpError::Io(errno.into())),
        }
    }
    Ok(())
}
