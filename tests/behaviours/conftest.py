"""Sandboxes for the behaviour tests: real ones, on the backend that `HAYFORK_BACKEND` names, else the best of this host.

`HAYFORK_TEST_CPUS` gives the shared ones more than one virtual CPU.

Starting a VM takes seconds under emulation, so tests of what happens *inside* share one sandbox per language and
file; tests that end or exhaust a sandbox make their own.
"""

from __future__ import annotations

import os

import hayfork
import pytest


def pytest_configure(config):
    if not os.environ.get("HAYFORK_IMAGES_DIR"):
        raise pytest.UsageError("set HAYFORK_IMAGES_DIR to an image set, as `make test` does")
    # What earlier processes have left is none of these tests' business; those of templates on disk have their own.
    os.environ.setdefault("HAYFORK_TEMPLATE_CACHE_MB", "0")


def shared(language):
    cpus = int(os.environ.get("HAYFORK_TEST_CPUS", "1"))
    return hayfork.Sandbox.create(language=language, timeout=60, cpus=cpus)


@pytest.fixture(scope="module")
def python():
    with shared("python") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def javascript():
    with shared("javascript") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shell():
    with shared("shell") as sandbox:
        yield sandbox
