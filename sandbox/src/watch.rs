//! Watches on a sandbox's folders.
//!
//! Changes come as data under credit: what nobody takes here is held back in the guest, whose own bounds then lose changes
//! and say so. A [`Watch`] may be used from several places at once: while one waits for changes, another may ask for
//! everything up to now, take what is there, or end it. Waiting gives nothing away, so that a future may be dropped at
//! any moment and no change is lost.
//!
//! ```text
//!  stream ──► receive ──► ready ──► take
//!               ▲            │
//!        wait, flush         └─ not empty, or flushed, or over: they return
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex as StdMutex};

use hayfork_protocol::change::{Change, Decoder, Record};
use hayfork_protocol::message::{Control, Event, Request};
use tokio::sync::Mutex;

use crate::connection::lock;
use crate::connection::stream::{Item, Link, Stream};
use crate::error::Error;
use crate::files;
use crate::sandbox::Sandbox;

/// Bytes of changes that [`Watch::flush`] gathers at most before some have to be taken. More than a guest that keeps to its
/// own bounds ever has.
const MAX_READY: usize = 8 * 1024 * 1024;

/// A watched folder. Dropping it ends the watch; until then it keeps its sandbox, as a running program does.
#[derive(Debug)]
pub struct Watch {
    receiving: Mutex<Receiving>,
    ready: StdMutex<Ready>,
    link: Arc<Link>,
    process: u32,
    _sandbox: Sandbox,
}

#[derive(Debug)]
struct Receiving {
    stream: Stream,
    decoder: Decoder,
}

#[derive(Debug, Default)]
struct Ready {
    changes: VecDeque<Change>,
    /// Bytes in them.
    weight: usize,
    /// Flushes asked for, and done.
    asked: u64,
    flushed: u64,
    over: bool,
    failure: Option<Error>,
}

fn weight(change: &Change) -> usize {
    64 + change.path.len() + change.to.as_ref().map_or(0, String::len)
}

impl Sandbox {
    /// Watches a folder; with `recursive` those below it too, and those made later. What happens after this returns is
    /// reported, until the folder is removed or renamed.
    ///
    /// # Errors
    /// What the guest refuses: there is no such folder, it is none, or too many are watched.
    pub async fn watch(&self, path: &str, recursive: bool) -> Result<Watch, Error> {
        let mut stream = self.operation(Request::Watch { path: path.to_owned(), recursive })?;
        match stream.next().await? {
            Item::Event(Event::Watching) => {}
            item => return Err(files::failure(stream, item)),
        }
        let link = Arc::clone(stream.link());
        Ok(Watch {
            receiving: Mutex::new(Receiving { stream, decoder: Decoder::default() }),
            ready: StdMutex::default(),
            link,
            process: std::process::id(),
            _sandbox: self.clone(),
        })
    }
}

impl Watch {
    fn check_process(&self) -> Result<(), Error> {
        if self.process == std::process::id() { Ok(()) } else { Err(Error::ForkedProcess) }
    }

    /// Waits until there is something to take. False if nothing will come any more.
    ///
    /// # Errors
    /// Why nothing will come, if that is not the folder's end or [`Watch::stop`].
    pub async fn wait(&self) -> Result<bool, Error> {
        self.check_process()?;
        loop {
            let mut receiving = self.receiving.lock().await;
            if let Some(answer) = lock(&self.ready).answer() {
                return answer;
            }
            receiving.next(&self.ready).await;
        }
    }

    /// Waits until everything can be taken that had happened when this was called, or so much that some has to be taken
    /// first.
    ///
    /// # Errors
    /// As [`Watch::wait`], when nothing is left to take.
    pub async fn flush(&self) -> Result<(), Error> {
        self.check_process()?;
        let mut mine = None;
        loop {
            {
                let mut ready = lock(&self.ready);
                // The guest does one at a time, and one that was asked for before says nothing of now.
                if mine.is_none() && ready.asked == ready.flushed && !ready.over {
                    ready.asked += 1;
                    mine = Some(ready.asked);
                    self.link.control(Control::Flush);
                }
            }
            let mut receiving = self.receiving.lock().await;
            {
                let ready = lock(&self.ready);
                if mine.is_some_and(|mine| ready.flushed >= mine) || ready.weight >= MAX_READY {
                    return Ok(());
                }
                if ready.over {
                    return ready.answer().unwrap_or(Ok(false)).map(drop);
                }
                if mine.is_none() && ready.asked == ready.flushed {
                    continue;
                }
            }
            receiving.next(&self.ready).await;
        }
    }

    /// Takes at most so many changes that have come, oldest first.
    pub fn take(&self, most: usize) -> Vec<Change> {
        // After a fork the lock may be held by a thread that does not exist here.
        if self.check_process().is_err() {
            return Vec::new();
        }
        let mut ready = lock(&self.ready);
        let count = most.min(ready.changes.len());
        let taken: Vec<Change> = ready.changes.drain(..count).collect();
        ready.weight -= taken.iter().map(weight).sum::<usize>();
        taken
    }

    /// Whether nothing new will come.
    pub fn is_over(&self) -> bool {
        self.check_process().is_err() || lock(&self.ready).over
    }

    /// Ends the watch, and lets go whoever waits for it. What has come can still be taken.
    pub fn stop(&self) {
        if self.check_process().is_err() {
            return;
        }
        let before = std::mem::replace(&mut lock(&self.ready).over, true);
        if !before {
            self.link.reset();
        }
    }
}

impl Ready {
    /// What a waiting caller is told, if it is time.
    fn answer(&self) -> Option<Result<bool, Error>> {
        if !self.changes.is_empty() {
            return Some(Ok(true));
        }
        match &self.failure {
            Some(error) => Some(Err(error.clone())),
            None => self.over.then_some(Ok(false)),
        }
    }
}

impl Receiving {
    /// Waits for the next item and enters it. Nothing is lost if this is dropped while it waits.
    async fn next(&mut self, ready: &StdMutex<Ready>) {
        let item = self.stream.next().await;
        let mut ready = lock(ready);
        let failure = match item {
            Ok(Item::Data(_, bytes)) => match self.enter(&bytes, &mut ready) {
                Ok(()) => return,
                Err(problem) => {
                    self.stream.link().reset();
                    Some(Error::Protocol(problem))
                }
            },
            Ok(Item::Eof) => return,
            Ok(Item::Event(Event::Done { .. })) if self.decoder.is_empty() => None,
            Ok(Item::Event(Event::Failed(failure))) => Some(failure.into()),
            // Of a watch that was stopped here.
            Ok(Item::Closed) => None,
            Ok(Item::Event(_)) => {
                self.stream.link().reset();
                Some(Error::Protocol("an event that does not belong to a watch".into()))
            }
            Err(error) => Some(error),
        };
        self.stream.ended();
        if !std::mem::replace(&mut ready.over, true) {
            ready.failure = failure;
        }
    }

    fn enter(&mut self, bytes: &[u8], ready: &mut Ready) -> Result<(), String> {
        self.decoder.push(bytes);
        while let Some(record) = self.decoder.next().map_err(|error| error.to_string())? {
            match record {
                Record::Change(change) => {
                    ready.weight += weight(&change);
                    ready.changes.push_back(change);
                }
                Record::Flushed if ready.flushed < ready.asked => ready.flushed += 1,
                Record::Flushed => return Err("a flush of a watch that nobody has asked for".into()),
            }
        }
        Ok(())
    }
}
