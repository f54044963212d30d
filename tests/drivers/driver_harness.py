"""Plays the guest agent's part for one language driver, on the host and without a virtual machine.

A driver is the process that keeps one interpreter alive inside the guest. It talks to the agent through FIFOs only
(`initramfs/drivers/README.md` has the contract). `Driver` makes the same folders and FIFOs with the same modes, starts the
driver from its `launch` and `launch.env` files, hands it code and collects what comes back:

    driver = Driver("python", folder)
    driver.start()
    result = driver.run("print(1)")          # Result(exit_code=0, out=b"1\\n", ...)
    execution = driver.begin("input()", stdin=b"x")
    execution.wait_for_output(b"...")        # output so far
    driver.interrupt()
    result = execution.finish()

All waiting happens in `Driver.pump`, one `select` loop with a deadline: a driver that hangs makes the test fail, not hang.

When the tests run as root the driver runs as uid and gid 1000 like in the guest, so that the modes of the FIFOs count.
The environment variable `HAYFORK_DRIVER_PYTHON` (`_JAVASCRIPT`, `_SHELL`) names another interpreter than that of the `launch` file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRIVERS = Path(__file__).resolve().parents[2] / "initramfs" / "drivers"
GUEST_DRIVERS = "/usr/lib/hayfork/"
GUEST_HOME = "/home/user"
USER = 1000
DEADLINE = 30.0
LONGEST_EVENT = 4096


class DriverTimeout(AssertionError):
    """The driver did not do in time what was waited for."""


@dataclass
class Record:
    """One structured result: its header and the bytes of each MIME part."""

    kind: str
    parts: dict[str, bytes]
    header: dict[str, Any]

    def text(self, mime: str = "text/plain") -> str:
        """The part of that MIME type as text."""
        return self.parts[mime].decode()


@dataclass
class Result:
    """What the agent knows of a finished execution. `died`: the driver process ended before it said `done`."""

    exit_code: int
    out: bytes
    err: bytes
    records: list[Record]
    died: bool = False

    def of_kind(self, kind: str) -> list[Record]:
        """The records of one kind, in order."""
        return [record for record in self.records if record.kind == kind]

    @property
    def value(self) -> str | None:
        """The plain text of the value of the last expression, if the execution gave one."""
        found = self.of_kind("result")
        return found[-1].text() if found else None

    @property
    def error(self) -> dict[str, Any]:
        """The header of the only error record."""
        (record,) = self.of_kind("error")
        return record.header


@dataclass
class Stream:
    """The agent's end of a FIFO that a driver writes to."""

    fd: int
    data: bytearray = field(default_factory=bytearray)

    def drain(self) -> None:
        """Takes what is there now, without waiting."""
        while True:
            try:
                piece = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                return
            self.data += piece


def parse_records(data: bytes, token: str) -> list[Record]:
    """Takes the records of one execution apart; anything that is not exactly in form is an error."""
    records = []
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        header = json.loads(data[at:end])
        assert header["token"] == token, header
        assert header["kind"] in {"result", "display", "error"}, header
        at = end + 1
        parts: dict[str, bytes] = {}
        for mime, length in header.get("parts", []):
            part = data[at : at + length]
            assert len(part) == length, (header, len(part))
            assert mime not in parts, header
            parts[mime] = part
            at += length
        records.append(Record(header["kind"], parts, header))
    return records


