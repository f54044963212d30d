//! QEMU's control channel: the QEMU Machine Protocol (QEMU, docs/interop/qmp-spec), as far as snapshots need it.
//!
//! One JSON object a line, over a socket pair whose other end QEMU inherited. Commands are answered in their order; events come in
//! between. Nothing is said until the first command, so a machine that is never kept costs no more than the descriptor.
//!
//! ```text
//!   QEMU: {"QMP": …greeting}          host: {"execute": "qmp_capabilities"}       QEMU: {"return": {}}
//!                                     host: {"execute": "stop"}                   QEMU: {"event": "STOP"} {"return": {}}
//! ```
//! Descriptors travel beside a command (`SCM_RIGHTS`), which must be the last one sent until it is answered: QEMU keeps only the
//! newest descriptors it was sent.
//!
//! A guest that has broken into QEMU can say anything here: lines and the number of events are bounded, every wait has an end,
//! also for one who never stops talking, and what is not understood ends the conversation: nothing is asked or believed any more.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hayfork_vmm::after_fork::Released;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use serde_json::{Value, json};

/// How long QEMU may take for anything. Milliseconds are usual; a host that is short of memory takes seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Longest line from QEMU, in bytes. Those that come here are below 1 KiB.
const MAX_LINE: usize = 64 * 1024;
/// Most events kept until somebody waits for one.
const MAX_EVENTS: usize = 64;

