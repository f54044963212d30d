"""Schedulers: they make VMs for runs and sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from hayfork import errors
from hayfork._calls import run_async, run_blocking
from hayfork.pool import WarmPool
from hayfork.scheduler import _operations as operations
from hayfork.scheduler.models import ExecutionResult, Language, PortMapping, SchedulerConfig
from hayfork.scheduler.session import Session, SyncSession

_log = logging.getLogger("hayfork")


class _Base:
    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self._entered = False
        self._sessions: list[Any] = []
        self._pools: list[WarmPool] = []

    def _begin(self) -> None:
        if self._entered:
            raise errors.SandboxError("the scheduler is in use already", remedy="Make another one.")
        self._pools = operations.warm_pools(self.config)
        self._entered = True

    def _end(self) -> list[Any]:
        self._entered = False
        for pool in self._pools:
            pool.close()
        self._pools = []
        sessions, self._sessions = self._sessions, []
        return sessions

    @staticmethod
    def _note_pool(ready: bool, timeout: float) -> None:
        if not ready:
            _log.warning("the warm pool is not full after %g s", timeout)

    def _check_entered(self) -> None:
        if not self._entered:
            raise errors.SandboxError("the scheduler is not in use", remedy="Use it in a `with` statement.")


class Scheduler(_Base):
    """Makes VMs for runs and sessions, for event loops. Use it in an `async with` statement.

    Args:
        config: Its configuration.
    """

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        for session in self._end():
            await session.close()

    async def wait_pool_ready(self, timeout: float = 120) -> None:
        """Wait until the VMs of the warm pool are there; if they are not in time, the log says so.

        Args:
            timeout: Seconds to wait at most.
        """
        self._check_entered()
        for pool in self._pools[:1]:  # one waits for all
            self._note_pool(await pool.wait_async(timeout), timeout)

    async def run(
        self,
        code: str,
        *,
        language: str | Language,
        packages: list[str] | None = None,
        timeout_seconds: int | None = None,
        memory_mb: int | None = None,
        allow_network: bool = False,
        allowed_domains: list[str] | None = None,
        expose_ports: list[PortMapping | int] | None = None,
        env_vars: dict[str, str] | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_boot_log: Callable[[str], object] | None = None,
    ) -> ExecutionResult:
        """Run code in a VM of its own.

        Args:
            code: The source text.
            language: `"python"`, `"javascript"` or `"raw"` for bash.
            packages: Not supported yet.
            timeout_seconds: Seconds that it may take, 1 to 300.
            memory_mb: Memory of the VM in MiB, at least 128.
            allow_network: Not supported yet.
            allowed_domains: Not supported yet.
            expose_ports: Not supported yet.
            env_vars: Environment of the code.
            on_stdout: Called with pieces of its output as they come.
            on_stderr: Called with pieces of its error output as they come.
            on_boot_log: Called with the lines of the guest kernel's console.

        Returns:
            Output and exit code; -1 if its time was over.

        Raises:
            CodeValidationError: If the code is empty or contains NUL.
            OutputLimitError: If it printed too much.
            SandboxError: If it could not be run.
        """
        self._check_entered()
        name, memory = operations.check(
            self.config,
            language,
            memory_mb=memory_mb,
            packages=packages,
            allow_network=allow_network,
            allowed_domains=allowed_domains,
            expose_ports=expose_ports,
        )
        return await run_async(
            operations.run(
                self.config,
                code,
                name,
                memory,
                timeout=operations.check_timeout(self.config, timeout_seconds),
                env_vars=env_vars,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_boot_log=on_boot_log,
            )
        )

    async def session(
        self,
        *,
        language: str | Language,
        packages: list[str] | None = None,
        memory_mb: int | None = None,
        allow_network: bool = False,
        allowed_domains: list[str] | None = None,
        expose_ports: list[PortMapping | int] | None = None,
        idle_timeout_seconds: int | None = None,
        on_boot_log: Callable[[str], object] | None = None,
    ) -> Session:
        """Start a VM that is kept between executions; the arguments are those of `run`.

        Args:
            language: `"python"`, `"javascript"` or `"raw"` for bash.
            packages: Not supported yet.
            memory_mb: Memory of the VM in MiB, at least 128.
            allow_network: Not supported yet.
            allowed_domains: Not supported yet.
            expose_ports: Not supported yet.
            idle_timeout_seconds: Seconds without use after which it closes.
            on_boot_log: Called with the lines of the guest kernel's console.

        Returns:
            The session; the scheduler's end closes it as well.

        Raises:
            SandboxError: If it could not be started.
        """
        self._check_entered()
        name, memory = operations.check(
            self.config,
            language,
            memory_mb=memory_mb,
            packages=packages,
            allow_network=allow_network,
            allowed_domains=allowed_domains,
            expose_ports=expose_ports,
        )
        idle = self.config.session_idle_timeout_seconds if idle_timeout_seconds is None else idle_timeout_seconds
        native = await run_async(
            operations.create(self.config, name, memory, float(idle), fresh_boot=on_boot_log is not None)
        )
        operations.tell_boot_log(native, on_boot_log)
        session = Session(native, self.config)
        self._sessions = [s for s in self._sessions if not s.closed]
        self._sessions.append(session)
        return session


class SyncScheduler(_Base):
    """Makes VMs for runs and sessions, for blocking callers. Use it in a `with` statement.

    Args:
        config: Its configuration.
    """

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        for session in self._end():
            session.close()

    def wait_pool_ready(self, timeout: float = 120) -> None:
        """Wait until the VMs of the warm pool are there; if they are not in time, the log says so.

        Args:
            timeout: Seconds to wait at most.
        """
        self._check_entered()
        for pool in self._pools[:1]:  # one waits for all
            self._note_pool(pool.wait(timeout), timeout)

    def run(
        self,
        code: str,
        *,
        language: str | Language,
        packages: list[str] | None = None,
        timeout_seconds: int | None = None,
        memory_mb: int | None = None,
        allow_network: bool = False,
        allowed_domains: list[str] | None = None,
        expose_ports: list[PortMapping | int] | None = None,
        env_vars: dict[str, str] | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_boot_log: Callable[[str], object] | None = None,
    ) -> ExecutionResult:
        """Run code in a VM of its own.

        Args:
            code: The source text.
            language: `"python"`, `"javascript"` or `"raw"` for bash.
            packages: Not supported yet.
            timeout_seconds: Seconds that it may take, 1 to 300.
            memory_mb: Memory of the VM in MiB, at least 128.
            allow_network: Not supported yet.
            allowed_domains: Not supported yet.
            expose_ports: Not supported yet.
            env_vars: Environment of the code.
            on_stdout: Called with pieces of its output as they come.
            on_stderr: Called with pieces of its error output as they come.
            on_boot_log: Called with the lines of the guest kernel's console.

        Returns:
            Output and exit code; -1 if its time was over.

        Raises:
            CodeValidationError: If the code is empty or contains NUL.
            OutputLimitError: If it printed too much.
            SandboxError: If it could not be run.
        """
        self._check_entered()
        name, memory = operations.check(
            self.config,
            language,
            memory_mb=memory_mb,
            packages=packages,
            allow_network=allow_network,
            allowed_domains=allowed_domains,
            expose_ports=expose_ports,
        )
        return run_blocking(
            operations.run(
                self.config,
                code,
                name,
                memory,
                timeout=operations.check_timeout(self.config, timeout_seconds),
                env_vars=env_vars,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
                on_boot_log=on_boot_log,
            )
        )

    def session(
        self,
        *,
        language: str | Language,
        packages: list[str] | None = None,
        memory_mb: int | None = None,
        allow_network: bool = False,
        allowed_domains: list[str] | None = None,
        expose_ports: list[PortMapping | int] | None = None,
        idle_timeout_seconds: int | None = None,
        on_boot_log: Callable[[str], object] | None = None,
    ) -> SyncSession:
        """Start a VM that is kept between executions; the arguments are those of `run`.

        Args:
            language: `"python"`, `"javascript"` or `"raw"` for bash.
            packages: Not supported yet.
            memory_mb: Memory of the VM in MiB, at least 128.
            allow_network: Not supported yet.
            allowed_domains: Not supported yet.
            expose_ports: Not supported yet.
            idle_timeout_seconds: Seconds without use after which it closes.
            on_boot_log: Called with the lines of the guest kernel's console.

        Returns:
            The session; the scheduler's end closes it as well.

        Raises:
            SandboxError: If it could not be started.
        """
        self._check_entered()
        name, memory = operations.check(
            self.config,
            language,
            memory_mb=memory_mb,
            packages=packages,
            allow_network=allow_network,
            allowed_domains=allowed_domains,
            expose_ports=expose_ports,
        )
        idle = self.config.session_idle_timeout_seconds if idle_timeout_seconds is None else idle_timeout_seconds
        native = run_blocking(
            operations.create(self.config, name, memory, float(idle), fresh_boot=on_boot_log is not None)
        )
        operations.tell_boot_log(native, on_boot_log)
        session = SyncSession(native, self.config)
        self._sessions = [s for s in self._sessions if not s.closed]
        self._sessions.append(session)
        return session
