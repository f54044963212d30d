"""Environment variables that hold for one execution alone."""

from __future__ import annotations

import os
from posix import putenv, unsetenv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The dictionary inside os.environ, from bytes to bytes: its methods go through functions that user code can replace.
environ: Any = os.environ._data  # type: ignore[attr-defined]


def parse(data: bytes) -> dict[bytes, bytes]:
    """The records `NAME=VALUE`, each ended by NUL."""
    found = {}
    for record in data.split(b"\0"):
        name, equals, value = record.partition(b"=")
        if name and equals:
            found[name] = value
    return found


def apply(values: dict[bytes, bytes]) -> dict[bytes, bytes | None]:
    """Sets variables; returns what they were before (None: not set)."""
    before = {name: environ.get(name) for name in values}
    restore(values)
    return before


def restore(values: Any) -> None:
    """Sets variables, or removes those whose value is None."""
    for name, value in values.items():
        if value is not None:
            environ[name] = value
            putenv(name, value)
        else:
            environ.pop(name, None)
            unsetenv(name)
    if b"TZ" in values:
        import time

        time.tzset()
