//! Templates with names: machines at rest that people have prepared, kept on disk until they are removed.
//!
//! ```text
//!  Engine::build_template ── sandbox ── its code ── renewed, warmed up ── kept ── what a clone uses is learned ──┐
//!  Sandbox::snapshot_as ─────────────────── as it stands ── kept ────────────────────────────────────────────────┤
//!                                                                                  <cache>/hayfork/named/<name>.template
//!  Engine::create_from ◄── restored, renewed ◄── in memory, as long as the file is the same ◄── loaded, checked ─┘
//! ```
//! A name stands for the newest that was saved under it. What the template fixes, language, memory and virtual CPUs, may be
//! left out of what is made of it, or must agree. Root is granted by each sandbox for itself.

mod stock;

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hayfork_protocol::message::{Env, Language, Request, Status};
use hayfork_vmm::backend::Template;
use hayfork_vmm::snapshot::{SnapshotFile, remove_leftovers};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::engine::{self, joined};
use crate::error::Error;
use crate::images::locate::cache_directory;
use crate::options::{ExecuteOptions, SandboxOptions, merged};
use crate::paused::{corrupt, snapshot_error};
use crate::pool::{Find, come_to_rest, warm_up, warm_up_code};
use crate::sandbox::{Sandbox, StartedFrom};
use crate::snapshot::{Snapshot, known};
use crate::start::{self, Restore, RunsOn, Shape};
use crate::store::own_folder;

pub(crate) use self::stock::Wishes;

/// Environment variable: the folder of named templates.
pub const ENVIRONMENT: &str = "HAYFORK_NAMED_TEMPLATES_DIR";

/// The folder inside the cache.
const FOLDER: &str = "named";
const SUFFIX: &str = ".template";
/// Version of [`Saved`].
const VERSION: u32 = 1;
/// The longest name, in bytes.
pub const MAX_TEMPLATE_NAME: usize = 64;
/// Templates with names that an engine keeps in memory.
const IN_MEMORY: usize = 4;
/// How long the code of a template may run if nothing is said.
pub const DEFAULT_BUILD_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of what failed code has printed that its error shows.
const SHOWN: usize = 4000;

/// A template to build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Its name: 1 to [`MAX_TEMPLATE_NAME`] of `a-z`, `0-9`, `.`, `_` and `-`. An older one of that name is replaced.
    pub name: String,
    /// As [`SandboxOptions::language`].
    pub language: Language,
    /// As [`SandboxOptions::memory_mib`].
    pub memory_mib: Option<u32>,
    /// As [`SandboxOptions::cpus`].
    pub cpus: Option<u8>,
    /// Run once before it is kept, in the context that sandboxes use first: what it has imported and defined is there.
    pub code: Option<String>,
    /// How long that may take; `None`: [`DEFAULT_BUILD_TIMEOUT`].
    pub timeout: Option<Duration>,
}

/// A sandbox to be made of a template, or of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct CloneOptions {
    /// If given, the template's must be this one.
    pub language: Option<Language>,
    /// If given, the template's must be that much, in MiB.
    pub memory_mib: Option<u32>,
    /// If given, the template's must be that many.
    pub cpus: Option<u8>,
    /// As [`SandboxOptions::idle_timeout`].
    pub idle_timeout: Option<Duration>,
    /// As [`SandboxOptions::boot_timeout`]: how long it may take until its guest answers.
    pub boot_timeout: Option<Duration>,
    /// As [`SandboxOptions::env`], on top of the entries of the sandbox that was kept.
    pub env: Env,
    /// As [`SandboxOptions::grant_root`].
    pub grant_root: bool,
}

/// A template on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTemplate {
    /// Its name.
    pub name: String,
    /// The language of its root image.
    pub language: Language,
    /// Memory of each sandbox, in MiB.
    pub memory_mib: u32,
    /// Virtual CPUs of each sandbox.
    pub vcpus: u8,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was saved.
    pub since: SystemTime,
}

/// What a template is like, beside its machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    language: String,
    memory_mib: u32,
    vcpus: u8,
    env: Env,
    since: SystemTime,
}

