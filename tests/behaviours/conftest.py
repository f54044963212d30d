"""Sandboxes for the behaviour tests: real ones, on whatever backend this host has.

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


@pytest.fixture(scope="module")
def python():
    with hayfork.Sandbox.create(language="python", timeout=60) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def javascript():
    with hayfork.Sandbox.create(language="javascript", timeout=60) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def shell():
    with hayfork.Sandbox.create(language="shell", timeout=60) as sandbox:
        yield sandbox
