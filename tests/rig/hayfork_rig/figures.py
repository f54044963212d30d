"""Figures in instructions, held against the committed ones.

A program prints lines `figure NAME VALUE`, VALUE being nanoseconds by L1's clock: instructions. It runs several times,
each time in a fresh L1. What does not repeat is no figure and fails, as does one that has grown.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from hayfork_rig import suite
from hayfork_rig.errors import RigError
from hayfork_rig.machine import Stored
from hayfork_rig.plan import Binary
from hayfork_rig.snapshot import restored

MOST_GROWTH = 0.02
"""What a figure may grow by before that counts as a failure."""
MOST_SPREAD = 0.001
"""What the runs of one measurement may differ by, from the least to the greatest, as a part of the median."""

_RUN_SECONDS = 600.0
_FIGURE = re.compile(r"^figure ([\w.-]+) (\d+(?:\.\d+)?)$", re.MULTILINE)


@dataclass(frozen=True)
class Figure:
    """The values of one figure, one for each run."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value that counts."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """How far the runs are apart, as a part of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


def measure(stored: Stored, programs: list[Path], runs: int, scratch: Path) -> dict[str, Figure]:
    """Runs the programs and collects their figures.

    Args:
        stored: The L1 to begin with.
        programs: Static programs.
        runs: How many times each runs.
        scratch: A folder for disks.

    Raises:
        RigError: A program fails, or its runs do not print the same figures.
    """
    disks = suite.make_disks([Binary(path.name, path) for path in programs], None, scratch)
    values: dict[str, list[float]] = {}
    for number, program in enumerate(programs):
        for run in range(runs):
            with restored(stored, disks) as machine:
                suite.set_up(machine, number, None)
                done = machine.run(f"cd /tmp && {suite.environment(None)} {suite.PROGRAM}", _RUN_SECONDS)
            if done.status != 0:
                raise RigError(f"{program.name} failed ({done.status}):\n{done.text}")
            for name, value in parse(done.text).items():
                values.setdefault(name, []).append(value)
            print(f"rig: {program.name}, run {run + 1} of {runs}", flush=True)
    odd = [name for name, each in values.items() if len(each) != runs]
    if odd or not values:
        raise RigError(f"not every run printed the figures {odd}" if odd else "no figures were printed")
    return {name: Figure(tuple(each)) for name, each in values.items()}


def parse(text: str) -> dict[str, float]:
    """The figures that a program printed.

    Raises:
        RigError: One is there twice.
    """
    found = _FIGURE.findall(text)
    figures = {name: float(value) for name, value in found}
    if len(figures) != len(found):
        raise RigError("a figure was printed twice")
    return figures


def compare(measured: dict[str, Figure], tools: dict[str, str], committed: Path, *, accept: bool) -> bool:
    """Prints the figures beside the committed ones; whether none has grown, vanished, or fails to repeat.

    Args:
        measured: What was measured.
        tools: Versions of what the figures depend on beside our own code. Differences are shown, and excuse nothing.
        committed: The file with the committed figures; it need not exist yet.
        accept: Write what was measured to the file, where it repeats.
    """
    before = _read(committed)
    known = before.figures
    verdicts = {name: _verdict(figure, known.get(name)) for name, figure in measured.items()}
    for name, figure in sorted(measured.items()):
        old = known.get(name)
        change = f"{(figure.median / old - 1) * 100:+7.2f} %" if old else f"{'new':>9}"
        print(f"  {name:<44} {figure.median:>14,.1f} {change}  spread {figure.spread * 100:.3f} %  {verdicts[name]}")
    gone = sorted(known.keys() - measured.keys())
    for name in gone:
        print(f"  {name:<44} {'':>14} {'':>9}  is not measured any more")
    for name in sorted(tools.keys() | before.tools.keys()):
        if tools.get(name) != before.tools.get(name):
            print(f"  {name} is {tools.get(name)}, and was {before.tools.get(name)} for the committed figures")
    if accept:
        unsteady = sorted(name for name, figure in measured.items() if figure.spread > MOST_SPREAD)
        if unsteady:
            print(f"not accepted, since they do not repeat: {', '.join(unsteady)}")
            return False
        figures = {name: round(figure.median, 1) for name, figure in sorted(measured.items())}
        committed.write_text(json.dumps({"unit": "instructions", "tools": tools, "figures": figures}, indent=2) + "\n")
        print(f"written to {committed}")
        return True
    bad = [name for name, verdict in verdicts.items() if verdict.startswith("FAILED")]
    new = [name for name in measured if name not in known]
    print(f"{len(measured) - len(bad)} figures hold, {len(bad)} fail, {len(new)} are new, {len(gone)} are gone")
    if new or gone:
        print("take new figures in and gone ones out by: cargo xtask bench-rig --accept")
    return not bad and not gone


def _verdict(figure: Figure, old: float | None) -> str:
    if figure.spread > MOST_SPREAD:
        return f"FAILED: does not repeat within {MOST_SPREAD * 100:g} %"
    if old is None:
        return ""
    growth = figure.median / old - 1
    if growth > MOST_GROWTH:
        return f"FAILED: has grown by more than {MOST_GROWTH * 100:g} %"
    return "has shrunk: accept it" if growth < -MOST_GROWTH else ""


@dataclass(frozen=True)
class _Committed:
    """The committed figures, and the versions of tools that they were measured with."""

    figures: dict[str, float]
    tools: dict[str, str]


def _read(path: Path) -> _Committed:
    try:
        content = json.loads(path.read_text())
        return _Committed({name: float(value) for name, value in content["figures"].items()}, dict(content["tools"]))
    except FileNotFoundError:
        return _Committed({}, {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RigError(f"{path} holds no figures: {error!r}") from error
