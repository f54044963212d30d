"""Fixtures for the tests of the language drivers.

A test module says `LANGUAGE = "python"` (or javascript, shell) and takes the fixture `driver`: a started driver of that
language with a folder of its own, ended after the test. `make_driver` gives as many as are wanted, of any language.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from driver_harness import Driver

MakeDriver = Callable[..., Driver]


@pytest.fixture
def make_driver() -> Iterator[MakeDriver]:
    """`make_driver(language)` starts a driver; all of them are ended after the test."""
    made: list[Driver] = []
    folder = Path(tempfile.mkdtemp(prefix="hayfork-drivers-"))
    folder.chmod(0o711)  # pytest's own tmp_path is closed to uid 1000

    def make(language: str, *, start: bool = True) -> Driver:
        driver = Driver(language, folder / f"driver-{len(made)}")
        made.append(driver)
        if start:
            driver.start()
        return driver

    yield make
    for driver in made:
        driver.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def driver(request: pytest.FixtureRequest, make_driver: MakeDriver) -> Driver:
    """A started driver of the language that the test module names in `LANGUAGE`."""
    return make_driver(request.module.LANGUAGE)
