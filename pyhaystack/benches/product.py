"""The product's figures, measured from outside as a user has them: whole processes, median of several runs.

Run by `make bench`. Prints each figure beside its target; it never fails for a figure, since absolute times depend
on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import firecracker
import hayfork

MIB = 1 << 20


def cold_run(language: str, code: str, backend: str | None = None) -> float:
    """Seconds from the start of a `hayfork run` process to the first byte that the user's code prints."""
    chosen = [] if backend is None else ["--backend", backend]
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "hayfork.cli", "run", "-q", "-l", language, *chosen, code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        if process.stdout.read(1) != b"x":
            raise SystemExit("the program did not print what it should")
        return time.monotonic() - began


def median(measure: Callable[[], float], runs: int) -> float:
    """Median of that many measurements, after one that is not counted."""
    measure()
    return statistics.median(measure() for _ in range(runs))


class Zeros(io.RawIOBase):
    """A stream of that many bytes which takes no memory."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """Read a piece."""
        piece = bytes(min(size, self.left))
        self.left -= len(piece)
        return piece


class Sink(io.RawIOBase):
    """Takes everything and keeps nothing."""

    def write(self, content: object) -> int:
        """Count a piece."""
        return len(content)  # type: ignore[arg-type]


def in_process_run() -> float:
    """Seconds of a run with a new VM in a process that has the library already."""
    began = time.monotonic()
    if hayfork.run("print('x')").stdout != "x\n":
        raise SystemExit("the program did not print what it should")
    return time.monotonic() - began


def agent_ready() -> float:
    """Milliseconds from the start of the virtual processors to the agent's answer."""
    with hayfork.Sandbox.create() as sandbox:
        return (float(sandbox.boot["total"]) - float(sandbox.boot["launch"])) * 1000


def fork_figures(runs: int) -> dict[str, float]:
    """Sandboxes that go on where another stood, Python warm, handed out with everything renewed; in milliseconds."""

    def timed(make: Callable[[], hayfork.Sandbox]) -> float:
        began = time.monotonic()
        made = make()
        took = (time.monotonic() - began) * 1000
        if made.run_code("print(x)").stdout != "1\n":
            raise SystemExit("a fork does not have what the original had")
        made.kill()
        return took

    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code("x = 1")
        try:
            kept = sandbox.snapshot()
        except hayfork.UnsupportedOptionError:
            return {}
        return {
            "fork_ms": median(lambda: timed(sandbox.fork), max(runs, 20)),
            "restore_ms": median(lambda: timed(kept.restore), max(runs, 20)),
        }


def comparison(runs: int, runs_on: str) -> dict[str, float]:
    """The same cold run by other means, where this host has them."""
    figures: dict[str, float] = {}
    if not runs_on.startswith("qemu"):
        figures["cold_python_qemu_s"] = median(lambda: cold_run("python", "print('x')", "qemu"), runs)
    binary = firecracker.binary()
    if binary is not None and runs_on.startswith("monitor"):
        images = Path(os.environ["HAYFORK_IMAGES_DIR"])
        kernel = "vmlinux-pvm" if "pvm" in runs_on else "vmlinux"
        parameters = firecracker.guest_parameters()
        figures["firecracker_python_s"] = median(lambda: firecracker.cold_run(binary, images, kernel, parameters), runs)
    return figures


def session_figures(runs: int) -> dict[str, float]:
    """Figures of one living session."""
    with hayfork.Sandbox.create(memory_mb=512) as sandbox:
        figures = {"boot_s": float(sandbox.boot["total"])}

        def execute() -> float:
            began = time.monotonic()
            if sandbox.run_code("print(1)").stdout != "1\n":
                raise SystemExit("the session did not print what it should")
            return time.monotonic() - began

        figures["execution_ms"] = median(execute, max(runs, 20)) * 1000
        size = 100_000_000
        began = time.monotonic()
        sandbox.files.write("big", Zeros(size))
        figures["upload_mb_s"] = size / 1e6 / (time.monotonic() - began)
        began = time.monotonic()
        sandbox.files.download("big", Sink())
        figures["download_mb_s"] = size / 1e6 / (time.monotonic() - began)
        digest = sandbox.run_code("import hashlib; print(hashlib.file_digest(open('big', 'rb'), 'md5').hexdigest())")
        if digest.stdout.strip() != hashlib.md5(bytes(size), usedforsecurity=False).hexdigest():
            raise SystemExit("the file did not arrive whole")
        stats = sandbox.stats()
        figures["agent_pss_mib"] = stats.agent_pss_bytes / MIB
        if stats.host_overhead_bytes is not None:
            figures["vm_private_mib"] = stats.host_overhead_bytes / MIB
        return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # A run is cold if no earlier one has left anything.
    os.environ.setdefault("HAYFORK_TEMPLATE_CACHE_MB", "0")
    figures = {
        "cold_python_s": median(lambda: cold_run("python", "print('x')"), options.runs),
        "cold_javascript_s": median(lambda: cold_run("javascript", "console.log('x')"), options.runs),
        "cold_shell_s": median(lambda: cold_run("shell", "echo x"), options.runs),
        "run_in_process_s": median(in_process_run, options.runs),
        "agent_ready_ms": median(agent_ready, options.runs),
        **session_figures(options.runs),
        **fork_figures(options.runs),
    }
    with hayfork.Sandbox.create() as sandbox:
        runs_on = str(sandbox.runs_on)
    figures |= comparison(options.runs, runs_on)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"on {runs_on}, median of {options.runs}")
    for name, text, target in (
        ("cold_python_s", "`hayfork run`, start to first user byte, python, s", 4.0),
        ("cold_python_qemu_s", "the same, under QEMU, s", None),
        ("firecracker_python_s", "Firecracker, same kernel and root, python as init, s", None),
        ("run_in_process_s", "`hayfork.run` of a process that runs already, s", None),
        ("cold_javascript_s", "the same, javascript, s", None),
        ("cold_shell_s", "the same, shell, s", None),
        ("boot_s", "VM start to agent, s", None),
        ("agent_ready_ms", "first KVM_RUN (or start of QEMU) to agent, ms", None),
        ("execution_ms", "execution in a living session, end to end, ms", 30.0),
        ("fork_ms", "fork of a python sandbox, until it is handed out, ms", None),
        ("restore_ms", "restore of a kept one, until it is handed out, ms", None),
        ("upload_mb_s", "upload, MB/s", None),
        ("download_mb_s", "download, MB/s", None),
        ("agent_pss_mib", "agent and init after a 100 MB transfer, PSS, MiB", 4.0),
        ("vm_private_mib", "QEMU's private memory without guest RAM, MiB", 48.0),
    ):
        if name in figures:
            aim = "" if target is None else f"   (target: at most {target:g})"
            print(f"  {text:<52} {figures[name]:8.2f}{aim}")


if __name__ == "__main__":
    main()
