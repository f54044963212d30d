//! The tasks that keep a line's stock filled.
//!
//! Each makes one guest after the other as long as there are fewer than wanted, then waits. They do not keep the engine alive.
//! What fails is tried again after a while, which grows.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::{Line, template};
use crate::connection::lock;
use crate::engine;
use crate::error::Error;
use crate::guest::Guest;
use crate::start::{Restore, RunsOn};

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

/// A guest on its way, counted until it is there or not.
struct Coming<'a>(&'a Line);

impl<'a> Coming<'a> {
    /// Counts one more, if one is wanted.
    fn begin(line: &'a Line) -> Option<Self> {
        let mut state = lock(&line.state);
        let wanted = state.ready.len() + state.coming < state.target && !state.closed;
        wanted.then(|| {
            state.coming += 1;
            Self(line)
        })
    }

    /// It is there.
    fn arrive(self, guest: Guest, runs_on: RunsOn) {
        let mut state = lock(&self.0.state);
        // Fewer may be wanted by now.
        if state.ready.len() < state.target {
            state.ready.push_back((guest, runs_on));
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
        if lock(&line.state).closed {
            return;
        }
        let Some(coming) = Coming::begin(&line) else {
            notified.await;
            continue;
        };
        let Some(engine) = engine.upgrade() else { return };
        match make(&engine, &line).await {
            Ok((guest, runs_on)) => {
                coming.arrive(guest, runs_on);
                pause = PAUSE.0;
            }
            Err(error) => {
                drop(coming);
                if lock(&line.state).closed {
                    return;
                }
                tracing::warn!(code = error.code(), %error, ?pause, "a machine for the pool cannot be made");
                drop(engine);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

async fn make(engine: &Arc<engine::Inner>, line: &Line) -> Result<(Guest, RunsOn), Error> {
    let (guest, runs_on) = if let Some(template) = template::get(engine, line).await? {
        let how = Restore::Usual(Arc::clone(&template.template));
        (engine.restored(how, Instant::now()).await?, template.runs_on.clone())
    } else {
        let limit = engine.boot_timeout();
        let booted = Arc::clone(engine).boot(line.key, None, Instant::now(), limit).await?;
        (booted.guest, booted.runs_on)
    };
    template::warm_up(&guest, line.key.language).await?;
    Ok((guest, runs_on))
}
