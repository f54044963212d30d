"""One L1: a QEMU process of our own, booted or restored, and ended when we are done with it.

QEMU has no name that anybody else could reach: its monitor and L1's command port are socket pairs. It dies with the
thread that started it, by the kernel's doing (`setpriv --pdeathsig`), so that nothing stays behind whatever ends us.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hayfork_rig import base, recipe
from hayfork_rig.control import Control, Finished
from hayfork_rig.errors import MachineError, RigError
from hayfork_rig.qmp import Qmp

# Ample for a busy host: a restore takes a quarter of a second on an idle one.
ANSWER_SECONDS = 60.0
_CONSOLE_TAIL = 4000


@dataclass(frozen=True)
class Stored:
    """A stored L1.

    Attributes:
        base: Folder with kernel and initramfs. QEMU loads them again, though L1 does not look at them any more, since
            its machine must have the same parts as the stored one.
        folder: Folder with memory and state.
    """

    base: Path
    folder: Path

    @property
    def memory(self) -> Path:
        """L1's memory."""
        return self.folder / "memory"

    @property
    def state(self) -> Path:
        """Everything else of L1."""
        return self.folder / "state"


@dataclass(frozen=True)
class Disks:
    """L1's two disks, read-only; both may be used by any number of L1s at once."""

    tests: Path
    files: Path


def qemu() -> str:
    """The QEMU program: `HAYFORK_QEMU`, or the one of the usual name.

    Raises:
        RigError: There is none.
    """
    program = os.environ.get("HAYFORK_QEMU") or shutil.which("qemu-system-x86_64")
    if program is None:
        raise RigError("there is no qemu-system-x86_64: install the package qemu-system-x86")
    return program


def qemu_version() -> str:
    """The first line of QEMU's version."""
    done = subprocess.run([qemu(), "--version"], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.partition("\n")[0]


class Machine:
    """A running QEMU; a context manager that ends it.

    Args:
        stored: Where memory and state are or will be.
        disks: What goes in.
        storing: Boot, to be stored: memory is written to the file. Otherwise: wait to be restored; the file stays as
            it is.

    Attributes:
        control: Commands for L1.
        qmp: Commands for QEMU.
    """

    def __init__(self, stored: Stored, disks: Disks, *, storing: bool = False) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="hayfork-rig-"))
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            monitor, their_monitor = socket.socketpair()
            control, their_control = socket.socketpair()
            with their_monitor, their_control:
                passed = (their_monitor.fileno(), their_control.fileno())
                arguments = _arguments(
                    stored, disks, storing=storing, console=self._console, monitor=passed[0], control=passed[1]
                )
                self._process = self._start(arguments, passed)
            cleanup.pop_all()
        self._sockets = (monitor, control)
        self.qmp = Qmp(monitor)
        self.control = Control(control)

    @property
    def _console(self) -> Path:
        return self._scratch / "console"

    def _start(self, arguments: list[str], passed: tuple[int, ...]) -> subprocess.Popen[bytes]:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise RigError("there is no setpriv: install the package util-linux")
        with (self._scratch / "qemu.log").open("wb") as log:
            return subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", "--", qemu(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=passed,
            )

    def run(self, command: str, seconds: float) -> Finished:
        """Has L1's shell carry out one line; see `Control.run`. Errors carry the console's end."""
        try:
            return self.control.run(command, time.monotonic() + seconds)
        except MachineError as error:
            error.console = self.console()
            raise

    def console(self) -> str:
        """The end of L1's console, and what QEMU itself had to say."""
        parts = []
        for path in (self._console, self._scratch / "qemu.log"):
            with contextlib.suppress(OSError):
                parts.append(path.read_bytes()[-_CONSOLE_TAIL:].decode(errors="replace"))
        lines = "".join(parts).replace("\r", "").splitlines()
        # Said at each start, of features of the processor that do not matter here.
        return "\n".join(line for line in lines if "TCG doesn't support requested feature" not in line)

    def wait(self, seconds: float) -> None:
        """Waits for QEMU to end by itself.

        Raises:
            MachineError: It does not.
        """
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise MachineError("QEMU does not end") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for each in self._sockets:
            each.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _arguments(stored: Stored, disks: Disks, *, storing: bool, console: Path, monitor: int, control: int) -> list[str]:
    size = recipe.MEMORY_BYTES
    drive = "if=none,format=raw,readonly=on"
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *recipe.MACHINE,
        *("-m", f"{size >> 20}M", "-object"),
        # Private to this process when not storing.
        f"memory-backend-file,id=memory,size={size},mem-path={stored.memory},share={'on' if storing else 'off'}",
        *("-kernel", str(stored.base / base.KERNEL), "-initrd", str(stored.base / base.INITRAMFS)),
        *("-append", recipe.COMMAND_LINE),
        *("-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"),
        *("-chardev", f"file,id=console,path={console}", "-device", "isa-serial,index=0,chardev=console"),
        *("-chardev", f"socket,id=control,fd={control}", "-device", "isa-serial,index=1,chardev=control"),
        *("-drive", f"id=tests,file={disks.tests},{drive}", "-device", "virtio-blk-pci,drive=tests"),
        *("-drive", f"id=files,file={disks.files},{drive}", "-device", "virtio-blk-pci,drive=files"),
        *(() if storing else ("-incoming", "defer")),
    ]
