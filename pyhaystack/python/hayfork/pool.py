"""VMs that are kept ready."""

from __future__ import annotations

import os
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from hayfork import _native, errors
from hayfork import _operations as operations
from hayfork._calls import Operation, run_async, run_blocking
from hayfork._engine import engine

__all__ = ["WarmPool"]

# What all pools of an engine want together. By the engine's identity: engines live as long as the process.
_wanted: Counter[tuple[int, str | operations.MachineKind]] = Counter()
_lock = threading.Lock()


def _forget_after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it while the process forked
    _lock = threading.Lock()
    _wanted.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class WarmPool:
    """Keeps VMs ready, so that runs and sandboxes of their kind begin in a moment.

    Everything that makes a VM of that kind takes one: `run`, `Sandbox.create`, schedulers. Each VM was restored from a
    template whose interpreter is warm, has randomness and a name of its own, and nobody's code was in it. Those that
    are taken are made up for in the background. Who finds none ready gets one that is restored or boots. Several pools
    of one kind add up.

        with hayfork.WarmPool(4):
            hayfork.run("print(1)")

    With `template`, they are VMs of the template of that name, for whatever is made of it: each as the template was
    kept, with randomness and a name of its own. When the name gets another template, they are of that.

    Args:
        size: How many to keep ready.
        template: The name of a template (see `build_template`). Language, memory and CPUs are the template's then:
            leave them out, or they must agree.
        language: `"python"` (the default), `"javascript"` or `"shell"`.
        memory_mb: Memory of each in MiB; the language's usual one by default. Only sandboxes with as much take them.
        cpus: Virtual CPUs of each, 1 by default.
        backend: What runs them; see `Sandbox.create`.
        isolation: Where the monitor runs them; see `Sandbox.create`.
        images: Folder of the image set; found without it.

    Raises:
        SandboxError: If an option is impossible, or there is no such template.
    """

    def __init__(
        self,
        size: int,
        *,
        template: str | None = None,
        language: str | None = None,
        memory_mb: int | None = None,
        cpus: int | None = None,
        backend: str | None = None,
        isolation: str | None = None,
        images: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise errors.VmConfigError(
                f"the size of a pool is {size!r}", code="bad_option", remedy="Give a whole number from 1 on."
            )
        self._size = size
        self._kind = operations.machine_kind(template, language, memory_mb, cpus)
        self._process = os.getpid()
        self._engine: _native.Engine | None = engine(images=images, backend=backend, isolation=isolation)
        self._want(self._engine, size)

    def _want(self, of: _native.Engine, more: int) -> None:
        # A template is all of one kind, whether or not its language is said.
        key = (id(of), self._kind.template or self._kind)
        with _lock:
            operations.keep_warm(of, self._kind, _wanted[key] + more)
            _wanted[key] += more

    def wait(self, timeout: float = 120.0) -> bool:
        """Wait until all VMs that this process wants to have ready are there.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether they are.
        """
        return run_blocking(self._ready(timeout))

    async def wait_async(self, timeout: float = 120.0) -> bool:
        """As `wait`, for event loops."""
        return await run_async(self._ready(timeout))

    def _ready(self, timeout: float) -> Operation[bool]:
        if self._engine is None:
            raise errors.SessionClosedError("the pool is closed", remedy="Make another one.")
        ready: bool = yield self._engine.wait_warm(timeout)
        return ready

    def close(self) -> None:
        """Keep none ready any more. Sandboxes that were taken live on. Closing twice is fine."""
        of, self._engine = self._engine, None
        # A child made by fork has none of its parent's VMs.
        if of is not None and self._process == os.getpid():
            self._want(of, -self._size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()
