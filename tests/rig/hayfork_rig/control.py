"""Commands for L1 over its second serial port; `init.sh` is the other end."""

from __future__ import annotations

import itertools
import re
import secrets
import socket
import time
from dataclasses import dataclass

from hayfork_rig.errors import MachineError

READY = b"ready\n"
# What L1's line discipline holds for a reader that is late; longer commands would lose their end.
_LONGEST_COMMAND = 3000
# More than any test prints; a test in an endless loop that prints must not fill the host's memory.
_MOST_OUTPUT = 16 << 20


@dataclass(frozen=True)
class Finished:
    """A command's end.

    Attributes:
        status: As the shell has it: the exit code, or 128 and the signal's number.
        output: What it printed on both streams.
    """

    status: int
    output: bytes

    @property
    def text(self) -> str:
        """The output as text."""
        return self.output.decode(errors="replace")


class OutOfTimeError(MachineError):
    """L1 did not finish a command in time. `output` is what the command had printed by then."""

    def __init__(self, command: str, output: bytes) -> None:
        super().__init__(f"not finished in time: {command}")
        self.output = output


class Control:
    """The host's end of the port. One command at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = b""
        # A program cannot print what ends its own output, since it does not know this.
        self._secret = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def wait_until_ready(self, deadline: float) -> None:
        """Waits for the end of L1's boot.

        Args:
            deadline: By `time.monotonic`, here and below.

        Raises:
            MachineError: L1 has ended, has no `/dev/kvm`, or says nothing in time.
        """
        while READY not in self._received:
            if b"no /dev/kvm" in self._received:
                raise MachineError("L1 has no /dev/kvm")
            self._receive(deadline, "boot")
        self._received = b""

    def run(self, command: str, deadline: float) -> Finished:
        """Has L1's shell carry out one line.

        Raises:
            OutOfTimeError: It is not done in time. L1 is of no further use then.
            MachineError: L1 has ended.
        """
        token = f"{self._secret}{next(self._numbers):06}"
        line = f"{token} {command}\n".encode()
        if len(line) > _LONGEST_COMMAND or b"\n" in line[:-1]:
            raise ValueError(f"no command for L1: {command!r}")
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._socket.sendall(line)
        except OSError as error:
            raise MachineError(f"L1 has ended before: {command}") from error
        end = re.compile(rb"\n" + token.encode() + rb" (\d+)\n")
        while True:
            # The end is at the end: nothing comes after it until the next command.
            found = end.search(self._received, max(len(self._received) - 64, 0))
            if found is not None:
                output = self._received[: found.start()]
                self._received = self._received[found.end() :]
                return Finished(int(found[1]), output)
            self._receive(deadline, command)

    def _receive(self, deadline: float, command: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or len(self._received) > _MOST_OUTPUT:
            raise OutOfTimeError(command, self._received)
        self._socket.settimeout(left)
        try:
            piece = self._socket.recv(1 << 16)
        except TimeoutError:
            return
        except OSError:
            piece = b""
        if not piece:
            raise MachineError(f"L1 has ended during: {command}")
        self._received += piece
