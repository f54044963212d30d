//! Everything that a sandbox does besides running code: files, folders, figures, contexts.
//!
//! Each call is one stream. Contents flow with back-pressure in both directions, so transfers of any size need a few
//! hundred kilobytes of memory. A call whose future is dropped is abandoned; the guest removes what an upload has
//! written so far.

use bytes::BytesMut;
use hayfork_protocol::frame::Channel;
use hayfork_protocol::message::{Event, FileInfo, Request, Stats};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::connection::stream::{Item, Stream};
use crate::error::Error;
use crate::sandbox::Sandbox;

/// Bytes read from a caller's reader at once.
const PIECE: usize = 64 * 1024;

/// What background work of a context printed while nothing ran there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Bytes of standard output left out.
    pub stdout_omitted: u64,
    /// Bytes of standard error left out.
    pub stderr_omitted: u64,
}

impl Sandbox {
    /// Writes a file from `content` until its end, whole or not at all, and returns its size in bytes. Missing parents
    /// are made; a relative path begins at /home/user. `mode`: permission bits.
    ///
    /// # Errors
    /// What the guest refuses, or [`Error::Io`] if `content` cannot be read: nothing is left then.
    pub async fn write_file(
        &self,
        path: &str,
        mode: u32,
        mut content: impl AsyncRead + Unpin + Send,
    ) -> Result<u64, Error> {
        let mut stream = self.operation(Request::WriteFile { path: path.to_owned(), mode })?;
        let mut buffer = BytesMut::new();
        let mut sent = 0_u64;
        loop {
            buffer.reserve(PIECE);
            // The guest may refuse while the caller's reader still waits for something.
            let read = tokio::select! {
                read = content.read_buf(&mut buffer) => read,
                item = stream.next() => return done(stream, item?).await.and_then(|bytes| all_arrived(sent, bytes)),
            };
            match read {
                Ok(0) => break,
                Ok(_) => {
                    let piece = buffer.split().freeze();
                    sent += piece.len() as u64;
                    // The guest has ended the operation early: it says why.
                    if stream.link().send(piece).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    stream.abandon().await;
                    return Err(Error::io("the content to write could not be read", error));
                }
            }
        }
        stream.link().finish_sending();
        let item = stream.next().await?;
        done(stream, item).await.and_then(|bytes| all_arrived(sent, bytes))
    }

    /// Reads a file into `out` and returns its size in bytes.
    ///
    /// # Errors
    /// What the guest refuses, or [`Error::Io`] if `out` cannot be written.
    pub async fn read_file(&self, path: &str, out: impl AsyncWrite + Unpin + Send) -> Result<u64, Error> {
        self.read_file_with(path, out, |_| {}).await
    }

    /// The same; `opened` is told of the file before the first of its bytes.
    ///
    /// # Errors
    /// As those of [`Sandbox::read_file`].
    pub async fn read_file_with(
        &self,
        path: &str,
        mut out: impl AsyncWrite + Unpin + Send,
        opened: impl Fn(&FileInfo) + Send,
    ) -> Result<u64, Error> {
        let mut stream = self.operation(Request::ReadFile { path: path.to_owned() })?;
        let mut received = 0_u64;
        loop {
            match stream.next().await? {
                Item::Data(_, bytes) => {
                    received += bytes.len() as u64;
                    if let Err(error) = out.write_all(&bytes).await {
                        stream.abandon().await;
                        return Err(Error::io("the content read could not be written", error));
                    }
                }
                Item::Event(Event::File(info)) => opened(&info),
                Item::Eof => {}
                item => {
                    let bytes = done(stream, item).await?;
                    all_arrived(bytes, received)?;
                    out.flush()
                        .await
                        .map_err(|error| Error::io("the content read could not be written", error))?;
                    return Ok(received);
                }
            }
        }
    }

    /// Lists a folder, sorted by name.
    ///
    /// # Errors
    /// What the guest refuses.
    pub async fn list(&self, path: &str) -> Result<Vec<FileInfo>, Error> {
        let mut stream = self.operation(Request::List { path: path.to_owned() })?;
        let mut all = Vec::new();
        loop {
            match stream.next().await? {
                Item::Event(Event::Entries(entries)) => all.extend(entries),
                item => {
                    done(stream, item).await?;
                    return Ok(all);
                }
            }
        }
    }

