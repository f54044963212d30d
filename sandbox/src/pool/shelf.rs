//! Templates of languages on disk: what one process has warmed up, others load, which takes less than booting.
//!
//! ```text
//!  first machine of a kind ── entry there? ── yes ──► loaded, checked ──► template in memory
//!                                  └── no ──► it boots
//!  a template is to be made ── whose turn, of all processes? ── ours ──► made, used, and then saved in the background
//!                                  └── another's ──► waited for, and loaded
//! ```
//! An entry's name is a digest of everything that a template is made of. What is damaged, or belongs to another host, is removed
//! and made anew. Nothing that goes wrong here is an error of anybody's: templates are made in memory then, as without a disk.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hayfork_vmm::backend::{Backend, BackendError, ImageDigests};
use hayfork_vmm::snapshot::SnapshotError;
use tokio::time::Instant;

use super::Key;
use super::template::{LanguageTemplate, warm_up_code};
use crate::engine::{self, joined};
use crate::error::Error;
use crate::options::TemplateStore;
use crate::start::{Plan, RunsOn};
use crate::store::{self, Lock, Store};

/// Version of how a template is made, as far as no other part of its key says it: the machine's wiring and command line, what is
/// done to it before it is kept. To be raised with every change of those.
const RECIPE: u32 = 1;

/// How long somebody else's making is waited for, and how often it is looked at.
const WAIT: (Duration, Duration) = (Duration::from_secs(30), Duration::from_millis(25));

/// An engine's store, opened when it is first needed.
#[derive(Debug)]
pub(crate) struct Shelf {
    wanted: TemplateStore,
    store: OnceLock<Option<Store>>,
}

impl Shelf {
    pub(crate) fn new(wanted: TemplateStore) -> Self {
        Self { wanted, store: OnceLock::new() }
    }

    /// The store, if there is to be one and it can be used. Blocks.
    fn store(&self) -> Option<&Store> {
        let open = || {
            let opened = match &self.wanted {
                TemplateStore::Usual => Store::from_environment(),
                TemplateStore::Folder { path, most } => Store::open(path, *most).map(Some),
                TemplateStore::Off => Ok(None),
            };
            opened.unwrap_or_else(|error| {
                tracing::debug!(%error, "templates are not kept on disk");
                None
            })
        };
        self.store.get_or_init(open).as_ref()
    }
}

/// Where one template stands, or would.
#[derive(Clone, Debug)]
pub(super) struct Place {
    store: Store,
    key: store::Key,
}

impl Place {
    /// Removes it from disk. Blocks.
    pub(super) fn clear(&self) {
        self.store.remove(&self.key);
    }
}

/// What there is of a template before it is made.
pub(super) enum Claim {
    /// Itself.
    Found(LanguageTemplate),
    /// Leave to make it, and to keep it.
    Ours(Leave),
    /// It is to be made, and not to be kept.
    Nowhere,
}

/// Nobody else makes this template meanwhile.
pub(super) struct Leave {
    place: Place,
    lock: Lock,
}

impl Leave {
    pub(super) fn place(&self) -> Place {
        self.place.clone()
    }

    /// Saves it in the background.
    pub(super) fn keep(self, engine: &engine::Inner, template: &LanguageTemplate) {
        let template = Arc::clone(&template.template);
        engine.handle().spawn_blocking(move || {
            // Named, so that the lock is the closure's too: it would be let go before anything is saved.
            let Self { place: Place { store, key }, lock } = self;
            let began = Instant::now();
            match store.put_locked(&key, |path| template.save(path, key.as_str().as_bytes())) {
                Ok(path) => {
                    tracing::debug!(path = %path.display(), took = ?began.elapsed(), "a template was saved");
                }
                Err(error) => tracing::debug!(%error, "a template cannot be kept on disk"),
            }
            drop(lock);
        });
    }
}

/// A place with what is needed to load from there.
struct Spot {
    place: Place,
    backend: Arc<dyn Backend>,
    digests: ImageDigests,
    root: Option<PathBuf>,
    runs_on: RunsOn,
    ram: u64,
}

