"""What can go wrong with the rig itself, as opposed to the tests in it."""

from __future__ import annotations


class RigError(Exception):
    """The rig cannot do what was asked; the message says why."""


class MachineError(RigError):
    """An L1 did not come up, died, or fell silent.

    Args:
        reason: What happened.
        console: The end of L1's console, as text; empty if there was none.
    """

    def __init__(self, reason: str, console: str = "") -> None:
        super().__init__(f"{reason}; the end of L1's console:\n{console}" if console else reason)
        self.reason = reason
        self.console = console
