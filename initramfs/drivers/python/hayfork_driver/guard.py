"""Ctrl-C, other signals, and the border between the driver's code and the user's.

`call_user` is the only way from the driver into code that the user may have written. It returns what that code returned or
raised. Two means keep signals from breaking the driver itself or from getting lost:

- The handler for SIGINT looks at the frame it interrupts. It raises KeyboardInterrupt only in code called through
  `call_user`; in the driver's own frames it leaves a note. So an interrupt while idle does nothing; one that comes
  after an execution has been taken but before its code runs is raised as soon as that code starts; one that comes
  while the driver collects results is too late, and does nothing.
- User code may have handlers of its own that raise at any moment (the alarm of an earlier execution). The main thread
  blocks all signals except in `call_user` and while it waits for work (`idle`).

`signal.default_int_handler` is replaced by our handler before the user can import it: who compares handlers with it, as
`asyncio.run` does, finds what a plain interpreter has.
"""

from __future__ import annotations

from sys import getprofile, getrecursionlimit, gettrace, setprofile, setrecursionlimit, settrace

from .plain import is_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signals
    from collections.abc import Callable
    from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, getsignal, pthread_sigmask, signal, valid_signals
    from types import FrameType
    from typing import Any
else:
    import _signal as signals
    from _signal import SIG_BLOCK, SIG_SETMASK, SIGINT, getsignal, pthread_sigmask, signal, valid_signals

ROOM = 1000  # the recursion limit that the driver gets at least


class Border:
    """What the handler for SIGINT must know of where the main thread is."""

    #: In code called by `call_user`.
    open = False
    #: An interrupt has come for the execution that is about to start.
    noted = False
    #: Not zero once an execution has been taken: interrupts from then on are for it.
    incoming = bytearray(1)
    #: While tasks run in the idle session: looks whether an execution has come that they keep waiting.
    look: Callable[[], bool] | None = None


class Settings:
    """What user code has set for its own thread of control. The driver works without, and gives it back."""

    handler: Any = None
    mask: Any = ()
    blocked = False
    trace: Any = None
    profile: Any = None
    recursion: int | None = None


border = Border()
settings = Settings()
ALL_SIGNALS = valid_signals()


def on_interrupt(signum: int, frame: FrameType | None) -> None:
    """The handler for SIGINT."""
    if border.open:
        while frame is not None and frame.f_code is not CALL_USER:
            if not is_own(frame.f_code.co_filename):
                raise KeyboardInterrupt
            frame = frame.f_back
    if border.open or border.incoming[0]:
        border.noted = True
    elif border.look is not None and border.look():
        border.noted = True
        raise KeyboardInterrupt  # a task that does not yield must not keep the execution waiting


def call_user(call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Calls and returns `(value, None)` or `(None, exception)`.

    Nothing that the interpreter could take as an occasion to run a handler stands outside the `try` blocks: handlers run
    after calls and at the ends of loops.
    """
    value = error = None
    try:
        release()
        border.open = True
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
        except BaseException as again:
            error = again
    return value, error


CALL_USER = call_user.__code__


def take_interrupt() -> None:
    """First thing in an execution: raises KeyboardInterrupt if one has come meanwhile."""
    if border.noted:
        border.noted = False
        raise KeyboardInterrupt


def release() -> None:
    """Gives the user's settings back."""
    if settings.recursion is not None:
        try:
            setrecursionlimit(settings.recursion)
        except RecursionError:
            pass
        settings.recursion = None
    if settings.handler is not None:
        signal(SIGINT, settings.handler)
        settings.handler = None
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
    signals.default_int_handler = on_interrupt
    signal(SIGINT, on_interrupt)
    block()
