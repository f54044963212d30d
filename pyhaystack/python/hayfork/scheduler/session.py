"""Sessions of a scheduler: a VM that is kept between executions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hayfork import _native
from hayfork import _operations as base
from hayfork._calls import run_async, run_blocking
from hayfork.scheduler import _operations as operations
from hayfork.scheduler.models import ExecutionResult, ExposedPort, FileInfo, SchedulerConfig


class _Base:
    def __init__(self, native: _native.Sandbox, config: SchedulerConfig) -> None:
        self._native = native
        self._config = config
        self._count = 0

    @property
    def closed(self) -> bool:
        """Whether it was closed, by its user, its idle time or its VM's end."""
        return self._native.closed

    @property
    def vm_id(self) -> str:
        """Its VM's name in logs."""
        return self._native.id

    @property
    def exec_count(self) -> int:
        """Executions that gave a result."""
        return self._count

    @property
    def exposed_ports(self) -> list[ExposedPort]:
        """Ports of the guest that are reachable from the host: none in this version."""
        return []


class Session(_Base):
    """A VM that is kept between executions, for event loops."""

    async def exec(
        self,
        code: str,
        *,
        timeout_seconds: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> ExecutionResult:
        """Run code; variables, imports and functions stay for the next call.

        Args:
            code: The source text.
            timeout_seconds: Seconds that it may take, 1 to 300.
            env_vars: Environment for this call alone.
            on_stdout: Called with pieces of its output as they come.
            on_stderr: Called with pieces of its error output as they come.

        Returns:
            Output and exit code; -1 if its time was over.

        Raises:
            CodeValidationError: If the code is empty or contains NUL. The session lives.
            OutputLimitError: If it printed too much. The session and its variables live.
            SessionClosedError: If the session is closed.
        """
        result = await run_async(
            operations.execute(
                self._native,
                code,
                timeout=operations.check_timeout(self._config, timeout_seconds),
                env_vars=env_vars,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
            )
        )
        self._count += 1
        return result

    async def write_file(self, path: str, content: bytes | Path | IO[bytes], *, make_executable: bool = False) -> None:
        """Write a file below the home folder, all of it or nothing.

        Args:
            path: Where.
            content: Bytes, a host file, or a stream, which stays open.
            make_executable: Whether it may be run as a program.
        """
        await run_async(operations.write_file(self._native, path, content, make_executable=make_executable))

    async def read_file(self, path: str, *, destination: Path | IO[bytes]) -> None:
        """Read a file below the home folder.

        Args:
            path: Which.
            destination: A host file, which appears whole or not at all, or a stream, which stays open.
        """
        await run_async(operations.read_file(self._native, path, destination))

    async def list_files(self, path: str = "") -> list[FileInfo]:
        """List a folder below the home folder, sorted by name."""
        return await run_async(operations.list_files(self._native, path))

    async def close(self) -> None:
        """End the session and its VM. Closing twice is fine."""
        await run_async(base.plain(self._native.close()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()


class SyncSession(_Base):
    """A VM that is kept between executions, for blocking callers."""

    def exec(
        self,
        code: str,
        *,
        timeout_seconds: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> ExecutionResult:
        """Run code; variables, imports and functions stay for the next call.

        Args:
            code: The source text.
            timeout_seconds: Seconds that it may take, 1 to 300.
            env_vars: Environment for this call alone.
            on_stdout: Called with pieces of its output as they come.
            on_stderr: Called with pieces of its error output as they come.

        Returns:
            Output and exit code; -1 if its time was over.

        Raises:
            CodeValidationError: If the code is empty or contains NUL. The session lives.
            OutputLimitError: If it printed too much. The session and its variables live.
            SessionClosedError: If the session is closed.
        """
        result = run_blocking(
            operations.execute(
                self._native,
                code,
                timeout=operations.check_timeout(self._config, timeout_seconds),
                env_vars=env_vars,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
            )
        )
        self._count += 1
        return result

    def write_file(self, path: str, content: bytes | Path | IO[bytes], *, make_executable: bool = False) -> None:
        """Write a file below the home folder, all of it or nothing.

        Args:
            path: Where.
            content: Bytes, a host file, or a stream, which stays open.
            make_executable: Whether it may be run as a program.
        """
        run_blocking(operations.write_file(self._native, path, content, make_executable=make_executable))

    def read_file(self, path: str, *, destination: Path | IO[bytes]) -> None:
        """Read a file below the home folder.

        Args:
            path: Which.
            destination: A host file, which appears whole or not at all, or a stream, which stays open.
        """
        run_blocking(operations.read_file(self._native, path, destination))

    def list_files(self, path: str = "") -> list[FileInfo]:
        """List a folder below the home folder, sorted by name."""
        return run_blocking(operations.list_files(self._native, path))

    def close(self) -> None:
        """End the session and its VM. Closing twice is fine."""
        run_blocking(base.plain(self._native.close()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()
