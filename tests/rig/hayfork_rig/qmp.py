"""QEMU's machine protocol (QMP): one JSON object a line, both ways."""

from __future__ import annotations

import json
import socket
import time

from hayfork_rig.errors import MachineError


class Qmp:
    """QEMU's end of `sock` is a monitor in control mode. Events are of no interest here."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = b""

    def greet(self, deadline: float) -> None:
        """Takes QEMU's greeting and answers it.

        Args:
            deadline: By `time.monotonic`, here and below.

        Raises:
            MachineError: QEMU has ended, or says nothing in time.
        """
        self._message(deadline)
        self.call("qmp_capabilities", deadline)

    def give(self, name: str, descriptor: int, deadline: float) -> None:
        """Gives QEMU a copy of a descriptor, which later commands may name.

        Raises:
            MachineError: As `call`.
        """
        self._call("getfd", deadline, {"fdname": name}, [descriptor])

    def call(self, command: str, deadline: float, **arguments: object) -> dict[str, object]:
        """Has QEMU carry out a command, and gives what it returns.

        Raises:
            MachineError: QEMU refuses, has ended, or says nothing in time.
        """
        # Names of arguments have hyphens in QMP.
        return self._call(command, deadline, {name.replace("_", "-"): value for name, value in arguments.items()}, [])

    def _call(
        self, command: str, deadline: float, arguments: dict[str, object], descriptors: list[int]
    ) -> dict[str, object]:
        line = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        try:
            # Commands are short, so that they are sent whole.
            socket.send_fds(self._socket, [line], descriptors)
        except OSError as error:
            raise MachineError(f"QEMU has ended before {command}") from error
        while True:
            answer = self._message(deadline)
            if "error" in answer:
                raise MachineError(f"QEMU refuses {command}: {answer['error']}")
            if "return" in answer:
                value = answer["return"]
                return value if isinstance(value, dict) else {}

    def _message(self, deadline: float) -> dict[str, object]:
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                raise MachineError("QEMU's monitor says nothing")
            self._socket.settimeout(left)
            try:
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                piece = b""
            if not piece:
                raise MachineError("QEMU has ended")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise MachineError(f"QEMU's monitor says {line!r}")
        return message
