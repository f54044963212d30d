"""Every error that hayfork raises, under one base class.

Each error has a stable `code`, says what happened, and has a `remedy` that says what to do about it. The names
are those of the exec-sandbox package where it has one, so that code written for it catches the same classes.

The second level answers the question of a caller who wants to try again: `TransientError` may go away by
itself, `PermanentError` does not, and `CommunicationOutcomeUnknownError` is deliberately neither, because the
code may have run.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AssetChecksumError",
    "AssetDownloadError",
    "AssetError",
    "AssetNotFoundError",
    "BalloonTransientError",
    "CodeValidationError",
    "CommandFailedError",
    "CommunicationError",
    "CommunicationOutcomeUnknownError",
    "EnvVarValidationError",
    "ExecutionCancelledError",
    "ForkedProcessError",
    "GuestAgentError",
    "HayforkError",
    "InputValidationError",
    "OutputLimitError",
    "PackageNotAllowedError",
    "PermanentError",
    "RootNotGrantedError",
    "SandboxDependencyError",
    "SandboxError",
    "SandboxFileError",
    "SessionClosedError",
    "SnapshotError",
    "SocketAuthError",
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
]


class SandboxError(Exception):
    """Base of all errors of this package.

    Args:
        message: What happened.
        context: Details for a log, if any.
        code: Stable name of the kind of error.
        remedy: What to do about it.
    """

    default_code = "error"

    def __init__(
        self,
        message: str,
        context: dict[str, Any] | None = None,
        *,
        code: str | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.context = context or {}
        self.code = code or self.default_code
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.context, self.code, self.remedy))


def _rebuild(cls: type[SandboxError], message: str, context: dict[str, Any], code: str, remedy: str) -> SandboxError:
    error = cls.__new__(cls)
    SandboxError.__init__(error, message, context, code=code, remedy=remedy)
    return error


HayforkError = SandboxError


class TransientError(SandboxError):
    """May go away by itself: trying again is reasonable."""


class PermanentError(SandboxError):
    """Does not go away by trying again."""


class VmTransientError(TransientError):
    """A VM could not be started or was lost before any code ran."""

    default_code = "vm_failed"


class VmPermanentError(PermanentError):
    """The VM cannot do what it was asked."""

    default_code = "vm_refused"


class VmBootTimeoutError(VmTransientError):
    """The guest did not come up in time."""

    default_code = "boot_timeout"


class VmQemuCrashError(VmTransientError):
    """The process that runs the VM ended by itself."""

    default_code = "vm_exited"


class VmCapacityError(VmTransientError):
    """This host has no room for one more VM now."""

    default_code = "capacity"


class VmOverlayError(VmTransientError):
    """Kept for code written for exec-sandbox: hayfork has no disk overlays."""


class VmGvproxyError(VmTransientError):
    """Kept for code written for exec-sandbox: hayfork has no gvproxy."""


class BalloonTransientError(TransientError):
    """Kept for code written for exec-sandbox: hayfork has no memory balloon."""


class VmConfigError(VmPermanentError):
    """An option has an impossible value."""

    default_code = "bad_option"


class UnsupportedOptionError(VmConfigError):
    """An option that this version does not have yet."""

    default_code = "unsupported_option"


class RootNotGrantedError(VmConfigError):
    """A command wanted root, and the sandbox was made without that right."""

    default_code = "root_not_granted"


class VmDependencyError(VmPermanentError):
    """Something that hayfork needs on this host is missing or too old."""

    default_code = "dependency"


class SandboxFileError(VmPermanentError):
    """A file operation in the sandbox failed; the session lives. `code` tells which way."""

    default_code = "io"


class SessionClosedError(PermanentError):
    """The session or sandbox was closed, by its user, its idle time, or its VM's end."""

    default_code = "session_closed"


class OutputLimitError(PermanentError):
    """The code printed more than the limit. Callbacks got the first part, and the session lives."""

    default_code = "output_limit"


class ExecutionCancelledError(PermanentError):
    """The operation was cancelled."""

    default_code = "cancelled"


class ForkedProcessError(PermanentError):
    """A handle was used in a forked child; the VM belongs to the parent process."""

    default_code = "forked_process"


class CommandFailedError(PermanentError):
    """A command that was run with `check=True` ended with another exit code than 0.

    Attributes:
        result: What the command printed, and its exit code.
    """

    default_code = "command_failed"
    result: Any = None


class InputValidationError(SandboxError):
    """What was given to run is not valid. Nothing ran, and the session lives."""

    default_code = "input_invalid"


class CodeValidationError(InputValidationError):
    """The code is empty, too long, or contains a NUL character."""

    default_code = "code_invalid"