    /// Describes one entry, without following it if it is a symbolic link.
    ///
    /// # Errors
    /// What the guest refuses.
    pub async fn stat(&self, path: &str) -> Result<FileInfo, Error> {
        let mut stream = self.operation(Request::Stat { path: path.to_owned() })?;
        match stream.next().await? {
            Item::Event(Event::File(info)) => {
                stream.ended();
                Ok(info)
            }
            item => Err(failure(stream, item)),
        }
    }

    /// Makes a folder and its parents; one that exists is fine.
    ///
    /// # Errors
    /// What the guest refuses.
    pub async fn make_dir(&self, path: &str) -> Result<(), Error> {
        self.simple(Request::MakeDir { path: path.to_owned() }).await
    }

    /// Removes a file, a link, or a folder with all it holds.
    ///
    /// # Errors
    /// What the guest refuses.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        self.simple(Request::Remove { path: path.to_owned() }).await
    }

    /// Renames, replacing a file that stands there.
    ///
    /// # Errors
    /// What the guest refuses.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        self.simple(Request::Rename { from: from.to_owned(), to: to.to_owned() }).await
    }

    /// Takes what background work of a context has printed since the last time while nothing ran there.
    ///
    /// # Errors
    /// What the guest refuses: there is no such context.
    pub async fn idle_output(&self, context: u32) -> Result<IdleOutput, Error> {
        let mut stream = self.operation(Request::IdleOutput { context })?;
        let mut output = IdleOutput::default();
        loop {
            match stream.next().await? {
                Item::Data(Channel::Stderr, bytes) => output.stderr.extend_from_slice(&bytes),
                Item::Data(_, bytes) => output.stdout.extend_from_slice(&bytes),
                Item::Event(Event::Omitted { stderr: false, bytes }) => {
                    output.stdout_omitted = output.stdout_omitted.saturating_add(bytes);
                }
                Item::Event(Event::Omitted { stderr: true, bytes }) => {
                    output.stderr_omitted = output.stderr_omitted.saturating_add(bytes);
                }
                Item::Eof => {}
                item => {
                    done(stream, item).await?;
                    return Ok(output);
                }
            }
        }
    }

    /// Ends a context and everything that it started.
    ///
    /// # Errors
    /// What the guest refuses: there is no such context.
    pub async fn close_context(&self, context: u32) -> Result<(), Error> {
        self.simple(Request::CloseContext { context }).await
    }

    /// The guest's own figures.
    ///
    /// # Errors
    /// The sandbox is closed, or its machine died.
    pub async fn stats(&self) -> Result<Stats, Error> {
        let mut stream = self.operation(Request::Stats)?;
        match stream.next().await? {
            Item::Event(Event::Stats(stats)) => {
                stream.ended();
                Ok(stats)
            }
            item => Err(failure(stream, item)),
        }
    }

    pub(crate) async fn simple(&self, request: Request) -> Result<(), Error> {
        simple(self.operation(request)?).await
    }
}

/// The end of an operation that gives nothing.
pub(crate) async fn simple(mut stream: Stream) -> Result<(), Error> {
    let item = stream.next().await?;
    done(stream, item).await.map(drop)
}

/// The end of an operation, from its last item, or from what comes after an item that means nothing.
async fn done(mut stream: Stream, mut item: Item) -> Result<u64, Error> {
    loop {
        match item {
            Item::Event(Event::Done { bytes }) => {
                stream.ended();
                return Ok(bytes);
            }
            Item::Eof => item = stream.next().await?,
            item => return Err(failure(stream, item)),
        }
    }
}

/// The error that an item is for an operation that hoped for another one.
pub(crate) fn failure(mut stream: Stream, item: Item) -> Error {
    match item {
        Item::Event(Event::Failed(failure)) => {
            stream.ended();
            failure.into()
        }
        Item::Closed => Error::Cancelled,
        // The ledger lets nothing else through; the stream is abandoned if it does.
        _ => Error::Protocol("an event that does not belong to the operation".into()),
    }
}

/// Checks that what was sent is what the other side says has arrived.
fn all_arrived(sent: u64, arrived: u64) -> Result<u64, Error> {
    if sent == arrived {
        Ok(arrived)
    } else {
        Err(Error::Protocol(format!("{arrived} of {sent} bytes of a file arrived")))
    }
}
