//! What a machine is, whichever backend runs it: each test of [`guests`] on each backend of this host, through the trait.
//!
//! Tests are named `guests::a_guest_boots_answers_and_is_killed::monitor`. A backend that this host cannot have is skipped
//! with the reason, and so are all but the one that `HAYFORK_BACKEND` names; where the probe finds a hypervisor, a monitor
//! that does not work is a failure. What only one backend has to do with is tested beside it (`qemu/tests/`, `vmm/tests/`), or
//! in `monitor` where it takes a Linux guest.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // Its helpers are part of tests.

#[cfg(target_arch = "x86_64")]
#[path = "../common/ages.rs"]
mod ages;
#[cfg(target_arch = "x86_64")]
mod clocks;
#[path = "../../../vmm/tests/guest/mod.rs"]
mod guest;
mod guests;
#[path = "../../../vmm/tests/host/mod.rs"]
mod host;
#[cfg(target_arch = "x86_64")]
mod monitor;
mod setup;
#[cfg(target_arch = "x86_64")]
mod snapshot;
#[cfg(target_arch = "x86_64")]
#[path = "../../../vmm/tests/tiny/mod.rs"]
mod tiny;
