//! Sandboxes at rest on disk, for this process or another to go on with.
//!
//! ```text
//!  Sandbox ── pause() ──► <cache>/hayfork/paused/<id>.sandbox ── Engine::resume(id) ──► Sandbox
//!                machine kept, written, then gone                    loaded, restored, renewed, then the file is gone
//! ```
//! A paused sandbox is one sandbox: who resumes it holds the file's lock until it runs and the file is removed, so that of two
//! who try at once one gets it. With [`ResumeOptions::keep`] the file stays, and each resume gives a clone of its own. Whatever
//! fails on either way leaves what was there before: a sandbox that cannot be written runs on, a file that cannot be resumed stays.
//!
//! It can be resumed on this host with the same images and version of hayfork, since it goes on in the midst of them
//! ([`hayfork_vmm::snapshot`]).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hayfork_protocol::message::{Env, Language};
use hayfork_vmm::backend::{Capabilities, Template};
use hayfork_vmm::snapshot::{SnapshotError, SnapshotFile, remove_leftovers};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::engine;
use crate::error::Error;
use crate::images::locate::cache_directory;
use crate::reaper::Slot;
use crate::sandbox::Sandbox;
use crate::snapshot::{Snapshot, known};
use crate::start::{RunsOn, Shape};
use crate::store::{Lock, own_folder, remove_dead_locks};

/// Environment variable: the folder of paused sandboxes.
pub const ENVIRONMENT: &str = "HAYFORK_PAUSED_DIR";

/// The folder inside the cache.
const FOLDER: &str = "paused";

const SUFFIX: &str = ".sandbox";

/// Version of [`Saved`].
const VERSION: u32 = 2;

/// How a paused sandbox is resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumeOptions {
    /// Leaves it paused as well: each resume gives a clone of its own.
    pub keep: bool,
}

/// The most bytes of a [note](Resumed::note).
pub const MAX_NOTE: usize = 256 << 10;

/// A sandbox that was paused and goes on.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// What [`Sandbox::pause`] was given to keep with it.
    pub note: String,
}

/// A sandbox at rest on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    /// What [`Engine::resume`](crate::Engine::resume) takes.
    pub id: String,
    /// The language of its root image.
    pub language: Language,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was paused.
    pub since: SystemTime,
}

/// What a sandbox is like, beside its machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    language: String,
    memory_mib: u32,
    vcpus: u8,
    env: Env,
    grant_root: bool,
    idle_timeout: Option<Duration>,
    since: SystemTime,
    note: String,
}

impl Saved {
    fn new(shape: &Shape, note: String) -> Self {
        Self {
            version: VERSION,
            language: shape.language.name().to_owned(),
            memory_mib: shape.memory_mib,
            vcpus: shape.vcpus,
            env: shape.env.clone(),
            grant_root: shape.grant_root,
            idle_timeout: shape.idle_timeout,
            since: SystemTime::now(),
            note,
        }
    }

    fn parse(about: &[u8], path: &Path) -> Result<(Self, Language), Error> {
        let saved: Option<Self> = serde_json::from_slice(about).ok();
        saved
            .filter(|saved| saved.version == VERSION)
            .and_then(|saved| Some((known(&saved.language, saved.vcpus, &saved.env)?, saved)))
            .map(|(language, saved)| (saved, language))
            .ok_or_else(|| {
                let what = "what was kept with it is not a sandbox of this version";
                corrupt(path, what)
            })
    }

    fn into_shape(self, language: Language, capabilities: Capabilities) -> (String, Shape) {
        let shape = Shape {
            language,
            memory_mib: self.memory_mib,
            vcpus: self.vcpus,
            env: self.env,
            grant_root: self.grant_root,
            idle_timeout: self.idle_timeout,
            runs_on: RunsOn { capabilities, fallback: None },
        };
        (self.note, shape)
    }
}

pub(crate) fn corrupt(path: &Path, what: &'static str) -> Error {
    snapshot_error(SnapshotError::Corrupt { path: path.to_path_buf(), what })
}

