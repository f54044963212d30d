"""Worker processes: `isolation="worker"` runs each VM in a confined process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import hayfork
import pytest

PROGRAM = "hayfork-worker"

# Workers are not dumpable, so what they have open is for root to see.
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what a worker has open")


@pytest.fixture(scope="module", autouse=True)
def on_the_monitor():
    with hayfork.Sandbox.create(language="shell", isolation="worker") as sandbox:
        if sandbox.runs_on.backend != "monitor":
            pytest.skip(f"the monitor does not run here: {sandbox.runs_on.fallback or sandbox.runs_on.backend}")


def workers(parent: int | None = None) -> list[int]:
    """Worker processes of that process, this one by default, that are alive."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or (folder / "comm").read_text().strip() != PROGRAM[:15]:
                continue
            state, ppid = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX" and int(ppid) == (parent or os.getpid()):
            found.append(int(folder.name))
    return sorted(found)


def wait_for(what, limit=10.0):
    end = time.monotonic() + limit
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_results_name_it():
    with hayfork.Sandbox.create(isolation="worker") as sandbox:
        assert sandbox.runs_on.place == "worker"
        assert sandbox.run_code("1 + 1").runs_on.place == "worker"
        assert "worker" in str(sandbox.runs_on)
    for isolation in ("process", "auto"):
        with hayfork.Sandbox.create(isolation=isolation, backend="monitor") as sandbox:
            assert sandbox.runs_on.place == "process"


def test_the_scheduler_takes_it_too():
    with hayfork.SyncScheduler(hayfork.SchedulerConfig(isolation="worker")) as scheduler:
        assert scheduler.run(code="print(3)", language="python", timeout_seconds=60).stdout == "3\n"


def test_another_name_is_refused():
    with pytest.raises(hayfork.errors.VmConfigError, match=r"process.*worker"):
        hayfork.Sandbox.create(isolation="container")


def test_the_doctor_and_the_command_line_know_it():
    def hayfork_command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "hayfork.cli", *arguments, "--json", "--isolation", "worker"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return json.loads(done.stdout)

    checks = {check["name"]: check for check in hayfork_command("doctor")["checks"]}
    assert "worker process" in checks["isolation"]["message"]
    assert hayfork_command("run", "--code", "print(1)")["place"] == "worker"


def test_each_has_a_process_and_it_goes_with_it():
    before = set(workers())
    with (
        hayfork.Sandbox.create(language="shell", isolation="worker") as one,
        hayfork.Sandbox.create(language="shell", isolation="worker") as two,
    ):
        assert len({one._native.id, two._native.id}) == 2
        # Beside those two there is at most one that waits for the next.
        assert 2 <= len(set(workers()) - before) <= 3
    wait_for(lambda: len(workers()) <= max(1, len(before)))


def test_the_process_is_confined():
    with hayfork.Sandbox.create(language="shell", isolation="worker"):
        for pid in workers():
            status = dict(
                line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
            )
            assert status["Seccomp"] == "2"
            assert status["NoNewPrivs"] == "1"
            assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapInh"], 16) == 0
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert any(line.split()[-3:-1] == ["0", "0"] for line in limits.splitlines() if "core file" in line)
            if os.geteuid() == 0:
                assert Path(f"/proc/{pid}/environ").read_bytes() == b""


@as_root
def test_the_death_of_a_worker_ends_its_sandbox_and_no_other():
    with hayfork.Sandbox.create(language="shell", isolation="worker") as other:
        sandbox = hayfork.Sandbox.create(language="shell", isolation="worker")
        running = sandbox.commands.start("sleep 60")
        victims = [pid for pid in workers() if is_running_a_machine(pid)]
        assert len(victims) == 2
        newest = max(victims, key=started)
        os.kill(newest, signal.SIGKILL)
        with pytest.raises(hayfork.errors.SandboxError) as caught:
            running.wait()
        assert caught.value.code == "outcome_unknown"
        assert "signal 9" in str(caught.value)
        with pytest.raises(hayfork.errors.SessionClosedError):
            sandbox.commands.run("true")
        assert other.commands.run("echo alive").stdout == "alive\n"
    with hayfork.Sandbox.create(language="shell", isolation="worker") as after:
        assert after.commands.run("echo new").stdout == "new\n"


def is_running_a_machine(pid: int) -> bool:
    folder = f"/proc/{pid}/fd"
    return any("kvm-vm" in os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder))


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_sigkill_of_this_process_leaves_none():
    code = """
        import os, signal, sys, hayfork
        sandboxes = [hayfork.Sandbox.create(language="shell", isolation="worker") for _ in range(2)]
        print("up", flush=True)
        signal.pause()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"HAYFORK_TEMPLATES": "off"},  # whose making has workers too
    )
    try:
        assert process.stdout.readline() == "up\n"
        theirs = workers(process.pid)
        assert 2 <= len(theirs) <= 3
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in theirs), 5)


@as_root
def test_forks_live_in_workers_of_their_own():
    with hayfork.Sandbox.create(isolation="worker") as sandbox:
        sandbox.run_code("x = 41")
        forks = sandbox.fork(3)
        try:
            assert [fork.run_code("x += 1; print(x)").stdout for fork in forks] == ["42\n"] * 3
            assert {fork.runs_on.place for fork in forks} == {"worker"}
            assert sum(is_running_a_machine(pid) for pid in workers()) >= 4
            assert sandbox.run_code("print(x)").stdout == "41\n"
        finally:
            for fork in forks:
                fork.close()


def test_a_missing_program_is_an_error_with_a_remedy(tmp_path):
    code = """
        import hayfork
        try:
            hayfork.Sandbox.create(language="shell", isolation="worker", backend="monitor")
        except hayfork.errors.VmDependencyError as error:
            print(error.code, "isolation=" in error.remedy)
        print(hayfork.run("print(1)", isolation="worker", backend="auto", timeout=60).runs_on.place)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"HAYFORK_WORKER": str(tmp_path / "none"), "HAYFORK_BACKEND": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # What cannot run in a worker does not run in this process instead.
    assert done.stdout == "worker_missing True\nqemu\n", done.stderr
