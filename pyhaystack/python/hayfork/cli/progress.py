"""Progress on standard error: shown to a person at a terminal, silent for everything else.

rich is imported only where something is shown: it takes as long as a virtual machine's start.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def spinner(text: str, *, quiet: bool) -> Iterator[None]:
    """Show that something goes on."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415

    with Console(stderr=True).status(text):
        yield


@contextmanager
def reading(path: Path, text: str, *, quiet: bool) -> Iterator[IO[bytes]]:
    """Open a file, and show how much of it has been read."""
    if quiet or not sys.stderr.isatty():
        with path.open("rb") as stream:
            yield stream
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import wrap_file  # noqa: PLC0415

    with (
        path.open("rb") as stream,
        wrap_file(
            stream,
            path.stat().st_size,
            description=text,
            console=Console(stderr=True),
            transient=True,
        ) as wrapped,
    ):
        yield wrapped


@contextmanager
def writing(stream: IO[bytes], size: int, text: str, *, quiet: bool) -> Iterator[IO[bytes]]:
    """Pass a stream on, and show how much has been written to it."""
    if quiet or not sys.stderr.isatty():
        yield stream
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Counted(stream, progress, size, text)  # type: ignore[misc] # only write is used


class _Counted:
    def __init__(self, stream: IO[bytes], progress: Progress, size: int, text: str) -> None:
        self._stream = stream
        self._progress = progress
        self._task = progress.add_task(text, total=size)

    def write(self, content: bytes) -> int:
        self._progress.advance(self._task, len(content))
        return self._stream.write(content)
