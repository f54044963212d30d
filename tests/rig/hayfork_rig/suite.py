"""Runs a plan's tests inside, each in a process of its own.

Tests of one binary share an L1, one after the other; a test that fails, hangs or takes L1 down is run once more in a
fresh one, and the report says so if that helps; not so where a rule says `once`. Only exit codes decide; times are
limits for what hangs, far from what anything takes on an idle host.
"""

from __future__ import annotations

import collections
import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hayfork_rig import disk
from hayfork_rig.control import OutOfTimeError
from hayfork_rig.errors import MachineError, RigError
from hayfork_rig.machine import Disks, Machine, Stored
from hayfork_rig.plan import Binary, Plan, Program
from hayfork_rig.report import Attempt, Outcome, Report
from hayfork_rig.snapshot import restored

# Copying a binary into L1's memory, or listing its tests.
_SETUP_SECONDS = 120.0
FILES = "/files"
# Where a program lies in L1's memory: read from the disk once, so that no measurement waits for the disk.
PROGRAM = "/program"


@dataclass(frozen=True)
class Settings:
    """How to run.

    Attributes:
        stored: The L1 to begin with.
        files: A folder to be found at `FILES`, if any: an image set.
        jobs: L1s at once.
        attempts: Attempts at a test at most: 2, or 1 for what must pass at once.
        test_seconds: Limit for one test, of the host's time.
        total_seconds: Limit for all of it; what has not begun then has failed.
    """

    stored: Stored
    files: Path | None
    jobs: int
    attempts: int
    test_seconds: float
    total_seconds: float


@dataclass(frozen=True)
class _Case:
    """One test: what L1's shell is to run, and what the output has to be."""

    name: str
    command: str
    good: Callable[[str], bool]
    seconds: float


def run(plan: Plan, settings: Settings, report: Report, scratch: Path) -> None:
    """Runs everything.

    Args:
        plan: What.
        settings: How.
        report: Gets the results.
        scratch: A folder for disks.

    Raises:
        RigError: The disks cannot be made.
    """
    disks = make_disks([*plan.binaries, *plan.programs], settings.files, scratch)
    suite = _Suite(plan, settings, report, disks, time.monotonic() + settings.total_seconds)
    with ThreadPoolExecutor(max_workers=settings.jobs) as pool:
        futures = [pool.submit(suite.binary, number, each) for number, each in enumerate(plan.binaries)]
        first = len(plan.binaries)
        futures += [pool.submit(suite.program, first + number, each) for number, each in enumerate(plan.programs)]
        for future in futures:
            future.result()


def make_disks(
    programs: list[Binary | Program], files: Path | None, scratch: Path, more: Mapping[str, Path] | None = None
) -> Disks:
    """Makes the disks of an L1: programs by their number in the list and `more` by name, and a folder of files."""
    disks = Disks(scratch / "tests", scratch / "files")
    disk.of_files(disks.tests, {**(more or {}), **{str(number): each.path for number, each in enumerate(programs)}})
    if files is None:
        disk.empty(disks.files)
    else:
        disk.of_folder(disks.files, files.resolve())
    return disks


def set_up(machine: Machine, number: int, files: Path | None) -> None:
    """Mounts the disks in L1 and puts a program at `PROGRAM`.

    Raises:
        RigError: L1 does not find them.
    """
    mount_files = f" && mount -t erofs -o ro /dev/vdb {FILES}" if files is not None else ""
    command = (
        f"mount -t erofs -o ro /dev/vda /tests{mount_files} && cp /tests/{number} {PROGRAM} && chmod 755 {PROGRAM}"
    )
    done = machine.run(command, _SETUP_SECONDS)
    if done.status != 0:
        raise MachineError(f"L1 cannot set itself up: {done.text.strip()}", machine.console())


def environment(files: Path | None) -> str:
    """Assignments before a command, for L1's shell."""
    images = f" HAYFORK_IMAGES_DIR={FILES}" if files is not None else ""
    return f"HAYFORK_RIG=1 HAYFORK_BACKEND=monitor HAYFORK_REQUIRE_KVM=1 RUST_BACKTRACE=1{images}"


