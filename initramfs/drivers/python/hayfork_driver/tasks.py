"""Top-level `await`: one event loop for the whole session, so that tasks live on from one execution to the next.

The loop runs during executions that await something at top level or start tasks there, and while the session is idle if
tasks are left (`run_idle`). It does not run during other executions, so that `asyncio.run` works there. With an
execution that is the context's last, the loop ends too (`finish`).
"""

from __future__ import annotations

import asyncio
import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

CO_COROUTINE = 0x80


class Session:
    """The session's event loop, made when first wanted."""

    loop: asyncio.AbstractEventLoop | None = None


session = Session()


def usable_loop() -> asyncio.AbstractEventLoop:
    """The loop; a new one if user code has closed it."""
    loop = session.loop
    if loop is None or loop.is_closed():
        loop = session.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


async def evaluate(codes: list[CodeType], namespace: dict[str, Any]) -> Any:
    """Runs code objects one after the other, awaiting those that await; returns what the last one gives."""
    value = None
    for code in codes:
        namespace.setdefault("__builtins__", builtins)
        value = eval(code, namespace)
        if code.co_flags & CO_COROUTINE:
            value = await value
    return value


def run(codes: list[CodeType], namespace: dict[str, Any]) -> Any:
    """Runs an execution's code to its end. After an interrupt the code gets a CancelledError and may clean up."""
    loop = usable_loop()
    task = loop.create_task(evaluate(codes, namespace))
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt as interrupt:
        if task.done():
            raise
        task.cancel()
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError as cancelled:
            # Shows the line that was awaiting instead of the inside of the event loop.
            raise interrupt.with_traceback(cancelled.__traceback__) from None


def has_work() -> bool:
    """Whether tasks are left that could go on."""
    loop = session.loop
    return loop is not None and not loop.is_closed() and not loop.is_running() and bool(asyncio.all_tasks(loop))


def finish() -> None:
    """The end of the loop, before the interpreter's own. As `asyncio.run` does it, what is left is cancelled."""
    loop = session.loop
    if loop is None or loop.is_closed() or loop.is_running():
        return
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(settled(left))
        for task in left:
            if not task.cancelled() and (error := task.exception()) is not None:
                message = "unhandled exception during shutdown of the event loop"
                loop.call_exception_handler({"message": message, "exception": error, "task": task})
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def settled(tasks: set[asyncio.Task[Any]]) -> None:
    """Waits for tasks, whatever comes of them."""
    await asyncio.gather(*tasks, return_exceptions=True)


def run_idle(fd: int, arrived: Callable[[], bool]) -> None:
    """Lets tasks go on until `fd` becomes readable and `arrived()` holds."""
    loop = session.loop
    assert loop is not None

    def look() -> None:
        if arrived():
            loop.stop()

    loop.add_reader(fd, look)
    try:
        loop.run_forever()
    finally:
        loop.remove_reader(fd)