impl Saved {
    fn parse(about: &[u8], path: &Path) -> Result<(Self, Language), Error> {
        let saved: Option<Self> = serde_json::from_slice(about).ok();
        saved
            .filter(|saved| saved.version == VERSION)
            .and_then(|saved| Some((known(&saved.language, saved.vcpus, &saved.env)?, saved)))
            .map(|(language, saved)| (saved, language))
            .ok_or_else(|| corrupt(path, "what was kept with it is not a template of this version"))
    }
}

impl CloneOptions {
    /// What a sandbox of that kind is like with these.
    ///
    /// # Errors
    /// They are impossible, or do not agree with it.
    pub(crate) fn apply(self, to: &Shape) -> Result<Shape, Error> {
        self.agree(to.language, to.memory_mib, to.vcpus)?;
        let Self { idle_timeout, boot_timeout, env, grant_root, .. } = self;
        let options = SandboxOptions { idle_timeout, env, boot_timeout, ..SandboxOptions::new(to.language) };
        options.validate()?;
        Ok(Shape {
            env: merged(&to.env, options.env),
            idle_timeout: options.idle_timeout,
            grant_root,
            ..to.clone()
        })
    }

    /// Compares with what a template fixes.
    ///
    /// # Errors
    /// It is something else than these ask for.
    fn agree(&self, language: Language, memory_mib: u32, vcpus: u8) -> Result<(), Error> {
        let differs = |what: &str, has: String, wanted: String| {
            Err(Error::bad_option(format!(
                "the template's {what} is {has}, not {wanted}: leave {what} out, or choose another template"
            )))
        };
        match (self.language, self.memory_mib, self.cpus) {
            (Some(wanted), ..) if wanted != language => {
                differs("language", language.name().into(), wanted.name().into())
            }
            (_, Some(wanted), _) if wanted != memory_mib => {
                differs("memory", format!("{memory_mib} MiB"), format!("{wanted} MiB"))
            }
            (_, _, Some(wanted)) if wanted != vcpus => {
                differs("number of CPUs", vcpus.to_string(), wanted.to_string())
            }
            _ => Ok(()),
        }
    }
}

/// The templates with names that are in memory; the newest used last.
#[derive(Default)]
pub(crate) struct Named(tokio::sync::Mutex<Vec<Loaded>>);

/// A template that was read.
#[derive(Clone)]
pub(crate) struct Loaded {
    name: String,
    file: FileId,
    pub(crate) template: Arc<dyn Template>,
    pub(crate) shape: Shape,
}

/// Which file it is. A file is never changed, only replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId([i64; 4]);

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self([
            metadata.dev().cast_signed(),
            metadata.ino().cast_signed(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        ])
    }
}

/// Checks a name.
///
/// # Errors
/// It is none.
fn check_name(name: &str) -> Result<(), Error> {
    let fits = (1..=MAX_TEMPLATE_NAME).contains(&name.len())
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'));
    if fits {
        return Ok(());
    }
    let name: String = name.chars().take(MAX_TEMPLATE_NAME + 1).collect();
    Err(Error::bad_option(format!(
        "the template name {name:?} is not 1 to {MAX_TEMPLATE_NAME} of a-z, 0-9, '.', '_' and '-', beginning with no '.'"
    )))
}

fn missing(name: &str) -> Error {
    Error::NoSuchTemplate { name: name.to_owned() }
}

impl engine::Inner {
    /// The folder, which is made if it is not there.
    fn named_folder(&self) -> Result<PathBuf, Error> {
        let environment =
            || std::env::var_os(ENVIRONMENT).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = self.options.named_templates.clone().or_else(environment);
        let folder =
            folder.or_else(|| cache_directory().map(|cache| cache.join(FOLDER))).ok_or_else(|| {
                let problem = format!("neither {ENVIRONMENT} nor HOME names a place for templates");
                Error::io("a template cannot be kept", io::Error::new(io::ErrorKind::NotFound, problem))
            })?;
        own_folder(&folder)
            .and_then(|()| remove_leftovers(&folder))
            .map_err(|error| Error::io("the folder of templates cannot be used", error))?;
        Ok(folder)
    }

    fn named_file(&self, name: &str) -> Result<PathBuf, Error> {
        check_name(name)?;
        Ok(self.named_folder()?.join(format!("{name}{SUFFIX}")))
    }

