"""What is to run inside: programs that cargo built, and what `rig.toml` says about them."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hayfork_rig.errors import RigError


@dataclass(frozen=True)
class Binary:
    """A static test binary of Rust's test harness.

    Attributes:
        name: As the report has it: `package` for a library's own tests, `package::target` for others.
        path: The file.
        only: Which of its tests run, by their names in it.
        images: Whether tests run that are marked as ignored, since they need the image set.
        once: Whether a test that fails has failed, without a second attempt.
        seconds: Limit for one test, of the host's time, if it is to be another than that of all tests.
    """

    name: str
    path: Path
    only: re.Pattern[str] = re.compile(".*")
    images: bool = False
    once: bool = False
    seconds: float | None = None


@dataclass(frozen=True)
class Program:
    """A static program that is a test as a whole: its exit code is 0.

    Attributes:
        name: As the report has it: `package::example`.
        path: The file.
        arguments: Its arguments.
        expect: What its output has to match somewhere.
    """

    name: str
    path: Path
    arguments: tuple[str, ...]
    expect: re.Pattern[str]


@dataclass(frozen=True)
class Skip:
    """Tests that cannot run inside, by a pattern of their whole names (`package::target::path::of::test`), and why."""

    tests: re.Pattern[str]
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything that is to run."""

    binaries: tuple[Binary, ...]
    programs: tuple[Program, ...]
    skips: tuple[Skip, ...]

    def skipped(self, test: str) -> str | None:
        """Why a test is not to run, if so."""
        return next((skip.reason for skip in self.skips if skip.tests.fullmatch(test)), None)


def load(built: Path, settings: Path) -> Plan:
    """Reads a plan.

    Args:
        built: JSON: a list of objects with `package`, `target`, `kind` (`lib`, `test` or `example`) and `path`.
        settings: `rig.toml`.

    Raises:
        RigError: One of the files is not in form, or names a program that was not built.
    """
    try:
        artifacts = json.loads(built.read_text())
        examples = {_name(each): Path(each["path"]) for each in artifacts if each["kind"] == "example"}
        rules = tomllib.loads(settings.read_text())
        binaries = [_binary(each, rules["tests"]) for each in artifacts if each["kind"] in {"lib", "test"}]
        programs = [_program(each, examples) for each in rules.get("program", [])]
        skips = [Skip(re.compile(each["tests"]), each["reason"]) for each in rules.get("skip", [])]
    except (OSError, ValueError, KeyError, TypeError, StopIteration, re.error) as error:
        raise RigError(f"{built} and {settings} are no plan: {error!r}") from error
    return Plan(tuple(sorted(binaries, key=lambda each: each.name)), tuple(programs), tuple(skips))


def _name(artifact: dict[str, str]) -> str:
    return artifact["package"] if artifact["kind"] == "lib" else f"{artifact['package']}::{artifact['target']}"


def _binary(artifact: dict[str, str], rules: list[dict[str, Any]]) -> Binary:
    rule = next(
        rule
        for rule in rules
        if rule["package"] == artifact["package"] and rule.get("target") in {None, artifact["target"]}
    )
    only = re.compile(rule.get("only", ".*"))
    return Binary(
        _name(artifact),
        Path(artifact["path"]),
        only,
        images=rule.get("images", False),
        once=rule.get("once", False),
        seconds=rule.get("seconds"),
    )


def _program(rule: dict[str, str], examples: dict[str, Path]) -> Program:
    name = f"{rule['package']}::{rule['example']}"
    if name not in examples:
        raise RigError(f"rig.toml names the example {name}, which was not built")
    arguments = tuple(rule.get("arguments", []))
    expect = re.compile(rule.get("expect", ""), re.MULTILINE)
    return Program(" ".join((name, *arguments)), examples[name], arguments, expect)
