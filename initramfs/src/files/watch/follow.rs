//! One watch: an inotify instance, the folders that it looks at, and what there is to tell of them.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hayfork_protocol::change::{Change, ChangeKind};
use hayfork_protocol::message::FailureCode;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::events::{Event, parse};
use super::queue::Queue;
use super::scan::Look;
use super::tree::Tree;
use crate::files::failure::{Outcome, failure};
use crate::files::resolve::Places;

/// How long the second half of a rename may take after the first. The kernel makes both in one system call.
const HALVES: Duration = Duration::from_millis(5);

/// What is watched in each folder.
const MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// The first half of a rename.
#[derive(Debug)]
struct Half {
    cookie: u32,
    /// Its number in the queue.
    number: u64,
    until: Instant,
    /// The folder that was renamed, with where it was, if it is watched.
    folder: Option<(i32, i32, Vec<u8>)>,
}

/// See the module.
#[derive(Debug)]
pub struct Follow {
    pub(super) path: String,
    pub(super) recursive: bool,
    /// `None` when the watch is over.
    pub(super) inotify: Option<OwnedFd>,
    pub(super) root: i32,
    pub(super) tree: Tree,
    pub(super) queue: Queue,
    halves: Vec<Half>,
    /// Entries of new folders that were reported because they were found there, and whose own event may still come.
    pub(super) found: BTreeSet<(i32, Vec<u8>)>,
    /// Bytes that are to be read from the kernel before `Flushed` is due.
    flush: Option<u64>,
}

/// Watches the folder `at` and returns its number. It becomes the working folder for the moment: the one way to name a
/// descriptor's folder without `/proc`, which shows nothing of this process in the user's root.
pub(super) fn add(inotify: &OwnedFd, at: &OwnedFd) -> Result<i32, Errno> {
    rustix::process::fchdir(at)?;
    let result = inotify::add_watch(inotify, c".", MASK);
    // A working folder is a reference too, and hides a removal.
    rustix::process::chdir(c"/")?;
    result
}

/// Opens a folder beneath another one, without links on the way.
pub(super) fn open_below(top: &OwnedFd, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(top, path, flags, rustix::fs::Mode::empty(), resolve)
}

pub(super) fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// The failure for an errno of adding a watch.
fn refused(errno: Errno, path: &str) -> hayfork_protocol::message::Failure {
    match errno {
        Errno::NOSPC | Errno::MFILE => failure(
            FailureCode::TooMany,
            format!(
                "{path:?}: the sandbox's user has as many inotify watches as it may, most of them in its own programs"
            ),
        ),
        errno => crate::files::failure::from_errno(errno, path),
    }
}

