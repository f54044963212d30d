"""Sandboxes for event loops: the same names as in `hayfork.sandbox`, to be awaited."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, overload

from hayfork import _native, errors
from hayfork import _operations as operations
from hayfork._calls import run_async
from hayfork._execution import Callbacks, Collector, OnResult, OnText, Stdin, follow
from hayfork._operations import Env
from hayfork.async_files import AsyncFiles
from hayfork.models import Execution, PausedSandbox, RunsOn, SandboxStats
from hayfork.sandbox import Snapshot

__all__ = ["AsyncCommandHandle", "AsyncCommands", "AsyncFiles", "AsyncSandbox"]


class AsyncCommandHandle:
    """A command that goes on in the background. What it prints waits until `wait` takes it."""

    def __init__(self, run: _native.Run, cmd: str | Sequence[str], collector: Collector) -> None:
        self._run = run
        self._cmd = cmd
        self._collector = collector
        self._result: Execution | None = None

    async def wait(self, *, check: bool = False) -> Execution:
        """Wait for its end.

        Args:
            check: Whether another exit code than 0 is an error.

        Returns:
            Its output and exit code.

        Raises:
            CommandFailedError: With `check`, if it failed.
        """
        if self._result is None:
            self._result = await run_async(follow(self._run, self._collector))
        return operations.checked(self._result, self._cmd, check=check)

    async def send_stdin(self, content: bytes | str) -> None:
        """Send to its standard input, if it was started with `stdin=True`."""
        data = content.encode() if isinstance(content, str) else content
        await run_async(operations.plain(self._run.write_stdin(data)))

    def close_stdin(self) -> None:
        """End its standard input."""
        self._run.close_stdin()

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C does."""
        self._run.interrupt()

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        self._run.signal(number)

    def kill(self) -> None:
        """End it and everything it started, at once."""
        self._run.kill()


