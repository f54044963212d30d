"""`hayfork run`: one program in a VM of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from hayfork import Execution, Sandbox, errors
from hayfork._operations import STDERR_LIMIT, STDOUT_LIMIT, check_code, language_name
from hayfork.cli import progress

_TIMEOUT_CODE = 124
_OOM_CODE = 137

SUFFIXES = {
    ".py": "python",
    ".js": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".ts": "javascript",
    ".mts": "javascript",
    ".sh": "shell",
    ".bash": "shell",
}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        parents=[common],
        help="run code in a new VM",
        description="Runs code in a new VM and ends with the code's own exit code.",
    )
    parser.add_argument("source", help="a file, `-` for standard input, or the code itself")
    parser.add_argument("-c", "--code", action="store_true", help="SOURCE is code, even if a file has that name")
    parser.add_argument(
        "-l", "--language", help="python, javascript or shell (default: by the file's name, else python)"
    )
    parser.add_argument("-t", "--timeout", type=_positive, default=30.0, metavar="SECONDS", help="default: 30")
    parser.add_argument("--template", metavar="NAME", help="what the VM is made of (see `hayfork build`)")
    parser.add_argument("-m", "--memory", type=int, metavar="MB", help="memory of the VM")
    parser.add_argument("-e", "--env", action="append", default=[], metavar="NAME=VALUE", type=_pair)
    parser.add_argument("--upload", action="append", default=[], metavar="HOST:GUEST", type=_two_paths)
    parser.add_argument("--download", action="append", default=[], metavar="GUEST:HOST", type=_two_paths)
    parser.add_argument("--stdout-limit", type=int, default=STDOUT_LIMIT, metavar="BYTES")
    parser.add_argument("--stderr-limit", type=int, default=STDERR_LIMIT, metavar="BYTES")
    parser.add_argument("--timings", action="store_true", help="print exit code and timings on standard error")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.set_defaults(command=command)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("give a number of seconds above 0")
    return value


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _two_paths(text: str) -> tuple[str, str]:
    first, _, second = text.partition(":")
    if not first:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO")
    return first, second or Path(first).name


def _source(options: argparse.Namespace) -> tuple[str, str | None]:
    """Find the code and its language."""
    source: str = options.source
    language: str | None = options.language
    path = Path(source)
    if source == "-" and not options.code:
        code = sys.stdin.read()
    elif not options.code and "\n" not in source and len(os.fsencode(source)) <= 4096 and path.is_file():  # noqa: PLR2004 - PATH_MAX
        language = language or SUFFIXES.get(path.suffix)
        try:
            code = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise errors.CodeValidationError(
                f"{source} is not text in UTF-8: {error}", remedy="Convert it, or name another file."
            ) from None
    elif not options.code and path.suffix in SUFFIXES and " " not in source and "(" not in source:
        raise errors.CodeValidationError(
            f"there is no file {source}",
            code="source_missing",
            remedy="Check its name, or use -c if it is code.",
        )
    else:
        code = source
    if language is None and options.template is None:
        language = "python"
    return check_code(code), None if language is None else language_name(language)


def _stdin(options: argparse.Namespace) -> IO[bytes] | None:
    """What the program reads: whatever is piped into this command, but not a person's keyboard."""
    if options.source == "-" or sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    return sys.stdin.buffer


def command(options: argparse.Namespace) -> int:
    """Run it."""
    code, language = _source(options)
    quiet = options.quiet or options.json
    with progress.spinner("starting a virtual machine", quiet=quiet):
        sandbox = Sandbox.create(
            options.template,
            language=language,
            memory_mb=options.memory,
            backend=options.backend,
            isolation=options.isolation,
            images=options.images,
        )
    with sandbox:
        for host, guest in options.upload:
            _upload(sandbox, Path(host), guest, quiet=quiet)
        execution = sandbox.run_code(
            code,
            timeout=options.timeout,
            env=dict(options.env),
            stdin=_stdin(options),
            last=True,
            on_stdout=None if options.json else _printer(sys.stdout),
            on_stderr=None if options.json else _printer(sys.stderr),
            stdout_limit=options.stdout_limit,
            stderr_limit=options.stderr_limit,
        )
        for guest, host in options.download:
            _download(sandbox, guest, Path(host), quiet=quiet)
        if options.json:
            print(json.dumps(_as_json(execution)))
        else:
            _tell(execution, sandbox, options)
    return _exit_code(execution)


