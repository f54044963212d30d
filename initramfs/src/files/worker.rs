//! The worker's life: operations one after the other, until the agent closes the socket.

use std::os::fd::{AsFd, OwnedFd};

use hayfork_protocol::message::FailureCode;
use hayfork_protocol::{Event, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_no_new_privs};

use super::failure::{Outcome, failure};
use super::resolve::Places;
use super::wire::{self, Message};
use super::{change, download, listing, upload};
use crate::io::SCRATCH;
use crate::spawn::{Walls, become_user, fair_game};
use crate::sys::fork;

/// Shared folders that absolute paths may lead into.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// What a process does once it has the user's rights.
pub type Life = fn(OwnedFd, &Places) -> !;

/// A worker's side of its socket.
#[derive(Debug)]
pub struct Line {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Line {
    /// Takes the worker's end.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: vec![0; SCRATCH] }
    }

    /// Sends a message. An operation whose agent is gone ends with its process.
    pub fn send(&self, message: &Message<'_>) {
        if wire::write(&self.socket, message).is_err() {
            fork::exit_now(0);
        }
    }

    /// Reports an event.
    pub fn event(&self, event: Event) {
        self.send(&Message::Event(Box::new(event)));
    }

    /// The next message; ends the process when the agent is gone, which also stands for a cancelled operation.
    pub fn receive(&mut self) -> Message<'_> {
        match wire::read(&self.socket, &mut self.buffer) {
            Ok(Some(message)) => message,
            Ok(None) => fork::exit_now(0),
            Err(errno) => {
                crate::warning!("a file worker got no message: {errno}");
                fork::exit_now(1)
            }
        }
    }

    /// Ends the process if the agent cancelled the operation. To be called now and then in long work.
    pub fn check(&self) {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
            fork::exit_now(0);
        }
    }
}

/// Gives a fresh child of the agent the user's rights, behind the user's walls, and then its life.
pub fn run(
    socket: OwnedFd,
    walls: Option<&Walls>,
    cgroup: Option<&crate::cgroup::Cgroup>,
    home: &str,
    life: Life,
) -> ! {
    crate::panic::in_child();
    if let Some(Err(error)) = cgroup.map(crate::cgroup::Cgroup::enter) {
        give_up("enter its cgroup", error.errno);
    }
    if let Some(walls) = walls
        && let Err(errno) = confine(walls)
    {
        give_up("go behind the walls", errno);
    }
    // Modes are those that the host says.
    rustix::process::umask(rustix::fs::Mode::empty());
    // The worker must hold no end of a pipe whose closing somebody waits for, nor anything else of the agent's.
    crate::log::silence();
    let Ok(socket) = fork::keep_only(socket) else { fork::exit_now(1) };
    match Places::open(home, &SHARED) {
        Ok(places) => life(socket, &places),
        Err(_) => fork::exit_now(1),
    }
}

fn give_up(action: &str, errno: Errno) -> ! {
    crate::error!("a file worker could not {action}: {errno}");
    fork::exit_now(1)
}

fn confine(walls: &Walls) -> Result<(), Errno> {
    fair_game()?;
    move_into_link_name_space(walls.root.mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    become_user()?;
    set_no_new_privs(true)?;
    walls.filters.apply()
}

/// Does operations until the agent closes the socket.
pub fn serve(mut line: Line, places: &Places) -> ! {
    loop {
        let Message::Request(request) = line.receive() else {
            // What the agent sent for an operation that failed early.
            continue;
        };
        let event = match operate(*request, places, &mut line) {
            Ok(event) => event,
            Err(failure) => Some(Event::Failed(failure)),
        };
        if let Some(event) = event {
            line.event(event);
        }
        line.send(&Message::Over);
    }
}

/// Does one operation and returns its last event.
fn operate(request: Request, places: &Places, line: &mut Line) -> Outcome<Option<Event>> {
    let done = |bytes| Ok(Some(Event::Done { bytes }));
    match request {
        Request::WriteFile { path, mode } => done(upload::run(&places.locate(&path)?, mode, line)?),
        Request::ReadFile { path } => done(download::run(&places.locate(&path)?, line)?),
        Request::List { path } => {
            listing::run(&places.locate(&path)?, line)?;
            done(0)
        }
        Request::Stat { path } => Ok(Some(Event::File(listing::stat(&places.locate(&path)?)?))),
        Request::MakeDir { path } => {
            places.locate(&path)?.make_folder()?;
            done(0)
        }
        Request::Remove { path } => {
            change::remove(&places.locate(&path)?, line)?;
            done(0)
        }
        Request::Rename { from, to } => {
            change::rename(&places.locate(&from)?, &places.locate(&to)?)?;
            done(0)
        }
        _ => Err(failure(FailureCode::BadRequest, "this is no file operation")),
    }
}
