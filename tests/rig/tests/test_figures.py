"""Figures against the committed ones."""

import json
from pathlib import Path

import pytest
from hayfork_rig.errors import RigError
from hayfork_rig.figures import Figure, compare, parse

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
    assert parse("hello\nfigure pio_exit 2870.5\nfigure mmio-exit 4800\nfigure bad x\n") == {
        "pio_exit": 2870.5,
        "mmio-exit": 4800.0,
    }
    with pytest.raises(RigError, match="twice"):
        parse("figure a 1\nfigure a 2\n")


def test_growth_within_two_per_cent_holds(committed: Path) -> None:
    assert compare({"a": steady(1019.0), "b": steady(50.0)}, TOOLS, committed, accept=False)


def test_growth_beyond_that_fails(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not compare({"a": steady(1021.0), "b": steady(50.0)}, TOOLS, committed, accept=False)
    assert "has grown" in capsys.readouterr().out


def test_what_does_not_repeat_fails_and_is_not_accepted(committed: Path) -> None:
    before = committed.read_text()
    measured = {"a": Figure((1000.0, 1002.0, 1000.0)), "b": steady(50.0)}
    assert not compare(measured, TOOLS, committed, accept=False)
    assert not compare(measured, TOOLS, committed, accept=True)
    assert committed.read_text() == before


def test_a_figure_that_vanished_fails(committed: Path) -> None:
    assert not compare({"a": steady(1000.0)}, TOOLS, committed, accept=False)


def test_shrinking_new_figures_and_other_tools_are_shown(committed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"a": steady(500.0), "b": steady(50.0), "c": steady(7.0)}
    assert compare(measured, {"qemu": "10.0"}, committed, accept=False)
    out = capsys.readouterr().out
    assert "has shrunk" in out
    assert "new" in out
    assert "qemu is 10.0, and was 7.2" in out


def test_accepting_writes_what_was_measured(committed: Path) -> None:
    assert compare({"a": steady(2000.0), "c": steady(7.0)}, TOOLS, committed, accept=True)
    assert json.loads(committed.read_text())["figures"] == {"a": 2000.0, "c": 7.0}
    assert compare({"a": steady(2000.0), "c": steady(7.0)}, TOOLS, committed, accept=False)


def test_a_broken_file_is_named_and_a_missing_one_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert compare({"a": steady(1.0)}, TOOLS, path, accept=False)
    path.write_text("{}")
    with pytest.raises(RigError, match="holds no figures"):
        compare({"a": steady(1.0)}, TOOLS, path, accept=False)
