//! Room on the disk: said before a build that may run out of it, since a compiler's own words for that come late and name a
//! file that nobody knows.

use std::path::Path;

use crate::context::Context;
use crate::progress::megabytes;

/// Says so if less than `bytes` are free where the tree is built, or where the cache is. What is built already needs no room,
/// so this is no error.
pub(crate) fn look(context: &Context, bytes: u64) {
    for place in [&*context.tree, context.store.root()] {
        let Some(free) = free(place) else { continue };
        if free < bytes {
            context.progress.note(&format!(
                "only {} are free at {}: building everything takes up to {}; make room, or `cargo xtask clean --old`",
                megabytes(free),
                place.display(),
                megabytes(bytes)
            ));
        }
    }
}

/// Bytes that can be written there, or where the first of its parents is; `None` if the system does not say.
fn free(place: &Path) -> Option<u64> {
    let there = place.ancestors().find(|place| place.exists())?;
    let room = rustix::fs::statvfs(there).ok()?;
    room.f_bavail.checked_mul(room.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_that_of_the_first_folder_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let room = free(folder.path()).unwrap();
        let deeper = free(&folder.path().join("not/there/yet")).unwrap();
        // Others write to the same disk meanwhile.
        assert!(room > 0 && deeper.abs_diff(room) < room / 2 + (1 << 30), "{room} {deeper}");
    }
}
