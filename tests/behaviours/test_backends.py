"""What runs the machines: named in every result, chosen by name, and never replaced without a word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap

import hayfork
import pytest

WALLS = {"hardware", "emulation", "kvm_pvm"}


def check(runs_on):
    assert runs_on.backend in ("monitor", "qemu")
    assert runs_on.accelerator in ("kvm", "tcg")
    assert runs_on.isolation in WALLS
    assert runs_on.isolates
    # The kernel made for kvm_pvm runs there and nowhere else, and has no wall of its own.
    assert (runs_on.kernel == "pvm") == (runs_on.isolation == "kvm_pvm")
    assert ("only wall" in runs_on.isolates) == (runs_on.isolation == "kvm_pvm")
    if runs_on.backend == "monitor":
        assert runs_on.fallback is None


def test_every_result_names_what_ran_it_and_what_isolates(python):
    check(python.runs_on)
    assert python.run_code("1").runs_on == python.runs_on
    assert python.commands.run("true").runs_on == python.runs_on
    handle = python.commands.start("true")
    assert handle.wait().runs_on == python.runs_on
    assert python.boot["backend"] == python.runs_on.backend
    assert python.runs_on.backend in str(python.runs_on)


def test_qemu_by_name_is_qemu():
    execution = hayfork.run("print(6 * 7)", backend="qemu", timeout=60)
    assert execution.stdout == "42\n"
    check(execution.runs_on)
    assert (execution.runs_on.backend, execution.runs_on.kernel, execution.runs_on.fallback) == ("qemu", "plain", None)


def test_the_scheduler_names_it_too():
    with hayfork.SyncScheduler(hayfork.SchedulerConfig(backend="qemu")) as scheduler:
        result = scheduler.run(code="print(1)", language="python", timeout_seconds=60)
    assert (result.backend, result.kernel) == ("qemu", "plain")
    assert result.isolation in WALLS


def without_kvm(*command: str, **env: str) -> subprocess.CompletedProcess:
    """Runs a command that sees an empty file in the place of /dev/kvm, or nothing if the host has none."""
    hidden = 'if [ -e /dev/kvm ]; then mount --bind /dev/null /dev/kvm; fi && exec "$@"'
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("hiding /dev/kvm takes root and unshare")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden, "sh", *command],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=180,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"/dev/kvm cannot be hidden here: {done.stderr}")
    return done


def test_without_kvm_it_falls_back_to_qemu_and_says_why():
    done = without_kvm(sys.executable, "-m", "hayfork.cli", "run", "--json", "print(6 * 7)", HAYFORK_BACKEND="auto")
    result = json.loads(done.stdout)
    assert result["stdout"] == "42\n", done.stderr
    assert (result["backend"], result["accelerator"], result["kernel"]) == ("qemu", "tcg", "plain")
    assert result["fallback"]
    timings = without_kvm(sys.executable, "-m", "hayfork.cli", "run", "--timings", "print(1)", HAYFORK_BACKEND="auto")
    assert timings.stdout == "1\n"
    assert f"not the monitor: {result['fallback']}" in timings.stderr
    assert "isolation: " in timings.stderr


def test_the_monitor_by_name_is_the_monitor_or_an_error():
    done = without_kvm(
        sys.executable,
        "-c",
        textwrap.dedent(
            """
            import hayfork
            try:
                hayfork.run("print(1)", backend="monitor")
            except hayfork.SandboxError as error:
                print(error.code, bool(error.remedy))
            """
        ),
    )
    assert done.stdout == "accelerator_unusable True\n", done.stderr


def test_doctor_says_what_would_run_and_what_isolates():
    doctor = subprocess.run(
        [sys.executable, "-m", "hayfork.cli", "doctor", "--json"], capture_output=True, timeout=120, check=True
    )
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    with hayfork.Sandbox.create() as sandbox:
        runs_on = sandbox.runs_on
    assert checks["backend"]["message"].startswith(f"{runs_on.backend}: ")
    assert f"kernel {runs_on.kernel}" in checks["backend"]["message"]
    # What stands behind the virtual machine comes after that.
    assert checks["isolation"]["message"].startswith(f"{runs_on.isolation}: {runs_on.isolates}; behind it is")
    if runs_on.fallback:
        assert runs_on.fallback in checks["backend"]["message"]
        assert checks["backend"]["remedy"]
