"""`hayfork doctor`: what this host can do, and what to change."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hayfork._calls import run_blocking
from hayfork._engine import engine
from hayfork._operations import plain
from hayfork.cli import progress

_MARKS = {"ok": "ok  ", "warn": "note", "fail": "FAIL"}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        parents=[common],
        help="check this host",
        description="Checks what this host can do, how fast, and what to change. Exit code 1 if nothing can run.",
    )
    parser.set_defaults(command=command, quiet=False)


def command(options: argparse.Namespace) -> int:
    """Run it."""
    with progress.spinner("checking this host", quiet=options.json):
        found = engine(images=options.images, backend=options.backend, isolation=options.isolation)
        report = json.loads(run_blocking(plain(found.doctor())))
    checks = report["checks"]
    if options.json:
        print(json.dumps(report))
    else:
        for check in checks:
            print(f"{_MARKS.get(check['verdict'], check['verdict'])}  {check['name']}: {check['message']}")
            if check.get("remedy"):
                print(f"      {check['remedy']}")
    return 1 if any(check["verdict"] == "fail" for check in checks) else 0
