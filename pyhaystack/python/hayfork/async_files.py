"""Files of a sandbox, for event loops: the same names as in `hayfork.files`, to be awaited."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Literal, Self, overload

from hayfork import _file_operations as operations
from hayfork import _native, errors
from hayfork._calls import run_async
from hayfork._file_operations import AsyncContent, Destination, Progress, Source
from hayfork._operations import plain
from hayfork.models import EntryInfo, FilesystemEvent

__all__ = ["AsyncFileStream", "AsyncFiles", "AsyncWatchHandle"]

_log = logging.getLogger("hayfork")

OnEvent = Callable[[FilesystemEvent], Awaitable[object] | object]


class AsyncFileStream(AsyncIterator[bytes]):
    """The content of a file, piece by piece. Little of it is in memory at any time.

    It ends with the file; `close`, or leaving it as an async context manager, ends it early.

    Attributes:
        size: The size that the file had when it was opened, in bytes.
    """

    def __init__(self, transfer: _native.Download, first: bytes) -> None:
        self._transfer: _native.Download | None = transfer if first else None
        self._first: bytes | None = first or None
        self.size = transfer.size or 0

    async def __anext__(self) -> bytes:
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        if self._transfer is None:
            raise StopAsyncIteration
        try:
            piece = await run_async(plain(self._transfer.read()))
        except BaseException:
            # A piece may be lost with a wait that was cancelled: going on would leave a hole.
            await self.close()
            raise
        if not piece:
            self._transfer = None
            raise StopAsyncIteration
        return piece

    async def close(self) -> None:
        """End it: nothing is read any more, on either side. Ending it twice is fine."""
        self._first = None
        if self._transfer is not None:
            self._transfer.abandon()
            self._transfer = None

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class AsyncWatchHandle(AsyncIterator[FilesystemEvent]):
    """A watched folder. Iterating gives its changes as they come; `stop`, or leaving it as a context manager, ends it.

    Several tasks may use it; each change goes to one of them. The watch ends by itself when the folder is removed or
    renamed, which its last event says, and when the sandbox is closed. A fork, a snapshot or a paused sandbox has none.

    Attributes:
        path: The folder, as it was given.
        recursive: Whether folders below it are watched too.
    """

    def __init__(self, watch: _native.Watch, path: str, recursive: bool) -> None:
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self.path = path
        self.recursive = recursive

    @property
    def active(self) -> bool:
        """Whether anything new can come."""
        return not self._watch.over

    async def get_new_events(self) -> list[FilesystemEvent]:
        """Take all changes that have happened by now and were not taken before, without waiting for others.

        What code that has ended, or a file operation that has returned, did before this call is among them.

        Returns:
            The changes, oldest first. After very many at once (8 MiB of paths) the rest is for the next call.

        Raises:
            SandboxFileError: If the guest could not go on watching.
            SessionClosedError: If the sandbox is closed.
        """
        return await run_async(operations.new_events(self._watch))

    async def __anext__(self) -> FilesystemEvent:
        # Waiting takes nothing: a cancelled wait loses no change.
        while not (event := operations.take_events(self._watch, 1)):
            if not await run_async(plain(self._watch.wait())):
                raise StopAsyncIteration
        return event[0]

    async def events(self, timeout: float | None = None) -> AsyncIterator[FilesystemEvent]:
        """Iterate over changes as they come.

        Args:
            timeout: Seconds to wait for the next change; the iteration ends when there is none for so long, and may be
                begun again. By default it ends with the watch.

        Raises:
            SandboxFileError: If the guest could not go on watching.
            SessionClosedError: If the sandbox is closed.
        """
        timeout = operations.pause_between(timeout)
        while True:
            try:
                event = await asyncio.wait_for(anext(self), timeout)
            except (StopAsyncIteration, TimeoutError):
                return
            yield event

    async def stop(self) -> None:
        """End it, and every iteration over it. Ending it twice is fine."""
        self._watch.stop()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            # It ends by itself after the call that it is in.
            await asyncio.wait([task])

    def _call(self, on_event: OnEvent) -> None:
        """Hand every change to a callback from here on."""
        self._task = asyncio.get_running_loop().create_task(self._follow(on_event), name="hayfork-watch")

    async def _follow(self, on_event: OnEvent) -> None:
        try:
            async for event in self:
                try:
                    result = on_event(event)
                    if inspect.isawaitable(result):
                        await result
                except Exception:  # noqa: BLE001 - whatever it raises is the caller's own affair, and logged
                    _log.exception("on_event raised an exception and is not called again")
                    self._watch.stop()
                    return
        except errors.SandboxError as error:
            _log.warning("the watch on %r has ended: %s", self.path, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<AsyncWatchHandle {self.path!r} {'active' if self.active else 'over'}>"


class AsyncFiles:
    """Reads, writes and watches files in a sandbox. Paths are relative to the home folder unless absolute."""

    def __init__(self, native: _native.Sandbox) -> None:
        self._native = native

    @overload
    async def read(self, path: str) -> str: ...
    @overload
    async def read(self, path: str, format: Literal["text"]) -> str: ...
    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    @overload
    async def read(self, path: str, format: Literal["stream"]) -> AsyncFileStream: ...

    async def read(
        self, path: str, format: Literal["text", "bytes", "stream"] = "text"
    ) -> str | bytes | AsyncFileStream:
        """Read a file.

        Args:
            path: Which.
            format: `"text"` for str, decoded as UTF-8; `"bytes"`; or `"stream"` for an async iterator of pieces, which
                keeps little in memory however large the file is.

        Returns:
            Its content.

        Raises:
            SandboxFileError: If it is not there or cannot be read.
        """
        operations.check_format(format)
        if format == "stream":
            return AsyncFileStream(*await run_async(operations.open_stream(self._native, path)))
        return await run_async(operations.read(self._native, path, format))

    async def write(self, path: str, data: AsyncContent, *, mode: int = 0o644) -> int:
        """Write a file, all of it or nothing; folders on the way are made.

        Args:
            path: Where.
            data: Bytes, text, a host file's `Path`, a stream, or an iterable or async iterable of bytes. Streams and
                iterables are written piece by piece; if one raises, that exception comes out of here, and nothing is
                written. Those that are not async are read on the event loop's thread.
            mode: Permission bits.

        Returns:
            Its size in bytes.

        Raises:
            SandboxFileError: If it cannot be written there.
            InputValidationError: If `data` is something else.
        """
        return await run_async(operations.upload(self._native, path, data, mode, on_loop=True))

    async def upload(self, source: Source, path: str, *, mode: int = 0o644, progress: Progress | None = None) -> int:
        """Copy a host file into the sandbox, piece by piece, all of it or nothing.

        Args:
            source: A host file's path, or a stream.
            path: Where to.
            mode: Permission bits.
            progress: Called with the bytes that were handed over and those there are in all (`None` if a stream does
                not know): at the begin, ten times a second at most, and at the end, when the file stands in its place.
                If it raises, that is logged, it is not called again, and the transfer goes on.

        Returns:
            Its size in bytes.

        Raises:
            OSError: If the host file cannot be read.
            SandboxFileError: If it cannot be written there.
        """
        return await run_async(operations.upload_file(self._native, source, path, mode, progress))

    async def download(self, path: str, destination: Destination, *, progress: Progress | None = None) -> int:
        """Copy a file to the host, piece by piece.

        Args:
            path: Which.
            destination: A host file, which appears whole or not at all, or a stream.
            progress: Called with the bytes that have come and those there are in all, as for `upload`.

        Returns:
            Its size in bytes.

        Raises:
            SandboxFileError: If it is not there or cannot be read.
        """
        return await run_async(operations.download_to(self._native, path, destination, progress))

    async def list(self, path: str = "") -> builtins.list[EntryInfo]:
        """List a folder, sorted by name."""
        return await run_async(operations.list_dir(self._native, path))

    async def get_info(self, path: str) -> EntryInfo:
        """Describe one entry, without following a final symbolic link."""
        return await run_async(operations.stat(self._native, path))

    async def exists(self, path: str) -> bool:
        """Tell whether an entry exists."""
        return await run_async(operations.exists(self._native, path))

    async def make_dir(self, path: str) -> None:
        """Make a folder and its parents; one that exists is fine."""
        await run_async(plain(self._native.make_dir(path)))

    async def remove(self, path: str) -> None:
        """Remove a file, link, or folder with all it holds."""
        await run_async(plain(self._native.remove(path)))

    async def rename(self, old_path: str, new_path: str) -> None:
        """Rename, replacing a file that stands there."""
        await run_async(plain(self._native.rename(old_path, new_path)))

    async def watch(
        self, path: str = "", *, recursive: bool = False, on_event: OnEvent | None = None
    ) -> AsyncWatchHandle:
        """Watch a folder: whatever changes in it after this call is reported.

        What is written through `mmap` is not noticed. A file that `write` replaces shows as a temporary one that is
        renamed. If changes come faster than they are taken for long, some are lost, and an event of type `OVERFLOW`
        stands in their place: list the folder then.

        Args:
            path: The folder.
            recursive: Whether folders below it are watched too, those made later among them. Symbolic links are not
                followed. All watches of a sandbox can look at 4096 folders together.
            on_event: Called with each change; what it returns is awaited if it can be. If it raises, that is logged,
                it is not called again, and the watch ends. Without it, iterate over the watch.

        Returns:
            The watch; 32 of them may be active in a sandbox.

        Raises:
            SandboxFileError: If there is no such folder, it is none, or leads out of where files may be (code
                `not_found`, `wrong_type`, `bad_path`), or too much is watched (`too_many`).
            SessionClosedError: If the sandbox is closed.
        """
        handle = AsyncWatchHandle(await run_async(operations.watch(self._native, path, recursive)), path, recursive)
        if on_event is not None:
            handle._call(on_event)
        return handle

    watch_dir = watch
