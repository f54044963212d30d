"""Commands for L1, with a thread in L1's place."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hayfork_rig.control import Control, OutOfTimeError
from hayfork_rig.errors import MachineError

Answer = Callable[[bytes, bytes], bytes]


@pytest.fixture
def pair() -> Iterator[tuple[Control, socket.socket]]:
    """The host's end, and what QEMU would have."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Control(ours), theirs


def soon() -> float:
    """A deadline that is not meant to be reached."""
    return time.monotonic() + 20


def answer(theirs: socket.socket, how: Answer) -> threading.Thread:
    """Answers one command; `how` gets its token and the rest of the line."""

    def run() -> None:
        token, _, command = theirs.recv(4096).rstrip(b"\n").partition(b" ")
        for byte in how(token, command):
            theirs.sendall(bytes([byte]))  # a serial port hands on bytes one by one

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_output_and_status_come_back(pair: tuple[Control, socket.socket]) -> None:
    control, theirs = pair
    thread = answer(theirs, lambda token, command: b"did " + command + b"\n\n" + token + b" 101\n")
    done = control.run("this && that", soon())
    thread.join()
    assert (done.status, done.text) == (101, "did this && that\n")


def test_what_a_program_prints_does_not_end_its_output(pair: tuple[Control, socket.socket]) -> None:
    control, theirs = pair
    thread = answer(
        theirs, lambda token, _: b"\n0123456789abcdef000001 0\n\n" + token[:-1] + b" 0\n\n" + token + b" 7\n"
    )
    done = control.run("true", soon())
    thread.join()
    assert done.status == 7
    assert done.output.count(b"\n") == 4


def test_the_boots_end_is_waited_for(pair: tuple[Control, socket.socket]) -> None:
    control, theirs = pair
    theirs.sendall(b"ready\n")
    control.wait_until_ready(soon())
    theirs.sendall(b"no /dev/kvm\n")
    with pytest.raises(MachineError, match="no /dev/kvm"):
        control.wait_until_ready(soon())


def test_silence_is_told_apart_from_the_end(pair: tuple[Control, socket.socket]) -> None:
    control, theirs = pair
    thread = answer(theirs, lambda _token, _command: b"so far")
    with pytest.raises(OutOfTimeError) as caught:
        control.run("sleep 1000", time.monotonic() + 0.5)
    thread.join()
    assert caught.value.output == b"so far"
    theirs.close()
    with pytest.raises(MachineError, match="has ended"):
        control.run("true", soon())


def test_a_command_is_one_line_of_bounded_length(pair: tuple[Control, socket.socket]) -> None:
    control, _ = pair
    for command in ("two\nlines", "x" * 4000):
        with pytest.raises(ValueError, match="no command"):
            control.run(command, soon())
