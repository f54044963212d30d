//! Init and agent of a hayfork guest: the one program of the initramfs.
#![cfg(target_os = "linux")]

pub mod agent;
pub mod boot;
pub mod carrier;
pub mod cgroup;
pub mod clock;
pub mod cmdline;
pub mod command;
pub mod error;
pub mod exec;
pub mod files;
pub mod io;
pub mod languages;
#[macro_use]
pub mod log;
pub mod panic;
pub mod poller;
pub mod procfs;
pub mod renew;
pub mod session;
pub mod spawn;
pub mod sys;
pub mod world;
