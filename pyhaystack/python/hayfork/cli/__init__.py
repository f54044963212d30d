"""The `hayfork` command: run, shell, build, images, doctor.

Exit codes of `run`: the program's own; 124 if its time was over, 125 if it could not be run, 2 for a wrong
command line, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from hayfork import errors
from hayfork._native import __version__

USAGE_ERROR = 2
CANNOT_RUN = 125
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line.

    Args:
        arguments: Without the program's name; the process's own by default.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
    except errors.SandboxError as error:
        _report(error, as_json=options.json)
        return CANNOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has enough of it. Keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    return code


def _report(error: errors.SandboxError, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": {"code": error.code, "message": error.message, "remedy": error.remedy}}))
        return
    print(f"hayfork: {error.message}", file=sys.stderr)
    if error.remedy:
        print(f"  {error.remedy}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    from hayfork.cli import build, doctor, images, run, shell  # noqa: PLC0415 - they use this module's constants

    parser = argparse.ArgumentParser(
        prog="hayfork", description="Runs code that nobody trusts in a virtual machine of its own."
    )
    parser.add_argument("--version", action="version", version=f"hayfork {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    common.add_argument("--images", metavar="DIR", help="folder of the image set (found without it)")
    common.add_argument(
        "--backend", metavar="NAME", help="what runs the VM: auto, monitor or qemu (default: auto, the best one here)"
    )
    common.add_argument(
        "--isolation",
        choices=["auto", "process", "worker"],
        help="where the monitor runs the VM: in this process, or in a confined one of its own (default: auto)",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (run, shell, build, images, doctor):
        module.add(commands, common)
    return parser