    /// Saves a template under a name. Blocks.
    fn save_named(
        self: &Arc<Self>,
        name: &str,
        template: &dyn Template,
        shape: &Shape,
    ) -> Result<NamedTemplate, Error> {
        let path = self.named_file(name)?;
        let saved = Saved {
            version: VERSION,
            language: shape.language.name().to_owned(),
            memory_mib: shape.memory_mib,
            vcpus: shape.vcpus,
            env: shape.env.clone(),
            since: SystemTime::now(),
        };
        let about = serde_json::to_vec(&saved)
            .map_err(|error| Error::io("a template cannot be described", error.into()))?;
        template.save(&path, &about)?;
        if let Ok(metadata) = fs::metadata(&path) {
            self.has_file(name, Some(stock::key_of(FileId::of(&metadata), shape)));
        }
        describe(&path).ok_or_else(|| missing(name))
    }

    /// Reads a template. Blocks.
    fn load_named(&self, name: &str) -> Result<Loaded, Error> {
        let path = self.named_file(name)?;
        let metadata = metadata_of(&path, name)?;
        let file = SnapshotFile::open(&path).map_err(snapshot_error)?;
        let (saved, language) = Saved::parse(file.about(), &path)?;
        let of = file.identity().get("backend").unwrap_or_default().to_owned();
        drop(file);
        let (template, capabilities) = self.load_machine(&path, &of, language, saved.memory_mib)?;
        let shape = Shape {
            language,
            memory_mib: saved.memory_mib,
            vcpus: saved.vcpus,
            env: saved.env,
            grant_root: false,
            idle_timeout: None,
            runs_on: RunsOn { capabilities, fallback: None },
        };
        Ok(Loaded { name: name.to_owned(), file: FileId::of(&metadata), template, shape })
    }

    /// The template of that name, from memory if the file is still the same.
    ///
    /// # Errors
    /// There is none, or it cannot be used here.
    async fn named(self: &Arc<Self>, name: &str) -> Result<Loaded, Error> {
        let mut all = self.named.0.lock().await;
        let known = all.iter().position(|loaded| loaded.name == name).map(|index| all.remove(index));
        let (engine, name) = (Arc::clone(self), name.to_owned());
        let loaded = self.handle().spawn_blocking(move || {
            let path = engine.named_file(&name)?;
            let file = fs::metadata(path).ok().as_ref().map(FileId::of);
            match known {
                Some(known) if file == Some(known.file) => Ok(known),
                _ => engine.load_named(&name),
            }
        });
        let loaded = loaded.await.map_err(joined)??;
        all.push(loaded.clone());
        let excess = all.len().saturating_sub(IN_MEMORY);
        all.drain(..excess);
        Ok(loaded)
    }

    /// See [`Engine::create_from`](crate::Engine::create_from).
    pub(crate) async fn create_from(
        self: Arc<Self>,
        name: String,
        options: CloneOptions,
        called: Instant,
    ) -> Result<Sandbox, Error> {
        let Loaded { file, template, shape, .. } = self.named(&name).await?;
        let limit = options.boot_timeout.unwrap_or(self.options.boot_timeout);
        let shape = options.apply(&shape)?;
        let key = stock::key_of(file, &shape);
        self.has_file(&name, Some(key));
        if let Some(line) = self.pools.existing(key)
            && let Find::Ready(ready) = line.find()
        {
            let (guest, _) = *ready;
            self.refill(&line);
            return Ok(self.sandbox(guest, shape, called, StartedFrom::Pool));
        }
        let permit = self.admit(shape.memory_mib).await;
        let guest = self.restored(Restore::Usual(template), permit, called, limit).await?;
        Ok(self.sandbox(guest, shape, called, StartedFrom::Template))
    }

