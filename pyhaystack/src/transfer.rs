//! Files on their way in and out, piece by piece, so that a file of any size takes little memory.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use hayfork_sandbox::{Error, Sandbox};
use pyo3::prelude::*;
use tokio::io::{AsyncRead, AsyncReadExt as _, DuplexStream, ReadBuf};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{AbortHandle, JoinHandle};

use crate::call::Call;
use crate::runtime::Runtime;
use crate::value::Value;

/// Bytes that wait between the engine and Python at most, in a download.
const BUFFER: usize = 512 * 1024;

/// Pieces that wait between Python and the engine at most, in an upload.
const PIECES: usize = 4;

/// A transfer that goes on in the engine; it gives the file's size.
type Transfer = JoinHandle<Result<u64, Error>>;

/// What a caller hands to an upload.
enum Piece {
    Bytes(Bytes),
    End,
}

/// The pieces as a byte stream. That the sender is gone without [`Piece::End`] is an error, so that
/// an abandoned upload never passes for a whole file.
struct Pieces {
    receiver: mpsc::Receiver<Piece>,
    current: Bytes,
    ended: bool,
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() && !self.ended {
            match std::task::ready!(self.receiver.poll_recv(cx)) {
                Some(Piece::Bytes(bytes)) => self.current = bytes,
                Some(Piece::End) => self.ended = true,
                None => return Poll::Ready(Err(io::Error::other("the upload was abandoned"))),
            }
        }
        let take = self.current.len().min(out.remaining());
        out.put_slice(&self.current[..take]);
        self.current.advance(take);
        Poll::Ready(Ok(()))
    }
}

/// A file on its way into the sandbox.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Upload {
    runtime: Runtime,
    sender: StdMutex<Option<mpsc::Sender<Piece>>>,
    task: Arc<Mutex<Option<Transfer>>>,
}

impl Upload {
    pub(crate) fn start(runtime: Runtime, sandbox: Sandbox, path: String, mode: u32) -> Self {
        let (sender, receiver) = mpsc::channel(PIECES);
        let pieces = Pieces { receiver, current: Bytes::new(), ended: false };
        let task = runtime.spawn(async move { sandbox.write_file(&path, mode, pieces).await });
        Self { runtime, sender: StdMutex::new(Some(sender)), task: Arc::new(Mutex::new(task)) }
    }

    fn sender(&self) -> Option<mpsc::Sender<Piece>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[pymethods]
impl Upload {
    /// Hands over a piece; done when there is room for the next. It never fails: what went wrong is
    /// the result of `finish`, and `False` says that there is something.
    fn write(&self, content: &[u8]) -> Call {
        let sender = self.sender();
        let piece = Piece::Bytes(Bytes::copy_from_slice(content));
        Call::spawn(&self.runtime, async move {
            let taken = match sender {
                Some(sender) => sender.send(piece).await.is_ok(),
                None => false,
            };
            Ok(Value::Number(u64::from(taken)))
        })
    }

    /// Says that the file is whole, and waits until it stands in its place; gives its size.
    fn finish(&self) -> Call {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let task = Arc::clone(&self.task);
        Call::spawn(&self.runtime, async move {
            if let Some(sender) = sender {
                // An upload that has failed already does not listen any more; its error follows.
                let _ = sender.send(Piece::End).await;
            }
            let Some(task) = task.lock().await.take() else { return Ok(Value::Number(0)) };
            match task.await {
                Ok(written) => written.map(Value::Number),
                Err(_) => Err(Error::Cancelled),
            }
        })
    }

    /// Abandons it: nothing of it stays in the sandbox.
    fn abandon(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A file on its way out of the sandbox.
#[pyclass(frozen, module = "hayfork._native")]
pub(crate) struct Download {
    runtime: Runtime,
    state: Arc<Mutex<DownloadState>>,
    /// The file's size, when it is known.
    size: Arc<OnceLock<u64>>,
    abort: Option<AbortHandle>,
}

struct DownloadState {
    bytes: DuplexStream,
    task: Option<Transfer>,
}

impl Drop for DownloadState {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Download {
    pub(crate) fn start(runtime: Runtime, sandbox: Sandbox, path: String) -> Self {
        let (bytes, out) = tokio::io::duplex(BUFFER);
        let size = Arc::new(OnceLock::new());
        let known = Arc::clone(&size);
        let task = runtime.spawn(async move {
            sandbox
                .read_file_with(&path, out, |info| {
                    // A file is described once.
                    let _ = known.set(info.bytes);
                })
                .await
        });
        let abort = task.as_ref().map(JoinHandle::abort_handle);
        let state = DownloadState { bytes, task };
        Self { runtime, state: Arc::new(Mutex::new(state)), size, abort }
    }
}

#[pymethods]
impl Download {
    /// The next piece; empty at the end of the file.
    fn read(&self) -> Call {
        let state = Arc::clone(&self.state);
        Call::spawn(&self.runtime, async move {
            let mut state = state.lock().await;
            let mut piece = Vec::with_capacity(BUFFER);
            let read = state.bytes.read_buf(&mut piece).await;
            if matches!(read, Ok(n) if n > 0) {
                return Ok(Value::Bytes(piece));
            }
            // The stream's end says nothing about success: the transfer's own result does.
            match state.task.take() {
                None => Ok(Value::Bytes(Vec::new())),
                Some(task) => match task.await {
                    Ok(result) => result.map(|_| Value::Bytes(Vec::new())),
                    Err(_) => Err(Error::Cancelled),
                },
            }
        })
    }

    /// The size that the file had when it was opened; known when the first piece, or the end, has come.
    #[getter]
    fn size(&self) -> Option<u64> {
        self.size.get().copied()
    }

    /// Abandons it: nothing is read any more, and the sandbox is told.
    fn abandon(&self) {
        if let Some(task) = &self.abort {
            task.abort();
        }
    }
}
