"""Descriptors 0, 1 and 2, and the objects `sys.stdin`, `sys.stdout`, `sys.stderr`.

For each execution the agent has a FIFO for each descriptor; `attach` puts them in place, `detach` puts the idle FIFOs
there afterwards. Files are opened by path when they are wanted and nothing is kept open, so user code may close or
replace any descriptor. If it has used up all descriptors, one of 0 to 2 is given up to make room.

`sys.stdout` and `sys.stderr` stay the same objects over all executions, because loggers and the like keep them; they
are replaced only if user code closed or detached them. Both are line buffered, as at a terminal. `sys.stdin` is new
each time.
"""

from __future__ import annotations

import sys
from _io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from posix import O_CLOEXEC, O_RDONLY, O_WRONLY, close, dup2, fstat, set_inheritable
from posix import open as open_
from posix import stat as stat_

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EBADF, EMFILE, ENFILE = 9, 24, 23


def open_path(path: str, flags: int, give_up: int = 0) -> int:
    """Opens; if there is no free descriptor, closes `give_up` (0, 1 or 2) and takes that."""
    try:
        return open_(path, flags | O_CLOEXEC)
    except OSError as error:
        if error.errno not in (EMFILE, ENFILE):
            raise
    close_quietly(give_up)
    return open_(path, flags | O_CLOEXEC)


def close_quietly(fd: int) -> None:
    """Closes, whether it is open or not."""
    try:
        close(fd)
    except OSError:
        pass


def put(path: str, flags: int, target: int) -> None:
    """Opens `path` as descriptor `target`, whatever that was before."""
    fd = open_path(path, flags, target)
    if fd == target:
        set_inheritable(fd, True)
    else:
        dup2(fd, target)
        close(fd)


def attach(folder: str, with_stdin: bool) -> None:
    """Puts the FIFOs of an execution in place and makes the objects in `sys` usable."""
    put(folder + "/out", O_WRONLY, 1)
    put(folder + "/err", O_WRONLY, 2)
    if with_stdin:
        put(folder + "/in", O_RDONLY, 0)
    for name in ("stdout", "stderr"):
        output = outputs[name]
        if not usable(output):
            output = outputs[name] = new_output(name)
            buffers[name] = output.buffer
        setattr(sys, name, output)
        setattr(sys, f"__{name}__", output)
    if with_stdin:
        sys.stdin = sys.__stdin__ = new_input()  # type: ignore[misc]
        return
    if not is_null():
        put("/dev/null", O_RDONLY, 0)
    made = prepared["stdin"] or new_input()
    prepared["stdin"] = None
    sys.stdin = sys.__stdin__ = made  # type: ignore[misc]


def is_null() -> bool:
    """Whether descriptor 0 still is what `detach` has made of it: threads and tasks may have gone on since."""
    try:
        return fstat(0).st_rdev == NULL_DEVICE
    except OSError:
        return False


def detach(folder: str) -> None:
    """Puts the idle FIFOs in place. What could not be written to a descriptor that user code broke is dropped."""
    flush()
    for fd, name in ((1, "stdout"), (2, "stderr")):
        try:
            outputs[name].flush()
        except Exception:
            drop(fd, outputs[name])
        try:
            buffers[name].flush()
        except Exception:
            drop(fd, buffers[name])
    close_quietly(0)
    put(folder + "/idle.out", O_WRONLY, 1)
    put(folder + "/idle.err", O_WRONLY, 2)
    put("/dev/null", O_RDONLY, 0)
    prepared["stdin"] = new_input()


def flush() -> None:
    """Writes out what our own output objects hold, as far as that is possible."""
    for output in (*outputs.values(), *buffers.values()):  # a buffer counts even after `sys.stdout.detach()`
        try:
            output.flush()
        except Exception:
            pass


def drop(fd: int, output: TextIOWrapper | BufferedWriter) -> None:
    """Empties the buffer of an object whose descriptor cannot be written."""
    try:
        put("/dev/null", O_WRONLY, fd)
        output.flush()
    except Exception:
        pass


def usable(output: TextIOWrapper) -> bool:
    """Whether it is neither closed nor detached."""
    try:
        return not output.closed
    except ValueError:
        return False


def new_output(name: str) -> TextIOWrapper:
    """A new `sys.stdout` or `sys.stderr`, made as the interpreter makes its own."""
    raw: Any = FileIO(1 if name == "stdout" else 2, "w", closefd=False)
    raw.name = f"<{name}>"
    text: Any = TextIOWrapper(BufferedWriter(raw), ENCODING[name], ERRORS[name], "\n", line_buffering=True)
    text.mode = "w"
    return text  # type: ignore[no-any-return]


def new_input() -> TextIOWrapper:
    """A new `sys.stdin`."""
    raw: Any = FileIO(0, "r", closefd=False)
    raw.name = "<stdin>"
    text: Any = TextIOWrapper(BufferedReader(raw), ENCODING["stdin"], ERRORS["stdin"], "\n")
    text.mode = "r"
    return text  # type: ignore[no-any-return]


#: The next `sys.stdin`, made by `detach`, which nobody waits for.
prepared: dict[str, Any] = {"stdin": None}
outputs: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
buffers: dict[str, Any] = {name: output.buffer for name, output in outputs.items()}
NULL_DEVICE = stat_("/dev/null").st_rdev
ENCODING = {name: getattr(sys, name).encoding for name in ("stdin", "stdout", "stderr")}
ERRORS = {name: getattr(sys, name).errors for name in ("stdin", "stdout", "stderr")}
sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
