"""Figures against the committed ones."""

import json
from pathlib import Path

import pytest
from hayfork_rig.control import Finished, OutOfTimeError
from hayfork_rig.errors import RigError
from hayfork_rig.figures import Figure, attempts, compare, parse

TOOLS = {"qemu": "7.2"}


def steady(value: float) -> Figure:
    """A figure that repeats."""
    return Figure((value, value, value * 1.0005))


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A file with two figures."""
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"unit": "instructions", "tools": TOOLS, "figures": {"a": 1000.0, "b": 50.0}}))
    return path


def test_figures_are_found_among_other_lines() -> None:
    assert parse("hello\nfigure pio_exit 2870.5\nfigure mmio-exit 4800 within 2 %\nfigure bad x\n") == {
        "pio_exit": Figure((2870.5,)),
        "mmio-exit": Figure((4800.0,), 0.02),
    }
    with pytest.raises(RigError, match="twice"):
        parse("figure a 1\nfigure a 2\n")


def test_growth_within_two_per_cent_holds(committed: Path) -> None:
    assert compare({"a": steady(1019.0), "b": steady(50.0)}, TOOLS, committed, update=False)


def test_growth_beyond_that_fails(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not compare({"a": steady(1021.0), "b": steady(50.0)}, TOOLS, committed, update=False)
    assert "has grown" in capsys.readouterr().out


def test_what_does_not_repeat_fails_and_is_not_accepted(committed: Path) -> None:
    before = committed.read_text()
    measured = {"a": Figure((1000.0, 1002.0, 1000.0)), "b": steady(50.0)}
    assert not compare(measured, TOOLS, committed, update=False)
    assert not compare(measured, TOOLS, committed, update=True)
    assert committed.read_text() == before


def test_a_figure_that_vanished_fails(committed: Path) -> None:
    assert not compare({"a": steady(1000.0)}, TOOLS, committed, update=False)


def test_shrinking_new_figures_and_other_tools_are_shown(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"a": steady(500.0), "b": steady(50.0), "c": steady(7.0)}
    assert compare(measured, {"qemu": "10.0"}, committed, update=False)
    out = capsys.readouterr().out
    assert "has shrunk" in out
    assert "new" in out
    assert "qemu is 10.0, and was 7.2" in out


def test_accepting_writes_what_was_measured(committed: Path) -> None:
    assert compare({"a": steady(2000.0), "c": steady(7.0)}, TOOLS, committed, update=True)
    assert json.loads(committed.read_text())["figures"] == {"a": 2000.0, "c": 7.0}
    assert compare({"a": steady(2000.0), "c": steady(7.0)}, TOOLS, committed, update=False)


def test_a_broken_file_is_named_and_a_missing_one_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert compare({"a": steady(1.0)}, TOOLS, path, update=False)
    path.write_text("{}")
    with pytest.raises(RigError, match="holds no figures"):
        compare({"a": steady(1.0)}, TOOLS, path, update=False)


def test_figures_that_do_not_repeat_by_nature_are_shown_and_not_kept(
    committed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse("figure a 7 shown\nfigure b 7 shown within 2 %\n") == {"a": Figure((7.0,), kept=False)}
    measured = {"a": steady(1000.0), "b": steady(50.0), "c": Figure((1.0, 9.0), kept=False)}
    assert compare(measured, TOOLS, committed, update=True)
    assert "only shown" in capsys.readouterr().out
    assert set(json.loads(committed.read_text())["figures"]) == {"a", "b"}


def test_figures_of_another_monitor_are_shown_and_not_kept(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"a": steady(1000.0), "b": steady(50.0), "firecracker.a": Figure((1.0, 9.0))}
    assert compare(measured, TOOLS, committed, update=False)
    assert "only shown" in capsys.readouterr().out
    assert compare(measured, TOOLS, committed, update=True)
    assert set(json.loads(committed.read_text())["figures"]) == {"a", "b"}


def test_a_figure_may_be_allowed_a_wider_spread(committed: Path) -> None:
    spread = (990.0, 1000.0, 1010.0)
    assert not compare({"a": Figure(spread), "b": steady(50.0)}, TOOLS, committed, update=False)
    assert compare({"a": Figure(spread, 0.02), "b": steady(50.0)}, TOOLS, committed, update=False)


def test_a_program_that_hangs_or_fails_is_run_again_but_not_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    ends = iter([None, Finished(3, b"broken"), Finished(0, b"figure a 1")])

    def run() -> Finished:
        end = next(ends)
        if end is None:
            raise OutOfTimeError("program", b"so far")
        return end

    assert attempts(run, "program") == "figure a 1"
    out = capsys.readouterr().out
    assert "so far" in out
    assert "failed (3):\nbroken" in out
    with pytest.raises(RigError, match="does not end well"):
        attempts(lambda: Finished(1, b"broken"), "program")
