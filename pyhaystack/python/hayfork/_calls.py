"""Waits for the engine's calls: one way for blocking callers, one for event loops.

An operation of the package is written once, as a generator that yields calls and gets their results sent back.
`run_blocking` drives it on the calling thread, `run_async` on the running event loop. Whatever interrupts the
wait (Ctrl-C, a cancelled task) is thrown into the generator, so its clean-up is written once as well.

An event loop is woken through a descriptor that it watches itself, so no foreign thread ever needs the GIL.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hayfork import errors
from hayfork._native import Call, NativeError, Waker

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Await:
    """Something of the caller's that an operation waits for. Only `run_async` can."""

    awaitable: Awaitable[Any]


Operation = Generator["Call[Any] | Await", Any, T]
"""Yields calls, gets their results, returns a T."""


def _result(call: Call[Any]) -> Any:
    try:
        return call.result()
    except NativeError as error:
        code, message, remedy = error.args
        raise errors.from_code(code, message, remedy) from None


def run_blocking(operation: Operation[T]) -> T:
    """Carry out an operation on the calling thread; signal handlers run meanwhile."""
    try:
        call = next(operation)
        while True:
            if isinstance(call, Await):
                raise TypeError("an operation for event loops was run by a blocking caller")
            try:
                call.wait()
                value = _result(call)
            except BaseException as error:  # noqa: BLE001 - the operation raises it again
                call.cancel()
                call = operation.throw(error)
            else:
                call = operation.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


def wait_blocking(call: Call[T], timeout: float | None) -> T | None:
    """Wait for one call on the calling thread, at most so many seconds; then it is cancelled without a result."""
    try:
        if not call.wait(timeout):
            return None
        result: T = _result(call)
        return result
    finally:
        call.cancel()


async def run_async(operation: Operation[T]) -> T:
    """Carry out an operation on the running event loop; cancelling the task cancels it."""
    try:
        call = next(operation)
        while True:
            try:
                value = await (call.awaitable if isinstance(call, Await) else _wait(call))
            except BaseException as error:  # noqa: BLE001 - the operation raises it again
                if not isinstance(call, Await):
                    call.cancel()
                call = operation.throw(error)
            else:
                call = operation.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def _wait(call: Call[Any]) -> Any:
    if not call.done():
        await _LoopWaker.of(_running_loop()).wait(call)
    return _result(call)


def _running_loop() -> asyncio.AbstractEventLoop:
    # Whoever has a running loop has it imported; nobody else shall wait 50 ms for it.
    import asyncio  # noqa: PLC0415

    return asyncio.get_running_loop()


class _LoopWaker:
    """The calls that one event loop waits for."""

    _all: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWaker]] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waker = Waker()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._tickets = itertools.count()
        loop.add_reader(self._waker.fileno(), self._woken)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _LoopWaker:
        waker = cls._all.get(loop)
        if waker is None:
            waker = cls._all[loop] = cls(loop)
        return waker

    async def wait(self, call: Call[Any]) -> None:
        ticket = next(self._tickets)
        future = _running_loop().create_future()
        self._waiting[ticket] = future
        try:
            call.wake(self._waker, ticket)
            await future
        finally:
            del self._waiting[ticket]

    def _woken(self) -> None:
        for ticket in self._waker.drain():
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)
