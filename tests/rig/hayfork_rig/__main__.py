"""The rig's commands, as `cargo xtask` uses them; each works on files and folders that are named to it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from hayfork_rig import base, debian, figures, plan, recipe, snapshot, suite
from hayfork_rig.errors import RigError
from hayfork_rig.machine import Stored, qemu_version
from hayfork_rig.recipe import Package
from hayfork_rig.report import Report


def main() -> int:
    """Carries out the command of the command line; the exit status is 1 if tests failed and 2 if the rig did."""
    options = _parser().parse_args()
    try:
        return int(options.command(options))
    except RigError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hayfork_rig", description=__doc__)
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("resolve", help="print the packages that L1 is made of")
    command.set_defaults(command=_resolve)

    command = commands.add_parser("recipe", help="print what the cache entries are keyed by beside the packages")
    command.set_defaults(command=_recipe)

    command = commands.add_parser("base", help="make L1's kernel and initramfs")
    command.add_argument("--packages", required=True, help="what `resolve` printed")
    command.add_argument("--into", type=Path, required=True)
    command.set_defaults(command=_base)

    command = commands.add_parser("store", help="boot an L1 and store it")
    _stored_arguments(command)
    command.set_defaults(command=_store)

    command = commands.add_parser("test", help="run test binaries inside")
    _stored_arguments(command)
    command.add_argument("--built", type=Path, required=True, help="JSON: what cargo built")
    command.add_argument("--settings", type=Path, required=True, help="rig.toml")
    command.add_argument("--files", type=Path, help="an image set")
    command.add_argument("--logs", type=Path, required=True)
    command.add_argument("--report", type=Path, help="where to write the sum")
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    command.add_argument("--attempts", type=int, choices=(1, 2), default=2)
    command.add_argument("--test-seconds", type=float, default=1200.0)
    command.add_argument("--total-seconds", type=float, default=3600.0)
    command.set_defaults(command=_test)

    command = commands.add_parser("figures", help="measure in instructions, and compare")
    _stored_arguments(command)
    command.add_argument("--program", type=Path, action="append", required=True, help="prints the figures")
    command.add_argument("--committed", type=Path, required=True, help="figures.json")
    command.add_argument("--tools", action="append", default=[], help="NAME=VERSION of what the figures depend on")
    command.add_argument("--runs", type=int, default=3)
    command.add_argument("--files", type=Path, help="an image set")
    command.add_argument("--firecracker", type=Path, help="a Firecracker binary to measure beside")
    command.add_argument("--update", action="store_true", help="write what was measured to figures.json")
    command.set_defaults(command=_figures)
    return parser


def _stored_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--base", type=Path, required=True, help="folder with kernel and initramfs")
    command.add_argument("--stored", type=Path, required=True, help="folder with the stored L1")


def _stored(options: argparse.Namespace) -> Stored:
    return Stored(options.base, options.stored)


def _resolve(_: argparse.Namespace) -> int:
    print(json.dumps([vars(package) for package in debian.resolve()]))
    return 0


def _recipe(_: argparse.Namespace) -> int:
    machine = {**recipe.machine_inputs(), "qemu": qemu_version()}
    print(json.dumps({"base": recipe.base_inputs(), "machine": machine}))
    return 0


def _base(options: argparse.Namespace) -> int:
    base.build([Package(**each) for each in json.loads(options.packages)], options.into)
    return 0


def _store(options: argparse.Namespace) -> int:
    snapshot.store(_stored(options))
    return 0


def _test(options: argparse.Namespace) -> int:
    what = plan.load(options.built, options.settings)
    report = Report(options.logs)
    settings = suite.Settings(
        stored=_stored(options),
        files=options.files,
        jobs=options.jobs,
        attempts=options.attempts,
        test_seconds=options.test_seconds,
        total_seconds=options.total_seconds,
    )
    with tempfile.TemporaryDirectory(prefix="hayfork-rig-") as scratch:
        suite.run(what, settings, report, Path(scratch))
    return 0 if report.close(options.report) else 1


def _figures(options: argparse.Namespace) -> int:
    tools = dict(each.split("=", 1) for each in options.tools)
    with tempfile.TemporaryDirectory(prefix="hayfork-rig-") as scratch:
        measured = figures.measure(
            _stored(options),
            options.program,
            options.runs,
            Path(scratch),
            files=options.files,
            firecracker=options.firecracker,
        )
    return 0 if figures.compare(measured, tools, options.committed, update=options.update) else 1


if __name__ == "__main__":
    sys.exit(main())
