//! What every command needs to know about its surroundings: the source tree and the cache.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use hayfork_sandbox::images::locate;

use crate::progress::Progress;
use crate::store::Store;

/// Seconds since 1970 written wherever a build would write the time: 2025-01-01 00:00:00 UTC.
/// A fixed moment makes two builds of the same inputs the same bytes.
pub(crate) const SOURCE_DATE_EPOCH: u64 = 1_735_689_600;

/// Shared by the commands of one call.
pub(crate) struct Context {
    /// Root of the source tree.
    pub(crate) tree: PathBuf,
    /// The cache.
    pub(crate) store: Store,
    /// Where progress is shown.
    pub(crate) progress: Progress,
}

impl Context {
    /// Finds tree and cache.
    pub(crate) fn new() -> Result<Self> {
        let manifest_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tree = manifest_directory.parent().context("xtask is not in a source tree")?.to_owned();
        let cache = locate::cache_directory()
            .context("no place for the cache: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
        Ok(Self { tree, store: Store::new(cache), progress: Progress::new() })
    }

    /// The folder with one recipe folder for each language.
    pub(crate) fn recipes(&self) -> PathBuf {
        self.tree.join("initramfs/images")
    }
}