class AsyncCommands:
    """Runs programs in a sandbox."""

    def __init__(self, native: _native.Sandbox) -> None:
        self._native = native

    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Env = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: Stdin | None = None,
        check: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        stdout_limit: int = operations.STDOUT_LIMIT,
        stderr_limit: int = operations.STDERR_LIMIT,
    ) -> Execution:
        """Run a program to its end.

        Args:
            cmd: A line for bash, or a program and its arguments.
            cwd: Working folder; the home folder by default.
            env: Environment for this command.
            user: `"root"` for uid 0 inside the guest, if the sandbox was made with `allow_root=True`.
            timeout: Seconds that it may take.
            stdin: Bytes, text or a stream for its standard input; without it, it reads an end at once.
            check: Whether another exit code than 0 is an error.
            on_stdout: Called with pieces of its output as they come.
            on_stderr: Called with pieces of its error output as they come.
            stdout_limit: Bytes of output that are kept at most, head and tail.
            stderr_limit: Bytes of error output that are kept at most, head and tail.

        Returns:
            Its output and exit code. Another exit code than 0 is a result, not an exception.

        Raises:
            CommandFailedError: With `check`, if it failed.
            SandboxError: If it could not be started or followed.
        """
        run = operations.start_command(
            self._native,
            cmd,
            cwd=cwd,
            env=env,
            user=user,
            timeout=timeout,
            stdin=stdin,
            stdout_limit=stdout_limit,
            stderr_limit=stderr_limit,
        )
        collector = Collector(Callbacks(on_stdout, on_stderr), operations.runs_on(self._native))
        return operations.checked(await run_async(follow(run, collector)), cmd, check=check)

    async def start(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Env = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: Stdin | bool | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> AsyncCommandHandle:
        """Start a program in the background; the arguments are those of `run`.

        With `stdin=True`, its standard input stays open for `send_stdin`.
        """
        run = operations.start_command(self._native, cmd, cwd=cwd, env=env, user=user, timeout=timeout, stdin=stdin)
        collector = Collector(Callbacks(on_stdout, on_stderr), operations.runs_on(self._native))
        return AsyncCommandHandle(run, cmd, collector)


class AsyncSandbox:
    """A virtual machine of its own for code that nobody trusts.

    Make one with `create`; use it as an async context manager, or end it with `kill`.

    Attributes:
        commands: Runs programs.
        files: Reads and writes files.
    """

    def __init__(self, native: _native.Sandbox, *, timeout: float | None, metadata: Mapping[str, str] | None) -> None:
        self._native = native
        self._timeout = timeout
        self._boot_unclaimed = float(native.boot()["total"])
        self.metadata = dict(metadata or {})
        self.commands = AsyncCommands(native)
        self.files = AsyncFiles(native)

    @classmethod
    async def create(
        cls,
        template: str | AsyncSnapshot | Snapshot | None = None,
        *,
        language: str | None = None,
        memory_mb: int | None = None,
        cpus: int | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        boot_timeout: float | None = None,
        packages: Sequence[str] | None = None,
        allow_network: bool = False,
        allowed_domains: Sequence[str] | None = None,
        expose_ports: Sequence[int] | None = None,
        env: Env = None,
        metadata: Mapping[str, str] | None = None,
        allow_root: bool = False,
        backend: str | None = None,
        isolation: str | None = None,
        images: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Start a sandbox.

        Args:
            template: The name of a template (see `build_template`), or a snapshot; the sandbox goes on where it stands,
                with a time, randomness and identity of its own. Language, memory and CPUs are the template's: leave
                them out, or they must agree. A snapshot's sandboxes run on what the original ran on.
            language: `"python"` (the default), `"javascript"` (TypeScript as well) or `"shell"`.
            memory_mb: Memory of the VM in MiB.
            cpus: Virtual CPUs, 1 by default.
            timeout: Seconds that one execution may take, unless it says otherwise.
            idle_timeout: Seconds without any use after which the sandbox closes.
            boot_timeout: Seconds that its start may take.
            packages: Not supported yet.
            allow_network: Not supported yet: a sandbox has no network but its own loopback.
            allowed_domains: Not supported yet.
            expose_ports: Not supported yet.
            env: Environment for everything that runs in it.
            metadata: Kept with the handle, for the caller's own use.
            allow_root: Whether `commands.run(user="root")` is granted.
            backend: What runs the VM: `"auto"`, `"monitor"` or `"qemu"`. By default what `HAYFORK_BACKEND` names, else
                `"auto"`: the monitor where this host lets it, else QEMU, and `runs_on.fallback` says why.
            isolation: Where the monitor runs the VM: `"process"`, this one, or `"worker"`, a process of its own that
                may open and start nothing, so that breaking out of the VM is not enough; `"auto"` takes this process
                for the first 16 VMs and workers for further ones, and `runs_on.place` says where one is. By default
                what `HAYFORK_ISOLATION` names, else `"auto"`. QEMU's VMs always have a process of their own.
            images: Folder of the image set; found without it.

        Returns:
            The running sandbox.

        Raises:
            VmConfigError: If an option is impossible.
            VmDependencyError: If something is missing on this host.
            AssetNotFoundError: If the images are missing.
            VmTransientError: If the VM did not start.
        """
        operations.refuse_unsupported(
            packages=packages,
            allow_network=allow_network,
            allowed_domains=allowed_domains,
            expose_ports=expose_ports,
        )
        native = await run_async(
            operations.create(
                language=language,
                memory_mb=memory_mb,
                cpus=cpus,
                idle_timeout=idle_timeout,
                boot_timeout=boot_timeout,
                env=env,
                allow_root=allow_root,
                name=None,
                backend=backend,
                isolation=isolation,
                images=images,
                template=operations.template_source(template),
            )
        )
        return cls(native, timeout=timeout, metadata=metadata)

    @property
    def sandbox_id(self) -> str:
        """Its name in logs."""
        return self._native.id

    @property
    def language(self) -> str:
        """The language that `run_code` takes by default."""
        return self._native.language

    @property
    def memory_mb(self) -> int:
        """Memory of the VM in MiB."""
        return self._native.memory_mb

    @property
    def is_running(self) -> bool:
        """Whether it can be used."""
        return not self._native.closed

    @property
    def boot(self) -> dict[str, float | str | None]:
        """What its start took, in seconds, and on what it runs."""
        return self._native.boot()

    @property
    def runs_on(self) -> RunsOn:
        """What runs it, and what keeps its code from the host."""
        return operations.runs_on(self._native)

    async def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: int = 0,
        timeout: float | None = None,
        env: Env = None,
        stdin: Stdin | None = None,
        last: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_result: OnResult | None = None,
        stdout_limit: int = operations.STDOUT_LIMIT,
        stderr_limit: int = operations.STDERR_LIMIT,
    ) -> Execution:
        """Run code. Variables, imports and functions stay for the next run in the same context.

        Args:
            code: The source text.
            language: Another language than the sandbox's own, if its image has it.
            context: Number of the interpreter; each keeps its own variables. Runs of one context wait for each other.
            timeout: Seconds that it may take; then it is interrupted, and killed if it does not yield.
            env: Environment for this run alone.
            stdin: Bytes, text or a stream for its standard input; without it, it reads an end at once.
            last: Whether the interpreter ends with it, as that of a program does: timers, threads and exit handlers
                that the code leaves behind belong to the run. The next run in the context begins in a fresh one.
            on_stdout: Called with pieces of its output as they come.
            on_stderr: Called with pieces of its error output as they come.
            on_result: Called with each value that it shows.
            stdout_limit: Bytes of output that are kept at most, head and tail.
            stderr_limit: Bytes of error output that are kept at most, head and tail.

        Returns:
            Output, exit code, values, and how it ended. A timeout or an uncaught exception is a result.

        Raises:
            CodeValidationError: If the code is empty, too long, or contains NUL. The session lives.
            EnvVarValidationError: If an environment entry is not allowed. The session lives.
            SessionClosedError: If the sandbox is closed.
            CommunicationOutcomeUnknownError: If the VM was lost while it ran.
        """
        boot, self._boot_unclaimed = self._boot_unclaimed, 0.0
        return await run_async(
            operations.run_code(
                self._native,
                code,
                language=language,
                context=context,
                timeout=self._timeout if timeout is None else timeout,
                env=env,
                stdin=stdin,
                last=last,
                callbacks=Callbacks(on_stdout, on_stderr, on_result),
                stdout_limit=stdout_limit,
                stderr_limit=stderr_limit,
                boot=boot,
            )
        )

    async def background_output(self, context: int = 0) -> tuple[str, str]:
        """Take what threads and processes of a context printed while nothing ran: (stdout, stderr)."""
        return await run_async(operations.idle_output(self._native, context))

    async def close_context(self, context: int) -> None:
        """End an interpreter and everything it started."""
        await run_async(operations.plain(self._native.close_context(context)))

    async def stats(self) -> SandboxStats:
        """Ask what it uses."""
        return await run_async(operations.stats(self._native))

    def console_tail(self) -> str:
        """The newest lines of the guest kernel's console, for diagnosis."""
        return self._native.console_tail()

    def interrupt(self) -> None:
        """Interrupt what runs, as Ctrl-C does: variables survive if the code yields."""
        self._native.interrupt()

    @overload
    async def fork(self, count: None = None) -> Self: ...
    @overload
    async def fork(self, count: int) -> list[Self]: ...
    async def fork(self, count: int | None = None) -> Self | list[Self]:
        """Make sandboxes that go on where this one stands.

        Each has the variables, files and background processes of this one, and a time, randomness and identity of its
        own. Runs that are under way are stopped in the forks, and go on here. This sandbox stands still for some tens
        of milliseconds meanwhile (hundreds under QEMU).

        Args:
            count: How many.

        Returns:
            One sandbox, or a list if `count` is given.

        Raises:
            UnsupportedOptionError: If the backend cannot do it.
            SessionClosedError: If this sandbox is closed.
        """
        natives = await run_async(operations.fork(self._native, 1 if count is None else count))
        forks = [type(self)(native, timeout=self._timeout, metadata=self.metadata) for native in natives]
        return forks[0] if count is None else forks

    async def snapshot(self, name: str | None = None) -> AsyncSnapshot:
        """Keep this sandbox as it is now, in memory; with a name, on disk as well. See `Sandbox.snapshot`."""
        native = await run_async(operations.snapshot(self._native, name))
        return AsyncSnapshot(native, timeout=self._timeout, metadata=self.metadata)

    async def pause(self) -> str:
        """Write this sandbox to disk and release its VM.

        Variables, files and background processes are kept, for as long as the file is; a run that is under way is
        stopped. The files are readable by this user alone, in the folder that `HAYFORK_PAUSED_DIR` names, else in the
        user's cache, and hold everything that the sandbox had in memory.

        Returns:
            The id that `resume` takes, in this process or another.

        Raises:
            UnsupportedOptionError: If the backend cannot do it.
            SandboxError: If it cannot be written. The sandbox runs on.
            SessionClosedError: If this sandbox is closed.
        """
        return await run_async(operations.pause(self._native, self._timeout, self.metadata))

    @classmethod
    async def resume(
        cls,
        sandbox_id: str,
        *,
        keep: bool = False,
        timeout: float | None = None,
        backend: str | None = None,
        isolation: str | None = None,
        images: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Go on with a sandbox that was paused, in this process or another.

        It has a time, randomness and identity of its own, and another id. It is taken out of rest: of two who resume
        it, one gets it. With `keep` it also stays at rest, and each resume makes a clone.

        Args:
            sandbox_id: What `pause` gave.
            keep: Whether it stays paused as well.
            timeout: Seconds that one execution may take; by default what the paused sandbox had.
            backend: As for `create`; it must come to the one that ran it before.
            isolation: Where the VM runs, as for `create`.
            images: Folder of the image set; found without it. It must be the one that it was made from.

        Returns:
            The running sandbox.

        Raises:
            SnapshotError: If there is none of that id, somebody else resumes it, or it is damaged or belongs to another
                host, other images or another version. It stays paused.
        """
        resumed = await run_async(
            operations.resume(sandbox_id, keep=keep, backend=backend, isolation=isolation, images=images)
        )
        limit = resumed.timeout if timeout is None else timeout
        return cls(resumed.native, timeout=limit, metadata=resumed.metadata)

    @staticmethod
    def list_paused() -> list[PausedSandbox]:
        """List this user's paused sandboxes, oldest first."""
        return operations.list_paused()

    @staticmethod
    def discard(sandbox_id: str) -> None:
        """Remove a paused sandbox from disk.

        Raises:
            SnapshotError: If there is none of that id, or somebody resumes it.
        """
        operations.discard(sandbox_id)

    async def kill(self) -> None:
        """End it. Ending it twice is fine."""
        await run_async(operations.plain(self._native.close()))

    close = kill

    async def __aenter__(self) -> Self:
        if self._native.closed:
            raise errors.SessionClosedError("the sandbox is closed", remedy="Create a new one.")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.kill()

    def __repr__(self) -> str:
        state = "closed" if self._native.closed else "running"
        return f"<AsyncSandbox {self.sandbox_id} {self.language} {state}>"


class AsyncSnapshot:
    """A sandbox at rest, in memory. It needs the original no more, and makes as many sandboxes as wanted."""

    def __init__(self, native: _native.Snapshot, *, timeout: float | None, metadata: Mapping[str, str]) -> None:
        self._native = native
        self._timeout = timeout
        self._metadata = dict(metadata)

    async def restore(self) -> AsyncSandbox:
        """Make a sandbox that goes on where the original stood, with a time, randomness and identity of its own.

        Raises:
            VmTransientError: If the host refuses something, or the guest does not answer.
        """
        native = await run_async(operations.restore(self._native))
        return AsyncSandbox(native, timeout=self._timeout, metadata=self._metadata)
