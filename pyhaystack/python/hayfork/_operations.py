"""The operations behind both the sync and the async classes, each written once (see `_calls`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hayfork import _native, errors
from hayfork._calls import Operation
from hayfork._engine import engine
from hayfork._execution import Callbacks, Collector, Stdin, feed_stdin, follow
from hayfork.models import Execution, PausedSandbox, RunsOn, SandboxStats, Template

LANGUAGES = ("python", "javascript", "shell")

STDOUT_LIMIT = 1_000_000
"""Bytes of standard output that a result holds at most, unless asked for otherwise."""

STDERR_LIMIT = 100_000
"""Bytes of standard error that a result holds at most, unless asked for otherwise."""

Env = Mapping[str, str] | None

_ALIASES = {
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "ts": "javascript",
    "typescript": "javascript",
    "node": "javascript",
    "bash": "shell",
    "sh": "shell",
    "raw": "shell",
}


def language_name(language: str) -> str:
    """Check a language's name, or one of its usual other names.

    Raises:
        VmConfigError: If there is no such language.
    """
    name = str(getattr(language, "value", language)).lower()
    name = _ALIASES.get(name, name)
    if name not in LANGUAGES:
        raise errors.VmConfigError(
            f"there is no language {language!r}",
            code="unknown_language",
            remedy=f"Choose one of {', '.join(LANGUAGES)}.",
        )
    return name


def env_list(env: Env) -> list[tuple[str, str]]:
    """Check an environment's types.

    Raises:
        EnvVarValidationError: If a name or value is not text.
    """
    entries = list((env or {}).items())
    for name, value in entries:
        if not isinstance(name, str) or not isinstance(value, str):
            raise errors.EnvVarValidationError(
                f"the environment entry {name!r}: {value!r} is not text",
                remedy="Give names and values as str.",
            )
    return entries


def _seconds(name: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise errors.VmConfigError(
            f"{name} is {value!r}", remedy="Give a number of seconds above 0, or None for no limit."
        )
    return None if value is None else float(value)


def _whole(name: str, value: int | None, highest: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise errors.VmConfigError(f"{name} is {value!r}", remedy=f"Give a whole number from 1 to {highest}.")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise errors.CodeValidationError(f"{name} is {type(value).__name__}, not str", remedy="Give it as str.")
    return value


def languages_of_images(images: str | os.PathLike[str] | None, backend: str | None, isolation: str | None) -> list[str]:
    """List the languages that the image set has."""
    try:
        _, manifest = engine(images=images, backend=backend, isolation=isolation).images()
    except _native.NativeError as error:
        raise errors.from_code(*error.args) from None
    return [language for language in LANGUAGES if language in json.loads(manifest)["images"]]


@dataclass(frozen=True)
class MachineKind:
    """What VMs have in common that can stand for each other."""

    template: str | None
    """The name of the template that they are made of; all else that is left out is as it says."""
    language: str | None
    memory_mb: int | None
    cpus: int | None


def machine_kind(template: str | None, language: str | None, memory_mb: int | None, cpus: int | None) -> MachineKind:
    """Check a kind of VMs."""
    memory_mb = _whole("memory_mb", memory_mb, 1 << 20)
    cpus = _whole("cpus", cpus, 255)
    if template is None:
        return MachineKind(None, language_name(language or "python"), memory_mb, cpus or 1)
    if not isinstance(template, str):
        raise errors.VmConfigError(
            f"the template is {type(template).__name__}",
            remedy="Give the name of a template: `sandbox.snapshot(name)` keeps a sandbox as one.",
        )
    return MachineKind(template, None if language is None else language_name(language), memory_mb, cpus)


def keep_warm(of: _native.Engine, kind: MachineKind, count: int) -> None:
    """Have that many VMs of a kind kept ready."""
    try:
        if kind.template is None:
            of.keep_warm(language=kind.language or "python", memory_mb=kind.memory_mb, cpus=kind.cpus, count=count)
        else:
            of.keep_warm_from(
                kind.template, language=kind.language, memory_mb=kind.memory_mb, cpus=kind.cpus, count=count
            )
    except _native.NativeError as error:
        raise errors.from_code(*error.args) from None


def create(
    *,
    language: str | None,
    memory_mb: int | None,
    cpus: int | None,
    idle_timeout: float | None,
    boot_timeout: float | None,
    env: Env,
    allow_root: bool,
    name: str | None,
    backend: str | None,
    isolation: str | None,
    images: str | os.PathLike[str] | None,
    fresh_boot: bool = False,
    template: str | _native.Snapshot | None = None,
) -> Operation[_native.Sandbox]:
    """Start a sandbox, from a template if one is given."""
    if template is not None:
        made: _native.Sandbox = yield _from_template(
            template,
            engine(images=images, backend=backend, isolation=isolation),
            language=None if language is None else language_name(language),
            memory_mb=_whole("memory_mb", memory_mb, 1 << 20),
            cpus=_whole("cpus", cpus, 255),
            idle_timeout=_seconds("idle_timeout", idle_timeout),
            boot_timeout=_seconds("boot_timeout", boot_timeout),
            env=env_list(env),
            grant_root=allow_root,
        )
        return made
    call = engine(images=images, backend=backend, isolation=isolation).create(
        language=language_name(language or "python"),
        memory_mb=_whole("memory_mb", memory_mb, 1 << 20),
        cpus=_whole("cpus", cpus, 255),
        idle_timeout=_seconds("idle_timeout", idle_timeout),
        boot_timeout=_seconds("boot_timeout", boot_timeout),
        env=env_list(env),
        name=name,
        grant_root=allow_root,
        fresh_boot=fresh_boot,
    )
    sandbox: _native.Sandbox = yield call
    return sandbox


def _from_template(
    template: str | _native.Snapshot, of: _native.Engine, **options: Any
) -> _native.Call[_native.Sandbox]:
    if isinstance(template, str):
        return of.create_from(template, **options)
    return template.restore_as(**options)


def template_source(template: object) -> str | _native.Snapshot | None:
    """Find out what a sandbox is to be made of.

    Raises:
        VmConfigError: If it is neither a name nor a snapshot.
    """
    source = getattr(template, "_native", template)
    if source is None or isinstance(source, str | _native.Snapshot):
        return source
    raise errors.VmConfigError(
        f"the template is {type(template).__name__}", remedy="Give the name of a template, or a snapshot."
    )


def build_template(
    name: str,
    *,
    language: str,
    memory_mb: int | None,
    cpus: int | None,
    code: str | None,
    timeout: float | None,
    backend: str | None,
    isolation: str | None,
    images: str | os.PathLike[str] | None,
) -> Operation[Template]:
    """Build a template and keep it on disk."""
    row = yield engine(images=images, backend=backend, isolation=isolation).build_template(
        _text("the template's name", name),
        language=language_name(language),
        memory_mb=_whole("memory_mb", memory_mb, 1 << 20),
        cpus=_whole("cpus", cpus, 255),
        code=None if code is None else check_code(code),
        timeout=_seconds("timeout", timeout),
    )
    return Template(*row)


def list_templates() -> list[Template]:
    """List the templates on disk."""
    try:
        return [Template(*row) for row in engine().templates()]
    except _native.NativeError as error:
        raise errors.from_code(*error.args) from None


def remove_template(name: str) -> None:
    """Remove a template from disk."""
    try:
        engine().remove_template(_text("the template's name", name))
    except _native.NativeError as error:
        raise errors.from_code(*error.args) from None


MOST_FORKS = 1000


def fork(sandbox: _native.Sandbox, count: int) -> Operation[list[_native.Sandbox]]:
    """Make sandboxes that go on where this one stands."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_FORKS:
        raise errors.VmConfigError(
            f"count is {count!r}, not a number from 1 to {MOST_FORKS}",
            code="bad_option",
            remedy="Say how many forks to make, or leave it out for one.",
        )
    forks: list[_native.Sandbox] = yield sandbox.fork(count)
    return forks


