//! Runs hayfork's guests under QEMU: the backend for hosts where the monitor cannot run, with the same kernel,
//! initramfs and root images.
//!
//! ```text
//! this process                                   QEMU (dies with this process)
//!   Qemu ── binary: find, version                  microvm machine, seccomp, nothing but these:
//!        ── accel: KVM or TCG, by probe              serial console ──► stdout ─┐
//!   QemuMachine ── channel ◄── socket pair ──────►   virtio-serial port         │
//!        ── watcher thread ◄── pipes ────────────────────────────────────◄──────┘ and stderr
//!        ── control ◄──── socket pair, QMP ──────►   stop, save, load, go on
//!        ── images, memfd ── by descriptor ──────►   RAM, kernel, initramfs, virtio-blk (read-only), virtio-rng
//! ```
//!
//! * [`Qemu`] implements [`Backend`](hayfork_vmm::backend::Backend): `backend` checks and launches, `binary` finds QEMU,
//!   `accel` chooses the accelerator, `host_clock` measures what a translated guest must be told, `command` writes the command line.
//! * `machine` is one guest (its child process is a [`Process`](hayfork_vmm::process::Process)), `images` the files it
//!   is made of, `footprint` what it costs, `diagnosis` turns an exit into an error.
//! * `snapshot` keeps a running machine and makes others of it: `qmp` is the conversation with QEMU, `ram` the memory,
//!   `saved` their files.

mod accel;
mod backend;
mod binary;
mod command;
mod diagnosis;
mod footprint;
mod host_clock;
mod images;
mod machine;
mod qmp;
mod ram;
mod saved;
mod snapshot;

pub use accel::AcceleratorChoice;
pub use backend::{Qemu, QemuOptions};
pub use binary::{BINARY_NAME, BINARY_VARIABLE, Binary, OLDEST, Version, find};
pub use command::DEFAULT_TRANSLATION_BUFFER_MIB;
