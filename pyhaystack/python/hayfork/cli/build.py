"""`hayfork build`: templates with names."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from hayfork import errors, templates
from hayfork._operations import language_name
from hayfork.cli import progress
from hayfork.cli.run import SUFFIXES


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "build",
        parents=[common],
        help="build a template that VMs are made of by name",
        description="Starts a VM, runs some code in it once, and keeps it on disk: `hayfork run --template NAME` goes "
        "on from there. A template belongs to this host, its images and this version.",
    )
    parser.add_argument("name", nargs="?", help="1 to 64 of a-z, 0-9, '.', '_' and '-'; an older one is replaced")
    parser.add_argument("-c", "--code", metavar="CODE|FILE", help="what to run once, such as `import json`")
    parser.add_argument(
        "-l", "--language", help="python, javascript or shell (default: by the file's name, else python)"
    )
    parser.add_argument("-m", "--memory-mb", type=int, metavar="MB", help="memory of each VM")
    parser.add_argument("--cpus", type=int, metavar="N", help="virtual CPUs of each VM (default: 1)")
    parser.add_argument(
        "-t", "--timeout", type=float, default=templates.BUILD_TIMEOUT, metavar="SECONDS", help="default: 600"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--list", action="store_true", help="list the templates instead")
    others.add_argument("--remove", metavar="NAME", help="remove a template instead")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Run it."""
    if options.list:
        _list(as_json=options.json)
        return 0
    if options.remove is not None:
        templates.remove_template(options.remove)
        return 0
    if options.name is None:
        raise errors.VmConfigError("no name is given", remedy="Say how the template is to be called, or --list.")
    code, language = _code(options)
    with progress.spinner("building a template", quiet=options.quiet or options.json):
        built = templates.build_template(
            options.name,
            language=language,
            code=code,
            memory_mb=options.memory_mb,
            cpus=options.cpus,
            timeout=options.timeout,
            backend=options.backend,
            isolation=options.isolation,
            images=options.images,
        )
    if options.json:
        print(json.dumps(dataclasses.asdict(built)))
    else:
        print(f"{built.name}: {built.language}, {built.memory_mb} MiB, {built.size / 1e6:.1f} MB on disk")
    return 0


def _code(options: argparse.Namespace) -> tuple[str | None, str]:
    code: str | None = options.code
    language: str | None = options.language
    if code is not None and "\n" not in code and len(code) < 1024 and Path(code).is_file():  # noqa: PLR2004 - longer than any path that people type
        path = Path(code)
        language = language or SUFFIXES.get(path.suffix)
        code = path.read_text("utf-8")
    return code, language_name(language or "python")


def _list(*, as_json: bool) -> None:
    found = templates.list_templates()
    if as_json:
        print(json.dumps({"templates": [dataclasses.asdict(one) for one in found]}))
        return
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.built_at))
        print(
            f"{one.name:<24} {one.language:<10} {one.memory_mb:>6} MiB {one.cpus} CPU {one.size / 1e6:8.1f} MB  {when}"
        )
