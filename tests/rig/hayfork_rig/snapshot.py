"""The stored L1: booting it once, and beginning from there.

Memory is a file that QEMU maps, shared while L1 is stored and private ever after, so that a restore copies none of it
(the migration capability `x-ignore-shared`). The rest of the machine's state is a migration stream of some 100 KB.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hayfork_rig import disk
from hayfork_rig.errors import MachineError
from hayfork_rig.machine import ANSWER_SECONDS, Disks, Machine, Stored

# L1 boots in 5 s on an idle host.
_BOOT_SECONDS = 240.0
_POLL_SECONDS = 0.005
_CAPABILITIES = [{"capability": "x-ignore-shared", "state": True}]


def store(stored: Stored) -> None:
    """Boots an L1 and stores it in `stored.folder`, which exists.

    Raises:
        MachineError: It does not boot, or cannot be stored.
    """
    with tempfile.TemporaryDirectory(prefix="hayfork-rig-") as name:
        disks = Disks(Path(name) / "tests", Path(name) / "files")
        disk.empty(disks.tests)
        disk.empty(disks.files)
        with Machine(stored, disks, storing=True) as machine, _console_in_errors(machine):
            deadline = time.monotonic() + _BOOT_SECONDS
            machine.qmp.greet(deadline)
            machine.control.wait_until_ready(deadline)
            # What the kernel does after a boot is over then, and what a command needs has been read once.
            machine.control.run("sleep 2", deadline)
            machine.qmp.call("stop", deadline)
            machine.qmp.call("migrate-set-capabilities", deadline, capabilities=_CAPABILITIES)
            with stored.state.open("wb") as state:
                machine.qmp.give("state", state.fileno(), deadline)
            machine.qmp.call("migrate", deadline, uri="fd:state")
            while (status := machine.qmp.call("query-migrate", deadline).get("status")) != "completed":
                if status in {"failed", "cancelled"} or time.monotonic() > deadline:
                    raise MachineError(f"QEMU could not store L1 ({status})")
                time.sleep(_POLL_SECONDS)
            machine.qmp.call("quit", deadline)
            machine.wait(ANSWER_SECONDS)


@contextlib.contextmanager
def restored(stored: Stored, disks: Disks) -> Iterator[Machine]:
    """A running L1 that begins where the stored one waits for its first command.

    Raises:
        MachineError: It does not begin.
    """
    with Machine(stored, disks) as machine:
        with _console_in_errors(machine):
            deadline = time.monotonic() + ANSWER_SECONDS
            machine.qmp.greet(deadline)
            machine.qmp.call("migrate-set-capabilities", deadline, capabilities=_CAPABILITIES)
            with stored.state.open("rb") as state:
                machine.qmp.give("state", state.fileno(), deadline)
            machine.qmp.call("migrate-incoming", deadline, uri="fd:state")
            while machine.qmp.call("query-status", deadline).get("status") == "inmigrate":
                if time.monotonic() > deadline:
                    raise MachineError("QEMU does not finish restoring L1")
                time.sleep(_POLL_SECONDS)
            machine.qmp.call("cont", deadline)
            machine.control.run("true", deadline)
        yield machine


@contextlib.contextmanager
def _console_in_errors(machine: Machine) -> Iterator[None]:
    try:
        yield
    except MachineError as error:
        raise MachineError(error.reason, machine.console()) from error
