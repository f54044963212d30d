//! One stream, between the caller who started the operation and the connection task.
//!
//! Both hold a [`Link`]. The task puts what the guest sent into its inbox; the caller takes it out through [`Stream`],
//! which reports data as consumed at that moment. What the caller wants (send data, interrupt, abandon) goes into the
//! link's outbox, and the link into the connection's [`Mailbox`], which wakes the task. Nothing here blocks, so it
//! works from any thread; what waits, waits on a [`Notify`] and so on any executor.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hayfork_protocol::frame::Channel;
use hayfork_protocol::message::{Control, Event};
use hayfork_protocol::mux::StreamId;
use tokio::sync::Notify;

use super::lock;
use crate::error::Error;

/// Weight of the events that one stream may hold for a caller that does not take them, in bytes ([`weight`]). A
/// listing, which arrives whole, is the largest thing that is ever due.
pub(crate) const MAX_PENDING: usize = 33 * 1024 * 1024;

/// Bytes that callers may put into an outbox before they have to wait.
pub(crate) const MAX_OUTBOX: usize = 256 * 1024;

/// Control messages that may wait; a caller that sends more signals than the guest takes loses the later ones.
const MAX_CONTROLS: usize = 64;

/// What a caller receives.
#[derive(Debug)]
pub(crate) enum Item {
    /// A message of the guest.
    Event(Event),
    /// Bytes of a channel.
    Data(Channel, Bytes),
    /// A channel is complete.
    Eof,
    /// The guest has closed the stream; nothing follows.
    Closed,
}

/// Roughly what an event costs in memory, in bytes.
pub(crate) fn weight(event: &Event) -> usize {
    64 + match event {
        Event::Bundle { parts, .. } => parts.iter().map(|part| 32 + part.mime.len()).sum(),
        Event::Exception(exception) => {
            exception.name.len() + exception.value.len() + exception.traceback.len()
        }
        Event::File(info) => 64 + info.name.len(),
        Event::Entries(entries) => entries.iter().map(|info| 64 + info.name.len()).sum(),
        Event::Failed(failure) => failure.message.len(),
        _ => 0,
    }
}

/// What wakes a connection task: links that have something for it, and wishes that concern the whole sandbox.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    wake: Notify,
}

/// What is to come of a sandbox that runs nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdleTimeout {
    /// It stays.
    Never,
    /// It is closed after that time.
    After(Duration),
}

/// What is in a mailbox.
#[derive(Debug, Default)]
pub(crate) struct Letters {
    /// Links with something in their outbox, each once.
    pub(crate) links: Vec<Arc<Link>>,
    /// Interrupt everything that runs.
    pub(crate) interrupt: bool,
    /// Close, for this reason.
    pub(crate) close: Option<&'static str>,
    /// When to close for having run nothing from now on.
    pub(crate) idle_timeout: Option<IdleTimeout>,
}

impl Mailbox {
    /// Takes everything out.
    pub(crate) fn take(&self) -> Letters {
        std::mem::take(&mut lock(&self.letters))
    }

    /// Waits for something to come in.
    pub(crate) async fn arrival(&self) {
        self.wake.notified().await;
    }

    fn post(&self, link: &Arc<Link>) {
        lock(&self.letters).links.push(Arc::clone(link));
        self.wake.notify_one();
    }

    /// Asks the task to end. The first reason stays.
    pub(crate) fn close(&self, reason: &'static str) {
        lock(&self.letters).close.get_or_insert(reason);
        self.wake.notify_one();
    }

    /// Asks the task to end after having run nothing for that long, counted from now on; `None`: never.
    pub(crate) fn set_idle_timeout(&self, timeout: Option<Duration>) {
        lock(&self.letters).idle_timeout = Some(timeout.map_or(IdleTimeout::Never, IdleTimeout::After));
        self.wake.notify_one();
    }

    /// Asks the task to interrupt everything that runs.
    pub(crate) fn interrupt(&self) {
        lock(&self.letters).interrupt = true;
        self.wake.notify_one();
    }
}

#[derive(Debug, Default)]
struct Inbox {
    items: VecDeque<Item>,
    /// Weight of the events among the items.
    weight: usize,
    /// Why nothing more will come; told after the items.
    broken: Option<Error>,
}

