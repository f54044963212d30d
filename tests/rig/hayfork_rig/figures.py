"""Figures in instructions, held against the committed ones.

A program prints lines `figure NAME VALUE`, VALUE being nanoseconds by L1's clock: instructions. It runs several times,
each time in a fresh L1. What does not repeat within `MOST_SPREAD` is no figure and fails, as does one that has grown.
`figure NAME VALUE within 2 %` allows a figure more: a Linux guest's boot draws random numbers and meets timers.

Figures that say so (`figure NAME VALUE shown`), and those of another monitor, which is not part of this project
(`FOREIGN`), are only shown.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hayfork_rig import suite
from hayfork_rig.control import Finished, OutOfTimeError
from hayfork_rig.errors import MachineError, RigError
from hayfork_rig.machine import Stored
from hayfork_rig.plan import Binary
from hayfork_rig.snapshot import restored

MOST_GROWTH = 0.02
"""What a figure may grow by before that counts as a failure."""
MOST_SPREAD = 0.001
"""What the runs of one measurement may differ by, from the least to the greatest, as a part of the median."""

FOREIGN = "firecracker."
"""What the names of figures begin with that are not ours."""

_RUN_SECONDS = 900.0
_ATTEMPTS = 3
_TRACING = "/sys/kernel/tracing"
_FIGURE = re.compile(r"^figure ([\w.-]+) (\d+(?:\.\d+)?)(?: within (\d+(?:\.\d+)?) %| (shown))?$", re.MULTILINE)


@dataclass(frozen=True)
class Figure:
    """The values of one figure, one for each run.

    Attributes:
        values: The values.
        most_spread: What they may differ by, as `spread` has it.
        kept: Whether it is held against committed ones, and is not only shown.
    """

    values: tuple[float, ...]
    most_spread: float = MOST_SPREAD
    kept: bool = True

    @property
    def median(self) -> float:
        """The value that counts."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """How far the runs are apart, as a part of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    @property
    def repeats(self) -> bool:
        """Whether the runs agree."""
        return self.spread <= self.most_spread


def measure(
    stored: Stored, programs: list[Path], runs: int, scratch: Path, *, files: Path | None, firecracker: Path | None
) -> dict[str, Figure]:
    """Runs the programs and collects their figures.

    Args:
        stored: The L1 to begin with.
        programs: Static programs.
        runs: How many times each runs.
        scratch: A folder for disks.
        files: An image set, for programs that boot guests.
        firecracker: A Firecracker binary to measure beside, if there is one.

    Raises:
        RigError: A program fails, or its runs do not print the same figures.
    """
    more = {} if firecracker is None else _with_libraries(firecracker)
    disks = suite.make_disks([Binary(path.name, path) for path in programs], files, scratch, more)
    environment = suite.environment(files)
    if firecracker is not None:
        environment += f" HAYFORK_FIRECRACKER={_start_of(more)!r}"
    command = f"mount -t tracefs tracing {_TRACING}; cd /tmp && {environment} {suite.PROGRAM}"
    values: dict[str, list[Figure]] = {}
    for number, program in enumerate(programs):

        def once(number: int = number) -> Finished:
            with restored(stored, disks) as machine:
                suite.set_up(machine, number, files)
                return machine.run(command, _RUN_SECONDS)

        for run in range(runs):
            for name, value in parse(attempts(once, program.name)).items():
                values.setdefault(name, []).append(value)
            print(f"rig: {program.name}, run {run + 1} of {runs}", flush=True)
    odd = [name for name, each in values.items() if len(each) != runs]
    if odd or not values:
        raise RigError(f"not every run printed the figures {odd}" if odd else "no figures were printed")
    return {
        name: Figure(
            tuple(each.median for each in one),
            max(each.most_spread for each in one),
            all(each.kept for each in one) and not name.startswith(FOREIGN),
        )
        for name, one in values.items()
    }


