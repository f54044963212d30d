"""Forked children of user code, what multiprocessing needs, and the end of an interpreter.

A child must not print again what the parent had in its buffers, must never reach the driver's loop, and leaves as a
script would: exit handlers, flushed streams, its own exit code.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from posix import _exit, register_at_fork

from .plain import modules
from .records import current
from .streams import flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def before_fork() -> None:
    """In the parent: empties the buffers before they get copied, and lets workers get functions of `__main__`."""
    flush()
    reduction = modules.get("multiprocessing.reduction")
    if reduction is not None:
        try:
            from .pickling import install as install_pickling

            install_pickling(reduction)
        except Exception:
            pass


def in_child() -> None:
    """A child has no agent to talk to."""
    current.folder = current.token = ""


def exit_now(status: int) -> NoReturn:
    """Exit to the system with specified status, without normal exit processing (but with flushed output)."""
    flush()
    _exit(status)


def flush_c_streams() -> None:
    """What was printed through the C library, if the user has the means to."""
    if "_ctypes" in modules:
        import ctypes

        ctypes.CDLL(None).fflush(None)


def leave(status: int) -> NoReturn:
    """Ends a forked child that came to the end of the user's code."""
    try:
        threading = modules.get("threading")
        if threading is not None:
            threading._shutdown()
        import atexit

        atexit._run_exitfuncs()
    except BaseException:
        pass
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        try:
            if stream is not None:
                stream.flush()
        except BaseException:
            pass
    exit_now(status)


def wind_up(tasks: Any) -> None:
    """What comes between the end of a script's code and its exit handlers: the end of its tasks and threads.

    Of what the interpreter does when it ends, this is the part that can take long. It is done here so that an interrupt
    ends the program with the usual exit code; the interpreter by itself would ignore it with a message.
    """
    if tasks is not None:
        tasks.finish()
    threading = modules.get("threading")
    if threading is not None:
        join_threads(threading)


def join_threads(threading: Any) -> None:
    """Waits for all threads but daemons; raises what a signal handler raises meanwhile."""
    join = threading._shutdown
    threading._shutdown = int  # the interpreter calls it too, and after an interrupt that must not wait again
    hook = sys.unraisablehook
    me = get_ident()
    raised: list[BaseException] = []

    def keep(unraisable: Any) -> None:
        """Python 3.13 and later stop to wait when a handler raises, but only print what it raised."""
        if unraisable.object is None and unraisable.exc_value is not None and get_ident() == me:
            raised.append(unraisable.exc_value)
        else:
            hook(unraisable)

    sys.unraisablehook = keep
    try:
        join()
    finally:
        sys.unraisablehook = hook
    if raised:
        raise raised[0]


def install() -> None:
    """At start. `os._exit` keeps what was printed before it, as the behaviour of every other way to end."""
    register_at_fork(before=before_fork, after_in_child=in_child)
    exit_now.__name__ = exit_now.__qualname__ = "_exit"
    exit_now.__module__ = "posix"
    for module in (os, modules["posix"]):
        module._exit = exit_now  # type: ignore[attr-defined]