class EnvVarValidationError(InputValidationError):
    """An environment variable has an impossible or a refused name, or too long a value."""

    default_code = "env_invalid"


class CommunicationError(SandboxError):
    """The guest's side of the channel did not keep to the protocol."""

    default_code = "protocol"


class SocketAuthError(CommunicationError):
    """Kept for code written for exec-sandbox: hayfork's channel has no name that others could open."""


class CommunicationOutcomeUnknownError(SandboxError):
    """The VM was lost while code ran: it may have had its effect or not. The session is closed."""

    default_code = "outcome_unknown"


class GuestAgentError(SandboxError):
    """The guest's agent reported something unexpected."""

    default_code = "guest"


class PackageNotAllowedError(SandboxError):
    """A package is not one of those that may be installed."""

    default_code = "package_not_allowed"


class SnapshotError(SandboxError):
    """A snapshot could not be made or restored, a sandbox not be paused or resumed, or a template not be built.

    `code` tells which way.
    """

    default_code = "snapshot"


class SandboxDependencyError(SandboxError):
    """A Python package that this needs is not installed."""

    default_code = "python_dependency"


class AssetError(SandboxError):
    """Something is wrong with the kernel and root images."""

    default_code = "images"


class AssetNotFoundError(AssetError):
    """The kernel or a root image is missing."""

    default_code = "images_missing"


class AssetDownloadError(AssetError):
    """The kernel or a root image could not be had."""


class AssetChecksumError(AssetError):
    """The kernel or a root image is not what its manifest says."""

    default_code = "images_corrupt"


VmError = VmPermanentError
VmTimeoutError = VmBootTimeoutError
VmBootError = VmTransientError

_BY_CODE: dict[str, type[SandboxError]] = {
    "images_missing": AssetNotFoundError,
    "image_language_missing": AssetNotFoundError,
    "image_kernel_missing": AssetNotFoundError,
    "image_unreadable": AssetNotFoundError,
    "images_corrupt": AssetChecksumError,
    "images_invalid": AssetError,
    "qemu_missing": VmDependencyError,
    "qemu_too_old": VmDependencyError,
    "qemu_unusable": VmDependencyError,
    "worker_missing": VmDependencyError,
    "worker_unusable": VmDependencyError,
    "worker_lost": VmQemuCrashError,
    "worker_failed": VmPermanentError,
    "accelerator_unusable": VmDependencyError,
    "hypervisor_refused": VmDependencyError,
    "vm_prepare_failed": VmPermanentError,
    "kernel_panic": VmTransientError,
    "boot_timeout": VmBootTimeoutError,
    "vm_crashed": VmQemuCrashError,
    "vm_exited": VmQemuCrashError,
    "guest_powered_off": VmQemuCrashError,
    "spawn_failed": VmTransientError,
    "unsupported_here": UnsupportedOptionError,
    "vm_killed": VmTransientError,
    "vm_stuck": VmTransientError,
    "memory_too_small": VmConfigError,
    "bad_option": VmConfigError,
    "bad_machine_spec": VmConfigError,
    "root_not_granted": RootNotGrantedError,
    "code_invalid": CodeValidationError,
    "env_invalid": EnvVarValidationError,
    "not_found": SandboxFileError,
    "wrong_type": SandboxFileError,
    "bad_path": SandboxFileError,
    "permission_denied": SandboxFileError,
    "no_space": SandboxFileError,
    "io": SandboxFileError,
    "too_many": SandboxFileError,
    "template_missing": SnapshotError,
    "template_code_failed": SnapshotError,
    "snapshot_unreadable": SnapshotError,
    "not_a_snapshot": SnapshotError,
    "snapshot_newer": SnapshotError,
    "snapshot_truncated": SnapshotError,
    "snapshot_corrupt": SnapshotError,
    "snapshot_foreign": SnapshotError,
    "snapshot_too_long": SnapshotError,
    "snapshot_unwritable": SnapshotError,
    "snapshot_no_memory": SnapshotError,
    "paused_missing": SnapshotError,
    "paused_busy": SnapshotError,
    "cannot_start": VmPermanentError,
    "session_closed": SessionClosedError,
    "cancelled": ExecutionCancelledError,
    "outcome_unknown": CommunicationOutcomeUnknownError,
    "protocol": CommunicationError,
    "capacity": VmCapacityError,
    "forked_process": ForkedProcessError,
}


def from_code(code: str, message: str, remedy: str) -> SandboxError:
    """Make the error of that code."""
    return _BY_CODE.get(code, SandboxError)(message, code=code, remedy=remedy)