    /// See [`Engine::build_template`](crate::Engine::build_template).
    pub(crate) async fn build_template(
        self: Arc<Self>,
        options: BuildOptions,
    ) -> Result<NamedTemplate, Error> {
        let BuildOptions { name, language, memory_mib, cpus, code, timeout } = options;
        check_name(&name)?;
        let wanted = SandboxOptions { memory_mib, cpus, ..SandboxOptions::new(language) };
        let sandbox = Arc::clone(&self).create(wanted, Instant::now()).await?;
        if let Some(code) = code {
            let mut options = ExecuteOptions::new(code);
            options.timeout = Some(timeout.unwrap_or(DEFAULT_BUILD_TIMEOUT));
            run(&sandbox, options, &name).await?;
        }
        // As templates of languages are: what clones do first is loaded.
        run(&sandbox, ExecuteOptions::new(warm_up_code(language)), &name).await?;
        let limit = self.boot_timeout();
        let renew = sandbox.simple(Request::Renew(start::renewal(sandbox.id())?));
        start::within(limit, "renew itself", renew).await?;
        run(&sandbox, ExecuteOptions::new(warm_up_code(language)), &name).await?;
        come_to_rest().await;
        let (_, slot, shape) = sandbox.running()?;
        let template = self.handle().spawn_blocking(move || slot.capture()).await.map_err(joined)??;
        sandbox.close().await?;

        let permit = self.admit(shape.memory_mib).await;
        let observed = Restore::Observed(Arc::clone(&template));
        let trial = self.restored(observed, permit, Instant::now(), limit).await?;
        warm_up(&trial, language, limit).await?;
        let slot = Arc::clone(&trial.wires.slot);
        let engine = Arc::clone(&self);
        let saved = self.handle().spawn_blocking(move || {
            let template = template.with_working_set(slot.working_set());
            engine.save_named(&name, &*template, &shape)
        });
        saved.await.map_err(joined)?
    }

    /// See [`Engine::templates`](crate::Engine::templates).
    pub(crate) fn list_named(&self) -> Result<Vec<NamedTemplate>, Error> {
        let entries = fs::read_dir(self.named_folder()?)
            .map_err(|error| Error::io("templates cannot be listed", error))?;
        let mut all: Vec<_> = entries.flatten().filter_map(|entry| describe(&entry.path())).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// See [`Engine::remove_template`](crate::Engine::remove_template).
    pub(crate) fn remove_named(self: &Arc<Self>, name: &str) -> Result<(), Error> {
        fs::remove_file(self.named_file(name)?).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing(name),
            _ => Error::io("a template cannot be removed", error),
        })?;
        self.has_file(name, None);
        // Who uses it at the moment notices by itself, at the next use.
        if let Ok(mut all) = self.named.0.try_lock() {
            all.retain(|loaded| loaded.name != name);
        }
        Ok(())
    }
}

/// # Errors
/// There is no such file, or it cannot be looked at.
fn metadata_of(path: &Path, name: &str) -> Result<Metadata, Error> {
    fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(name),
        _ => Error::io("a template cannot be read", error),
    })
}

/// Which file it is, and what it says about its template.
///
/// # Errors
/// There is none, or it is damaged.
fn header(path: &Path, name: &str) -> Result<(FileId, Saved, Language), Error> {
    let metadata = metadata_of(path, name)?;
    let file = SnapshotFile::open(path).map_err(snapshot_error)?;
    let (saved, language) = Saved::parse(file.about(), path)?;
    Ok((FileId::of(&metadata), saved, language))
}

/// Runs what belongs to a template.
///
/// # Errors
/// It did not end well; what it printed is told.
async fn run(sandbox: &Sandbox, options: ExecuteOptions, name: &str) -> Result<(), Error> {
    let run = sandbox.execute(options).collect().await?;
    if run.outcome.status == Status::Exited && run.outcome.exit_code == 0 {
        return Ok(());
    }
    let how = match run.outcome.status {
        Status::Exited => format!("ended with exit code {}", run.outcome.exit_code),
        Status::Timeout => "took too long".into(),
        Status::OutOfMemory => "needs more memory".into(),
        Status::Killed => "was killed".into(),
    };
    let output = [run.stdout, run.stderr].concat();
    let shown = &output[output.len().saturating_sub(SHOWN)..];
    let output = String::from_utf8_lossy(shown).trim().to_owned();
    Err(Error::TemplateCode { name: name.to_owned(), how, output })
}

