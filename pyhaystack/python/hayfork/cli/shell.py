"""`hayfork shell`: a session that one types into."""

from __future__ import annotations

import argparse
import codeop
import contextlib
import sys
from typing import Any

from hayfork import Sandbox, errors
from hayfork._operations import language_name
from hayfork.cli import progress


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "shell",
        parents=[common],
        help="type code into a session",
        description="Runs what is typed. An empty line ends a block; Ctrl-C interrupts; Ctrl-D ends.",
    )
    parser.add_argument("-l", "--language", help="python, javascript or shell (default: the template's, else python)")
    parser.add_argument("--template", metavar="NAME", help="what the VM is made of (see `hayfork build`)")
    parser.add_argument("-m", "--memory", type=int, metavar="MB", help="memory of the VM")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no greeting")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Run it."""
    language = None if options.language is None else language_name(options.language)
    with progress.spinner("starting a virtual machine", quiet=options.quiet):
        sandbox = Sandbox.create(
            options.template,
            language=language,
            memory_mb=options.memory,
            backend=options.backend,
            isolation=options.isolation,
            images=options.images,
        )
    with sandbox:
        language = sandbox.language
        interactive = sys.stdin.isatty()
        if interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415 - line editing, where Python has it
            if not options.quiet:
                print(f"hayfork {language} on {sandbox.runs_on}; Ctrl-D ends")
        return _loop(sandbox, language, interactive=interactive)


def _loop(sandbox: Sandbox, language: str, *, interactive: bool) -> int:
    code = 0
    while True:
        try:
            block = _read_block(language, interactive=interactive)
        except EOFError:
            return code
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if not block.strip():
            continue
        try:
            execution = sandbox.run_code(
                block, on_stdout=_print(sys.stdout), on_stderr=_print(sys.stderr), on_result=_show
            )
        except errors.InputValidationError as error:
            print(f"hayfork: {error}", file=sys.stderr)
            continue
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            continue
        code = execution.exit_code
        if execution.state_reset:
            print("hayfork: the interpreter ended; variables are gone", file=sys.stderr)


def _read_block(language: str, *, interactive: bool) -> str:
    lines: list[str] = []
    while True:
        prompt = ("... " if lines else "> ") if interactive else ""
        try:
            lines.append(input(prompt))
        except EOFError:
            if lines:
                return "\n".join(lines)
            raise
        if _complete(language, lines):
            return "\n".join(lines)


def _complete(language: str, lines: list[str]) -> bool:
    """Tell whether a block can be run: Python knows that itself, the others by a trailing backslash."""
    if language != "python":
        return not lines[-1].endswith("\\")
    try:
        return codeop.compile_command("\n".join(lines), symbol="exec") is not None or not lines[-1].strip()
    except (SyntaxError, ValueError, OverflowError):
        return True  # the guest's Python says what is wrong with it


def _print(stream: Any) -> Any:
    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    return write


def _show(result: Any) -> None:
    if result.text is not None:
        print(result.text)
