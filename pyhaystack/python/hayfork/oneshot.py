"""One run in a VM of its own, from start to end."""

from __future__ import annotations

import os

from hayfork import _operations as operations
from hayfork._calls import Operation, run_async, run_blocking
from hayfork._execution import Callbacks, OnResult, OnText, Stdin
from hayfork._operations import Env
from hayfork.models import Execution
from hayfork.sandbox import Snapshot


def run(
    code: str,
    *,
    language: str | None = None,
    timeout: float | None = 30.0,
    memory_mb: int | None = None,
    cpus: int | None = None,
    env: Env = None,
    stdin: Stdin | None = None,
    on_stdout: OnText | None = None,
    on_stderr: OnText | None = None,
    on_result: OnResult | None = None,
    stdout_limit: int = operations.STDOUT_LIMIT,
    stderr_limit: int = operations.STDERR_LIMIT,
    backend: str | None = None,
    isolation: str | None = None,
    images: str | os.PathLike[str] | None = None,
    template: str | Snapshot | None = None,
) -> Execution:
    """Run code in a new VM, which ends with it.

    It ends as a program of its language does: JavaScript when nothing is left to wait for (timers, servers, promises),
    Python after its threads and `atexit` handlers, bash after its trap on EXIT. So does the time that it may take.

    Args:
        code: The source text.
        language: `"python"` (the default), `"javascript"` (TypeScript as well) or `"shell"`.
        timeout: Seconds that the code may take.
        memory_mb: Memory of the VM in MiB.
        cpus: Virtual CPUs, 1 by default.
        env: Environment of the code.
        stdin: Bytes, text or a stream for its standard input; without it, it reads an end at once.
        on_stdout: Called with pieces of its output as they come.
        on_stderr: Called with pieces of its error output as they come.
        on_result: Called with each value that it shows.
        stdout_limit: Bytes of output that are kept at most, head and tail.
        stderr_limit: Bytes of error output that are kept at most, head and tail.
        backend: What runs the VM: `"auto"`, `"monitor"` or `"qemu"`; see `Sandbox.create`.
        isolation: Where the monitor runs the VM: `"auto"`, `"process"` or `"worker"`; see `Sandbox.create`.
        images: Folder of the image set; found without it.
        template: The name of a template, or a snapshot, that the VM is made of; see `Sandbox.create`.

    Returns:
        Output, exit code, values, and how it ended.

    Raises:
        SandboxError: If it could not be run.
    """
    return run_blocking(
        _run(
            code,
            language=language,
            timeout=timeout,
            memory_mb=memory_mb,
            cpus=cpus,
            env=env,
            stdin=stdin,
            callbacks=Callbacks(on_stdout, on_stderr, on_result),
            stdout_limit=stdout_limit,
            stderr_limit=stderr_limit,
            backend=backend,
            isolation=isolation,
            images=images,
            template=template,
        )
    )


async def arun(
    code: str,
    *,
    language: str | None = None,
    timeout: float | None = 30.0,
    memory_mb: int | None = None,
    cpus: int | None = None,
    env: Env = None,
    stdin: Stdin | None = None,
    on_stdout: OnText | None = None,
    on_stderr: OnText | None = None,
    on_result: OnResult | None = None,
    stdout_limit: int = operations.STDOUT_LIMIT,
    stderr_limit: int = operations.STDERR_LIMIT,
    backend: str | None = None,
    isolation: str | None = None,
    images: str | os.PathLike[str] | None = None,
    template: str | Snapshot | None = None,
) -> Execution:
    """As `run`, for event loops. Cancelling the task ends the VM."""
    return await run_async(
        _run(
            code,
            language=language,
            timeout=timeout,
            memory_mb=memory_mb,
            cpus=cpus,
            env=env,
            stdin=stdin,
            callbacks=Callbacks(on_stdout, on_stderr, on_result),
            stdout_limit=stdout_limit,
            stderr_limit=stderr_limit,
            backend=backend,
            isolation=isolation,
            images=images,
            template=template,
        )
    )


def _run(
    code: str,
    *,
    language: str | None,
    timeout: float | None,
    memory_mb: int | None,
    cpus: int | None,
    env: Env,
    stdin: Stdin | None,
    callbacks: Callbacks,
    stdout_limit: int,
    stderr_limit: int,
    backend: str | None,
    isolation: str | None,
    images: str | os.PathLike[str] | None,
    template: str | Snapshot | None,
) -> Operation[Execution]:
    operations.check_code(code)  # before a VM is started for it
    native = yield from operations.create(
        language=language,
        memory_mb=memory_mb,
        cpus=cpus,
        idle_timeout=None,
        boot_timeout=None,
        env=None,
        allow_root=False,
        name=None,
        backend=backend,
        isolation=isolation,
        images=images,
        template=operations.template_source(template),
    )
    try:
        execution = yield from operations.run_code(
            native,
            code,
            timeout=timeout,
            env=env,
            stdin=stdin,
            last=True,
            callbacks=callbacks,
            stdout_limit=stdout_limit,
            stderr_limit=stderr_limit,
            boot=float(native.boot()["total"]),
        )
    finally:
        # The VM is ended behind the caller's back; the engine waits for it at exit.
        native.close_soon()
    return execution
