//! Init and agent of a hayfork guest: the one program of the initramfs.
#![cfg(target_os = "linux")]

pub mod boot;
pub mod cgroup;
pub mod cmdline;
pub mod error;
#[macro_use]
pub mod log;
pub mod panic;
pub mod poller;
pub mod spawn;
pub mod sys;