/// Why a conversation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QmpError {
    /// QEMU has closed its end: it has ended, or is about to.
    #[error("QEMU has closed its control channel")]
    Closed,
    /// No answer in time.
    #[error("QEMU does not answer {0:?} within {wait} s", wait = PATIENCE.as_secs())]
    Late(&'static str),
    /// QEMU refused.
    #[error("QEMU refused {command:?}: {reason}")]
    Refused {
        /// The command.
        command: &'static str,
        /// What QEMU said.
        reason: String,
    },
    /// Not this protocol.
    #[error("QEMU answered {0:?} in a way that is not understood")]
    Malformed(&'static str),
    /// A system call failed.
    #[error("the control channel of QEMU failed")]
    Io(#[source] io::Error),
}

/// The host's end.
#[derive(Debug)]
pub(crate) struct Qmp {
    /// Children made by fork must not keep the other end from seeing it closed.
    _released: Released,
    stream: UnixStream,
    /// Bytes received and not yet taken apart.
    input: Vec<u8>,
    /// Names of events that nobody has waited for.
    events: VecDeque<String>,
    /// Commands sent and not answered.
    pending: VecDeque<&'static str>,
    /// Whether the greeting and its answer have passed.
    greeted: bool,
    /// For anything.
    patience: Duration,
    /// Whether something was not understood, or sent in part: what comes now may be the answer to anything.
    broken: bool,
}

impl Qmp {
    /// Talks over this socket.
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            _released: Released::new(&stream),
            stream,
            input: Vec::new(),
            events: VecDeque::new(),
            pending: VecDeque::new(),
            greeted: false,
            patience: PATIENCE,
            broken: false,
        })
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// QEMU refuses it, says nothing or nonsense, or is gone.
    pub(crate) fn execute(
        &mut self,
        command: &'static str,
        arguments: &Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value, QmpError> {
        self.send(command, arguments, descriptor)?;
        self.settle()
    }

    /// Waits for all answers, and gives the last one, or the first refusal.
    fn settle(&mut self) -> Result<Value, QmpError> {
        let settled = self.answers();
        self.broken |= matches!(settled, Err(QmpError::Malformed(_)));
        settled
    }

    /// Whether the conversation is over though both are there.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    fn answers(&mut self) -> Result<Value, QmpError> {
        let deadline = Instant::now() + self.patience;
        let mut result = Ok(Value::Null);
        while !self.pending.is_empty() {
            match self.answer(deadline) {
                Ok(answer) if result.is_ok() => result = Ok(answer),
                Err(refusal @ QmpError::Refused { .. }) if result.is_ok() => result = Err(refusal),
                Ok(_) | Err(QmpError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        result
    }

    /// Sends a command without waiting; the next [`Qmp::execute`] waits for its answer too.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(crate) fn send(
        &mut self,
        command: &'static str,
        arguments: &Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), QmpError> {
        if self.broken {
            return Err(QmpError::Malformed(command));
        }
        let mut sent = Ok(());
        if !self.greeted {
            self.greeted = true;
            // What comes first is the greeting, which is answered by this.
            sent = self.write("qmp_capabilities", &json!({}), None);
        }
        let sent = sent.and_then(|()| self.write(command, arguments, descriptor));
        // Part of a line may have gone.
        self.broken |= sent.is_err();
        sent
    }

    fn write(
        &mut self,
        command: &'static str,
        arguments: &Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), QmpError> {
        let line = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            // The space is for one.
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let deadline = Instant::now() + self.patience;
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match sendmsg(&self.stream, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    rest = &rest[count..];
                    control.clear();
                }
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline, command)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(QmpError::Closed),
                Err(errno) => return Err(QmpError::Io(errno.into())),
            }
        }
        self.pending.push_back(command);
        Ok(())
    }

    /// The answer to the oldest command that has none yet.
    fn answer(&mut self, deadline: Instant) -> Result<Value, QmpError> {
        let Some(command) = self.pending.front().copied() else { return Err(QmpError::Malformed("nothing")) };
        loop {
            let mut message = self.message(deadline, command)?;
            if self.take_event(&message) || message.get("QMP").is_some() {
                continue;
            }
            self.pending.pop_front();
            if let Some(error) = message.get("error") {
                let reason = error.get("desc").and_then(Value::as_str).unwrap_or("it does not say why");
                return Err(QmpError::Refused { command, reason: reason.chars().take(400).collect() });
            }
            return match message.get_mut("return") {
                Some(answer) => Ok(answer.take()),
                None => Err(QmpError::Malformed(command)),
            };
        }
    }

    /// Waits until an event of this name has come, since the last such wait.
    ///
    /// # Errors
    /// As [`Qmp::execute`], for a command sent before too.
    pub(crate) fn wait_for(&mut self, event: &'static str) -> Result<(), QmpError> {
        if self.broken {
            return Err(QmpError::Malformed(event));
        }
        self.settle()?;
        let waited = self.event(event);
        self.broken |= matches!(waited, Err(QmpError::Malformed(_)));
        waited
    }

    fn event(&mut self, event: &'static str) -> Result<(), QmpError> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(place) = self.events.iter().position(|name| name == event) {
                self.events.drain(..=place);
                return Ok(());
            }
            let message = self.message(deadline, event)?;
            if !self.take_event(&message) {
                return Err(QmpError::Malformed(event));
            }
        }
    }

    fn take_event(&mut self, message: &Value) -> bool {
        let Some(name) = message.get("event").and_then(Value::as_str) else { return false };
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(name.to_owned());
        true
    }

    /// The next line.
    fn message(&mut self, deadline: Instant, awaited: &'static str) -> Result<Value, QmpError> {
        loop {
            if let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| QmpError::Malformed(awaited));
            }
            if self.input.len() > MAX_LINE {
                return Err(QmpError::Malformed(awaited));
            }
            // Not only where there is nothing to read: there may always be something.
            if Instant::now() >= deadline {
                return Err(QmpError::Late(awaited));
            }
            let mut buffer = [0; 4096];
            match recv(&self.stream, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(QmpError::Closed),
                Ok((count, _)) => self.input.extend_from_slice(&buffer[..count]),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline, awaited)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(QmpError::Io(errno.into())),
            }
        }
    }

    /// Waits until the socket is ready, or the deadline has passed.
    fn wait(&self, flags: PollFlags, deadline: Instant, awaited: &'static str) -> Result<(), QmpError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(QmpError::Late(awaited));
        }
        let timeout = Timespec::try_from(left).ok();
        // An error here is EINTR, or a lack of memory in the kernel: look again.
        let _ = poll(&mut [PollFd::new(&self.stream, flags)], timeout.as_ref());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