def snapshot(sandbox: _native.Sandbox, name: str | None) -> Operation[_native.Snapshot]:
    """Keep a sandbox as it is now; on disk as well, if it gets a name."""
    kept: _native.Snapshot = yield sandbox.snapshot(None if name is None else _text("the template's name", name))
    return kept


def restore(kept: _native.Snapshot) -> Operation[_native.Sandbox]:
    """Make a sandbox that goes on where the original stood."""
    sandbox: _native.Sandbox = yield kept.restore()
    return sandbox


def pause(sandbox: _native.Sandbox, timeout: float | None, metadata: Mapping[str, str]) -> Operation[str]:
    """Write a sandbox to disk and release its VM."""
    try:
        note = json.dumps({"timeout": timeout, "metadata": dict(metadata)})
    except (TypeError, ValueError):
        raise errors.VmConfigError(
            "the sandbox's metadata is not text, and cannot be kept on disk",
            code="bad_option",
            remedy="Use metadata whose names and values are strings.",
        ) from None
    sandbox_id: str = yield sandbox.pause(note)
    return sandbox_id


@dataclass(frozen=True)
class Resumed:
    """A sandbox that was paused, with what its handle had."""

    native: _native.Sandbox
    timeout: float | None
    metadata: dict[str, str]


def resume(
    sandbox_id: str,
    *,
    keep: bool,
    backend: str | None,
    isolation: str | None,
    images: str | os.PathLike[str] | None,
) -> Operation[Resumed]:
    """Go on with a sandbox that was paused."""
    found = engine(images=images, backend=backend, isolation=isolation)
    native, note = yield found.resume(_text("the sandbox id", sandbox_id), keep)
    # It was written by another front end, if it is none of `pause`'s.
    try:
        kept = json.loads(note)
        return Resumed(native, kept["timeout"], kept["metadata"])
    except (ValueError, TypeError, KeyError):
        return Resumed(native, None, {})


def list_paused() -> list[PausedSandbox]:
    """List the sandboxes at rest on disk."""
    try:
        return [PausedSandbox(*row) for row in engine().paused()]
    except _native.NativeError as error:
        raise errors.from_code(*error.args) from None


