//! What this crate knows about hypervisors: for now, whether the host has a usable one.

pub mod probe;