impl Spot {
    /// The place of a template here. Blocks.
    ///
    /// # Errors
    /// A machine of that kind cannot be had at all; whoever boots it gets that told.
    fn find(engine: &engine::Inner, key: Key) -> Result<Option<Self>, Error> {
        let Some(store) = engine.shelf.store() else { return Ok(None) };
        let Plan { spec, digests, backend, runs_on } = engine.plan(key, "template".into())?;
        let capabilities = &runs_on.capabilities;
        let numbers = [RECIPE, key.memory_mib, key.vcpus.into()].map(u32::to_le_bytes);
        let accelerator = capabilities.accelerator.to_string();
        let parts = [
            env!("CARGO_PKG_VERSION"),
            backend.name(),
            &accelerator,
            capabilities.kernel.name(),
            &digests.kernel,
            &digests.initramfs,
            digests.root.as_deref().unwrap_or_default(),
            key.language.name(),
            warm_up_code(key.language),
        ];
        let parts = parts.iter().map(|part| part.as_bytes()).chain(numbers.iter().map(<[u8; 4]>::as_slice));
        let place = Place { store: store.clone(), key: store::Key::of(parts) };
        let ram = u64::from(key.memory_mib) << 20;
        Ok(Some(Self { place, backend, digests, root: spec.root_image, runs_on, ram }))
    }

    /// What is there, if it can be used; if it never can, it is removed. Blocks.
    fn load(&self) -> Option<LanguageTemplate> {
        let path = self.place.store.get(&self.place.key)?;
        let began = Instant::now();
        match self.backend.load(&path, &self.digests, self.root.as_deref()) {
            Ok((template, about))
                if about == self.place.key.as_str().as_bytes() && template.ram() == self.ram =>
            {
                tracing::debug!(path = %path.display(), took = ?began.elapsed(), "a template was loaded");
                let (runs_on, place) = (self.runs_on.clone(), Some(self.place.clone()));
                return Some(LanguageTemplate { template, runs_on, place });
            }
            Ok(_) => {
                tracing::debug!(path = %path.display(), "a file holds another template than its name says");
            }
            Err(error) => {
                tracing::debug!(%error, "a template on disk cannot be used");
                if !is_for_ever(&error) {
                    return None;
                }
            }
        }
        self.place.clear();
        None
    }
}

/// Whether a file that gives this error will not be used by anybody, as far as is known here.
fn is_for_ever(error: &BackendError) -> bool {
    use SnapshotError::{Corrupt, Foreign, Newer, NotASnapshot, Truncated};
    matches!(
        error,
        BackendError::Snapshot(
            NotASnapshot { .. } | Newer { .. } | Truncated { .. } | Corrupt { .. } | Foreign { .. }
        )
    )
}

/// The template of that kind that is on disk. It takes a file's reading, or nearly nothing if there is none.
pub(super) async fn load(engine: &Arc<engine::Inner>, key: Key) -> Option<LanguageTemplate> {
    let inner = Arc::clone(engine);
    let loaded = engine.handle().spawn_blocking(move || Spot::find(&inner, key).ok()??.load());
    loaded.await.ok()?
}

/// Finds out who makes the template of that kind, and waits if it is another process.
///
/// # Errors
/// A machine of that kind cannot be had, or the engine ends.
pub(super) async fn claim(engine: &Arc<engine::Inner>, key: Key) -> Result<Claim, Error> {
    let until = Instant::now() + WAIT.0;
    let inner = Arc::clone(engine);
    let spot = engine.handle().spawn_blocking(move || Spot::find(&inner, key));
    let Some(spot) = spot.await.map_err(joined)?? else { return Ok(Claim::Nowhere) };
    let spot = Arc::new(spot);
    loop {
        let here = Arc::clone(&spot);
        let look = engine.handle().spawn_blocking(move || {
            // The lock comes first: who had it may have put something there just before.
            let lock = here.place.store.try_lock(&here.place.key);
            if let Some(found) = here.load() {
                return Some(Claim::Found(found));
            }
            match lock {
                Ok(Some(lock)) => Some(Claim::Ours(Leave { place: here.place.clone(), lock })),
                Ok(None) => None,
                Err(error) => {
                    tracing::debug!(%error, "templates cannot be kept on disk");
                    Some(Claim::Nowhere)
                }
            }
        });
        if let Some(claim) = look.await.map_err(joined)? {
            return Ok(claim);
        }
        if Instant::now() > until {
            return Ok(Claim::Nowhere);
        }
        tokio::time::sleep(WAIT.1).await;
    }
}
