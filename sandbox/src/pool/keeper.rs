//! The tasks that keep a line's stock filled.
//!
//! Each makes one guest after the other as long as there are fewer than wanted, then warms up those that are there, then waits.
//! What callers take is made up for in a [lull](super::lull).
//! They do not keep the engine alive.
//! What fails is tried again after a while, which grows.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::{Line, Stocked, template};
use crate::connection::lock;
use crate::engine;
use crate::error::Error;
use crate::start::Restore;
use hayfork_protocol::message::Language;

/// Guests of one line that are made at the same time.
const TASKS: usize = 2;
/// Pause after the first failure, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Sees to it that there are tasks for the line, if it is to have a stock, and that they look at it.
pub(super) fn start(engine: &Arc<engine::Inner>, line: &Arc<Line>) {
    {
        let mut state = lock(&line.state);
        if state.closed || (state.target == 0 && !state.kept) {
            return;
        }
        if !std::mem::replace(&mut state.kept, true) {
            for _ in 0..TASKS {
                engine.handle().spawn(keep(Arc::downgrade(engine), Arc::clone(line)));
            }
        }
    }
    line.wanted.notify_waiters();
}

/// A guest on its way into the stock, counted until it is there or not.
struct Coming<'a>(&'a Line);

/// What a keeper has to do.
enum Work<'a> {
    /// Make one more.
    Make(Coming<'a>),
    /// Warm up one that is there.
    Warm(Coming<'a>, Box<Stocked>),
}

impl<'a> Work<'a> {
    /// What is to be done now, if anything.
    fn find(line: &'a Line) -> Option<Self> {
        let mut state = lock(&line.state);
        if state.closed {
            return None;
        }
        if state.ready.len() + state.coming < state.target {
            state.coming += 1;
            return Some(Self::Make(Coming(line)));
        }
        state.lull.full();
        // The cold ones are at the back.
        let is_cold = state.ready.back().is_some_and(|stocked| !stocked.is_warm);
        let cold = if is_cold { state.ready.pop_back() } else { None }?;
        state.coming += 1;
        Some(Self::Warm(Coming(line), Box::new(cold)))
    }
}

impl Coming<'_> {
    /// It is there.
    fn arrive(self, stocked: Stocked) {
        let mut state = lock(&self.0.state);
        // Fewer may be wanted by now.
        if state.ready.len() < state.target {
            if stocked.is_warm {
                state.ready.push_front(stocked);
            } else {
                state.ready.push_back(stocked);
            }
            self.0.tell(&state);
        }
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).coming -= 1;
    }
}

async fn keep(engine: Weak<engine::Inner>, line: Arc<Line>) {
    let mut pause = PAUSE.0;
    loop {
        let notified = line.wanted.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let lull = {
            let state = lock(&line.state);
            if state.closed {
                return;
            }
            state.lull.until(Instant::now())
        };
        if let Some(until) = lull {
            let _ = tokio::time::timeout_at(until, notified).await;
            continue;
        }
        let Some(work) = Work::find(&line) else {
            notified.await;
            continue;
        };
        let Some(engine) = engine.upgrade() else { return };
        // In a task of its own: a panic there ends this one try, and not the stock.
        let (coming, done) = match work {
            Work::Make(coming) => {
                let (engine, line) = (Arc::clone(&engine), Arc::clone(&line));
                (coming, engine.handle().clone().spawn(async move { make(&engine, &line).await }).await)
            }
            Work::Warm(coming, stocked) => (
                coming,
                engine.handle().spawn(warm(*stocked, line.key.language, engine.boot_timeout())).await,
            ),
        };
        match done {
            Ok(Ok(stocked)) => {
                coming.arrive(stocked);
                pause = PAUSE.0;
                continue;
            }
            // Others give room back at any time.
            Ok(Err(Error::Capacity(_))) => pause = PAUSE.0,
            Ok(Err(error)) if !lock(&line.state).closed => {
                tracing::warn!(code = error.code(), %error, ?pause, "a machine for the pool cannot be made");
            }
            Ok(Err(_)) => {}
            Err(fault) => {
                tracing::error!(%fault, ?pause, "a machine for the pool was not made by a fault of the engine");
            }
        }
        drop(coming);
        drop(engine);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn make(engine: &Arc<engine::Inner>, line: &Line) -> Result<Stocked, Error> {
    if let Some(template) = template::get(engine, line).await? {
        let how = Restore::Usual(Arc::clone(&template.template));
        let permit = engine.admission.try_enter(line.key.memory_mib).await?;
        let restored = engine.restored(how, permit, Instant::now(), engine.boot_timeout()).await;
        let guest = restored.inspect_err(|error| {
            // One from the disk may be at fault; another is made at the next try.
            if !error.is_shutdown() {
                engine.forget_template(line, &template, error);
            }
        })?;
        // What a template with a name holds is handed out as it is.
        let is_warm = line.name.is_some();
        return Ok(Stocked { guest, runs_on: template.runs_on.clone(), is_warm });
    }
    let limit = engine.boot_timeout();
    let permit = engine.admission.try_enter(line.key.memory_mib).await?;
    let booted = Arc::clone(engine).boot(line.key, None, permit, Instant::now(), limit).await?;
    // Without it, it has no interpreter.
    let booted = Stocked { guest: booted.guest, runs_on: booted.runs_on, is_warm: false };
    warm(booted, line.key.language, limit).await
}

async fn warm(stocked: Stocked, language: Language, limit: Duration) -> Result<Stocked, Error> {
    template::warm_up(&stocked.guest, language, limit).await?;
    Ok(Stocked { is_warm: true, ..stocked })
}