pub(crate) fn snapshot_error(error: SnapshotError) -> Error {
    hayfork_vmm::backend::BackendError::from(error).into()
}

/// A paused sandbox that was read.
struct Loaded {
    template: Arc<dyn Template>,
    shape: Shape,
    note: String,
    claim: Claim,
}

/// A paused sandbox that nobody else resumes or discards.
struct Claim {
    path: PathBuf,
    keep: bool,
    /// Locked until it is closed.
    _file: File,
}

impl Claim {
    /// Locks the file of a paused sandbox: for this one alone, or, with `keep`, with others who keep it.
    fn take(folder: &Path, id: &str, keep: bool) -> Result<Self, Error> {
        let path = file_of(folder, id)?;
        let missing = || Error::NoSuchPaused { id: id.to_owned() };
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = match File::options().read(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => return Err(Error::io("a paused sandbox cannot be opened", error)),
        };
        let how = if keep {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match flock(&file, how) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Error::PausedBusy { id: id.to_owned() }),
            Err(errno) => return Err(Error::io("a paused sandbox cannot be locked", errno.into())),
        }
        // Who had it before may have resumed it.
        match file.metadata() {
            Ok(metadata) if metadata.nlink() > 0 => Ok(Self { path, keep, _file: file }),
            _ => Err(missing()),
        }
    }

    /// The sandbox runs: it is not paused any more.
    fn settle(self) {
        let path = self.path.clone();
        if !self.keep
            && let Err(error) = self.remove()
        {
            tracing::warn!(%error, path = %path.display(), "a resumed sandbox is still on disk");
        }
    }

    fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// The file of a paused sandbox.
///
/// # Errors
/// That is no id, so there is none.
fn file_of(folder: &Path, id: &str) -> Result<PathBuf, Error> {
    if is_id(id) {
        Ok(folder.join(format!("{id}{SUFFIX}")))
    } else {
        Err(Error::NoSuchPaused { id: id.chars().take(64).collect() })
    }
}

