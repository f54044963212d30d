//! The agent's side: workers, and the operations that they carry out.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;

use hayfork_protocol::message::FailureCode;
use hayfork_protocol::{Channel, Mux, Request, StreamId};
use rustix::io::Errno;
use rustix::process::Pid;

use super::wire::{self, MAX_DATA, Message};
use super::worker;
use crate::cgroup::Cgroup;
use crate::error::{During, Result};
use crate::io::{Outlet, Source};
use crate::poller::Token;
use crate::spawn::fork_unseen;
use crate::sys::fork;
use crate::world::World;

/// Workers at once. More operations wait for their turn.
const MAX_WORKERS: usize = 8;

/// Workers that are kept when there is nothing to do.
const KEPT: usize = 1;

/// A worker process.
#[derive(Debug)]
struct Worker {
    pid: Pid,
    socket: Source,
}

/// An operation that a worker carries out.
#[derive(Debug)]
struct Job {
    worker: Worker,
    stream: StreamId,
    upload: Upload,
    /// The worker said the end of a download's content.
    content_over: bool,
}

/// Content on its way to a worker.
#[derive(Debug, Default)]
struct Upload {
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    ended: bool,
    end_sent: bool,
    writable: bool,
}

/// An operation without a worker yet.
#[derive(Debug)]
struct Waiting {
    stream: StreamId,
    request: Request,
    upload: Upload,
}

/// All workers.
#[derive(Debug, Default)]
pub struct Pool {
    idle: Vec<(u32, Worker)>,
    jobs: BTreeMap<u32, Job>,
    waiting: VecDeque<Waiting>,
    cgroup: Option<Cgroup>,
}

/// What became of a job.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Open,
    Busy,
    Over,
    Lost,
}

impl Upload {
    fn push(&mut self, bytes: Vec<u8>) {
        self.waiting.push_back(bytes);
    }

    /// Sends what the socket takes and returns how many bytes that were.
    fn pump(&mut self, socket: &Source) -> usize {
        let mut sent = 0;
        while self.writable {
            let message = match self.waiting.front() {
                Some(piece) => Message::Data(&piece[self.sent..(self.sent + MAX_DATA).min(piece.len())]),
                None if self.ended && !self.end_sent => Message::End,
                None => break,
            };
            match wire::write(socket.fd(), &message) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    self.writable = false;
                    break;
                }
                // The worker is gone; reading says so.
                Err(_) => {
                    self.writable = false;
                    self.waiting.clear();
                    break;
                }
            }
            let Message::Data(data) = message else {
                self.end_sent = true;
                continue;
            };
            sent += data.len();
            self.sent += data.len();
            if self.waiting.front().is_some_and(|piece| self.sent == piece.len()) {
                self.waiting.pop_front();
                self.sent = 0;
            }
        }
        sent
    }
}

