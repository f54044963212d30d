"""The scheduler's operations, each written once for its sync and its async class."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from hayfork import _file_operations as files
from hayfork import _native, errors
from hayfork import _operations as operations
from hayfork._calls import Operation
from hayfork._execution import Callbacks, Collector, follow
from hayfork.models import Execution
from hayfork.pool import WarmPool
from hayfork.scheduler.models import (
    ExecutionResult,
    FileInfo,
    PortMapping,
    SchedulerConfig,
    TimingBreakdown,
)

MIN_MEMORY_MB = 128
MAX_TIMEOUT = 300

OnText = Callable[[str], object] | None


def check(
    config: SchedulerConfig,
    language: str,
    *,
    memory_mb: int | None,
    packages: Sequence[str] | None,
    allow_network: bool,
    allowed_domains: Sequence[str] | None,
    expose_ports: Sequence[PortMapping | int] | None,
) -> tuple[str, int]:
    """Check the options that run and session share; gives the language and the memory."""
    try:
        name = operations.language_name(language)
    except errors.VmConfigError as error:
        raise ValueError(str(error)) from None
    memory = config.default_memory_mb if memory_mb is None else memory_mb
    if memory < MIN_MEMORY_MB:
        raise errors.VmConfigError(
            f"memory_mb is {memory}", remedy=f"Give at least {MIN_MEMORY_MB}.", code="memory_too_small"
        )
    operations.refuse_unsupported(
        packages=packages,
        allow_network=allow_network,
        allowed_domains=allowed_domains,
        expose_ports=expose_ports,
    )
    return name, memory


def check_timeout(config: SchedulerConfig, timeout_seconds: int | None) -> int:
    """Check an execution's time."""
    timeout = config.default_timeout_seconds if timeout_seconds is None else timeout_seconds
    if not 1 <= timeout <= MAX_TIMEOUT:
        raise ValueError(f"timeout_seconds is {timeout}: give a whole number from 1 to {MAX_TIMEOUT}")
    return timeout


def create(
    config: SchedulerConfig, language: str, memory: int, idle_timeout: float | None, *, fresh_boot: bool
) -> Operation[_native.Sandbox]:
    """Start the VM of a run or a session."""
    return operations.create(
        language=language,
        memory_mb=memory,
        cpus=1,
        idle_timeout=idle_timeout,
        boot_timeout=None,
        env=None,
        allow_root=False,
        name=None,
        backend=config.backend,
        isolation=config.isolation,
        images=config.images_dir,
        fresh_boot=fresh_boot,
    )


def execute(
    native: _native.Sandbox,
    code: str,
    *,
    timeout: int,
    env_vars: Mapping[str, str] | None,
    on_stdout: OnText,
    on_stderr: OnText,
    last: bool = False,
) -> Operation[ExecutionResult]:
    """Run code; too much output is an error, of which the callbacks got the first part.

    With `last`, the interpreter ends with the code, as a program's does.
    """
    began = time.monotonic()
    collector = Collector(Callbacks(on_stdout, on_stderr), operations.runs_on(native))
    run = native.execute(
        operations.check_code(code),
        language=None,
        context=0,
        env=operations.env_list(env_vars),
        stdin=False,
        last=last,
        timeout=float(timeout),
        stdout_limit=operations.STDOUT_LIMIT,
        stderr_limit=operations.STDERR_LIMIT,
        keep_tail=False,
    )
    execution = yield from follow(run, collector)
    for stream, limit in (("stdout", operations.STDOUT_LIMIT), ("stderr", operations.STDERR_LIMIT)):
        if collector.omitted[stream]:
            raise errors.OutputLimitError(
                f"the code printed {limit + collector.omitted[stream]:,} bytes on {stream}, "
                f"at most {limit:,} are allowed",
                remedy="Print less, or write it to a file and read that.",
            )
    return result(execution, timeout, time.monotonic() - began)


