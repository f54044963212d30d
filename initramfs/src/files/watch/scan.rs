//! Finding the folders below a watched one, to watch them too.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::OwnedFd;

use hayfork_protocol::change::ChangeKind;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;

use super::follow::{Follow, add, open_below};
use super::tree::Placed;

/// Entries that one look goes through at most, so that a folder of millions does not hold up the other watches.
const MAX_ENTRIES: usize = 200_000;

/// What is looked at, and why.
#[derive(Debug)]
pub(super) enum Look {
    /// Everything below the watched folder, which is new.
    AtAll,
    /// Everything, since events were lost.
    Again,
    /// A folder that appeared. What is in it is reported: its own events may have come before the watch.
    AtNew {
        /// The folder above.
        parent: i32,
        /// Its name there.
        name: Vec<u8>,
    },
    /// A folder that has another place now.
    AtMoved {
        /// The folder above.
        parent: i32,
        /// Its name there.
        name: Vec<u8>,
    },
}

/// What a look has come to.
struct Walk {
    pending: Vec<(i32, Vec<u8>)>,
    entries: usize,
    report: bool,
    /// Something was left out.
    lost: bool,
}

impl Follow {
    /// Watches folders below `top`, which is the watched one, as far as `room` allows. False if some were left out.
    pub(super) fn look(&mut self, top: &OwnedFd, look: Look, room: usize) -> bool {
        let mut walk = Walk { pending: Vec::new(), entries: 0, report: false, lost: false };
        let (mut again, mut whole) = (None, false);
        match look {
            Look::AtNew { parent, name } => (walk.report, walk.pending) = (true, vec![(parent, name)]),
            Look::AtMoved { parent, name } => walk.pending = vec![(parent, name)],
            Look::AtAll => whole = true,
            Look::Again => (whole, again) = (true, Some(BTreeSet::new())),
        }
        if whole {
            match open_below(top, c".") {
                Ok(folder) => self.list(&folder, self.root, &mut walk),
                Err(_) => walk.lost = true,
            }
        }
        while let Some((parent, name)) = walk.pending.pop() {
            let Some(wd) = self.enter(top, parent, &name, room, again.is_some(), &mut walk) else { continue };
            if let Some(seen) = &mut again {
                seen.insert(wd);
            }
        }
        if let Some(seen) = again.filter(|_| !walk.lost) {
            let stale: Vec<i32> = self.tree.folders().filter(|wd| !seen.contains(wd)).collect();
            for wd in stale {
                self.tree.forget(wd);
                self.unwatch(wd);
            }
        }
        !walk.lost
    }

    /// Watches one folder and notes those in it.
    fn enter(
        &mut self,
        top: &OwnedFd,
        parent: i32,
        name: &[u8],
        room: usize,
        again: bool,
        walk: &mut Walk,
    ) -> Option<i32> {
        let path = self.tree.path(parent, name).and_then(|path| CString::new(path).ok());
        let folder = match path.map(|path| open_below(top, &path)) {
            Some(Ok(folder)) => folder,
            // Gone again, another thing by now, or not the user's to look into.
            Some(Err(
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS | Errno::PERM,
            )) => return None,
            Some(Err(_)) | None => {
                walk.lost = true;
                return None;
            }
        };
        let known = self.inotify.as_ref().map(|inotify| add(inotify, &folder));
        let wd = match known {
            Some(Ok(wd)) => wd,
            Some(Err(Errno::ACCESS | Errno::PERM)) => return None,
            Some(Err(_)) | None => {
                walk.lost = true;
                return None;
            }
        };
        if !self.tree.contains(wd) && self.tree.len() >= room {
            self.unwatch(wd);
            walk.lost = true;
            walk.pending.clear();
            return None;
        }
        match self.tree.put(wd, parent, name) {
            Placed::New => self.list(&folder, wd, walk),
            Placed::Known if again => self.list(&folder, wd, walk),
            Placed::Known => {}
            Placed::Refused => walk.lost = true,
        }
        Some(wd)
    }

    /// Goes through the entries of a folder.
    fn list(&mut self, folder: &OwnedFd, wd: i32, walk: &mut Walk) {
        let Ok(entries) = Dir::read_from(folder) else {
            walk.lost = true;
            return;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                walk.lost = true;
                return;
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            walk.entries += 1;
            if walk.entries > MAX_ENTRIES {
                walk.lost = true;
                return;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            let name = name.to_bytes().to_vec();
            let directory = kind == FileType::Directory;
            if walk.report {
                match self.tree.path(wd, &name) {
                    Some(path) => {
                        if self.tell(ChangeKind::Created, &path, directory) {
                            self.found.insert((wd, name.clone()));
                        }
                    }
                    None => walk.lost = true,
                }
            }
            if directory {
                walk.pending.push((wd, name));
            }
        }
    }
}
