//! The guest kernel. The builder is the crate `hayfork-guest-kernel`; here is its place in the cache.

use std::path::Path;

use anyhow::{Result, bail};

use crate::context::Context;
use crate::image::resolve::Freshness;
use crate::progress::Task;
use crate::store::Entry;

/// Kind of the store's entries.
pub(crate) const KIND: &str = "kernel";
/// The kernel's name in an entry and in a set.
pub(crate) const FILE: &str = "vmlinux";

pub(crate) fn find(
    _context: &Context,
    _source: Option<&Path>,
    _freshness: Freshness,
) -> Result<Option<Entry>> {
    Ok(None)
}

pub(crate) fn make(
    _context: &Context,
    _source: Option<&Path>,
    _freshness: Freshness,
    _task: &Task,
) -> Result<Entry> {
    bail!("TODO")
}

pub(crate) fn make_again(
    _context: &Context,
    _source: Option<&Path>,
    _scratch: &Path,
    _task: &Task,
) -> Result<()> {
    bail!("TODO")
}
