//! The agent's side: the watches that the host has, and the process that keeps them.

use std::collections::{BTreeMap, VecDeque};

use hayfork_protocol::limits::MAX_WATCHES;
use hayfork_protocol::message::{Control, Failure, FailureCode};
use hayfork_protocol::{Channel, Event, Mux, StreamId};
use rustix::io::Errno;
use rustix::process::Pid;

use super::process;
use super::wire::{self, MAX_BATCH, Order, Report};
use crate::files::failure::failure;
use crate::files::pool::Pool;
use crate::io::{Outlet, Source};
use crate::world::World;

/// Orders that may wait for a watcher that is busy. A host that begins and ends watches faster loses all of them.
const MAX_ORDERS: usize = 1024;

/// Reports that are read in one turn.
const REPORTS: usize = 16;

/// The watcher, as the agent sees it.
#[derive(Debug)]
struct Watcher {
    key: u32,
    pid: Pid,
    socket: Source,
    writable: bool,
    orders: VecDeque<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Watch {
    /// The watcher has begun it, and the host is to be told.
    begun: bool,
    /// The host was told.
    running: bool,
    /// A batch was asked for and has not come.
    asked: bool,
    /// One that the host has no credit for yet.
    batch: Option<Vec<u8>>,
    /// Its end, which follows the batch.
    over: Option<End>,
}

/// How a watch came to its end.
#[derive(Debug)]
enum End {
    /// There is nothing left to watch.
    Done,
    /// It could not begin.
    Failed(Failure),
}

/// All watches.
#[derive(Debug, Default)]
pub struct Watches {
    watcher: Option<Watcher>,
    open: BTreeMap<StreamId, Watch>,
}

impl Watcher {
    fn order(&mut self, order: &Order) {
        // Paths are bounded by the request's own check.
        if let Ok(bytes) = wire::encode(order) {
            self.orders.push_back(bytes);
        }
    }

    /// Sends what the socket takes. False if the watcher does not keep up, or is gone.
    fn send(&mut self) -> bool {
        while self.writable
            && let Some(order) = self.orders.front()
        {
            match wire::send(self.socket.fd(), order) {
                Ok(()) => {
                    self.orders.pop_front();
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(_) => return false,
            }
        }
        self.orders.len() <= MAX_ORDERS
    }
}

impl Watches {
    /// Begins a watch.
    ///
    /// # Errors
    /// There are too many, or the watcher cannot be started.
    pub fn begin(
        &mut self,
        world: &mut World,
        pool: &Pool,
        stream: StreamId,
        path: String,
        recursive: bool,
    ) -> Result<(), Failure> {
        if self.open.len() >= MAX_WATCHES {
            return Err(failure(
                FailureCode::TooMany,
                format!("{path:?}: {MAX_WATCHES} folders are watched, which is the most at once"),
            ));
        }
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => {
                let started = pool.fork(world, process::serve);
                let (key, pid, socket) =
                    started.map_err(|error| failure(FailureCode::Io, error.to_string()))?;
                none.insert(Watcher { key, pid, socket, writable: true, orders: VecDeque::new() })
            }
        };
        watcher.order(&Order::Begin { id: stream.0, path, recursive });
        self.open.insert(stream, Watch::default());
        Ok(())
    }

    /// The process that keeps them.
    pub fn process(&self) -> Option<Pid> {
        self.watcher.as_ref().map(|watcher| watcher.pid)
    }

    /// Whether that stream is one of its.
    pub fn has_stream(&self, stream: StreamId) -> bool {
        self.open.contains_key(&stream)
    }

    /// The host says something on a watch's stream.
    pub fn control(&mut self, stream: StreamId, control: Control) {
        if control == Control::Flush
            && let Some(watcher) = &mut self.watcher
        {
            watcher.order(&Order::Flush { id: stream.0 });
        }
    }

