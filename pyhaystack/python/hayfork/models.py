"""What runs in a sandbox gives back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

__all__ = [
    "EntryInfo",
    "Execution",
    "ExecutionError",
    "FilesystemEvent",
    "FilesystemEventType",
    "PausedSandbox",
    "Result",
    "RunsOn",
    "SandboxStats",
    "Status",
    "Timings",
]

Status = Literal["ok", "error", "timeout", "oom", "killed"]
"""How an execution ended: by itself with exit code 0 or another one, when its time was over, for want of memory,
or because it was killed."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds.

    Attributes:
        boot: Starting the VM; 0 if it ran already.
        queued: Waiting for earlier executions of the same context.
        spawn: Starting an interpreter; 0 if one was there.
        run: The code itself, as measured in the guest.
        total: All of it, as the caller saw it.
    """

    boot: float = 0.0
    queued: float = 0.0
    spawn: float = 0.0
    run: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class RunsOn:
    """What runs a sandbox, and what keeps its code from the host.

    Attributes:
        backend: `"monitor"` or `"qemu"`.
        accelerator: What executes the guest's instructions: `"kvm"` or `"tcg"`.
        kernel: Flavour of the guest's kernel: `"plain"` or `"pvm"`.
        isolation: What the wall towards the host is: `"hardware"`, `"emulation"` or `"kvm_pvm"`. With the last one user
            code can reach the guest's kernel, so that the virtual machine is the only wall.
        isolates: The same in a sentence.
        place: The process that it runs in: `"process"`, this one; `"worker"` or `"qemu"`, one of its own.
        made_from: What its VM was made of: it booted (`"boot"`), was restored from a snapshot or from the template of
            its language (`"template"`), or was kept ready (`"pool"`).
        fallback: Why the monitor does not run it, if the choice was hayfork's and fell on another backend.
    """

    backend: str = ""
    accelerator: str = ""
    kernel: str = ""
    isolation: str = ""
    isolates: str = ""
    place: str = ""
    made_from: str = ""
    fallback: str | None = None

    def __str__(self) -> str:
        where = ", in a worker" if self.place == "worker" else ""
        return f"{self.backend}, {self.accelerator}, kernel {self.kernel}{where}"


@dataclass(frozen=True, slots=True)
class ExecutionError:
    """An uncaught exception of the code.

    Attributes:
        name: Its type, for instance `"ValueError"`.
        value: Its message.
        traceback: As the language prints it.
    """

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Result:
    """A value that the code showed, in one or more representations.

    Attributes:
        data: The representations by MIME type, as bytes.
        is_main_result: Whether it is the value of the last expression, not one shown by `display` and the like.
    """

    data: Mapping[str, bytes]
    is_main_result: bool = False

    def _text(self, mime: str) -> str | None:
        content = self.data.get(mime)
        return None if content is None else content.decode("utf-8", "replace")

    @property
    def text(self) -> str | None:
        """The plain text."""
        return self._text("text/plain")

    @property
    def html(self) -> str | None:
        """The HTML."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """The Markdown."""
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        """The SVG image."""
        return self._text("image/svg+xml")

    @property
    def latex(self) -> str | None:
        """The LaTeX source."""
        return self._text("text/latex")

    @property
    def png(self) -> bytes | None:
        """The PNG image."""
        return self.data.get("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """The JPEG image."""
        return self.data.get("image/jpeg")

    @property
    def json(self) -> Any:
        """The JSON value, parsed; `None` if there is none."""
        content = self.data.get("application/json")
        return None if content is None else json.loads(content)

    def __str__(self) -> str:
        return self.text or ""


@dataclass(frozen=True, slots=True)
class Execution:
    """The end of an execution or command.

    Attributes:
        stdout: What it printed.
        stderr: What it printed on standard error.
        exit_code: 0 to 255; 128 + n after signal n.
        status: How it ended.
        results: What it showed, in order; the value of the last expression is among them.
        error: The uncaught exception that ended it, if one did.
        truncated: Whether output was left out for being beyond its limit; head and tail are kept.
        state_reset: Whether variables were lost, so that the next execution begins in a fresh interpreter. A one-shot
            run always ends its interpreter.
        timings: Where the time went.
        runs_on: What ran it, and what kept it from the host.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    status: Status = "ok"
    results: list[Result] = field(default_factory=list)
    error: ExecutionError | None = None
    truncated: bool = False
    state_reset: bool = False
    timings: Timings = field(default_factory=Timings)
    runs_on: RunsOn = field(default_factory=RunsOn)

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.status == "ok"

    @property
    def text(self) -> str | None:
        """The value of the last expression as plain text."""
        for result in reversed(self.results):
            if result.is_main_result:
                return result.text
        return None


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """A directory entry in a sandbox.

    Attributes:
        name: Its name.
        type: What it is.
        size: Size in bytes; 0 for a folder.
        mode: Permission bits.
        modified: Time of the last change, seconds since 1970-01-01 UTC.
    """

    name: str
    type: Literal["file", "dir", "symlink", "other"]
    size: int
    mode: int
    modified: float

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.type == "dir"