#[derive(Debug, Default)]
struct Outbox {
    data: VecDeque<Bytes>,
    data_bytes: usize,
    /// No more data will be put in.
    eof: bool,
    controls: VecDeque<Control>,
    reset: bool,
    /// Bytes that the caller has taken, by channel, and the task does not know of yet.
    consumed: [usize; Channel::COUNT],
    /// Why no data is taken any more.
    over: Option<&'static str>,
    /// The link is in the mailbox.
    mailed: bool,
}

/// What the task finds in an outbox, apart from data.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) controls: VecDeque<Control>,
    pub(crate) reset: bool,
    pub(crate) consumed: [usize; Channel::COUNT],
}

/// The shared part of one stream.
#[derive(Debug)]
pub(crate) struct Link {
    mailbox: Arc<Mailbox>,
    /// Set when the stream is open towards the guest.
    id: OnceLock<StreamId>,
    inbox: Mutex<Inbox>,
    arrived: Notify,
    outbox: Mutex<Outbox>,
    space: Notify,
}

impl Link {
    /// A link of that connection. `sends`: whether the caller may send data.
    pub(crate) fn new(mailbox: Arc<Mailbox>, sends: bool) -> Arc<Self> {
        let outbox = Outbox { over: (!sends).then_some("none was asked for"), ..Outbox::default() };
        Arc::new(Self {
            mailbox,
            id: OnceLock::new(),
            inbox: Mutex::default(),
            arrived: Notify::new(),
            outbox: Mutex::new(outbox),
            space: Notify::new(),
        })
    }

    /// Task: the stream is open towards the guest. Mails the link, since earlier mail found no stream.
    pub(crate) fn opened(self: &Arc<Self>, id: StreamId) {
        // A link is opened once.
        let _ = self.id.set(id);
        lock(&self.outbox).mailed = true;
        self.mailbox.post(self);
    }

    /// Task: the stream towards the guest, once there is one.
    pub(crate) fn id(&self) -> Option<StreamId> {
        self.id.get().copied()
    }

    /// Task: whether the caller has given it up.
    pub(crate) fn is_abandoned(&self) -> bool {
        lock(&self.outbox).reset
    }

    /// Task: hands something to the caller.
    ///
    /// # Errors
    /// How much waits, if that is more than [`MAX_PENDING`].
    pub(crate) fn push(&self, item: Item) -> Result<(), usize> {
        let mut inbox = lock(&self.inbox);
        if let Item::Event(event) = &item {
            inbox.weight += weight(event);
            if inbox.weight > MAX_PENDING {
                return Err(inbox.weight);
            }
        }
        inbox.items.push_back(item);
        drop(inbox);
        self.arrived.notify_one();
        Ok(())
    }

    /// Task: nothing more will come, for this reason. The first reason stays.
    pub(crate) fn break_off(&self, error: Error) {
        lock(&self.inbox).broken.get_or_insert(error);
        self.arrived.notify_one();
        self.end_sending("the program has ended");
    }

    /// Task: the other side takes no more data.
    pub(crate) fn end_sending(&self, why: &'static str) {
        let mut outbox = lock(&self.outbox);
        outbox.over.get_or_insert(why);
        outbox.data.clear();
        outbox.data_bytes = 0;
        drop(outbox);
        self.space.notify_waiters();
    }

    /// Task: takes the wishes.
    pub(crate) fn wishes(&self) -> Wishes {
        let mut outbox = lock(&self.outbox);
        outbox.mailed = false;
        Wishes {
            controls: std::mem::take(&mut outbox.controls),
            reset: outbox.reset,
            consumed: std::mem::take(&mut outbox.consumed),
        }
    }

    /// Task: lets `send` take data, which returns how many bytes it took, and says whether all is gone and no more
    /// will come. Stops when `send` takes less than it was given.
    pub(crate) fn send_data(&self, mut send: impl FnMut(&[u8]) -> usize) -> Sent {
        let mut outbox = lock(&self.outbox);
        let mut freed = false;
        let mut result = Sent::All;
        while let Some(chunk) = outbox.data.front_mut() {
            let taken = send(chunk);
            let whole = taken == chunk.len();
            if whole {
                outbox.data.pop_front();
            } else {
                let _ = chunk.split_to(taken);
            }
            outbox.data_bytes -= taken;
            freed |= taken > 0;
            if !whole {
                result = Sent::Part;
                break;
            }
        }
        if outbox.eof && outbox.data.is_empty() {
            result = Sent::Eof;
        }
        drop(outbox);
        if freed {
            self.space.notify_waiters();
        }
        result
    }