@dataclass(frozen=True)
class _Suite:
    """The state of a run that its threads share; none of it changes but the report."""

    plan: Plan
    settings: Settings
    report: Report
    disks: Disks
    end: float

    def binary(self, number: int, binary: Binary) -> None:
        """Runs the tests of one binary."""
        try:
            try:
                names = self._list(number, binary)
            except MachineError as error:
                if self.settings.attempts == 1:
                    raise
                self.report.remark(f"the tests of {binary.name} had to be listed again: {error}")
                names = self._list(number, binary)
        except RigError as error:
            self.report.attempt(f"{binary.name} (list of tests)", Attempt(Outcome.NO_MACHINE, 0.0, str(error)))
            return
        cases = []
        for name in names:
            test = f"{binary.name}::{name}"
            reason = self.plan.skipped(test)
            if reason is not None:
                self.report.skip(test, reason)
                continue
            command = self._command(f"--exact {shlex.quote(name)} --include-ignored --nocapture")
            cases.append(_Case(test, command, _ran_one, binary.seconds or self.settings.test_seconds))
        self._run(number, cases, 1 if binary.once else self.settings.attempts)

    def program(self, number: int, program: Program) -> None:
        """Runs a program that is a test itself."""
        arguments = " ".join(shlex.quote(each) for each in program.arguments)
        case = _Case(
            program.name,
            self._command(arguments),
            lambda text: program.expect.search(text) is not None,
            self.settings.test_seconds,
        )
        self._run(number, [case], self.settings.attempts)

    def _command(self, arguments: str) -> str:
        return f"cd /tmp && {environment(self.settings.files)} {PROGRAM} {arguments}"

    def _list(self, number: int, binary: Binary) -> list[str]:
        """The names of a binary's tests that are to run."""
        with self._machine(number) as machine:
            wanted = [name for name in _names(machine, "") if binary.only.fullmatch(name)]
            needs_images = set() if binary.images else set(_names(machine, "--ignored"))
        for name in wanted:
            if name in needs_images:
                self.report.skip(f"{binary.name}::{name}", "is marked as ignored")
        return [name for name in wanted if name not in needs_images]

    def _run(self, number: int, cases: list[_Case], attempts: int) -> None:
        """Runs tests, and those that fail once more if there may be another attempt."""
        for _ in range(attempts):
            cases = self._attempt(number, cases)

    def _attempt(self, number: int, cases: list[_Case]) -> list[_Case]:
        """Runs each test once, in as few L1s as that takes; gives those that did not pass."""
        failed: list[_Case] = []
        waiting = collections.deque(cases)

        def record(case: _Case, attempt: Attempt) -> None:
            self.report.attempt(case.name, attempt)
            if attempt.outcome is not Outcome.PASSED:
                failed.append(case)

        while waiting:
            if time.monotonic() > self.end:
                for case in waiting:
                    record(case, Attempt(Outcome.OUT_OF_TIME, 0.0, "the rig's whole time was over before it began"))
                break
            try:
                with self._machine(number) as machine:
                    alive = True
                    while waiting and alive:
                        case = waiting.popleft()
                        attempt, alive = self._one(machine, case)
                        record(case, attempt)
            except MachineError as error:
                # There was no L1; the test that was next takes the blame.
                record(waiting.popleft(), Attempt(Outcome.NO_MACHINE, 0.0, str(error)))
        return failed

    def _one(self, machine: Machine, case: _Case) -> tuple[Attempt, bool]:
        """Runs a test; gives what came of it, and whether L1 is good for another."""
        began = time.monotonic()
        alive = True
        try:
            done = machine.run(case.command, min(case.seconds, max(self.end - began, 1.0)))
            good = done.status == 0 and case.good(done.text)
            outcome = Outcome.PASSED if good else Outcome.FAILED
            log = f"{done.text}\n(exit status {done.status})"
        except OutOfTimeError as error:
            outcome, alive = Outcome.OUT_OF_TIME, False
            log = f"{error.output.decode(errors='replace')}\n{error}"
        except MachineError as error:
            outcome, alive, log = Outcome.NO_MACHINE, False, str(error)
        return Attempt(outcome, time.monotonic() - began, log), alive

    @contextlib.contextmanager
    def _machine(self, number: int) -> Iterator[Machine]:
        with restored(self.settings.stored, self.disks) as machine:
            set_up(machine, number, self.settings.files)
            yield machine


def _names(machine: Machine, option: str) -> list[str]:
    done = machine.run(f"{PROGRAM} --list --format terse {option}", _SETUP_SECONDS)
    if done.status != 0:
        raise MachineError(f"it does not list its tests ({done.status}): {done.text}", machine.console())
    return [line.removesuffix(": test") for line in done.text.splitlines() if line.endswith(": test")]


def _ran_one(text: str) -> bool:
    """Whether the harness ran a test; it is content with a name that it does not know."""
    return "\nrunning 1 test\n" in f"\n{text}"