class FilesystemEventType(StrEnum):
    """What happened to an entry of a watched folder.

    Attributes:
        CREATE: It appeared: it was made, linked, or moved in from elsewhere.
        WRITE: Its content changed.
        REMOVE: It is gone: removed, or moved elsewhere.
        RENAME: It has another name within what is watched.
        CHMOD: Its permissions, owner or times changed.
        OVERFLOW: Changes were lost here: list the folder.
    """

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class FilesystemEvent:
    """A change in a watched folder.

    Attributes:
        path: The entry, relative to the watched folder; empty for that itself, and for an overflow. What is not UTF-8
            in it is replaced.
        type: What happened.
        new_path: The new path of an entry that was renamed. Without it, `RENAME` is about the watched folder itself,
            and the watch is over.
        is_dir: Whether it is a folder.
    """

    path: str
    type: FilesystemEventType
    new_path: str | None = None
    is_dir: bool = False

    @property
    def name(self) -> str:
        """The path, by the name that E2B gives it."""
        return self.path


@dataclass(frozen=True, slots=True)
class PausedSandbox:
    """A sandbox at rest on disk.

    Attributes:
        sandbox_id: What `Sandbox.resume` takes.
        language: The language that `run_code` takes by default.
        memory_mb: Memory of its VM in MiB.
        size: Bytes on disk.
        paused_at: When it was paused, seconds since 1970-01-01 UTC.
    """

    sandbox_id: str
    language: str
    memory_mb: int
    size: int
    paused_at: float


@dataclass(frozen=True, slots=True)
class Template:
    """A template on disk, that sandboxes are made of by its name.

    Attributes:
        name: What `Sandbox.create(template=…)` takes.
        language: The language that `run_code` takes by default.
        memory_mb: Memory of each VM in MiB.
        cpus: Virtual CPUs of each VM.
        size: Bytes on disk.
        built_at: When it was saved, seconds since 1970-01-01 UTC.
    """

    name: str
    language: str
    memory_mb: int
    cpus: int
    size: int
    built_at: float


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What a sandbox uses.

    Attributes:
        agent_pss_bytes: Memory of init and agent in the guest.
        user_memory_bytes: Memory of user code in the guest.
        user_memory_limit_bytes: What user code may use.
        user_processes: Processes of user code.
        uptime: Seconds since the guest's kernel started.
        host_overhead_bytes: Host memory of the VM without the guest's own, if known.
        host_guest_bytes: Host memory that the guest has touched, if known.
    """

    agent_pss_bytes: int
    user_memory_bytes: int
    user_memory_limit_bytes: int
    user_processes: int
    uptime: float
    host_overhead_bytes: int | None = None
    host_guest_bytes: int | None = None
