//! Templates of languages: a guest whose interpreter is warm, at rest, and the pages that its clones write first.
//!
//! ```text
//!  boot ── an empty piece of code ── capture ──► template ── one clone: renewed, warmed up ── what it has written ──► working set
//! ```
//! All of that is done once on a host: see [`super::shelf`]. The working set is given to every clone ahead: a fault for each page costs several times as much.

use std::sync::Arc;
use std::time::Duration;

use hayfork_protocol::message::{Execute, Language, Request};
use hayfork_vmm::backend::Template;
use tokio::time::Instant;

use super::shelf::{self, Claim, Place};
use super::{Key, Line};
use crate::connection::lock;
use crate::engine::{self, joined};
use crate::error::{Error, SHUT_DOWN};
use crate::guest::Guest;
use crate::named::Loaded;
use crate::options::{DEFAULT_STDERR, DEFAULT_STDOUT};
use crate::start::{self, Booted, Restore, RunsOn};

/// See [`come_to_rest`]. It takes some milliseconds, and ten times as long where a guest is translated.
const REST: Duration = Duration::from_millis(100);

/// A template and what its machines run on.
pub(crate) struct LanguageTemplate {
    pub(crate) template: Arc<dyn Template>,
    pub(crate) runs_on: RunsOn,
    /// Where it stands on disk, or will.
    pub(super) place: Option<Place>,
}

/// How far a line is with its template.
#[derive(Default)]
pub(super) struct Making {
    /// Held while it is made, so that it is made once.
    turn: Arc<tokio::sync::Mutex<()>>,
    under_way: bool,
    ready: Option<Arc<LanguageTemplate>>,
    /// The backend has no templates.
    impossible: bool,
    /// Held while the disk is looked at.
    look: Arc<tokio::sync::Mutex<()>>,
    looked: bool,
}

impl Making {
    /// The template, if there is one.
    pub(super) fn ready(&self) -> Option<Arc<LanguageTemplate>> {
        self.ready.clone()
    }

    /// Whether there is none, could be one, and nobody makes it.
    pub(super) fn is_wanted(&self) -> bool {
        self.ready.is_none() && !self.impossible && !self.under_way
    }

    /// Throws that template away.
    pub(super) fn forget(&mut self, template: &Arc<LanguageTemplate>) {
        self.ready.take_if(|ready| Arc::ptr_eq(ready, template));
    }
}

/// Notes the end of making, however it comes.
struct UnderWay<'a>(&'a Line);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).template.under_way = false;
    }
}