/// Ids are names of files, and come from anywhere.
fn is_id(id: &str) -> bool {
    id.len() == 12 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl engine::Inner {
    /// The folder, which is made if it is not there.
    fn paused_folder(&self) -> Result<PathBuf, Error> {
        let named = || std::env::var_os(ENVIRONMENT).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = self.options.paused.clone().or_else(named);
        let folder =
            folder.or_else(|| cache_directory().map(|cache| cache.join(FOLDER))).ok_or_else(|| {
                let problem = format!("neither {ENVIRONMENT} nor HOME names a place for paused sandboxes");
                Error::io("a sandbox cannot be paused", io::Error::new(io::ErrorKind::NotFound, problem))
            })?;
        own_folder(&folder)
            .and_then(|()| remove_leftovers(&folder))
            .and_then(|_| remove_dead_locks(&folder))
            .map_err(|error| Error::io("the folder of paused sandboxes cannot be used", error))?;
        Ok(folder)
    }

    /// Writes a sandbox's machine to disk. It runs on. Blocks.
    fn save_paused(path: &Path, slot: &Slot, shape: &Shape, note: String) -> Result<(), Error> {
        let about = serde_json::to_vec(&Saved::new(shape, note))
            .map_err(|error| Error::io("a sandbox cannot be described", error.into()))?;
        slot.capture()?.save(path, &about)?;
        Ok(())
    }

    /// Reads a paused sandbox. Blocks.
    fn load_paused(&self, id: &str, keep: bool) -> Result<Loaded, Error> {
        let claim = Claim::take(&self.paused_folder()?, id, keep)?;
        let path = claim.path.as_path();
        let file = SnapshotFile::open(path).map_err(snapshot_error)?;
        let (saved, language) = Saved::parse(file.about(), path)?;
        let of = file.identity().get("backend").unwrap_or_default().to_owned();
        drop(file);
        let (template, capabilities) = self.load_machine(path, &of, language, saved.memory_mib)?;
        let (note, shape) = saved.into_shape(language, capabilities);
        Ok(Loaded { template, shape, note, claim })
    }

    /// Reads a machine that the backend of the name `of` has saved. Blocks.
    pub(crate) fn load_machine(
        &self,
        path: &Path,
        of: &str,
        language: Language,
        memory_mib: u32,
    ) -> Result<(Arc<dyn Template>, Capabilities), Error> {
        let backend = self.backends.named(of).ok_or_else(|| {
            snapshot_error(SnapshotError::Foreign {
                path: path.to_path_buf(),
                part: "backend".into(),
                saved: Some(of.to_owned()),
                here: Some(self.backends.name().to_owned()),
            })
        })?;
        let capabilities = backend.check()?;
        let images = self.lookup().open()?;
        let digests = images.digests(language.name(), capabilities.kernel)?;
        let root = images.image(language.name())?;
        let (template, _) = backend.load(path, &digests, Some(&root))?;
        if template.ram() != u64::from(memory_mib) << 20 {
            return Err(corrupt(path, "its machine has another memory than its sandbox"));
        }
        Ok((template, capabilities))
    }

    /// See [`Engine::resume`](crate::Engine::resume).
    pub(crate) async fn resume(
        self: Arc<Self>,
        id: String,
        options: ResumeOptions,
    ) -> Result<Resumed, Error> {
        let engine = Arc::clone(&self);
        let loaded = self.handle().spawn_blocking(move || engine.load_paused(&id, options.keep));
        let Loaded { template, shape, note, claim } = loaded.await.map_err(engine::joined)??;
        let sandbox = Snapshot::new(template, shape, self).restore().await?;
        claim.settle();
        Ok(Resumed { sandbox, note })
    }

    /// See [`Engine::paused`](crate::Engine::paused).
    pub(crate) fn list_paused(&self) -> Result<Vec<Paused>, Error> {
        let folder = self.paused_folder()?;
        let entries =
            fs::read_dir(folder).map_err(|error| Error::io("paused sandboxes cannot be listed", error))?;
        let mut all: Vec<Paused> = entries.flatten().filter_map(|entry| describe(&entry.path())).collect();
        all.sort_by(|one, other| (one.since, &one.id).cmp(&(other.since, &other.id)));
        Ok(all)
    }

    /// See [`Engine::discard`](crate::Engine::discard).
    pub(crate) fn discard_paused(&self, id: &str) -> Result<(), Error> {
        let claim = Claim::take(&self.paused_folder()?, id, false)?;
        claim.remove().map_err(|error| Error::io("a paused sandbox cannot be removed from disk", error))
    }
}

/// What a file says about its sandbox; `None` if it is none, or damaged.
fn describe(path: &Path) -> Option<Paused> {
    let id = path.file_name()?.to_str()?.strip_suffix(SUFFIX).filter(|id| is_id(id))?.to_owned();
    let file = SnapshotFile::open(path).ok()?;
    let (Saved { memory_mib, since, .. }, language) = Saved::parse(file.about(), path).ok()?;
    Some(Paused { id, language, memory_mib, bytes: fs::metadata(path).ok()?.len(), since })
}

impl Sandbox {
    /// Writes it to disk and releases its machine. Gives the id that [`Engine::resume`](crate::Engine::resume) takes, in this
    /// or another process: memory with everything that runs in the background, files, variables go on there. What an execution
    /// or command does while this is called is stopped there, and calls from here on are refused. `note` is kept with it, at most
    /// [`MAX_NOTE`] bytes. A pause that has begun comes to its end whether or not anybody waits.
    ///
    /// # Errors
    /// It is closed, its backend cannot do that, or it cannot be written; then it runs on.
    pub async fn pause(&self, note: impl Into<String>) -> Result<String, Error> {
        let note = note.into();
        if note.len() > MAX_NOTE {
            let given = note.len();
            return Err(Error::bad_option(format!(
                "a note of {given} bytes is longer than the {MAX_NOTE} that are kept with a paused sandbox"
            )));
        }
        let (engine, slot, shape) = self.running()?;
        let this = self.clone();
        let handle = engine.handle().clone();
        let pausing = handle.spawn(async move {
            let id = this.id().to_owned();
            let (name, sandbox) = (id.clone(), this.clone());
            let saved = engine.handle().clone().spawn_blocking(move || {
                let folder = engine.paused_folder()?;
                // Of two who pause it at once one does, and the other finds it closed.
                let lock = Lock::take(folder.join(format!(".{name}.lock")));
                let lock = lock.map_err(|error| Error::io("a sandbox cannot be paused", error))?;
                sandbox.running()?;
                // What it would be told from here on would be lost.
                sandbox.hold("it is being paused")?;
                let saved = file_of(&folder, &name)
                    .and_then(|path| engine::Inner::save_paused(&path, &slot, &shape, note));
                if saved.is_ok() {
                    sandbox.end("it was paused")?;
                }
                sandbox.release()?;
                drop(lock);
                saved
            });
            let saved = saved.await.map_err(engine::joined)?;
            if saved.is_err() {
                this.goes_on().await;
            }
            saved?;
            this.gone().await?;
            Ok(id)
        });
        pausing.await.unwrap_or_else(|error| Err(engine::joined(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_no_paths() {
        for bad in ["", "..", "../../etc/pw", "0123456789ag", "0123456789AB", "0123456789abc", "0123456789a/"]
        {
            assert_eq!(file_of(Path::new("/f"), bad).unwrap_err().code(), "paused_missing", "{bad}");
        }
        assert_eq!(file_of(Path::new("/f"), "0123456789ab").unwrap(), Path::new("/f/0123456789ab.sandbox"));
    }

    #[test]
    fn one_who_takes_it_keeps_others_away_until_it_is_settled() {
        let folder = tempfile::tempdir().unwrap();
        let id = "0123456789ab";
        let take = |keep| Claim::take(folder.path(), id, keep).map_err(|error| error.code());
        assert_eq!(take(false).err(), Some("paused_missing"));
        fs::write(folder.path().join(format!("{id}{SUFFIX}")), "x").unwrap();
        let claim = take(false).unwrap();
        assert_eq!((take(false).err(), take(true).err()), (Some("paused_busy"), Some("paused_busy")));
        drop(claim);
        let keepers = [take(true).unwrap(), take(true).unwrap()];
        assert_eq!(take(false).err(), Some("paused_busy"));
        keepers.into_iter().for_each(Claim::settle);
        take(false).unwrap().settle();
        assert_eq!(take(true).err(), Some("paused_missing"));
    }

    #[test]
    fn what_was_kept_is_checked() {
        let saved = Saved {
            version: VERSION,
            language: "python".into(),
            memory_mib: 256,
            vcpus: 1,
            env: vec![("A".into(), "1".into())],
            grant_root: true,
            idle_timeout: Some(Duration::from_millis(1500)),
            since: SystemTime::UNIX_EPOCH,
            note: String::new(),
        };
        let text = serde_json::to_string(&saved).unwrap();
        let parse = |text: &str| Saved::parse(text.as_bytes(), Path::new("f"));
        let (read, language) = parse(&text).unwrap();
        assert_eq!(
            (read.idle_timeout, language, read.grant_root),
            (saved.idle_timeout, Language::Python, true)
        );
        for (from, to) in [
            ("\"version\":2", "\"version\":1"),
            ("python", "cobol"),
            ("\"vcpus\":1", "\"vcpus\":0"),
            ("\"A\"", "\"1\""),
            ("{", "{\"x\":1,"),
        ] {
            let error = parse(&text.replacen(from, to, 1)).map(drop).unwrap_err();
            assert_eq!(error.code(), "snapshot_corrupt", "{to}");
        }
    }
}
