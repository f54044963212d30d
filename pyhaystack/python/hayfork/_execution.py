"""Follows a running execution or command to its end, and hands its output to callbacks on the way."""

from __future__ import annotations

import codecs
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from hayfork import errors
from hayfork._calls import Operation
from hayfork._native import NativeError, Run
from hayfork.models import Execution, ExecutionError, Result, RunsOn, Timings

_log = logging.getLogger("hayfork")

_STDIN_PIECE = 64 * 1024

OnText = Callable[[str], object]
OnResult = Callable[[Result], object]
Stdin = bytes | str | IO[bytes] | IO[str]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Whom to tell while it runs. One that raises is not called again; the others and the result are complete."""

    on_stdout: OnText | None = None
    on_stderr: OnText | None = None
    on_result: OnResult | None = None


class Callback:
    """Calls until it raises."""

    def __init__(self, name: str, function: Callable[..., object] | None) -> None:
        self._name = name
        self._function = function

    def __call__(self, *values: Any) -> None:
        if self._function is None:
            return
        try:
            self._function(*values)
        except Exception:  # noqa: BLE001 - whatever it raises is the caller's own affair, and logged
            self._function = None
            _log.exception("%s raised an exception and is not called again", self._name)


class _Text:
    """One output stream: bytes cut anywhere become text."""

    def __init__(self, callback: Callback) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._callback = callback
        self._pieces: list[str] = []

    def bytes(self, content: bytes, *, final: bool = False) -> None:
        self.text(self._decode(content, final))

    def text(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._callback(text)

    def __str__(self) -> str:
        return "".join(self._pieces)


class Collector:
    """Gathers the events of one run."""

    def __init__(self, callbacks: Callbacks, runs_on: RunsOn, boot: float = 0.0) -> None:
        self._stdout = _Text(Callback("on_stdout", callbacks.on_stdout))
        self._stderr = _Text(Callback("on_stderr", callbacks.on_stderr))
        self._on_result = Callback("on_result", callbacks.on_result)
        self._results: list[Result] = []
        self._error: ExecutionError | None = None
        self._end: tuple[Any, ...] | None = None
        self._truncated = False
        self._runs_on = runs_on
        self._boot = boot
        self._began = time.monotonic()
        self.pid: int | None = None
        self.failure: errors.SandboxError | None = None
        self.omitted = {"stdout": 0, "stderr": 0}

    @property
    def ended(self) -> bool:
        """Whether its end has come."""
        return self._end is not None or self.failure is not None

    def feed(self, events: list[tuple[Any, ...]]) -> None:
        """Take the next events."""
        if not events and not self.ended:
            self.failure = errors.from_code("cancelled", "the execution was abandoned", "")
        for event in events:
            match event:
                case ("stdout", content):
                    self._stdout.bytes(content)
                case ("stderr", content):
                    self._stderr.bytes(content)
                case ("started", pid):
                    self.pid = pid
                case ("bundle", kind, data):
                    result = Result(data, is_main_result=kind == "result")
                    self._results.append(result)
                    self._on_result(result)
                case ("exception", name, value, traceback):
                    self._error = ExecutionError(name, value, traceback)
                case ("omitted", stderr, count):
                    self._leave_out("stderr" if stderr else "stdout", count)
                case ("failed", code, message, remedy):
                    self.failure = errors.from_code(code, message, remedy)
                case ("finished", *_):
                    self._end = event
        if self.ended:
            self._stdout.bytes(b"", final=True)
            self._stderr.bytes(b"", final=True)

    def _leave_out(self, stream: str, count: int) -> None:
        self._truncated = True
        self.omitted[stream] += count
        text = self._stderr if stream == "stderr" else self._stdout
        text.bytes(b"", final=True)
        text.text(f"\n[... {count:,} bytes left out ...]\n")

    def result(self) -> Execution:
        """Make the result, or raise what ended it."""
        if self.failure is not None:
            raise self.failure
        if self._end is None:
            raise errors.CommunicationError("the execution has not ended")
        _, status, exit_code, state_reset, timings = self._end
        return Execution(
            stdout=str(self._stdout),
            stderr=str(self._stderr),
            exit_code=exit_code,
            status=status,
            results=self._results,
            error=self._error,
            truncated=self._truncated,
            state_reset=state_reset,
            timings=Timings(
                boot=self._boot,
                queued=timings["queued"],
                spawn=timings["spawn"],
                run=timings["run"],
                total=self._boot + time.monotonic() - self._began,
            ),
            runs_on=self._runs_on,
        )


def follow(run: Run, collector: Collector) -> Operation[Execution]:
    """Follow a run to its end. If the caller is interrupted, the run is ended."""
    try:
        while not collector.ended:
            events = yield run.next()
            collector.feed(events)
    except BaseException:
        run.abandon()
        raise
    return collector.result()


def feed_stdin(run: Run, stdin: Stdin | None) -> None:
    """Send standard input while the run goes on."""
    if stdin is None:
        return
    if isinstance(stdin, str):
        stdin = stdin.encode()
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        run.feed_stdin(bytes(stdin))
        return
    # A stream may block for ever, so it is read on a thread that nobody waits for.
    threading.Thread(target=_pump, args=(run, stdin), name="hayfork-stdin", daemon=True).start()


def _pump(run: Run, stream: IO[bytes] | IO[str]) -> None:
    read = getattr(stream, "read1", stream.read)
    try:
        while piece := read(_STDIN_PIECE):
            call = run.write_stdin(piece.encode() if isinstance(piece, str) else piece)
            call.wait()
            call.result()
    except (NativeError, RuntimeError):
        return  # the program has ended without reading all of it
    except Exception:  # noqa: BLE001 - a caller's stream may raise anything; it is logged
        _log.exception("reading the stream given as stdin failed")
    run.close_stdin()