/// The line's template, made if need be; `None` where the backend has none.
///
/// # Errors
/// A machine cannot be started, warmed up or kept.
pub(super) async fn get(
    engine: &Arc<engine::Inner>,
    line: &Line,
) -> Result<Option<Arc<LanguageTemplate>>, Error> {
    let turn = Arc::clone(&lock(&line.state).template.turn);
    let _turn = turn.lock().await;
    {
        let mut state = lock(&line.state);
        if state.template.ready.is_some() || state.template.impossible {
            return Ok(state.template.ready());
        }
        if state.closed {
            return Err(Error::closed(SHUT_DOWN));
        }
        state.template.under_way = true;
    }
    let _under_way = UnderWay(line);
    if let Some(name) = &line.name {
        let Loaded { template, shape, .. } = engine.named_of(line, name).await?;
        let template = Arc::new(LanguageTemplate { template, runs_on: shape.runs_on, place: None });
        lock(&line.state).template.ready = Some(Arc::clone(&template));
        return Ok(Some(template));
    }
    let made = match shelf::claim(engine, line.key).await? {
        Claim::Found(template) => Ok(template),
        Claim::Nowhere => make(engine, line.key, None).await,
        Claim::Ours(leave) => {
            let made = make(engine, line.key, Some(leave.place())).await;
            made.inspect(|template| leave.keep(engine, template))
        }
    };
    match made {
        Ok(template) => {
            let mut state = lock(&line.state);
            let template = Arc::new(template);
            if !state.closed {
                state.template.ready = Some(Arc::clone(&template));
            }
            Ok(Some(template))
        }
        Err(error) if error.code() == "unsupported_here" => {
            lock(&line.state).template.impossible = true;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl engine::Inner {
    /// The line's template, if it is on disk. The disk is looked at once, when the first machine of a kind is wanted.
    pub(crate) async fn template_on_disk(self: &Arc<Self>, line: &Line) -> Option<Arc<LanguageTemplate>> {
        if !self.makes_templates() {
            return None;
        }
        let look = Arc::clone(&lock(&line.state).template.look);
        let _look = look.lock().await;
        {
            let mut state = lock(&line.state);
            if state.template.ready.is_some() {
                return state.template.ready();
            }
            if state.closed || std::mem::replace(&mut state.template.looked, true) {
                return None;
            }
        }
        let template = Arc::new(shelf::load(self, line.key).await?);
        {
            let mut state = lock(&line.state);
            if !state.closed {
                state.template.ready = Some(Arc::clone(&template));
            }
        }
        self.pools.trim();
        Some(template)
    }

    /// A template has turned out to be of no use: it is not used any more, and not loaded if it is at fault itself.
    pub(crate) fn forget_template(&self, line: &Line, template: &Arc<LanguageTemplate>, error: &Error) {
        line.forget(template);
        if let Some(place) = template.place.clone().filter(|_| !error.is_of_the_host()) {
            self.handle().spawn_blocking(move || place.clear());
        }
    }
}

async fn make(
    engine: &Arc<engine::Inner>,
    key: Key,
    place: Option<Place>,
) -> Result<LanguageTemplate, Error> {
    let limit = engine.boot_timeout();
    let began = Instant::now();
    let permit = engine.admission.try_enter(key.memory_mib).await?;
    let Booted { guest, runs_on } = Arc::clone(engine).boot(key, None, permit, began, limit).await?;
    warm_up(&guest, key.language, limit).await?;
    // What clones do first is loaded once, in front of all of them.
    let renew = guest.simple(Request::Renew(start::renewal(&guest.id)?));
    start::within(limit, "renew itself", renew).await?;
    warm_up(&guest, key.language, limit).await?;
    come_to_rest().await;
    let slot = Arc::clone(&guest.wires.slot);
    let template = engine.handle().spawn_blocking(move || slot.capture()).await.map_err(joined)??;
    // Its room is for the trial, so that one place is enough for a template.
    let lifecycle = Arc::clone(&guest.wires.lifecycle);
    drop(guest);
    lifecycle.dead().await?;

    let permit = engine.admission.try_enter(key.memory_mib).await?;
    let trial =
        engine.restored(Restore::Observed(Arc::clone(&template)), permit, Instant::now(), limit).await?;
    warm_up(&trial, key.language, limit).await?;
    let slot = Arc::clone(&trial.wires.slot);
    let pages = engine.handle().spawn_blocking(move || slot.working_set()).await.map_err(joined)?;
    let bytes: u64 = pages.iter().map(|range| range.end - range.start).sum();
    tracing::debug!(language = key.language.name(), bytes, ranges = pages.len(), took = ?began.elapsed(), "a template");
    Ok(LanguageTemplate { template: template.with_working_set(pages), runs_on, place })
}

/// An empty piece of code that loads what every other needs.
pub(crate) const fn warm_up_code(language: Language) -> &'static str {
    match language {
        Language::Python => "print()",
        Language::JavaScript => "console.log()",
        Language::Shell => "echo",
    }
}

/// Until a guest has done what it does behind the host's back when code has ended. What it has not done when it is captured each
/// of its clones does, while somebody waits.
pub(crate) async fn come_to_rest() {
    tokio::time::sleep(REST).await;
}

/// Runs that code in the context that callers use first, and drops its output.
pub(crate) async fn warm_up(guest: &Guest, language: Language, limit: Duration) -> Result<(), Error> {
    let run = guest.run_silently(Request::Execute(Execute {
        context: 0,
        language,
        code: warm_up_code(language).into(),
        env: Vec::new(),
        stdin: false,
        last: false,
        timeout_ms: None,
        stdout: DEFAULT_STDOUT,
        stderr: DEFAULT_STDERR,
    }));
    start::within(limit, "run an empty piece of code", run).await
}
