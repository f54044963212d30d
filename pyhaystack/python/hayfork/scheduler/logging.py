"""Logging of the package."""

from __future__ import annotations

import logging


def configure_logging(*, level: int | str | None = None, quiet: bool = False) -> None:
    """Send the package's log to standard error.

    Args:
        level: Lowest level that is shown; `WARNING` by default.
        quiet: Show nothing at all.
    """
    logger = logging.getLogger("hayfork")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    if quiet:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        return
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(level if level is not None else logging.WARNING)
