"""The operations behind `files`, sync and async, each written once (see `_calls`)."""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from hayfork import _native, errors
from hayfork._calls import Await, Operation
from hayfork._execution import Callback
from hayfork.models import EntryInfo, FilesystemEvent, FilesystemEventType

Piece = bytes | bytearray | memoryview | str
Content = bytes | bytearray | memoryview | str | Path | IO[bytes] | IO[str] | Iterable[bytes] | Iterable[str]
AsyncContent = Content | AsyncIterable[bytes] | AsyncIterable[str]
Source = str | os.PathLike[str] | IO[bytes]
Destination = str | os.PathLike[str] | IO[bytes]
Progress = Callable[[int, int | None], object]

_PIECE = 256 * 1024

_PROGRESS_INTERVAL = 0.1
"""Seconds between two reports of a transfer's progress, at least."""

EVENTS_AT_ONCE = 512
"""Changes of a watched folder that are turned into objects at once."""


class _Reporter:
    """Tells a callback how far a transfer is: at its begin, now and then, and exactly at its end."""

    def __init__(self, callback: Progress | None, total: int | None) -> None:
        self._callback = Callback("progress", callback)
        self.total = total
        self.done = 0
        self._next = 0.0

    def moved(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_INTERVAL
            # A source may have grown since.
            self._callback(self.done, None if self.total is None else max(self.total, self.done))

    def finished(self, size: int) -> None:
        self._callback(size, size)


def _bad_content(problem: str) -> errors.InputValidationError:
    return errors.InputValidationError(
        problem,
        code="bad_content",
        remedy="Give bytes, text, a Path, a stream that is open for reading, or an iterable of bytes.",
    )


def _bytes(piece: object) -> memoryview:
    if isinstance(piece, str):
        return memoryview(piece.encode())
    try:
        view = memoryview(piece)  # type: ignore[arg-type] # refused below if it is none
    except TypeError:
        raise _bad_content(f"a piece of the content is {type(piece).__name__}, not bytes") from None
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def _slices(content: object) -> Iterator[bytes]:
    view = _bytes(content)
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])


def _reads(read: Callable[[int], object]) -> Iterator[bytes]:
    while piece := read(_PIECE):
        yield from _slices(piece)


def _flat(pieces: Iterable[Any]) -> Iterator[bytes]:
    for piece in pieces:
        yield from _slices(piece)


def upload(
    sandbox: _native.Sandbox,
    path: str,
    content: AsyncContent,
    mode: int = 0o644,
    progress: Progress | None = None,
    *,
    on_loop: bool = False,
) -> Operation[int]:
    """Write a file from bytes, text, a host file, a stream or an iterable, all of it or nothing.

    With `on_loop`, an event loop drives it, and the iterable may be an async one.
    """
    if isinstance(content, Path):
        with content.open("rb") as stream:
            size: int = yield from _upload_pieces(
                sandbox, path, _reads(stream.read), mode, _Reporter(progress, _left_in(stream))
            )
            return size
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, (bytes, bytearray, memoryview)):
        view = _bytes(content)
        return (yield from _upload_pieces(sandbox, path, _slices(view), mode, _Reporter(progress, len(view))))
    # First, since streams of event loops have a `read` as well.
    if isinstance(content, AsyncIterable):
        if not on_loop:
            raise _bad_content("the content is an async iterable, which a blocking call cannot read")
        return (yield from _upload_async_pieces(sandbox, path, aiter(content), mode, _Reporter(progress, None)))
    read = getattr(content, "read", None)
    if read is not None:
        reporter = _Reporter(progress, _left_in(content))
        return (yield from _upload_pieces(sandbox, path, _reads(read), mode, reporter))
    if not isinstance(content, Iterable):
        raise _bad_content(f"the content is {type(content).__name__}")
    return (yield from _upload_pieces(sandbox, path, _flat(content), mode, _Reporter(progress, None)))


def upload_file(
    sandbox: _native.Sandbox, source: Source, path: str, mode: int, progress: Progress | None
) -> Operation[int]:
    """Copy a host file, or what a stream still holds, into the sandbox."""
    if isinstance(source, (str, os.PathLike)):
        return (yield from upload(sandbox, path, Path(source), mode, progress))
    if not hasattr(source, "read"):
        raise errors.InputValidationError(
            f"the source is {type(source).__name__}",
            code="bad_content",
            remedy="Give the path of a host file or a stream; `write` takes content itself.",
        )
    return (yield from upload(sandbox, path, source, mode, progress))


def _left_in(stream: Any) -> int | None:
    """Find out how much a stream still holds, if it knows."""
    if isinstance(stream, io.TextIOBase):
        return None
    try:
        if not stream.seekable():
            return None
        at = stream.tell()
        end = stream.seek(0, io.SEEK_END)
        stream.seek(at)
    except (AttributeError, OSError, ValueError):
        return None
    return max(0, int(end) - int(at))


def _upload_pieces(
    sandbox: _native.Sandbox, path: str, pieces: Iterator[bytes], mode: int, reporter: _Reporter
) -> Operation[int]:
    transfer = sandbox.upload(path, mode)
    try:
        reporter.moved(0)
        for piece in pieces:
            if not (yield transfer.write(piece)):
                break  # it has failed; finish tells why
            reporter.moved(len(piece))
        size: int = yield transfer.finish()
    except BaseException:
        transfer.abandon()
        raise
    reporter.finished(size)
    return size


