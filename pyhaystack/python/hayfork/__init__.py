"""Runs code that nobody trusts in a virtual machine of its own, on your own computer.

One line::

    hayfork.run("print(6 * 7)").stdout

A session that keeps its variables::

    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code("x = 41")
        sandbox.run_code("x + 1").text

`AsyncSandbox` has the same names for event loops; `Scheduler` and `Session` have the names and meanings of the
exec-sandbox package, so that code written for it runs after changing the import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hayfork._native import __version__
from hayfork.errors import (
    AssetChecksumError,
    AssetDownloadError,
    AssetError,
    AssetNotFoundError,
    BalloonTransientError,
    CodeValidationError,
    CommandFailedError,
    CommunicationError,
    CommunicationOutcomeUnknownError,
    EnvVarValidationError,
    ExecutionCancelledError,
    ForkedProcessError,
    GuestAgentError,
    HayforkError,
    InputValidationError,
    OutputLimitError,
    PackageNotAllowedError,
    PermanentError,
    RootNotGrantedError,
    SandboxDependencyError,
    SandboxError,
    SandboxFileError,
    SessionClosedError,
    SnapshotError,
    SocketAuthError,
    TransientError,
    UnsupportedOptionError,
    VmBootError,
    VmBootTimeoutError,
    VmCapacityError,
    VmConfigError,
    VmDependencyError,
    VmError,
    VmGvproxyError,
    VmOverlayError,
    VmPermanentError,
    VmQemuCrashError,
    VmTimeoutError,
    VmTransientError,
)
from hayfork.files import Files, FileStream, WatchHandle
from hayfork.models import (
    EntryInfo,
    Execution,
    ExecutionError,
    FilesystemEvent,
    FilesystemEventType,
    PausedSandbox,
    Result,
    RunsOn,
    SandboxStats,
    Template,
    Timings,
)
from hayfork.oneshot import arun, run
from hayfork.pool import WarmPool
from hayfork.sandbox import CommandHandle, Commands, Sandbox, Snapshot
from hayfork.templates import abuild_template, build_template, list_templates, remove_template

if TYPE_CHECKING:
    from hayfork.async_files import AsyncFiles, AsyncFileStream, AsyncWatchHandle
    from hayfork.async_sandbox import AsyncCommandHandle, AsyncCommands, AsyncSandbox, AsyncSnapshot
    from hayfork.scheduler import (
        ExecutionResult,
        ExposedPort,
        FileInfo,
        Language,
        PortMapping,
        Scheduler,
        SchedulerConfig,
        Session,
        SyncScheduler,
        SyncSession,
        TimingBreakdown,
        configure_logging,
    )

# Loaded on first use, so that `import hayfork` and the command line stay quick; the scheduler brings pydantic.
_LATE = dict.fromkeys(("AsyncCommandHandle", "AsyncCommands", "AsyncSandbox", "AsyncSnapshot"), "hayfork.async_sandbox")
_LATE |= dict.fromkeys(("AsyncFileStream", "AsyncFiles", "AsyncWatchHandle"), "hayfork.async_files")
_LATE |= dict.fromkeys(
    (
        "ExecutionResult",
        "ExposedPort",
        "FileInfo",
        "Language",
        "PortMapping",
        "Scheduler",
        "SchedulerConfig",
        "Session",
        "SyncScheduler",
        "SyncSession",
        "TimingBreakdown",
        "configure_logging",
    ),
    "hayfork.scheduler",
)

__all__ = [
    "AssetChecksumError",
    "AssetDownloadError",
    "AssetError",
    "AssetNotFoundError",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFileStream",
    "AsyncFiles",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AsyncWatchHandle",
    "BalloonTransientError",
    "CodeValidationError",
    "CommandFailedError",
    "CommandHandle",
    "Commands",
    "CommunicationError",
    "CommunicationOutcomeUnknownError",
    "EntryInfo",
    "EnvVarValidationError",
    "Execution",
    "ExecutionCancelledError",
    "ExecutionError",
    "ExecutionResult",
    "ExposedPort",
    "FileInfo",
    "FileStream",
    "Files",
    "FilesystemEvent",
    "FilesystemEventType",
    "ForkedProcessError",
    "GuestAgentError",
    "HayforkError",
    "InputValidationError",
    "Language",
    "OutputLimitError",
    "PackageNotAllowedError",
    "PausedSandbox",
    "PermanentError",
    "PortMapping",
    "Result",
    "RootNotGrantedError",
    "RunsOn",
    "Sandbox",
    "SandboxDependencyError",
    "SandboxError",
    "SandboxFileError",
    "SandboxStats",
    "Scheduler",
    "SchedulerConfig",
    "Session",
    "SessionClosedError",
    "Snapshot",
    "SnapshotError",
    "SocketAuthError",
    "SyncScheduler",
    "SyncSession",
    "Template",
    "TimingBreakdown",
    "Timings",
    "TransientError",
    "UnsupportedOptionError",
    "VmBootError",
    "VmBootTimeoutError",
    "VmCapacityError",
    "VmConfigError",
    "VmDependencyError",
    "VmError",
    "VmGvproxyError",
    "VmOverlayError",
    "VmPermanentError",
    "VmQemuCrashError",
    "VmTimeoutError",
    "VmTransientError",
    "WarmPool",
    "WatchHandle",
    "__version__",
    "abuild_template",
    "arun",
    "build_template",
    "configure_logging",
    "list_templates",
    "remove_template",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        import importlib  # noqa: PLC0415 - on first use

        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