impl Pool {
    /// Starts the first worker, while the agent is still small.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn start(world: &mut World) -> Result<Self> {
        let mut pool = Self { cgroup: world.cgroup("files".to_owned())?, ..Self::default() };
        let first = pool.worker(world)?;
        pool.idle.push(first);
        Ok(pool)
    }

    fn worker(&self, world: &mut World) -> Result<(u32, Worker)> {
        let (key, pid, socket) =
            self.fork(world, |socket, places| worker::serve(worker::Line::new(socket), places))?;
        Ok((key, Worker { pid, socket }))
    }

    /// Starts a process with the user's rights that leads that life, and returns its key, id and socket.
    ///
    /// # Errors
    /// Whatever the kernel refused.
    pub fn fork(&self, world: &mut World, life: worker::Life) -> Result<(u32, Pid, Source)> {
        let key = world.number();
        let (ours, theirs) = wire::pair().during("make a socket pair")?;
        let side = match &world.walls {
            Some(walls) => fork_unseen(walls)?,
            None => fork::fork().during("start a file worker")?,
        };
        let fork::Side::Parent(pid) = side else {
            drop(ours);
            worker::run(theirs, world.walls.as_ref(), self.cgroup.as_ref(), &world.home, life)
        };
        world.poller.add_for_both(&ours, Token::Worker(key))?;
        Ok((key, pid, Source::new(ours)))
    }

    /// Processes of all workers.
    pub fn processes(&self) -> impl Iterator<Item = Pid> + '_ {
        self.idle.iter().map(|(_, worker)| worker.pid).chain(self.jobs.values().map(|job| job.worker.pid))
    }

    /// Begins an operation.
    pub fn begin(&mut self, stream: StreamId, request: Request) {
        self.waiting.push_back(Waiting {
            stream,
            request,
            upload: Upload { writable: true, ..Upload::default() },
        });
    }

    fn upload(&mut self, stream: StreamId) -> Option<&mut Upload> {
        let running = self.jobs.values_mut().filter(|job| job.stream == stream).map(|job| &mut job.upload);
        let waiting = self.waiting.iter_mut().filter(|job| job.stream == stream).map(|job| &mut job.upload);
        running.chain(waiting).next()
    }

    /// Whether that stream is one of its.
    pub fn has_stream(&self, stream: StreamId) -> bool {
        self.jobs.values().any(|job| job.stream == stream)
            || self.waiting.iter().any(|job| job.stream == stream)
    }

    /// The host sent content.
    pub fn push(&mut self, stream: StreamId, bytes: Vec<u8>) {
        if let Some(upload) = self.upload(stream) {
            upload.push(bytes);
        }
    }

    /// The host ended the content.
    pub fn finish(&mut self, stream: StreamId) {
        if let Some(upload) = self.upload(stream) {
            upload.ended = true;
        }
    }

    /// The host abandons an operation: its worker ends with it.
    pub fn reset(&mut self, stream: StreamId, mux: Option<&mut Mux>) {
        self.waiting.retain(|job| job.stream != stream);
        // Closing the socket is the order to stop.
        self.jobs.retain(|_, job| job.stream != stream);
        let mut outlet = Outlet::new(mux, Some(stream));
        outlet.failed(FailureCode::Cancelled, "the host abandoned the operation");
        outlet.close();
    }

    /// The host is gone.
    pub fn abandon(&mut self) {
        self.waiting.clear();
        self.jobs.clear();
    }

    /// An event came for a worker's socket.
    pub fn wake(&mut self, key: u32) {
        if let Some(job) = self.jobs.get_mut(&key) {
            job.worker.socket.wake();
            job.upload.writable = true;
        }
        if let Some((_, worker)) = self.idle.iter_mut().find(|(idle, _)| *idle == key) {
            worker.socket.wake();
        }
    }

    /// A process ended; an idle worker's is replaced when it is needed.
    pub fn child_ended(&mut self, pid: Pid) {
        self.idle.retain(|(_, worker)| worker.pid != pid);
    }

    /// Moves everything that can move. True if there is more to do at once.
    pub fn pump(&mut self, world: &mut World, mut mux: Option<&mut Mux>, buffer: &mut [u8]) -> bool {
        self.assign(world, mux.as_deref_mut());
        let mut busy = false;
        let mut over = Vec::new();
        for (key, job) in &mut self.jobs {
            match job.pump(&mut Outlet::new(mux.as_deref_mut(), Some(job.stream)), buffer) {
                Step::Open => {}
                Step::Busy => busy = true,
                step => over.push((*key, step)),
            }
        }
        for (key, step) in over {
            let Some(job) = self.jobs.remove(&key) else { continue };
            // What is left of an upload that failed early lies in the socket before the next request, where the worker skips it.
            if step == Step::Over && self.idle.len() < KEPT {
                self.idle.push((key, job.worker));
            }
            busy = true;
        }
        busy
    }

    fn assign(&mut self, world: &mut World, mut mux: Option<&mut Mux>) {
        while self.jobs.len() < MAX_WORKERS {
            let Some(next) = self.waiting.pop_front() else { return };
            let request = Message::Request(Box::new(next.request));
            // One whose socket is still full of an upload that failed early is given up, as is one that has ended.
            let idle =
                self.idle.pop().filter(|(_, worker)| wire::write(worker.socket.fd(), &request).is_ok());
            let sent = match idle {
                Some(worker) => Ok(worker),
                None => self.worker(world).and_then(|(key, worker)| {
                    wire::write(worker.socket.fd(), &request).during("hand an operation to a file worker")?;
                    Ok((key, worker))
                }),
            };
            match sent {
                Ok((key, worker)) => {
                    self.jobs.insert(
                        key,
                        Job { worker, stream: next.stream, upload: next.upload, content_over: false },
                    );
                }
                Err(error) => {
                    let mut outlet = Outlet::new(mux.as_deref_mut(), Some(next.stream));
                    outlet.failed(FailureCode::Io, error.to_string());
                    outlet.close();
                }
            }
        }
    }
}

impl Job {
    /// Moves at most one message to the host and what fits to the worker.
    fn pump(&mut self, outlet: &mut Outlet<'_>, buffer: &mut [u8]) -> Step {
        outlet.consumed(Channel::File, self.upload.pump(&self.worker.socket));
        // Nobody can put a message back, so there must be room for the longest one. After its end a channel has none, and needs
        // none.
        if !self.content_over && outlet.room(Channel::File) < MAX_DATA {
            return Step::Open;
        }
        if !self.worker.socket.is_readable() {
            return Step::Open;
        }
        match wire::read(self.worker.socket.fd().as_fd(), buffer) {
            Ok(Some(Message::Data(data))) => outlet.data(Channel::File, data),
            Ok(Some(Message::End)) => {
                self.content_over = true;
                outlet.eof(Channel::File);
            }
            Ok(Some(Message::Event(event))) => outlet.event(&event),
            Ok(Some(Message::Over)) => {
                outlet.close();
                return Step::Over;
            }
            Err(Errno::AGAIN) => {
                self.worker.socket.rest();
                return Step::Open;
            }
            Ok(Some(Message::Request(_)) | None) | Err(_) => {
                outlet.failed(
                    FailureCode::NoSpace,
                    "the process that carried out the file operation ended, most likely for want of memory",
                );
                outlet.close();
                return Step::Lost;
            }
        }
        Step::Busy
    }
}
