"""Files of a sandbox, for blocking callers."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Self, overload

from hayfork import _file_operations as operations
from hayfork import _native
from hayfork._calls import run_blocking, wait_blocking
from hayfork._file_operations import Content, Destination, Progress, Source
from hayfork._operations import plain
from hayfork.models import EntryInfo, FilesystemEvent

__all__ = ["FileStream", "Files", "WatchHandle"]


class FileStream(Iterator[bytes]):
    """The content of a file, piece by piece. Little of it is in memory at any time.

    It ends with the file; `close`, or leaving it as a context manager, ends it early.

    Attributes:
        size: The size that the file had when it was opened, in bytes.
    """

    def __init__(self, transfer: _native.Download, first: bytes) -> None:
        self._transfer: _native.Download | None = transfer if first else None
        self._first: bytes | None = first or None
        self.size = transfer.size or 0

    def __next__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._transfer is None:
            raise StopIteration
        try:
            piece: bytes = run_blocking(plain(self._transfer.read()))
        except BaseException:
            self.close()
            raise
        if not piece:
            self._transfer = None
            raise StopIteration
        return piece

    def close(self) -> None:
        """End it: nothing is read any more, on either side. Ending it twice is fine."""
        self._first = None
        if self._transfer is not None:
            self._transfer.abandon()
            self._transfer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class WatchHandle:
    """A watched folder. Iterating gives its changes as they come; `stop`, or leaving it as a context manager, ends it.

    Several threads may use it; each change goes to one of them. The watch ends by itself when the folder is removed or
    renamed, which its last event says, and when the sandbox is closed. A fork, a snapshot or a paused sandbox has none.

    Attributes:
        path: The folder, as it was given.
        recursive: Whether folders below it are watched too.
    """

    def __init__(self, watch: _native.Watch, path: str, recursive: bool) -> None:
        self._watch = watch
        self.path = path
        self.recursive = recursive

    @property
    def active(self) -> bool:
        """Whether anything new can come."""
        return not self._watch.over

    def get_new_events(self) -> list[FilesystemEvent]:
        """Take all changes that have happened by now and were not taken before, without waiting for others.

        What code that has ended, or a file operation that has returned, did before this call is among them.

        Returns:
            The changes, oldest first. After very many at once (8 MiB of paths) the rest is for the next call.

        Raises:
            SandboxFileError: If the guest could not go on watching.
            SessionClosedError: If the sandbox is closed.
        """
        return run_blocking(operations.new_events(self._watch))

    def events(self, timeout: float | None = None) -> Iterator[FilesystemEvent]:
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
            # One at a time, so that an iteration that is given up leaves the rest.
            while event := operations.take_events(self._watch, 1):
                yield event[0]
            if not wait_blocking(self._watch.wait(), timeout):
                return

    def __iter__(self) -> Iterator[FilesystemEvent]:
        return self.events()

    def stop(self) -> None:
        """End it, and every iteration over it. Ending it twice is fine."""
        self._watch.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<WatchHandle {self.path!r} {'active' if self.active else 'over'}>"


class Files:
    """Reads, writes and watches files in a sandbox. Paths are relative to the home folder unless absolute."""

    def __init__(self, native: _native.Sandbox) -> None:
        self._native = native

    @overload
    def read(self, path: str) -> str: ...
    @overload
    def read(self, path: str, format: Literal["text"]) -> str: ...
    @overload
    def read(self, path: str, format: Literal["bytes"]) -> bytes: ...
    @overload
    def read(self, path: str, format: Literal["stream"]) -> FileStream: ...

    def read(self, path: str, format: Literal["text", "bytes", "stream"] = "text") -> str | bytes | FileStream:
        """Read a file.

        Args:
            path: Which.
            format: `"text"` for str, decoded as UTF-8; `"bytes"`; or `"stream"` for an iterator of pieces, which keeps
                little in memory however large the file is.

        Returns:
            Its content.

        Raises:
            SandboxFileError: If it is not there or cannot be read.
        """
        operations.check_format(format)
        if format == "stream":
            return FileStream(*run_blocking(operations.open_stream(self._native, path)))
        return run_blocking(operations.read(self._native, path, format))

    def write(self, path: str, data: Content, *, mode: int = 0o644) -> int:
        """Write a file, all of it or nothing; folders on the way are made.

        Args:
            path: Where.
            data: Bytes, text, a host file's `Path`, a stream, or an iterable of bytes. Streams and iterables are
                written piece by piece; if one raises, that exception comes out of here, and nothing is written.
            mode: Permission bits.

        Returns:
            Its size in bytes.

        Raises:
            SandboxFileError: If it cannot be written there.
            InputValidationError: If `data` is something else.
        """
        return run_blocking(operations.upload(self._native, path, data, mode))

    def upload(self, source: Source, path: str, *, mode: int = 0o644, progress: Progress | None = None) -> int:
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
        return run_blocking(operations.upload_file(self._native, source, path, mode, progress))

    def download(self, path: str, destination: Destination, *, progress: Progress | None = None) -> int:
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
        return run_blocking(operations.download_to(self._native, path, destination, progress))

    def list(self, path: str = "") -> builtins.list[EntryInfo]:
        """List a folder, sorted by name."""
        return run_blocking(operations.list_dir(self._native, path))

    def get_info(self, path: str) -> EntryInfo:
        """Describe one entry, without following a final symbolic link."""
        return run_blocking(operations.stat(self._native, path))

    def exists(self, path: str) -> bool:
        """Tell whether an entry exists."""
        return run_blocking(operations.exists(self._native, path))

    def make_dir(self, path: str) -> None:
        """Make a folder and its parents; one that exists is fine."""
        run_blocking(plain(self._native.make_dir(path)))

    def remove(self, path: str) -> None:
        """Remove a file, link, or folder with all it holds."""
        run_blocking(plain(self._native.remove(path)))

    def rename(self, old_path: str, new_path: str) -> None:
        """Rename, replacing a file that stands there."""
        run_blocking(plain(self._native.rename(old_path, new_path)))

    def watch(self, path: str = "", *, recursive: bool = False) -> WatchHandle:
        """Watch a folder: whatever changes in it after this call is reported.

        What is written through `mmap` is not noticed. A file that `write` replaces shows as a temporary one that is
        renamed. If changes come faster than they are taken for long, some are lost, and an event of type `OVERFLOW`
        stands in their place: list the folder then.

        Args:
            path: The folder.
            recursive: Whether folders below it are watched too, those made later among them. Symbolic links are not
                followed. All watches of a sandbox can look at 4096 folders together.

        Returns:
            The watch; 32 of them may be active in a sandbox.

        Raises:
            SandboxFileError: If there is no such folder, it is none, or leads out of where files may be (code
                `not_found`, `wrong_type`, `bad_path`), or too much is watched (`too_many`).
            SessionClosedError: If the sandbox is closed.
        """
        return WatchHandle(run_blocking(operations.watch(self._native, path, recursive)), path, recursive)

    watch_dir = watch