def result(execution: Execution, timeout: int, total: float) -> ExecutionResult:
    """Translate an execution."""
    stderr = execution.stderr
    exit_code = execution.exit_code
    if execution.status == "timeout":
        exit_code = -1
        separator = "" if not stderr or stderr.endswith("\n") else "\n"
        stderr += f"{separator}[timeout_error] Execution timeout after {timeout}s"
    execute_ms = _ms(total)
    return ExecutionResult(
        stdout=execution.stdout,
        stderr=stderr,
        exit_code=exit_code,
        execution_time_ms=_ms(execution.timings.run),
        timing=TimingBreakdown(setup_ms=0, boot_ms=0, execute_ms=execute_ms, total_ms=execute_ms),
        spawn_ms=_ms(execution.timings.spawn),
        process_ms=_ms(execution.timings.run),
        backend=execution.runs_on.backend,
        kernel=execution.runs_on.kernel,
        isolation=execution.runs_on.isolation,
        warm_pool_hit=execution.runs_on.made_from == "pool",
        l1_cache_hit=execution.runs_on.made_from == "template",
    )


def run(
    config: SchedulerConfig,
    code: str,
    language: str,
    memory: int,
    *,
    timeout: int,
    env_vars: Mapping[str, str] | None,
    on_stdout: OnText,
    on_stderr: OnText,
    on_boot_log: OnText,
) -> Operation[ExecutionResult]:
    """Run code in a VM of its own."""
    began = time.monotonic()
    operations.check_code(code)
    # The console's lines are those of a boot.
    native = yield from create(config, language, memory, None, fresh_boot=on_boot_log is not None)
    try:
        tell_boot_log(native, on_boot_log)
        booted = time.monotonic()
        done = yield from execute(
            native, code, timeout=timeout, env_vars=env_vars, on_stdout=on_stdout, on_stderr=on_stderr, last=True
        )
        executed = time.monotonic()
    finally:
        native.close_soon()
    timing = TimingBreakdown(
        setup_ms=0,
        boot_ms=_ms(booted - began),
        execute_ms=_ms(executed - booted),
        total_ms=_ms(time.monotonic() - began),
        admission_ms=0,
        guest_wait_ms=_ms(float(native.boot()["handshake"])),
        qemu_fork_ms=_ms(float(native.boot()["launch"])),
    )
    return done.model_copy(update={"timing": timing})


def warm_pools(config: SchedulerConfig) -> list[WarmPool]:
    """Keep VMs ready as the configuration says."""
    if not config.warm_pool_size:
        return []
    pools = []
    try:
        for language in operations.languages_of_images(config.images_dir, config.backend, config.isolation):
            pool = WarmPool(
                config.warm_pool_size,
                language=language,
                memory_mb=config.default_memory_mb,
                backend=config.backend,
                isolation=config.isolation,
                images=config.images_dir,
            )
            pools.append(pool)
    except BaseException:
        for pool in pools:
            pool.close()
        raise
    return pools


def tell_boot_log(native: _native.Sandbox, on_boot_log: OnText) -> None:
    """Hand over the console's lines so far."""
    if on_boot_log is not None:
        for line in native.console_tail().splitlines():
            on_boot_log(line)


def relative(path: str) -> str:
    """Refuse paths that are not below the home folder."""
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise errors.SandboxFileError(
            f"the path {path!r} does not lie below the home folder",
            code="bad_path",
            remedy="Give a relative path without '..'.",
        )
    return posixpath.normpath(path) if path else ""


def write_file(
    native: _native.Sandbox, path: str, content: bytes | Path | IO[bytes], *, make_executable: bool
) -> Operation[None]:
    """Write a file below the home folder."""
    yield from files.upload(native, relative(path), content, 0o755 if make_executable else 0o644)


def read_file(native: _native.Sandbox, path: str, destination: Path | IO[bytes]) -> Operation[None]:
    """Read a file below the home folder."""
    if isinstance(destination, Path):
        yield from files.download_to_file(native, relative(path), destination)
    else:
        yield from files.download(native, relative(path), destination)


def list_files(native: _native.Sandbox, path: str) -> Operation[list[FileInfo]]:
    """List a folder below the home folder."""
    entries = yield from files.list_dir(native, relative(path))
    return [FileInfo(name=entry.name, is_dir=entry.is_dir, size=entry.size) for entry in entries]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
