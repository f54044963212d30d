//! The watcher's life: what the kernel says about folders goes to the agent when it asks for it, until the agent closes the
//! socket.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use hayfork_protocol::limits::MAX_WATCHED_FOLDERS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::follow::Follow;
use super::wire::{self, MAX_BATCH, MAX_MESSAGE, Order, Report};
use crate::files::resolve::Places;
use crate::sys::fork::exit_now;

/// Bytes of events that are read at once: at least one of the longest.
const EVENTS: usize = 16 * 1024;

#[derive(Debug)]
struct Watched {
    follow: Follow,
    /// The agent has room for a batch.
    asked: bool,
}

#[derive(Debug)]
struct Watcher {
    socket: OwnedFd,
    watches: BTreeMap<u32, Watched>,
}

/// Watches until the agent closes the socket.
pub fn serve(socket: OwnedFd, places: &Places) -> ! {
    // No folder is to be kept by standing in it.
    if rustix::process::chdir(c"/").is_err() {
        exit_now(1);
    }
    let mut watcher = Watcher { socket, watches: BTreeMap::new() };
    let mut buffer = vec![0; MAX_MESSAGE.max(EVENTS)];
    loop {
        let (order, readable) = watcher.wait();
        if order {
            match wire::receive(&watcher.socket, &mut buffer) {
                Ok(Some(order)) => watcher.obey(order, places),
                Ok(None) => exit_now(0),
                Err(errno) => {
                    crate::warning!("the watcher got no message: {errno}");
                    exit_now(1)
                }
            }
        }
        for id in readable {
            let room = watcher.room(id);
            if let Some(watched) = watcher.watches.get_mut(&id) {
                watched.follow.read(places, &mut buffer[..EVENTS], room);
            }
        }
        watcher.tell();
    }
}

impl Watcher {
    /// Waits for whatever comes first, and says whether the agent has an order and which watches have events.
    fn wait(&self) -> (bool, Vec<u32>) {
        let sources: Vec<(u32, &OwnedFd)> =
            self.watches.iter().filter_map(|(id, w)| w.follow.source().map(|source| (*id, source))).collect();
        let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN)];
        fds.extend(sources.iter().map(|(_, source)| PollFd::new(*source, PollFlags::IN)));
        let deadline = self.watches.values().filter_map(|w| w.follow.deadline()).min();
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return (false, Vec::new()),
            Err(errno) => {
                crate::error!("the watcher cannot wait: {errno}");
                exit_now(1)
            }
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let watches =
            sources.iter().zip(&fds[1..]).filter(|(_, fd)| ready(fd)).map(|((id, _), _)| *id).collect();
        (ready(&fds[0]), watches)
    }

    /// Folders that a watch may look at: what the others leave.
    fn room(&self, id: u32) -> usize {
        let others = self.watches.iter().filter(|(other, _)| **other != id);
        let taken: usize = others.map(|(_, watched)| watched.follow.folders()).sum();
        MAX_WATCHED_FOLDERS.saturating_sub(taken)
    }

    fn obey(&mut self, order: Order, places: &Places) {
        match order {
            Order::Begin { id, path, recursive } => {
                match Follow::begin(places, path, recursive, self.room(id)) {
                    Ok(follow) => {
                        self.watches.insert(id, Watched { follow, asked: false });
                        self.report(&Report::Watching { id });
                    }
                    Err(failure) => self.report(&Report::Over { id, failure: Some(failure) }),
                }
            }
            Order::More { id } => {
                if let Some(watched) = self.watches.get_mut(&id) {
                    watched.asked = true;
                }
            }
            Order::Flush { id } => {
                if let Some(watched) = self.watches.get_mut(&id) {
                    watched.follow.flush();
                }
            }
            Order::End { id } => {
                self.watches.remove(&id);
            }
        }
    }

    /// Gives the agent what it has asked for, and says what is over.
    fn tell(&mut self) {
        let now = Instant::now();
        let mut reports = Vec::new();
        self.watches.retain(|id, watched| {
            watched.follow.on_time(now);
            if watched.asked
                && let Some(records) = watched.follow.batch(MAX_BATCH)
            {
                watched.asked = false;
                reports.push(Report::Batch { id: *id, records });
            }
            let over = watched.follow.is_told();
            if over {
                reports.push(Report::Over { id: *id, failure: None });
            }
            !over
        });
        for report in reports {
            self.report(&report);
        }
    }

    /// Says something. Without an agent there is nothing left to do.
    fn report(&self, report: &Report) {
        match wire::encode(report).and_then(|bytes| wire::send(&self.socket, &bytes)) {
            Ok(()) => {}
            Err(Errno::MSGSIZE) => crate::error!("the watcher has a message that is too long"),
            Err(_) => exit_now(0),
        }
    }
}
