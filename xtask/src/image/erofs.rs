//! A directory into an EROFS file, by mkfs.erofs.
//!
//! Everything belongs to root, every time is the same, the UUID is fixed and there are no extended
//! attributes: equal trees give equal files.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::context::SOURCE_DATE_EPOCH;
use crate::process;

use super::recipe::Erofs;

/// The image's name in an entry of the store.
pub(crate) const FILE: &str = "root.erofs";
/// One UUID for all images: nothing looks for a file system by it.
const UUID: &str = "68617966-6f72-4b00-8000-000000000001";
/// "EROFS super magic v1", little-endian, at byte 1024 (linux/fs/erofs/erofs_fs.h).
const MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();
const MAGIC_OFFSET: usize = 1024;

/// Writes the image and reads it back whole, decompressing every file.
///
/// # Errors
/// mkfs.erofs or fsck.erofs is missing or fails.
pub(crate) fn write(tree: &Path, image: &Path, options: &Erofs) -> Result<()> {
    let mut command = Command::new("mkfs.erofs");
    command
        .arg("--quiet")
        .arg("--all-root")
        .arg("-x-1")
        .arg(format!("-z{}", options.compression))
        .arg(format!("-C{}", options.cluster))
        .arg(format!("-T{SOURCE_DATE_EPOCH}"))
        .arg(format!("-U{UUID}"))
        .arg(image)
        .arg(tree);
    process::output(&mut command).context("cannot write the root image")?;
    let mut check = Command::new("fsck.erofs");
    check.arg("--extract").arg(image);
    process::output(&mut check).context("the root image cannot be read back")?;
    let mut start = [0; MAGIC_OFFSET + 4];
    std::io::Read::read_exact(&mut std::fs::File::open(image)?, &mut start)?;
    ensure!(start[MAGIC_OFFSET..] == MAGIC, "{} is no EROFS image", image.display());
    Ok(())
}

/// The version of mkfs.erofs, as it says itself.
pub(crate) fn version() -> String {
    let text = process::output(Command::new("mkfs.erofs").arg("-V")).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}
