//! Worker processes: how far they are confined, and how owners and workers come to their ends.
//!
//! On a host without a hypervisor tests that need one say so and pass; where `HAYFORK_REQUIRE_KVM` is set, they fail instead.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)] // Its helpers are part of tests.

mod confinement;
mod fake;
#[path = "../host/mod.rs"]
mod host;
mod life;
mod placement;
#[path = "../tiny/mod.rs"]
mod tiny;
mod unsafe_calls;