    /// Caller: sends a control message. One too many is dropped, except [`Control::Kill`].
    pub(crate) fn control(self: &Arc<Self>, control: Control) {
        self.mail(|outbox| {
            if control == Control::Kill || outbox.controls.len() < MAX_CONTROLS {
                // Kill need not wait for signals that come before it, nor be said twice.
                if control == Control::Kill {
                    outbox.controls.clear();
                }
                outbox.controls.push_back(control);
            }
        });
    }

    /// Caller: abandons the stream.
    pub(crate) fn reset(self: &Arc<Self>) {
        self.mail(|outbox| outbox.reset = true);
    }

    /// Caller: sends data, waiting while [`MAX_OUTBOX`] bytes wait to be sent.
    ///
    /// # Errors
    /// [`Error::StdinClosed`] if the other side takes no more, or after [`Link::finish_sending`].
    pub(crate) async fn send(self: &Arc<Self>, mut bytes: Bytes) -> Result<(), Error> {
        loop {
            // Registered before looking, so that a change in between is not missed.
            let mut space = std::pin::pin!(self.space.notified());
            space.as_mut().enable();
            let mut refused = None;
            self.mail(|outbox| {
                if let Some(why) = outbox.over.or(outbox.eof.then_some("it was ended before")) {
                    refused = Some(why);
                    return;
                }
                let take = (MAX_OUTBOX - outbox.data_bytes).min(bytes.len());
                if take > 0 {
                    outbox.data_bytes += take;
                    outbox.data.push_back(bytes.split_to(take));
                }
            });
            if let Some(why) = refused {
                return Err(Error::StdinClosed(why));
            }
            if bytes.is_empty() {
                return Ok(());
            }
            space.await;
        }
    }

    /// Caller: ends the data, after what was sent before.
    pub(crate) fn finish_sending(self: &Arc<Self>) {
        self.mail(|outbox| outbox.eof = true);
    }

    fn consumed(self: &Arc<Self>, channel: Channel, bytes: usize) {
        self.mail(|outbox| outbox.consumed[channel.index()] += bytes);
    }

    /// Changes the outbox and tells the task.
    fn mail(self: &Arc<Self>, change: impl FnOnce(&mut Outbox)) {
        let mut outbox = lock(&self.outbox);
        change(&mut outbox);
        if std::mem::replace(&mut outbox.mailed, true) {
            return;
        }
        drop(outbox);
        self.mailbox.post(self);
    }
}

/// How much of an outbox's data was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All there was; more may come.
    All,
    /// Not all; the rest waits for credit.
    Part,
    /// All there will ever be.
    Eof,
}

/// The caller's end. Dropping it before the operation's end abandons the operation.
#[derive(Debug)]
pub(crate) struct Stream {
    link: Arc<Link>,
    /// The end was seen; there is nothing to abandon.
    ended: bool,
    /// The process that made it.
    process: u32,
}

impl Stream {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link, ended: false, process: std::process::id() }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Waits for the next item. Data is reported as consumed, so ask only when it can be dealt with.
    ///
    /// # Errors
    /// Why nothing more will come.
    pub(crate) async fn next(&mut self) -> Result<Item, Error> {
        if self.process != std::process::id() {
            return Err(Error::ForkedProcess);
        }
        loop {
            {
                let mut inbox = lock(&self.link.inbox);
                if let Some(item) = inbox.items.pop_front() {
                    match &item {
                        Item::Event(event) => inbox.weight -= weight(event),
                        Item::Closed => self.ended = true,
                        Item::Data(..) | Item::Eof => {}
                    }
                    drop(inbox);
                    if let Item::Data(channel, bytes) = &item {
                        self.link.consumed(*channel, bytes.len());
                    }
                    return Ok(item);
                }
                if let Some(error) = &inbox.broken {
                    self.ended = true;
                    return Err(error.clone());
                }
            }
            // Whoever puts something in afterwards leaves a permit, so nothing is missed.
            self.link.arrived.notified().await;
        }
    }

    /// The operation is over: there is nothing to abandon any more.
    pub(crate) fn ended(&mut self) {
        self.ended = true;
    }

    /// Abandons the operation and waits until the guest has stopped it and cleaned up.
    pub(crate) async fn abandon(mut self) {
        self.link.reset();
        while let Ok(item) = self.next().await {
            if matches!(item, Item::Closed) {
                return;
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // After a fork the locks may be held by threads that do not exist here.
        if !self.ended && self.process == std::process::id() {
            self.link.reset();
        }
    }
}
