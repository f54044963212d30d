"""Ctrl-C, other signals, and the border between the driver's code and the user's.

`run_user` runs an execution's code, `call_user` calls what else the user may have written (a `__repr__`, an
`excepthook`). Both return what the code returned or raised. They keep signals from breaking the driver itself and
from getting lost:

- The main thread blocks all signals except in these two functions and while it waits for work (`idle`): a handler of
  the user's may raise at any moment, such as that of an alarm set an execution ago.
- In `run_user`, SIGINT has the user's own handler or Python's usual one, so everything looks as in a plain interpreter.
- At all other times SIGINT has the handler `on_interrupt`, which knows what to do: nothing while idle; a note for
  `run_user` if an execution has just been taken; KeyboardInterrupt if the interrupted frame is user code in
  `call_user`.
"""

from __future__ import annotations

from sys import getprofile, getrecursionlimit, gettrace, setprofile, setrecursionlimit, settrace

from .plain import is_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import (
        SIG_BLOCK,
        SIG_SETMASK,
        SIGINT,
        default_int_handler,
        getsignal,
        pthread_sigmask,
        signal,
        valid_signals,
    )
    from types import FrameType
    from typing import Any
else:
    from _signal import (
        SIG_BLOCK,
        SIG_SETMASK,
        SIGINT,
        default_int_handler,
        getsignal,
        pthread_sigmask,
        signal,
        valid_signals,
    )

ROOM = 1000  # the recursion limit that the driver gets at least


class Border:
    """What the handler for SIGINT must know of where the main thread is."""

    #: In `call_user`.
    open = False
    #: An interrupt has come for the execution that is about to start.
    noted = False
    #: One came before an execution was taken: it may be for the next one, whose line was not read yet.
    missed = False
    #: Not zero once an execution has been taken: interrupts from then on are for it.
    incoming = bytearray(1)
    #: While tasks run in the idle session: looks whether an execution has come that they keep waiting.
    look: Callable[[], bool] | None = None


class Settings:
    """What user code has set for its own thread of control. The driver works without, and gives it back."""

    handler: Any = default_int_handler
    mask: Any = ()
    blocked = False
    trace: Any = None
    profile: Any = None
    recursion: int | None = None


border = Border()
settings = Settings()
ALL_SIGNALS = valid_signals()


def on_interrupt(signum: int, frame: FrameType | None) -> None:
    """The handler for SIGINT, except in `run_user`."""
    if border.open:
        while frame is not None and frame.f_code is not CALL:
            if not is_own(frame.f_code.co_filename):
                raise KeyboardInterrupt
            frame = frame.f_back
    elif border.incoming[0]:
        border.noted = True
    elif border.look is not None and border.look():
        border.noted = True
        raise KeyboardInterrupt  # a task that does not yield must not keep the execution waiting
    else:
        border.missed = True


def run_user(call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Calls what runs an execution's code; returns `(value, None)` or `(None, exception)`."""
    return guarded(False, settings.handler, call, args)


def call_user(call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """The same for other code of the user's."""
    return guarded(True, None, call, args)


def guarded(
    open_: bool, handler: Any, call: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Any, BaseException | None]:
    """Nothing that the interpreter could take as an occasion to run a handler stands outside the `try` blocks.

    Those occasions are the ends of calls and of loops.
    """
    value = error = None
    try:
        release(handler)
        border.open = open_
        value = call(*args)
    except BaseException as raised:
        error = raised
    border.open = False
    try:
        hold()
    except BaseException as raised:
        error = error or raised
        try:
            hold()
        except BaseException:
            try:
                hold()
            except BaseException:
                hold()
    return value, error


CALL = guarded.__code__


def shielded(call: Callable[[Any], Any], argument: Any) -> Any:
    """Calls with all signals blocked, for what must not be left half done."""
    mask = pthread_sigmask(SIG_BLOCK, ())
    try:
        pthread_sigmask(SIG_BLOCK, ALL_SIGNALS)
        return call(argument)
    finally:
        pthread_sigmask(SIG_SETMASK, mask)


def take_interrupt() -> None:
    """First thing in an execution: raises KeyboardInterrupt if one has come since it was taken."""
    if border.noted:
        border.noted = False
        raise KeyboardInterrupt


def release(handler: Any) -> None:
    """Gives the user's settings back; `handler` is the one for SIGINT, if it is not to be ours."""
    if settings.recursion is not None:
        try:
            setrecursionlimit(settings.recursion)
        except RecursionError:
            pass
        settings.recursion = None
    if handler is not None:
        signal(SIGINT, handler)
    settings.blocked = False
    pthread_sigmask(SIG_SETMASK, settings.mask)
    profile, trace = settings.profile, settings.trace
    settings.profile = settings.trace = None
    if profile is not None:
        setprofile(profile)
    if trace is not None:
        settrace(trace)


def hold() -> None:
    """Puts the user's settings aside. May raise what a handler of the user's raises; then it must be called again."""
    trace = gettrace()
    if trace is not None:
        settrace(None)
        settings.trace = trace
    profile = getprofile()
    if profile is not None:
        setprofile(None)
        settings.profile = profile
    block()
    handler = getsignal(SIGINT)
    if handler is not on_interrupt and handler is not None:
        signal(SIGINT, on_interrupt)
        settings.handler = handler
    limit = getrecursionlimit()
    if limit < ROOM:
        setrecursionlimit(ROOM)
        settings.recursion = limit


def part(code: int) -> SystemExit:
    """The exception by which the interpreter ends with that code, and the user's settings for its end.

    Signals are the user's affair again when this returns, so it must be raised without another call: from there on the
    interpreter runs the user's code only.
    """
    ending = SystemExit(code)
    try:
        release(settings.handler)
        return ending
    except BaseException as raised:  # a handler's, for a signal that came between the code's end and this
        return SystemExit(130 if isinstance(raised, KeyboardInterrupt) else 1)


def block() -> None:
    """Blocks all signals; what user code had blocked already is kept for `release`."""
    if not settings.blocked:
        settings.mask = pthread_sigmask(SIG_BLOCK, ())
        settings.blocked = True
    pthread_sigmask(SIG_BLOCK, ALL_SIGNALS)


def idle(wait: Callable[[], None]) -> BaseException | None:
    """Lets signals in while the driver waits for work; returns what a handler of the user's raised."""
    error = None
    try:
        settings.blocked = False
        pthread_sigmask(SIG_SETMASK, settings.mask)
        wait()
    except BaseException as raised:
        error = raised
    try:
        block()
    except BaseException as raised:
        error = raised
        block()
    return error


def install() -> None:
    """At start."""
    signal(SIGINT, on_interrupt)
    block()