def _upload_async_pieces(
    sandbox: _native.Sandbox, path: str, pieces: AsyncIterator[Any], mode: int, reporter: _Reporter
) -> Operation[int]:
    transfer = sandbox.upload(path, mode)
    try:
        reporter.moved(0)
        taken = True
        while taken:
            try:
                whole = yield Await(anext(pieces))
            except StopAsyncIteration:
                break
            for piece in _slices(whole):
                taken = bool((yield transfer.write(piece)))
                if not taken:
                    break  # it has failed; finish tells why
                reporter.moved(len(piece))
        size: int = yield transfer.finish()
    except BaseException:
        transfer.abandon()
        raise
    reporter.finished(size)
    return size


def download(
    sandbox: _native.Sandbox, path: str, destination: IO[bytes], progress: Progress | None = None
) -> Operation[int]:
    """Read a file into a stream."""
    transfer = sandbox.download(path)
    reporter = _Reporter(progress, None)
    try:
        piece = yield transfer.read()
        reporter.total = transfer.size
        reporter.moved(0)
        while piece:
            destination.write(piece)
            reporter.moved(len(piece))
            piece = yield transfer.read()
    except BaseException:
        transfer.abandon()
        raise
    reporter.finished(reporter.done)
    return reporter.done


def download_to_file(
    sandbox: _native.Sandbox, path: str, destination: Path, progress: Progress | None = None
) -> Operation[int]:
    """Read a file into a host file, which appears whole or not at all."""
    destination = Path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            size: int = yield from download(sandbox, path, stream, progress)
        umask = os.umask(0)
        os.umask(umask)
        Path(aside).chmod(0o666 & ~umask)
        Path(aside).replace(destination)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return size


def download_to(
    sandbox: _native.Sandbox, path: str, destination: Destination, progress: Progress | None
) -> Operation[int]:
    """Read a file into a host file or a stream."""
    if isinstance(destination, (str, os.PathLike)):
        return download_to_file(sandbox, path, Path(destination), progress)
    return download(sandbox, path, destination, progress)


def read(sandbox: _native.Sandbox, path: str, kind: str) -> Operation[str | bytes]:
    """Read a whole file."""
    out = io.BytesIO()
    yield from download(sandbox, path, out)
    return out.getvalue() if kind == "bytes" else out.getvalue().decode()


def check_format(kind: object) -> None:
    """Refuse formats that `read` does not have.

    Raises:
        InputValidationError: If it is none of them.
    """
    if kind not in ("text", "bytes", "stream"):
        raise errors.InputValidationError(
            f"there is no format {kind!r}", code="bad_format", remedy='Choose "text", "bytes" or "stream".'
        )


def open_stream(sandbox: _native.Sandbox, path: str) -> Operation[tuple[_native.Download, bytes]]:
    """Begin to read a file, and wait for its first piece, so that a missing one is an error at once."""
    transfer = sandbox.download(path)
    try:
        first: bytes = yield transfer.read()
    except BaseException:
        transfer.abandon()
        raise
    return transfer, first


def entry(file: tuple[str, str, int, int, float]) -> EntryInfo:
    """Make the model of a directory entry."""
    name, kind, size, mode, modified = file
    kinds: dict[str, Literal["file", "dir", "symlink", "other"]] = {
        "file": "file",
        "dir": "dir",
        "symlink": "symlink",
    }
    return EntryInfo(name, kinds.get(kind, "other"), size, mode, modified)


def list_dir(sandbox: _native.Sandbox, path: str) -> Operation[list[EntryInfo]]:
    """List a folder, sorted by name."""
    files = yield sandbox.list(path)
    return [entry(file) for file in files]


def stat(sandbox: _native.Sandbox, path: str) -> Operation[EntryInfo]:
    """Describe one entry."""
    return entry((yield sandbox.stat(path)))


def exists(sandbox: _native.Sandbox, path: str) -> Operation[bool]:
    """Tell whether an entry exists."""
    try:
        yield sandbox.stat(path)
    except errors.SandboxFileError as error:
        if error.code == "not_found":
            return False
        raise
    return True


def watch(sandbox: _native.Sandbox, path: str, recursive: bool) -> Operation[_native.Watch]:
    """Begin to watch a folder."""
    found: _native.Watch = yield sandbox.watch(path, bool(recursive))
    return found


def take_events(watch: _native.Watch, most: int = EVENTS_AT_ONCE) -> list[FilesystemEvent]:
    """Take what a watch has."""
    return [
        FilesystemEvent(path, FilesystemEventType(kind), new_path, directory)
        for kind, path, new_path, directory in watch.take(most)
    ]


def new_events(watch: _native.Watch) -> Operation[list[FilesystemEvent]]:
    """Take all that has happened by now."""
    yield watch.flush()
    events: list[FilesystemEvent] = []
    while more := take_events(watch):
        events += more
    return events


def pause_between(timeout: float | None) -> float | None:
    """Check how long to wait for the next event.

    Raises:
        VmConfigError: If it is no number of seconds.
    """
    if timeout is not None and not 0 <= timeout < float("inf"):
        raise errors.VmConfigError(
            f"timeout is {timeout!r}", remedy="Give a number of seconds from 0 on, or None to wait as long as it takes."
        )
    return timeout
