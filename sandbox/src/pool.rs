//! Guests that are had sooner than by booting: templates of languages, and stocks of machines made of them ahead.
//!
//! There is a [`Line`] for each kind of machine ([`Key`]) that was ever asked for:
//!
//! ```text
//!              boot, warm up, capture, see what a clone writes
//!   (nothing) ────────────────────────────────────────────────► template ── restore, renew, warm up ──► stock ──► caller
//!           when it is wanted again, or kept ready; or from disk   │                                    (as many as
//!                                                                  └── restore, renew ──► caller          are wanted)
//! ```
//! A caller takes what is there: a guest of the stock, else one restored from the template, else one that boots. Nobody waits
//! for a template or for the stock. Nobody's code was in a guest of the stock, but as soon as there is time it runs an empty
//! piece of code, so that what every run touches is there; one that has is taken before one that has not. While guests are taken
//! faster than they are made there is no such time, and it would cost what it saves. Those that have died are thrown away.

pub(crate) mod admission;
mod keeper;
mod lull;
mod shelf;
mod template;
pub(crate) mod turns;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hayfork_protocol::message::Language;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::connection::lock;
use crate::engine;
use crate::guest::Guest;
use crate::named::FileId;
use crate::start::RunsOn;

use self::lull::Lull;
pub(crate) use self::shelf::Shelf;
use self::template::Making;
pub(crate) use self::template::{LanguageTemplate, come_to_rest, warm_up, warm_up_code};

/// Templates that are kept in memory without a stock of their own; the one that was not used for the longest time goes first.
/// Each takes what its guest had written when it was warm: some tens of MiB.
const TEMPLATES: usize = 4;

/// What machines must have in common to stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) language: Language,
    pub(crate) memory_mib: u32,
    pub(crate) vcpus: u8,
    pub(crate) origin: Origin,
}

/// What machines go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// The images: an interpreter that has run nobody's code.
    Images,
    /// A template with a name, in that file.
    File(FileId),
}

/// What a line has for a caller.
pub(crate) enum Find {
    /// A guest, ready.
    Ready(Box<(Guest, RunsOn)>),
    /// Something to make one of.
    Template(Arc<LanguageTemplate>),
    /// It has to be booted.
    Nothing,
}

/// Everything that is kept of one kind.
pub(crate) struct Line {
    pub(crate) key: Key,
    /// The name of its template, if it has one.
    name: Option<String>,
    state: Mutex<State>,
    /// There is less in stock than is wanted.
    wanted: Notify,
    /// Warm guests in stock, and how many there are to be.
    level: watch::Sender<(usize, usize)>,
}

/// A guest of the stock.
struct Stocked {
    guest: Guest,
    runs_on: RunsOn,
    /// It has run an empty piece of code.
    is_warm: bool,
}

#[derive(Default)]
struct State {
    /// Guests to be kept ready.
    target: usize,
    /// Those that have run something, then those that have not.
    ready: VecDeque<Stocked>,
    /// Guests on their way into the stock.
    coming: usize,
    template: Making,
    /// Times that a machine was asked for.
    asked: u64,
    used: Option<Instant>,
    lull: Lull,
    /// There are tasks that keep the stock.
    kept: bool,
    closed: bool,
}

impl Line {
    fn new(key: Key, name: Option<&str>) -> Self {
        let (level, _) = watch::channel((0, 0));
        Self { key, name: name.map(Into::into), state: Mutex::default(), wanted: Notify::new(), level }
    }

    /// Takes what there is.
    pub(crate) fn find(&self) -> Find {
        let mut state = lock(&self.state);
        state.asked += 1;
        state.used = Some(Instant::now());
        while let Some(Stocked { guest, runs_on, .. }) = state.ready.pop_front() {
            self.tell(&state);
            if guest.is_alive() {
                state.lull.taken(Instant::now());
                return Find::Ready(Box::new((guest, runs_on)));
            }
            tracing::warn!(id = guest.id, "a machine of the pool has died and is replaced");
            self.wanted.notify_waiters();
        }
        state.template.ready().map_or(Find::Nothing, Find::Template)
    }

    /// The template is not used any more.
    pub(crate) fn forget(&self, template: &Arc<LanguageTemplate>) {
        lock(&self.state).template.forget(template);
    }

    /// Ends what it keeps, and keeps nothing from here on.
    fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.target = 0;
        let ready = std::mem::take(&mut state.ready);
        state.template = Making::default();
        self.tell(&state);
        drop(state);
        drop(ready);
        self.wanted.notify_waiters();
    }

    fn tell(&self, state: &State) {
        let warm = state.ready.iter().filter(|stocked| stocked.is_warm).count();
        self.level.send_replace((warm, state.target));
    }
}

/// All lines of an engine.
#[derive(Default)]
pub(crate) struct Pools {
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    all: HashMap<Key, Arc<Line>>,
    closed: bool,
}

impl Pools {
    /// The line of that kind of machines.
    pub(crate) fn line(&self, key: Key) -> Arc<Line> {
        self.line_called(key, None)
    }

    /// The line of a template with a name.
    pub(crate) fn line_of(&self, key: Key, name: &str) -> Arc<Line> {
        self.line_called(key, Some(name))
    }