def attempts(run: Callable[[], Finished], name: str) -> str:
    """What a program printed that ends well. It is run again if not: guests hang at times (README.md, known fault).

    Raises:
        RigError: It fails each time.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            done = run()
        except OutOfTimeError as error:
            reason = f"hangs:\n{error.output.decode(errors='replace')}\n{error}"
        except MachineError as error:
            reason = f"had no L1: {error}"
        else:
            if done.status == 0:
                return done.text
            reason = f"failed ({done.status}):\n{done.text}"
        print(f"rig: {name}, attempt {attempt} of {_ATTEMPTS}, {reason}", flush=True)
    raise RigError(f"{name} does not end well, see above")


def _with_libraries(program: Path) -> dict[str, Path]:
    """A program and the shared libraries that it is linked with, L1 having none."""
    if not program.is_file():
        raise RigError(f"there is no {program}")
    files = {"firecracker": program}
    ldd = shutil.which("ldd")
    if ldd is not None:
        done = subprocess.run([ldd, str(program)], capture_output=True, text=True, timeout=60, check=False)
        for path in re.findall(r"(/\S+) \(0x", done.stdout):
            files[Path(path).name] = Path(path)
    return files


def _start_of(files: dict[str, Path]) -> str:
    """The command that starts the program of `_with_libraries` in L1."""
    loader = next((name for name in files if name.startswith("ld-")), None)
    program = "/tests/firecracker"
    return program if loader is None else f"/tests/{loader} --library-path /tests {program}"


def parse(text: str) -> dict[str, Figure]:
    """The figures that a program printed in one run.

    Raises:
        RigError: One is there twice.
    """
    found = _FIGURE.findall(text)
    figures = {
        name: Figure((float(value),), float(within) / 100 if within else MOST_SPREAD, not shown)
        for name, value, within, shown in found
    }
    if len(figures) != len(found):
        raise RigError("a figure was printed twice")
    return figures


def compare(measured: dict[str, Figure], tools: dict[str, str], committed: Path, *, update: bool) -> bool:
    """Prints the figures beside the committed ones; whether none has grown, vanished, or fails to repeat.

    Args:
        measured: What was measured.
        tools: Versions of what the figures depend on beside our own code. Differences are shown, and excuse nothing.
        committed: The file with the committed figures; it need not exist yet.
        update: Write what was measured to the file, where it repeats.
    """
    before = _read(committed)
    known = before.figures
    shown = {name: figure for name, figure in measured.items() if not figure.kept or name.startswith(FOREIGN)}
    measured = {name: figure for name, figure in measured.items() if name not in shown}
    verdicts = {name: _verdict(figure, known.get(name)) for name, figure in measured.items()}
    for name, figure in sorted(measured.items()):
        old = known.get(name)
        change = f"{(figure.median / old - 1) * 100:+7.2f} %" if old else f"{'new':>9}"
        print(f"  {name:<44} {figure.median:>14,.1f} {change}  spread {figure.spread * 100:.3f} %  {verdicts[name]}")
    for name, figure in sorted(shown.items()):
        print(f"  {name:<44} {figure.median:>14,.1f} {'':>9}  spread {figure.spread * 100:.3f} %  only shown")
    gone = sorted(known.keys() - measured.keys())
    for name in gone:
        print(f"  {name:<44} {'':>14} {'':>9}  is not measured any more")
    for name in sorted(tools.keys() | before.tools.keys()):
        if tools.get(name) != before.tools.get(name):
            print(f"  {name} is {tools.get(name)}, and was {before.tools.get(name)} for the committed figures")
    if update:
        unsteady = sorted(name for name, figure in measured.items() if not figure.repeats)
        if unsteady:
            print(f"not updated, since they do not repeat: {', '.join(unsteady)}")
            return False
        figures = {name: round(figure.median, 1) for name, figure in sorted(measured.items())}
        committed.write_text(json.dumps({"unit": "instructions", "tools": tools, "figures": figures}, indent=2) + "\n")
        print(f"written to {committed}")
        return True
    bad = [name for name, verdict in verdicts.items() if verdict.startswith("FAILED")]
    new = [name for name in measured if name not in known]
    print(f"{len(measured) - len(bad)} figures hold, {len(bad)} fail, {len(new)} are new, {len(gone)} are gone")
    if new or gone:
        print("take new figures in and gone ones out by: cargo xtask bench-rig --update")
    return not bad and not gone


def _verdict(figure: Figure, old: float | None) -> str:
    if not figure.repeats:
        return f"FAILED: does not repeat within {figure.most_spread * 100:g} %"
    if old is None:
        return ""
    growth = figure.median / old - 1
    if growth > MOST_GROWTH:
        return f"FAILED: has grown by more than {MOST_GROWTH * 100:g} %"
    return "has shrunk: update it" if growth < -MOST_GROWTH else ""


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
