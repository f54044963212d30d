"""Shows uncaught exceptions as the plain interpreter does: from the user's first line on, with source lines.

Loaded at the first error, since `traceback` takes longer to import than everything else together.
"""

from __future__ import annotations

import sys

from .plain import VERSION, excepthook, is_own
from .records import current, emit_error
from .sources import publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any


def report(error: BaseException, codes: list[CodeType]) -> None:
    """Prints an uncaught exception and tells the agent of it. `codes` is the code of the execution's own lines."""
    error.__traceback__ = user_part(error.__traceback__, codes)
    if not isinstance(error, MemoryError):  # else what filled the memory would stay
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        if VERSION >= (3, 12):
            sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]
    value = text_of(error)
    text = described(error)
    if current.folder:
        emit_error(type(error).__name__, value, text)
    hook = getattr(sys, "excepthook", excepthook)
    if hook is not excepthook:
        try:
            hook(type(error), error, error.__traceback__)
            return
        except Exception as failure:
            write("Error in sys.excepthook:\n" + described(failure) + "\nOriginal exception was:\n")
    write(text)


def print_error(error: BaseException) -> None:
    """Prints only."""
    write(described(error))


def write(text: str) -> None:
    """To the user's `sys.stderr`, if there is one."""
    stream = getattr(sys, "stderr", None)
    try:
        if stream is not None:
            stream.write(text)
            stream.flush()
    except Exception:
        pass


def user_part(traceback: TracebackType | None, codes: list[CodeType]) -> TracebackType | None:
    """The traceback from the execution's own first line on; without our frames if it has none of those lines."""
    at = traceback
    while at is not None:
        if at.tb_frame.f_code in codes:
            return at
        at = at.tb_next
    while traceback is not None and is_own(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    at = traceback
    while at is not None and not is_own(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return traceback if at is None or at is not traceback else None


def described(error: BaseException) -> str:
    """The full text of an exception with its causes and contexts."""
    try:
        publish()
        import traceback

        text = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        remove_own(text, set())
        return "".join(text.format())
    except Exception:
        return bare(error, text_of(error))


def remove_own(text: Any, seen: set[int]) -> None:
    """Takes our frames out of a TracebackException and all that hang on it."""
    if text is None or id(text) in seen:
        return
    seen.add(id(text))
    if text.stack is not None:
        text.stack[:] = [frame for frame in text.stack if not is_own(frame.filename)]
    remove_own(text.__cause__, seen)
    remove_own(text.__context__, seen)
    for other in getattr(text, "exceptions", None) or ():
        remove_own(other, seen)


def text_of(error: BaseException) -> str:
    """`str(error)`, which may fail."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def bare(error: BaseException, value: str) -> str:
    """A traceback without the help of `traceback`, for sessions in which user code has broken that."""
    lines = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if not is_own(code.co_filename):
            lines.append(f'  File "{code.co_filename}", line {at.tb_lineno}, in {code.co_name}\n')
        at = at.tb_next
    if lines:
        lines.insert(0, "Traceback (most recent call last):\n")
    lines.append(f"{type(error).__name__}: {value}\n" if value else f"{type(error).__name__}\n")
    return "".join(lines)
