//! The monitor as a backend, with guests of a few instructions: whole machines, no image set needed.
//!
//! What Linux guests see is tested by `sandbox/tests/machines/`. On a host without a hypervisor each test says so and
//! passes; where `HAYFORK_REQUIRE_KVM` is set, it fails instead.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)] // Its helpers are part of tests.

mod ends;
#[path = "../host/mod.rs"]
mod host;
mod hostile;
mod leaks;
mod process;
mod reset;
mod saved;
#[path = "../tiny/mod.rs"]
mod tiny;