/// What a file says about its template; `None` if it is none, or damaged.
fn describe(path: &Path) -> Option<NamedTemplate> {
    let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.to_owned();
    check_name(&name).ok()?;
    let file = SnapshotFile::open(path).ok()?;
    let (Saved { memory_mib, vcpus, since, .. }, language) = Saved::parse(file.about(), path).ok()?;
    Some(NamedTemplate { name, language, memory_mib, vcpus, bytes: fs::metadata(path).ok()?.len(), since })
}

impl Sandbox {
    /// As [`Sandbox::snapshot`], and keeps it on disk under a name as well, for [`Engine::create_from`](crate::Engine::create_from)
    /// in this and other processes, until it is removed. An older template of that name is replaced. Everything that the sandbox
    /// has in memory is in the file.
    ///
    /// # Errors
    /// As [`Sandbox::snapshot`]; a name that is none, or it cannot be written.
    pub async fn snapshot_as(&self, name: &str) -> Result<Snapshot, Error> {
        check_name(name)?;
        let snapshot = self.snapshot().await?;
        let (template, shape, engine) = snapshot.parts()?;
        let name = name.to_owned();
        let handle = engine.handle().clone();
        engine::run_on(&handle.clone(), async move {
            let saving = handle.spawn_blocking(move || engine.save_named(&name, &*template, &shape));
            saving.await.map_err(joined)?
        })
        .await?;
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hayfork_vmm::backend::{Accelerator, Capabilities};

    #[test]
    fn names_are_no_paths() {
        for good in ["a", "data-science_3.11", &"x".repeat(64)] {
            check_name(good).unwrap();
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "A", "a b", "ä", "a\0", &"x".repeat(65)] {
            assert_eq!(check_name(bad).unwrap_err().code(), "bad_option", "{bad:?}");
        }
    }

    #[test]
    fn what_a_template_fixes_may_be_left_out_or_must_agree() {
        let env = |entries: &[(&str, &str)]| -> Env {
            entries.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let shape = Shape {
            language: Language::Python,
            memory_mib: 256,
            vcpus: 1,
            env: env(&[("A", "1"), ("B", "2")]),
            grant_root: true,
            idle_timeout: Some(Duration::from_secs(9)),
            runs_on: RunsOn {
                capabilities: Capabilities::new("fake", "t".into(), Accelerator::Tcg),
                fallback: None,
            },
        };
        let none = CloneOptions { env: env(&[("B", "3")]), ..CloneOptions::default() };
        let made = none.apply(&shape).unwrap();
        assert_eq!(made.env, env(&[("A", "1"), ("B", "3")]));
        assert_eq!((made.grant_root, made.idle_timeout), (false, None), "those are each sandbox's own");
        let agrees = CloneOptions {
            language: Some(Language::Python),
            memory_mib: Some(256),
            cpus: Some(1),
            ..CloneOptions::default()
        };
        agrees.clone().apply(&shape).unwrap();
        for bad in [
            CloneOptions { language: Some(Language::Shell), ..agrees.clone() },
            CloneOptions { memory_mib: Some(512), ..agrees.clone() },
            CloneOptions { cpus: Some(2), ..agrees.clone() },
            CloneOptions { idle_timeout: Some(Duration::ZERO), ..agrees.clone() },
            CloneOptions { boot_timeout: Some(Duration::ZERO), ..agrees },
        ] {
            assert_eq!(bad.apply(&shape).unwrap_err().code(), "bad_option");
        }
    }

    #[test]
    fn what_was_kept_is_checked() {
        let saved = Saved {
            version: VERSION,
            language: "python".into(),
            memory_mib: 256,
            vcpus: 2,
            env: vec![("A".into(), "1".into())],
            since: SystemTime::UNIX_EPOCH,
        };
        let text = serde_json::to_string(&saved).unwrap();
        let parse = |text: &str| Saved::parse(text.as_bytes(), Path::new("f"));
        assert_eq!(parse(&text).unwrap().0.vcpus, 2);
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("python", "cobol"),
            ("\"A\"", "\"1\""),
            ("\"vcpus\":2", "\"vcpus\":0"),
        ] {
            let error = parse(&text.replacen(from, to, 1)).map(drop).unwrap_err();
            assert_eq!(error.code(), "snapshot_corrupt", "{to}");
        }
    }
}
