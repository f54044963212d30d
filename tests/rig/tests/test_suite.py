"""Plans, retries and reports, with an L1 that is only played."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hayfork_rig import plan, suite
from hayfork_rig.control import Finished, OutOfTimeError
from hayfork_rig.errors import MachineError, RigError
from hayfork_rig.machine import Stored
from hayfork_rig.plan import Binary, Plan
from hayfork_rig.report import Report

RUNNING = "\nrunning 1 test\n"
Behaviour = Callable[[str, int], Finished]


class PlayedMachine:
    """Answers commands as `behaviour` says; it gets a test's name and how often that has run before."""

    def __init__(self, behaviour: Behaviour, runs: dict[str, int]) -> None:
        self.behaviour = behaviour
        self.runs = runs

    def run(self, command: str, _seconds: float) -> Finished:
        """One command."""
        if "--list" in command:
            names = ["ignored"] if "--ignored" in command else ["one", "two", "ignored"]
            return Finished(0, "".join(f"{name}: test\n" for name in names).encode())
        if "--exact" not in command:
            return Finished(0, b"")
        name = command.split("--exact ")[1].split(maxsplit=1)[0]
        self.runs[name] = self.runs.get(name, 0) + 1
        return self.behaviour(name, self.runs[name])

    def console(self) -> str:
        """Nothing to see."""
        return ""


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[bool, dict[str, object]]]:
    """Runs a suite of one binary; gives whether all is well, and the report."""

    def run(
        behaviour: Behaviour, *, attempts: int = 2, once: bool = False, starts: Iterator[bool] | None = None
    ) -> tuple[bool, dict[str, object]]:
        runs: dict[str, int] = {}

        @contextlib.contextmanager
        def restored(_stored: Stored, _disks: object) -> Iterator[PlayedMachine]:
            if starts is not None and not next(starts, True):
                raise MachineError("it does not begin", "console")
            yield PlayedMachine(behaviour, runs)

        monkeypatch.setattr(suite, "restored", restored)
        monkeypatch.setattr(suite, "make_disks", lambda *_: None)
        report = Report(tmp_path / "logs")
        settings = suite.Settings(Stored(tmp_path, tmp_path), None, 1, attempts, 10.0, 100.0)
        suite.run(Plan((Binary("crate", tmp_path / "x", once=once),), (), ()), settings, report, tmp_path)
        well = report.close(tmp_path / "report.json")
        return well, json.loads((tmp_path / "report.json").read_text())

    return run


def test_what_passes_at_once_runs_once(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    def behaviour(_name: str, run: int) -> Finished:
        assert run == 1
        return Finished(0, RUNNING.encode())

    well, report = play(behaviour)
    assert well
    assert report == {"passed": 2, "failed": 0, "skipped": 1, "flaky": [], "remarks": []}


def test_a_second_attempt_that_helps_is_reported(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    well, report = play(lambda name, run: Finished(101 if name == "one" and run == 1 else 0, RUNNING.encode()))
    assert well
    assert report["flaky"] == ["crate::one"]
    assert report["passed"] == 2


def test_where_no_retry_counts_there_is_none(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    well, report = play(
        lambda name, run: Finished(101 if name == "one" and run == 1 else 0, RUNNING.encode()), once=True
    )
    assert not well
    assert (report["passed"], report["failed"], report["flaky"]) == (1, 1, [])


def test_a_test_that_fails_twice_has_failed(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    well, report = play(lambda name, _: Finished(101 if name == "one" else 0, RUNNING.encode()))
    assert not well
    assert (report["passed"], report["failed"]) == (1, 1)


def test_without_a_second_attempt_there_is_none(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    well, report = play(lambda name, run: Finished(101 if run == 1 else 0, RUNNING.encode()), attempts=1)
    assert not well
    assert report["failed"] == 2


def test_a_hang_costs_one_machine_and_not_the_other_tests(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    def behaviour(name: str, _run: int) -> Finished:
        if name == "one":
            raise OutOfTimeError("test", b"so far")
        return Finished(0, RUNNING.encode())

    well, report = play(behaviour)
    assert not well
    assert (report["passed"], report["failed"]) == (1, 1)


def test_a_machine_that_does_not_begin_is_tried_again_and_reported(
    play: Callable[..., tuple[bool, dict[str, object]]],
) -> None:
    well, report = play(lambda *_: Finished(0, RUNNING.encode()), starts=iter([False, True, False, True]))
    assert well
    assert report["flaky"] == ["crate::one"]
    assert len(list(report["remarks"])) == 1  # type: ignore[call-overload]


def test_no_machine_at_all_is_a_failure(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    well, report = play(lambda *_: Finished(0, b""), starts=iter([False] * 10))
    assert not well
    assert report["failed"] == 1


def test_a_harness_that_ran_nothing_is_a_failure(play: Callable[..., tuple[bool, dict[str, object]]]) -> None:
    well, _ = play(lambda *_: Finished(0, b"running 0 tests\n"))
    assert not well


def test_a_plan_is_read(tmp_path: Path) -> None:
    built, settings = tmp_path / "built.json", tmp_path / "rig.toml"
    built.write_text(
        json.dumps(
            [
                {"package": "vmm", "target": "vmm", "kind": "lib", "path": "/t/vmm-1"},
                {"package": "vmm", "target": "exits", "kind": "test", "path": "/t/exits-2"},
                {"package": "vmm", "target": "probe", "kind": "example", "path": "/t/probe"},
            ]
        )
    )
    settings.write_text(
        '[[tests]]\npackage = "vmm"\ntarget = "exits"\nonly = "one|two"\nimages = true\nseconds = 9\n'
        '[[tests]]\npackage = "vmm"\n'
        '[[program]]\npackage = "vmm"\nexample = "probe"\narguments = ["-v"]\nexpect = "^hardware"\n'
        '[[skip]]\ntests = "vmm::exits::two_.*"\nreason = "one processor"\n'
    )
    loaded = plan.load(built, settings)
    assert [each.name for each in loaded.binaries] == ["vmm", "vmm::exits"]
    assert [each.images for each in loaded.binaries] == [False, True]
    assert [each.seconds for each in loaded.binaries] == [None, 9]
    assert loaded.binaries[1].only.fullmatch("two")
    assert not loaded.binaries[1].only.fullmatch("three")
    assert [each.name for each in loaded.programs] == ["vmm::probe -v"]
    assert loaded.programs[0].expect.search("a\nhardware: yes")
    assert loaded.skipped("vmm::exits::two_processors") == "one processor"
    assert loaded.skipped("vmm::exits::one") is None
    built.write_text("[]")
    with pytest.raises(RigError, match="was not built"):
        plan.load(built, settings)