def discard(sandbox_id: str) -> None:
    """Remove a sandbox at rest on disk."""
    try:
        engine().discard(_text("the sandbox id", sandbox_id))
    except _native.NativeError as error:
        raise errors.from_code(*error.args) from None


def runs_on(sandbox: _native.Sandbox) -> RunsOn:
    """Say what runs a sandbox."""
    boot = sandbox.boot()
    return RunsOn(
        backend=boot["backend"],
        accelerator=boot["accelerator"],
        kernel=boot["kernel"],
        isolation=boot["isolation"],
        isolates=boot["isolates"],
        place=boot["place"],
        made_from=boot["made_from"],
        fallback=boot["fallback"],
    )


def run_code(
    sandbox: _native.Sandbox,
    code: str,
    *,
    language: str | None = None,
    context: int = 0,
    timeout: float | None = None,
    env: Env = None,
    stdin: Stdin | None = None,
    last: bool = False,
    callbacks: Callbacks,
    stdout_limit: int = STDOUT_LIMIT,
    stderr_limit: int = STDERR_LIMIT,
    boot: float = 0.0,
) -> Operation[Execution]:
    """Run code in a persistent context. With `last`, its interpreter ends with the code, as a program's does."""
    collector = Collector(callbacks, runs_on(sandbox), boot)
    run = sandbox.execute(
        check_code(code),
        language=None if language is None else language_name(language),
        context=context,
        env=env_list(env),
        stdin=stdin is not None,
        last=last,
        timeout=_seconds("timeout", timeout),
        stdout_limit=stdout_limit,
        stderr_limit=stderr_limit,
        keep_tail=True,
    )
    feed_stdin(run, stdin)
    return follow(run, collector)


def start_command(
    sandbox: _native.Sandbox,
    cmd: str | Sequence[str],
    *,
    cwd: str | None = None,
    env: Env = None,
    user: str | None = None,
    timeout: float | None = None,
    stdin: Stdin | bool | None = None,
    stdout_limit: int = STDOUT_LIMIT,
    stderr_limit: int = STDERR_LIMIT,
) -> _native.Run:
    """Start a program, or a line for bash. With `stdin=True`, its standard input stays open."""
    if user not in (None, "user", "root"):
        raise errors.VmConfigError(f"there is no user {user!r}", remedy='Choose "user" or "root".')
    argv = ["/bin/bash", "-c", cmd] if isinstance(cmd, str) else [_text("an argument", a) for a in cmd]
    if isinstance(cmd, str) and not cmd.strip():
        raise errors.CodeValidationError("the command is empty", remedy="Name a program to run.")
    run = sandbox.command(
        argv,
        cwd=cwd,
        env=env_list(env),
        root=user == "root",
        stdin=stdin is not None and stdin is not False,
        timeout=_seconds("timeout", timeout),
        stdout_limit=stdout_limit,
        stderr_limit=stderr_limit,
    )
    if not isinstance(stdin, bool):
        feed_stdin(run, stdin)
    return run


def checked(execution: Execution, cmd: str | Sequence[str], *, check: bool) -> Execution:
    """Raise for a command that failed, if that is wanted."""
    if check and not execution.ok:
        error = errors.CommandFailedError(
            f"{cmd!r} ended with status {execution.status}, exit code {execution.exit_code}: "
            f"{execution.stderr.strip()[-500:]}"
        )
        error.result = execution
        raise error
    return execution


def plain(call: _native.Call[Any]) -> Operation[Any]:
    """Wait for one call."""
    return (yield call)


def stats(sandbox: _native.Sandbox) -> Operation[SandboxStats]:
    """Ask the guest and the host what the sandbox uses."""
    guest = yield sandbox.stats()
    host = sandbox.host_memory()
    return SandboxStats(
        agent_pss_bytes=guest["agent_pss_bytes"],
        user_memory_bytes=guest["user_memory_bytes"],
        user_memory_limit_bytes=guest["user_memory_limit_bytes"],
        user_processes=guest["user_processes"],
        uptime=guest["uptime_s"],
        host_overhead_bytes=host[0] if host else None,
        host_guest_bytes=host[1] if host else None,
    )


def idle_output(sandbox: _native.Sandbox, context: int) -> Operation[tuple[str, str]]:
    """Take what background work printed while nothing ran."""
    stdout, stderr = yield sandbox.idle_output(context)
    return stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")


def refuse_unsupported(**options: object) -> None:
    """Refuse options that this version does not have, rather than run without them.

    Raises:
        UnsupportedOptionError: If one of them is given.
    """
    for name, value in options.items():
        if value:
            raise errors.UnsupportedOptionError(
                f"the option {name} is not supported by this version of hayfork",
                remedy="Leave it out; sandboxes have no network and only what their image holds.",
            )


def check_code(code: object) -> str:
    """Refuse early what the engine would refuse later.

    Raises:
        CodeValidationError: If the code is not text, is empty, or contains NUL.
    """
    text = _text("the code", code)
    if not text.lstrip("\ufeff").strip():
        raise errors.CodeValidationError("the code is empty", remedy="Give some source text to run.")
    if "\0" in text:
        raise errors.CodeValidationError("the code contains a NUL character", remedy="Remove it.")
    return text
