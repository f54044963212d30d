//! Shared by the tests that run guests under QEMU.
#![allow(dead_code, unused_imports, clippy::unwrap_used)] // Each program uses some of it.

#[path = "../../../vmm/tests/guest/mod.rs"]
mod guest;

use hayfork_qemu::{AcceleratorChoice, Qemu, QemuOptions};
use hayfork_vmm::backend::{Backend, KernelFlavour, Machine, MachineSpec};

pub(crate) use guest::{BOOT_TIME, Client, is_alive, wait_until};

/// A machine that does `test`.
pub(crate) fn spec(test: &str) -> MachineSpec {
    guest::spec(test, KernelFlavour::Plain)
}

/// The backend with the translator, whatever else the host has, so that tests mean the same everywhere; or with KVM if
/// `HAYFORK_TEST_ACCELERATOR` says so, on a host that has it.
pub(crate) fn backend() -> Qemu {
    let accelerator = match std::env::var("HAYFORK_TEST_ACCELERATOR").as_deref() {
        Ok("kvm") => AcceleratorChoice::Kvm,
        Ok("tcg") | Err(_) => AcceleratorChoice::Tcg,
        Ok(other) => panic!("HAYFORK_TEST_ACCELERATOR is kvm or tcg, not {other}"),
    };
    Qemu::new(QemuOptions { accelerator, ..QemuOptions::default() })
}

/// Launches, and says what is wrong if that fails.
pub(crate) fn launch(spec: &MachineSpec) -> Box<dyn Machine> {
    backend().launch(spec).unwrap()
}