    fn line_called(&self, key: Key, name: Option<&str>) -> Arc<Line> {
        let mut lines = lock(&self.lines);
        let closed = lines.closed;
        let line = lines.all.entry(key).or_insert_with(|| {
            let line = Line::new(key, name);
            lock(&line.state).closed = closed;
            Arc::new(line)
        });
        Arc::clone(line)
    }

    /// The line of that kind, if there is one.
    pub(crate) fn existing(&self, key: Key) -> Option<Arc<Line>> {
        lock(&self.lines).all.get(&key).cloned()
    }

    /// Ends a line.
    pub(crate) fn remove(&self, key: Key) {
        let line = lock(&self.lines).all.remove(&key);
        if let Some(line) = line {
            line.close();
        }
    }

    /// Ends everything that is kept, and keeps nothing from here on.
    pub(crate) fn close(&self) {
        let lines: Vec<_> = {
            let mut lines = lock(&self.lines);
            lines.closed = true;
            lines.all.values().cloned().collect()
        };
        for line in lines {
            line.close();
        }
    }

    /// Ends one machine of the largest stock, for somebody who needs the room.
    pub(crate) fn shed(&self) {
        let lines: Vec<_> = lock(&self.lines).all.values().cloned().collect();
        let stock = |line: &Arc<Line>| lock(&line.state).ready.len();
        let Some(line) = lines.iter().max_by_key(|line| stock(line)) else { return };
        let mut state = lock(&line.state);
        let gone = state.ready.pop_back();
        line.tell(&state);
        drop(state);
        drop(gone);
        // It is made up for when there is room again.
        line.wanted.notify_waiters();
    }

    /// Gives back the templates that were not used for the longest time, beyond [`TEMPLATES`].
    fn trim(&self) {
        let lines: Vec<_> = lock(&self.lines).all.values().cloned().collect();
        let mut unused: Vec<_> = lines
            .iter()
            .filter_map(|line| {
                let state = lock(&line.state);
                (state.target == 0 && state.template.ready().is_some()).then_some((state.used, line))
            })
            .collect();
        unused.sort_by_key(|(used, _)| *used);
        let excess = unused.len().saturating_sub(TEMPLATES);
        for (_, line) in unused.into_iter().take(excess) {
            lock(&line.state).template = Making::default();
        }
    }

    /// Waits until every line has in stock what is wanted. False if that is not so when time is over.
    pub(crate) async fn wait_ready(&self, limit: Duration) -> bool {
        let levels: Vec<_> = lock(&self.lines).all.values().map(|line| line.level.subscribe()).collect();
        let all = async {
            for mut level in levels {
                // The sender lives as long as the line.
                let _ = level.wait_for(|(ready, target)| ready >= target).await;
            }
        };
        tokio::time::timeout(limit, all).await.is_ok()
    }
}

impl engine::Inner {
    /// Keeps `target` guests of a kind ready from here on.
    pub(crate) fn keep_ready(self: &Arc<Self>, key: Key, target: usize) {
        let line = self.pools.line(key);
        let mut state = lock(&line.state);
        if state.closed {
            return;
        }
        state.target = target;
        state.used = Some(Instant::now());
        // The warm ones in front stay.
        let keep = state.ready.len().min(target);
        let surplus = state.ready.split_off(keep);
        line.tell(&state);
        drop(state);
        drop(surplus);
        self.refill(&line);
    }

    /// Has the stock of a line filled up, in the background.
    pub(crate) fn refill(self: &Arc<Self>, line: &Arc<Line>) {
        keeper::start(self, line);
    }

    /// Has a template made in the background if a machine was wanted for the second time: who wants two wants more.
    pub(crate) fn consider_template(self: &Arc<Self>, line: &Arc<Line>) {
        let due = {
            let state = lock(&line.state);
            state.asked >= 2 && state.target == 0 && !state.closed && state.template.is_wanted()
        };
        if due && self.makes_templates() {
            let (engine, line) = (Arc::clone(self), Arc::clone(line));
            self.handle().spawn(async move {
                match template::get(&engine, &line).await {
                    Ok(Some(template)) => engine.anticipate(&line, &template),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(code = error.code(), %error, "no template was made"),
                }
                engine.pools.trim();
            });
        }
    }

    /// Has made ahead what the next machine of a template would wait for, in the background: if there is room, if one was
    /// wanted before (who wants two wants more), and if no stock is kept, which is better still.
    pub(crate) fn anticipate(self: &Arc<Self>, line: &Line, template: &Arc<LanguageTemplate>) {
        {
            let state = lock(&line.state);
            if state.asked < 2 || state.target > 0 || state.closed {
                return;
            }
        }
        let (engine, template) = (Arc::clone(self), Arc::clone(template));
        let memory_mib = line.key.memory_mib;
        self.handle().spawn(async move {
            let Ok(_room) = engine.admission.try_enter(memory_mib).await else { return };
            let inner = Arc::clone(&engine);
            let prepared = engine.handle().spawn_blocking(move || {
                // A shutdown waits for it, as for every launch.
                let Some(_launch) = inner.reaper.announce() else { return Ok(()) };
                template.template.prepare()
            });
            if let Ok(Err(error)) = prepared.await {
                tracing::debug!(%error, "nothing is made ahead for the next machine");
            }
        });
    }
}