def _printer(stream: Any) -> Any:
    """Write text as it comes; a terminal that cannot show a character gets its escape."""

    def write(text: str) -> None:
        stream.buffer.write(text.encode("utf-8", "replace"))
        stream.buffer.flush()

    return write


def _upload(sandbox: Sandbox, host: Path, guest: str, *, quiet: bool) -> None:
    if not host.is_file():
        raise errors.SandboxFileError(f"there is no file {host}", code="source_missing", remedy="Check its name.")
    with progress.reading(host, f"uploading {host.name}", quiet=quiet) as stream:
        sandbox.files.write(guest, stream, mode=host.stat().st_mode & 0o777)


def _download(sandbox: Sandbox, guest: str, host: Path, *, quiet: bool) -> None:
    size = sandbox.files.get_info(guest).size
    handle, aside = tempfile.mkstemp(dir=host.parent, prefix=".hayfork-")
    try:
        with (
            os.fdopen(handle, "wb") as stream,
            progress.writing(stream, size, f"downloading {host.name}", quiet=quiet) as counted,
        ):
            sandbox.files.download(guest, counted)
        Path(aside).chmod(0o644)
        Path(aside).replace(host)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _exit_code(execution: Execution) -> int:
    if execution.status == "timeout":
        return _TIMEOUT_CODE
    if execution.status == "oom":
        return _OOM_CODE
    return execution.exit_code


def _tell(execution: Execution, sandbox: Sandbox, options: argparse.Namespace) -> None:
    """Say what the output alone does not."""
    if execution.status == "timeout":
        print(f"hayfork: the code was ended after {options.timeout:g} s", file=sys.stderr)
    elif execution.status == "oom":
        print(
            f"hayfork: the code needed more memory than its VM of {sandbox.memory_mb} MB has; use --memory",
            file=sys.stderr,
        )
    if execution.truncated:
        print(
            "hayfork: output was left out; --stdout-limit and --stderr-limit say how much is kept",
            file=sys.stderr,
        )
    if options.timings:
        times = execution.timings
        print(
            f"exit code {execution.exit_code} · status {execution.status} · boot {times.boot:.2f} s "
            f"({execution.runs_on}) · interpreter {times.spawn:.2f} s · "
            f"code {times.run:.3f} s · total {times.total:.2f} s",
            file=sys.stderr,
        )
        print(f"isolation: {execution.runs_on.isolates}", file=sys.stderr)
    if execution.runs_on.fallback and (options.timings or (sys.stderr.isatty() and not options.quiet)):
        print(f"not the monitor: {execution.runs_on.fallback}", file=sys.stderr)


def _as_json(execution: Execution) -> dict[str, Any]:
    times = execution.timings
    return {
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "exit_code": execution.exit_code,
        "status": execution.status,
        "truncated": execution.truncated,
        "results": [
            {mime: content.decode("utf-8", "replace") for mime, content in result.data.items() if _is_text(mime)}
            for result in execution.results
        ],
        "error": None
        if execution.error is None
        else {
            "name": execution.error.name,
            "value": execution.error.value,
            "traceback": execution.error.traceback,
        },
        "timings": {
            "boot_s": round(times.boot, 4),
            "spawn_s": round(times.spawn, 4),
            "run_s": round(times.run, 6),
            "total_s": round(times.total, 4),
        },
        "backend": execution.runs_on.backend,
        "accelerator": execution.runs_on.accelerator,
        "kernel": execution.runs_on.kernel,
        "isolation": execution.runs_on.isolation,
        "place": execution.runs_on.place,
        "fallback": execution.runs_on.fallback,
    }


def _is_text(mime: str) -> bool:
    return mime.startswith("text/") or mime in ("application/json", "image/svg+xml")