impl Follow {
    /// Begins to watch. `room`: folders that it may look at.
    ///
    /// # Errors
    /// There is no such folder, it may not be read, or there are too many below it.
    pub fn begin(places: &Places, path: String, recursive: bool, room: usize) -> Outcome<Self> {
        let top = Self::open(places, &path)?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|errno| refused(errno, &path))?;
        let root = add(&inotify, &top).map_err(|errno| refused(errno, &path))?;
        let mut follow = Self {
            path,
            recursive,
            inotify: Some(inotify),
            root,
            tree: Tree::new(root),
            queue: Queue::default(),
            halves: Vec::new(),
            found: BTreeSet::new(),
            flush: None,
        };
        if recursive && !follow.look(&top, Look::AtAll, room) {
            return Err(failure(
                FailureCode::TooMany,
                format!(
                    "{:?}: there are more folders or entries below it than can be watched ({} folders in all watches of a \
                     sandbox together)",
                    follow.path,
                    hayfork_protocol::limits::MAX_WATCHED_FOLDERS
                ),
            ));
        }
        Ok(follow)
    }

    fn open(places: &Places, path: &str) -> Outcome<OwnedFd> {
        let located = places.locate(path)?;
        located.open(OFlags::RDONLY | OFlags::DIRECTORY).map_err(|error| {
            if error.code == FailureCode::WrongType && located.open(OFlags::PATH).is_ok() {
                return failure(
                    FailureCode::WrongType,
                    format!("{path:?}: it is no folder; watch the one that holds it"),
                );
            }
            error
        })
    }

    /// Whether the folder is gone, or its watch was given up.
    pub fn is_over(&self) -> bool {
        self.inotify.is_none()
    }

    /// The descriptor to wait for, while there is room for what it brings.
    pub fn source(&self) -> Option<&OwnedFd> {
        self.inotify.as_ref().filter(|_| self.queue.has_room())
    }

    /// Folders that it looks at.
    pub fn folders(&self) -> usize {
        if self.is_over() { 0 } else { self.tree.len() }
    }

    /// When [`Follow::on_time`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.halves.iter().map(|half| half.until).min()
    }

    /// Takes as many records as fit in `most` bytes, encoded; `None` if there is nothing to tell now.
    pub fn batch(&mut self, most: usize) -> Option<Vec<u8>> {
        self.queue.is_ready().then(|| self.queue.batch(most))
    }

    /// Whether it is over and everything is told.
    pub fn is_told(&self) -> bool {
        self.is_over() && self.queue.is_empty()
    }

    /// Says `Flushed` behind what has happened by now. A second wish before that changes nothing.
    pub fn flush(&mut self) {
        if self.flush.is_some() {
            return;
        }
        match self.inotify.as_ref().map(rustix::io::ioctl_fionread) {
            Some(Ok(left)) if left > 0 => self.flush = Some(left),
            _ => self.queue.flushed(),
        }
    }

    /// Reads some of what the kernel has. `room`: folders that it may look at.
    pub fn read(&mut self, places: &Places, buffer: &mut [u8], room: usize) {
        let Some(inotify) = &self.inotify else { return };
        match rustix::io::read(inotify, &mut *buffer) {
            Ok(n) => {
                for event in parse(&buffer[..n]) {
                    if self.is_over() {
                        break;
                    }
                    self.take(event, places, room);
                }
                self.flush = self.flush.map(|left| left.saturating_sub(n as u64));
            }
            Err(Errno::INTR) => return,
            Err(_) => {}
        }
        let left = self.inotify.as_ref().and_then(|fd| rustix::io::ioctl_fionread(fd).ok()).unwrap_or(0);
        if left == 0 {
            // What was found before has had its event, or has none.
            self.found.clear();
        }
        if self.flush.is_some_and(|due| due == 0 || left == 0) {
            self.flush = None;
            self.queue.flushed();
        }
    }

    /// Gives up halves of renames whose other one does not come: the entry was moved elsewhere.
    pub fn on_time(&mut self, now: Instant) {
        let (late, waiting) =
            std::mem::take(&mut self.halves).into_iter().partition(|half| half.until <= now);
        self.halves = waiting;
        let late: Vec<Half> = late;
        for half in late {
            self.give_up(half);
        }
    }

    fn give_up(&mut self, half: Half) {
        self.queue.settle(half.number, None);
        if let Some((folder, parent, name)) = half.folder
            && self.tree.place(folder) == Some((parent, &name))
        {
            self.drop_folder(folder);
        }
    }

    fn drop_folder(&mut self, folder: i32) {
        for wd in self.tree.prune(folder) {
            self.unwatch(wd);
        }
    }

    pub(super) fn unwatch(&self, wd: i32) {
        if let Some(inotify) = &self.inotify {
            // One whose folder is gone has gone with it.
            let _ = inotify::remove_watch(inotify, wd);
        }
    }

    /// Nothing is left to watch.
    fn end(&mut self, kind: ChangeKind) {
        for half in std::mem::take(&mut self.halves) {
            self.queue.settle(half.number, None);
        }
        self.queue.push(Change { kind, path: String::new(), to: None, directory: true });
        self.inotify = None;
        if self.flush.take().is_some() {
            self.queue.flushed();
        }
    }

    /// Tells of an entry. False if that was lost.
    pub(super) fn tell(&mut self, kind: ChangeKind, path: &[u8], directory: bool) -> bool {
        self.queue.push(Change { kind, path: text(path), to: None, directory })
    }

    fn take(&mut self, event: Event<'_>, places: &Places, room: usize) {
        let Event { wd, mask, cookie, name } = event;
        if mask.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.queue.overflow();
            self.found.clear();
            if self.recursive {
                self.grow(places, Look::Again, room);
            }
            return;
        }
        // The kernel tells of both halves before anything else of a folder that was renamed, so the other one is elsewhere.
        let left = self.halves.iter().position(|half| {
            half.folder.as_ref().is_some_and(|(folder, ..)| self.tree.is_at_or_below(wd, *folder))
        });
        if let Some(index) = left {
            let half = self.halves.swap_remove(index);
            self.give_up(half);
        }
        if name.is_empty() {
            self.take_own(wd, mask);
            return;
        }
        let Some(path) = self.tree.path(wd, name) else {
            // Of a folder that is known no more; or so deep that no path leads there.
            if self.tree.contains(wd) {
                self.queue.overflow();
            }
            return;
        };
        let directory = mask.contains(ReadFlags::ISDIR);
        if mask.contains(ReadFlags::CREATE) {
            if self.found.remove(&(wd, name.to_vec())) {
                return;
            }
            self.tell(ChangeKind::Created, &path, directory);
            if directory && self.recursive {
                self.grow(places, Look::AtNew { parent: wd, name: name.to_vec() }, room);
            }
        } else if mask.contains(ReadFlags::MOVED_FROM) {
            self.take_first_half(wd, cookie, name, &path, directory);
        } else if mask.contains(ReadFlags::MOVED_TO) {
            let half = self.halves.iter().position(|half| half.cookie == cookie);
            let half = half.map(|index| self.halves.swap_remove(index));
            let look = match half {
                Some(half) => {
                    self.queue.settle(half.number, Some(text(&path)));
                    Look::AtMoved { parent: wd, name: name.to_vec() }
                }
                None if self.found.remove(&(wd, name.to_vec())) => return,
                None => {
                    self.tell(ChangeKind::Created, &path, directory);
                    Look::AtNew { parent: wd, name: name.to_vec() }
                }
            };
            if directory && self.recursive {
                self.grow(places, look, room);
            }
        } else if mask.contains(ReadFlags::DELETE) {
            self.tell(ChangeKind::Removed, &path, directory);
        } else if mask.contains(ReadFlags::MODIFY) {
            self.tell(ChangeKind::Written, &path, directory);
        } else if mask.contains(ReadFlags::ATTRIB) {
            self.tell(ChangeKind::Attributes, &path, directory);
        }
    }

    /// What happened to a watched folder itself.
    fn take_own(&mut self, wd: i32, mask: ReadFlags) {
        if wd != self.root {
            // The folder above tells of it.
            if mask.contains(ReadFlags::IGNORED) {
                self.tree.forget(wd);
            }
        } else if mask.intersects(ReadFlags::DELETE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
            self.end(ChangeKind::Removed);
        } else if mask.contains(ReadFlags::MOVE_SELF) {
            self.end(ChangeKind::Renamed);
        } else if mask.contains(ReadFlags::ATTRIB) {
            self.tell(ChangeKind::Attributes, b"", true);
        }
    }

    fn take_first_half(&mut self, wd: i32, cookie: u32, name: &[u8], path: &[u8], directory: bool) {
        let change = Change { kind: ChangeKind::Removed, path: text(path), to: None, directory };
        let folder = self.tree.child(wd, name).filter(|_| directory);
        match self.queue.push_half(change) {
            Some(number) => self.halves.push(Half {
                cookie,
                number,
                until: Instant::now() + HALVES,
                folder: folder.map(|folder| (folder, wd, name.to_vec())),
            }),
            None => folder.into_iter().for_each(|folder| self.drop_folder(folder)),
        }
    }

    /// Looks for folders that are not watched yet.
    fn grow(&mut self, places: &Places, look: Look, room: usize) {
        match self.top(places) {
            Ok(Some(top)) => {
                if !self.look(&top, look, room) {
                    self.queue.overflow();
                }
            }
            Ok(None) => self.end(ChangeKind::Renamed),
            Err(_) => self.queue.overflow(),
        }
    }

    /// The watched folder, for the moment; `None` if it is no longer where it was.
    fn top(&mut self, places: &Places) -> Result<Option<OwnedFd>, Errno> {
        let Some(inotify) = &self.inotify else { return Ok(None) };
        let top = match Self::open(places, &self.path) {
            Ok(top) => top,
            Err(failure) if matches!(failure.code, FailureCode::Io | FailureCode::NoSpace) => {
                return Err(Errno::IO);
            }
            Err(_) => return Ok(None),
        };
        // The same number means the same folder.
        let wd = add(inotify, &top)?;
        if wd == self.root {
            return Ok(Some(top));
        }
        if !self.tree.contains(wd) {
            self.unwatch(wd);
        }
        Ok(None)
    }
}