    /// The host abandons a watch.
    pub fn reset(&mut self, stream: StreamId, mux: Option<&mut Mux>) {
        self.open.remove(&stream);
        if let Some(watcher) = &mut self.watcher {
            watcher.order(&Order::End { id: stream.0 });
        }
        self.leave();
        let mut outlet = Outlet::new(mux, Some(stream));
        outlet.failed(FailureCode::Cancelled, "the host abandoned the watch");
        outlet.close();
    }

    /// The host is gone, and with it the watcher.
    pub fn abandon(&mut self) {
        self.open.clear();
        self.leave();
    }

    /// Closing its socket ends a watcher that has nothing to do.
    fn leave(&mut self) {
        if self.open.is_empty() {
            self.watcher = None;
        }
    }

    /// An event came for the watcher's socket.
    pub fn wake(&mut self, key: u32) {
        if let Some(watcher) = self.watcher.as_mut().filter(|watcher| watcher.key == key) {
            watcher.socket.wake();
            watcher.writable = true;
        }
    }

    /// Moves everything that can move. True if there is more to do at once.
    pub fn pump(&mut self, mut mux: Option<&mut Mux>, buffer: &mut [u8]) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        let (mut busy, mut lost) = (true, false);
        for _ in 0..REPORTS {
            if !watcher.socket.is_readable() {
                busy = false;
                break;
            }
            match wire::receive::<Report>(watcher.socket.fd(), buffer) {
                Ok(Some(report)) => note(&mut self.open, report),
                Err(Errno::AGAIN) => watcher.socket.rest(),
                Ok(None) | Err(_) => {
                    (busy, lost) = (false, true);
                    break;
                }
            }
        }
        self.open.retain(|stream, watch| {
            let mut outlet = Outlet::new(mux.as_deref_mut(), Some(*stream));
            watch.pump(*stream, watcher, &mut outlet)
        });
        if lost || !watcher.send() {
            self.lose(mux);
        }
        self.leave();
        busy
    }

    /// The watcher is gone, or of no use.
    fn lose(&mut self, mut mux: Option<&mut Mux>) {
        self.watcher = None;
        for stream in std::mem::take(&mut self.open).into_keys() {
            let mut outlet = Outlet::new(mux.as_deref_mut(), Some(stream));
            outlet.failed(
                FailureCode::NoSpace,
                "the process that watched the folders ended, most likely for want of memory",
            );
            outlet.close();
        }
    }
}

/// Notes what the watcher says. What does not fit is of a watch that has ended.
fn note(open: &mut BTreeMap<StreamId, Watch>, report: Report) {
    let (Report::Watching { id } | Report::Batch { id, .. } | Report::Over { id, .. }) = report;
    let Some(watch) = open.get_mut(&StreamId(id)) else { return };
    match report {
        Report::Watching { .. } => watch.begun = true,
        Report::Batch { records, .. } => {
            if watch.asked && watch.batch.is_none() {
                (watch.asked, watch.batch) = (false, Some(records));
            }
        }
        Report::Over { failure, .. } => watch.over = Some(failure.map_or(End::Done, End::Failed)),
    }
}

impl Watch {
    /// Moves what can move. False if it is over.
    fn pump(&mut self, stream: StreamId, watcher: &mut Watcher, outlet: &mut Outlet<'_>) -> bool {
        if std::mem::take(&mut self.begun) {
            outlet.event(&Event::Watching);
            self.running = true;
        }
        if let Some(batch) = self.batch.take() {
            if outlet.room(Channel::File) < batch.len() {
                self.batch = Some(batch);
                return true;
            }
            outlet.data(Channel::File, &batch);
        }
        if let Some(end) = self.over.take() {
            match end {
                End::Failed(failure) => outlet.event(&Event::Failed(failure)),
                End::Done => outlet.event(&Event::Done { bytes: 0 }),
            }
            outlet.close();
            return false;
        }
        if self.running && !self.asked && outlet.room(Channel::File) >= MAX_BATCH {
            self.asked = true;
            watcher.order(&Order::More { id: stream.0 });
        }
        true
    }
}