class Execution:
    """One execution in progress."""

    def __init__(self, driver: Driver, number: int, token: str, folder: Path, stdin: bytes | None) -> None:
        self.driver = driver
        self.number = number
        self.token = token
        self.folder = folder
        self.last = False
        self.streams: dict[str, Stream] = {}
        for name in ("out", "err", "results"):
            self.streams[name] = Stream(driver.make_fifo(folder / name, 0o200))
        self.stdin: bytearray | None = None
        self.stdin_open = False
        self.stdin_fd = -1
        if stdin is not None:
            os.mkfifo(folder / "in")
            driver.own(folder / "in", 0o400)
            self.stdin = bytearray(stdin)
        self.result: Result | None = None

    @property
    def out(self) -> bytes:
        """What came on descriptor 1 so far, background output after the end included."""
        return bytes(self.streams["out"].data)

    @property
    def err(self) -> bytes:
        """What came on descriptor 2 so far."""
        return bytes(self.streams["err"].data)

    def feed(self, data: bytes) -> None:
        """More standard input (only after `begin(..., keep_stdin_open=True)`)."""
        assert self.stdin is not None
        self.stdin += data

    def close_stdin(self) -> None:
        """End of standard input once everything fed has been taken."""
        self.stdin_open = False

    def push_stdin(self) -> None:
        """Writes what the driver takes now; closes when all is written."""
        if self.stdin is None:
            return
        if self.stdin_fd < 0:
            try:  # succeeds once the driver has opened its end
                self.stdin_fd = os.open(self.folder / "in", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return
        try:
            while self.stdin:
                del self.stdin[: os.write(self.stdin_fd, self.stdin[:4096])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.stdin.clear()
        if not self.stdin_open:
            os.close(self.stdin_fd)
            self.stdin_fd = -1
            self.stdin = None

    def wait_for_output(self, wanted: bytes, timeout: float = DEADLINE) -> None:
        """Until `wanted` has come on either stream."""
        self.driver.pump(lambda: wanted in self.out or wanted in self.err, timeout, f"output {wanted!r}")

    def finish(self, timeout: float = DEADLINE) -> Result:
        """Until the driver says `done` or dies."""
        self.driver.pump(lambda: self.result is not None, timeout, f"the end of execution {self.number}")
        assert self.result is not None
        return self.result

    def close(self, exit_code: int, *, died: bool) -> None:
        """Called by the driver object at the end: everything in the pipes now belongs to the result."""
        for stream in self.streams.values():
            stream.drain()
        # A driver that was ended may have been within a record; one that ends with its last execution is not.
        records = b"" if died and not self.last else bytes(self.streams["results"].data)
        self.result = Result(exit_code, self.out, self.err, parse_records(records, self.token), died)


class Driver:
    """A language driver and the FIFOs between it and us."""

    def __init__(self, language: str, folder: Path) -> None:
        self.language = language
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.as_user = os.geteuid() == 0
        if self.as_user:
            os.chown(self.home, USER, USER)
        self.generation = 0
        self.number = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.executions: list[Execution] = []
        self.retired: list[int] = []
        self.ready = False
        self.renewals = 0
        self.start_seconds = 0.0

    # Setting up ------------------------------------------------------------------------------------------------

    def own(self, path: Path, mode: int) -> None:
        """Gives a FIFO to the user code's owner with the mode of the contract."""
        if self.as_user:
            os.chown(path, USER, USER)
        path.chmod(mode)

    def make_fifo(self, path: Path, mode: int) -> int:
        """A FIFO that we hold open for reading and writing: nobody's open blocks, nobody sees its end."""
        os.mkfifo(path)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.own(path, mode)
        return fd

    def argv(self) -> list[str]:
        """The command of the `launch` file, with the guest's paths replaced by those of this checkout."""
        lines = (DRIVERS / self.language / "launch").read_text().splitlines()
        argv = [self._here(line) for line in lines if line]
        other = os.environ.get(f"HAYFORK_DRIVER_{self.language.upper()}")
        if other:
            argv[0] = other
        elif not Path(argv[0]).exists():
            found = shutil.which(Path(argv[0]).name)
            assert found is not None, f"{argv[0]} is not installed"
            argv[0] = found
        return argv

    def environment(self) -> dict[str, str]:
        """The variables of the `launch.env` file; nothing of our own environment reaches the driver."""
        lines = (DRIVERS / self.language / "launch.env").read_text().splitlines()
        return dict(self._here(line).split("=", 1) for line in lines if line)

    def _here(self, line: str) -> str:
        line = line.replace("{dir}", str(self.dir)).replace(GUEST_DRIVERS, f"{DRIVERS}/")
        return line.replace(GUEST_HOME, str(self.home))

    @property
    def dir(self) -> Path:
        """The context's folder, D in the contract."""
        return self.folder / f"context-{self.generation}"

    def start(self, timeout: float = DEADLINE) -> None:
        """Starts the driver process and waits until it is ready."""
        self.generation += 1
        self.dir.mkdir(mode=0o755)
        state = self.folder / "state"  # what outlives the driver process, D/state in the contract
        if not state.exists():
            state.mkdir()
            self.own(state, 0o700)
        (self.dir / "state").symlink_to(state)
        self.control = self.make_fifo(self.dir / "control", 0o400)
        self.events = Stream(self.make_fifo(self.dir / "events", 0o200))
        self.idle_out = Stream(self.make_fifo(self.dir / "idle.out", 0o200))
        self.idle_err = Stream(self.make_fifo(self.dir / "idle.err", 0o200))
        self.ready = False
        self.renewals = 0  # lines to renew that are not answered
        self.events_seen = 0
        began = time.monotonic()
        with (
            open("/dev/null", "rb") as nothing,
            open(self.dir / "idle.out", "wb") as out,
            open(self.dir / "idle.err", "wb") as err,
        ):
            self.process = subprocess.Popen(
                self.argv(),
                cwd=self.home,
                env=self.environment(),
                stdin=nothing,
                stdout=out,
                stderr=err,
                start_new_session=True,
                user=USER if self.as_user else None,
                group=USER if self.as_user else None,
                extra_groups=[] if self.as_user else None,
                umask=0o022,
            )
        self.pump(lambda: self.ready, timeout, "the driver to be ready")
        self.start_seconds = time.monotonic() - began

    def stop(self) -> None:
        """Ends every process of the driver's session and closes our descriptors."""
        if self.process is None:
            return
        for pid in self.session():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)
        for stream in (self.events, self.idle_out, self.idle_err):
            os.close(stream.fd)
        os.close(self.control)
        for execution in self.executions:
            for stream in execution.streams.values():
                os.close(stream.fd)
            if execution.stdin_fd >= 0:
                os.close(execution.stdin_fd)
        self.executions.clear()
        self.process = None

    def session(self) -> list[int]:
        """The processes of the driver's session, and those that left it but still carry its environment."""
        assert self.process is not None
        found = []
        mark = os.fsencode(self.home)
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
                    environment = Path(f"/proc/{entry}/environ").read_bytes()
                except OSError:
                    continue
                fields = stat.rpartition(")")[2].split()
                if fields[0] != "Z" and (int(fields[3]) == self.process.pid or mark in environment):
                    found.append(int(entry))
        return found

    @property
    def pid(self) -> int:
        """The driver's process number."""
        assert self.process is not None
        return self.process.pid

    # Executions ------------------------------------------------------------------------------------------------

    def begin(
        self,
        code: str | bytes,
        *,
        env: dict[str, str] | None = None,
        stdin: bytes | None = None,
        keep_stdin_open: bool = False,
        last: bool = False,
    ) -> Execution:
        """Hands code to the driver, starting a fresh one if the last one has ended. With `last`, it ends with the code."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self.start()
        assert all(execution.result is not None for execution in self.executions), "one execution at a time"
        for old in self.executions[:-16]:  # select() has room for about a thousand descriptors
            for stream in old.streams.values():
                os.close(stream.fd)
            self.executions.remove(old)
        self.number += 1
        folder = self.dir / str(self.number)
        folder.mkdir(mode=0o755)
        token = uuid.uuid4().hex
        code_file = folder / "code"
        code_file.write_bytes(code.encode() if isinstance(code, str) else code)
        code_file.chmod(0o444)
        if env:
            (folder / "env").write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in env.items()))
            (folder / "env").chmod(0o444)
        execution = Execution(self, self.number, token, folder, b"" if keep_stdin_open and stdin is None else stdin)
        execution.stdin_open = keep_stdin_open
        execution.last = last
        self.executions.append(execution)
        has = (execution.stdin is not None) + 2 * bool(env)
        os.write(self.control, f"exec {self.number} {token} {has} {last:d} <cell {self.number}>\n".encode())
        return execution

    def run(
        self,
        code: str | bytes,
        *,
        env: dict[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float = DEADLINE,
    ) -> Result:
        """One execution from start to end."""
        return self.begin(code, env=env, stdin=stdin).finish(timeout)

    def run_last(
        self,
        code: str | bytes,
        *,
        env: dict[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float = DEADLINE,
    ) -> Result:
        """One execution from start to end, which must be the driver's own end."""
        result = self.begin(code, env=env, stdin=stdin, last=True).finish(timeout)
        assert result.died, "the driver said `done` instead of ending"
        return result

    def renew(self, seed: int | str, *, wait: bool = True, timeout: float = DEADLINE) -> None:
        """Has the driver renew its random numbers, from a seed that is made of `seed`."""
        self.renewals += 1
        os.write(self.control, f"renew {hashlib.sha256(str(seed).encode()).hexdigest()}\n".encode())
        if wait:
            self.pump(lambda: self.renewals == 0, timeout, "the driver to be renewed")

    def interrupt(self) -> None:
        """What the agent does for an interrupt: a file for the execution, then SIGINT to the driver's process group."""
        if self.executions and self.executions[-1].result is None:
            (self.dir / str(self.number) / "interrupted").touch(0o444)
        os.killpg(self.pid, signal.SIGINT)

    def quiesce(self, timeout: float = DEADLINE) -> None:
        """Until the driver sleeps and no signal waits for it (on a busy machine that takes a while), or has ended."""

        def asleep() -> bool:
            if self.process is None or self.process.poll() is not None:
                return True
            fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
            return fields["State"].startswith("S") and int(fields["ShdPnd"], 16) == int(fields["SigPnd"], 16) == 0

        self.pump(asleep, timeout, "the driver to sleep")

    # Waiting ---------------------------------------------------------------------------------------------------

    def pump(self, until: Callable[[], bool], timeout: float, what: str) -> None:
        """Moves bytes both ways until `until()` holds; `DriverTimeout` when it does not come true in time."""
        deadline = time.monotonic() + timeout
        while True:
            self.move()
            if until():
                return
            if time.monotonic() > deadline:
                raise DriverTimeout(f"waited {timeout} s for {what}; {self.describe()}")
            streams = [stream.fd for stream in self.streams()]
            select.select(streams, [], [], 0.005)

    def settle(self, seconds: float = 0.2) -> None:
        """Moves bytes for a while: for tests that something does NOT happen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.move()
            select.select([stream.fd for stream in self.streams()], [], [], 0.005)

    def streams(self) -> list[Stream]:
        """Every FIFO that we read."""
        found = [self.events, self.idle_out, self.idle_err]
        for execution in self.executions:
            found.extend(execution.streams.values())
        return found

    def move(self) -> None:
        """One round: takes what is there, pushes standard input, notices events and the driver's death."""
        ended = self.process.poll() if self.process else None
        for stream in self.streams():
            stream.drain()
        running = next((one for one in self.executions if one.result is None), None)
        if running:
            running.push_stdin()
        while (end := self.events.data.find(b"\n", self.events_seen)) >= 0:
            line = bytes(self.events.data[self.events_seen : end])
            self.events_seen = end + 1
            self.take_event(line, running)
        if ended is not None:
            assert self.ready, f"the driver ended with {ended} before it was ready; {self.describe()}"
            if running and running.result is None:
                running.close(128 - ended if ended < 0 else ended, died=True)

    def take_event(self, line: bytes, running: Execution | None) -> None:
        """One line from the driver.

        Anything but `ready` once, `renewed` when asked for and `<token> done <code>` fails the test.
        """
        assert len(line) < LONGEST_EVENT
        if line == b"ready":
            assert not self.ready, "a second ready"
            self.ready = True
            return
        if line == b"renewed":
            assert self.renewals > 0, "renewed without a reason"
            self.renewals -= 1
            return
        assert running is not None, f"event {line!r} while nothing runs"
        assert running.result is None, f"event {line!r} after the end"
        token, word, code = line.decode().split(" ")
        assert (token, word) == (running.token, "done"), line
        assert code == str(int(code)) and 0 <= int(code) <= 255, line
        running.close(int(code), died=False)

    def describe(self) -> str:
        """For failure messages: everything that came so far."""
        text = [f"idle.out {bytes(self.idle_out.data)[-2000:]!r}", f"idle.err {bytes(self.idle_err.data)[-4000:]!r}"]
        if self.executions:
            last = self.executions[-1]
            text += [f"out {last.out[-2000:]!r}", f"err {last.err[-4000:]!r}"]
        if self.process:
            text.append(f"process {self.process.pid} returned {self.process.poll()}")
        return "; ".join(text)
