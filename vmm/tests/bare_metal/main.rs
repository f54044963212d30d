//! Guests of a few instructions on the real `/dev/kvm` of this host.
//!
//! They need no kernel image, only a hypervisor, and it may be one that interprets them. On a host without one each test
//! says so and passes; where `HAYFORK_REQUIRE_KVM` is set, it fails instead.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used)] // Its helpers are part of tests.

mod exits;
mod interrupts;
mod leaks;
mod machine;
mod reset;
mod state;
mod threads;
mod unsafe_guests;
mod unsafe_host;
