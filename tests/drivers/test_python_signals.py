"""Python driver: interrupts and signals (BEHAVIOURS 9, 11, and "as Ctrl-C" in the driver contract)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from driver_harness import Driver

LANGUAGE = "python"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(100)",
        "import asyncio\nawait asyncio.sleep(100)",
        "async def f():\n    while True: pass\nawait f()",
        "import asyncio\nasyncio.run(asyncio.sleep(100))",
        "import threading\nthreading.Event().wait()",
        "import subprocess\nsubprocess.run(['sleep', '100'])",
        "import queue\nqueue.Queue().get()",
        "class R:\n    def __repr__(self):\n        while True: pass\nR()",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        "import os\nos.read(os.pipe()[0], 1)",
    ],
)
def test_interrupt_ends_the_code_and_keeps_the_state(driver: Driver, code: str) -> None:
    driver.run("x = 1")
    execution = driver.begin("print('go')\n" + code)
    execution.wait_for_output(b"go")
    driver.settle(0.8 if "await" in code or "asyncio" in code else 0.15)
    driver.interrupt()
    result = execution.finish(10)
    assert not result.died
    if "E(Exception)" in code:
        assert result.exit_code == 1
    else:
        assert result.exit_code == 130
        assert result.err.decode().rstrip().endswith("KeyboardInterrupt")
        assert b"hayfork_driver" not in result.err
        assert result.err.decode().split("\n")[1].startswith('  File "<cell 2>"') or "asyncio.run" in code
        assert result.error["name"] == "KeyboardInterrupt"
    assert driver.run("print(x)").out == b"1\n"


def test_interrupt_shows_the_line_that_was_awaiting(driver: Driver) -> None:
    execution = driver.begin("import asyncio\nasync def f():\n    print('go')\n    await asyncio.sleep(100)\nawait f()")
    execution.wait_for_output(b"go")
    driver.settle(0.1)
    driver.interrupt()
    err = execution.finish().err.decode()
    assert 'File "<cell 1>", line 5' in err
    assert 'File "<cell 1>", line 4, in f' in err
    assert "base_events" not in err


def test_interrupted_code_may_clean_up(driver: Driver) -> None:
    code = "import time\ntry:\n    print('go')\n    time.sleep(100)\nfinally:\n    print('cleaned')"
    execution = driver.begin(code)
    execution.wait_for_output(b"go")
    driver.interrupt()
    assert execution.finish().out == b"go\ncleaned\n"
    code = "import asyncio\ntry:\n    print('go')\n    await asyncio.sleep(100)\nfinally:\n    await asyncio.sleep(0.01)\n    print('cleaned')"
    execution = driver.begin(code)
    execution.wait_for_output(b"go")
    driver.settle(0.3)
    driver.interrupt()
    assert execution.finish().out == b"go\ncleaned\n"


def test_interrupt_that_is_caught(driver: Driver) -> None:
    code = "import time\ntry:\n    print('go')\n    time.sleep(100)\nexcept KeyboardInterrupt:\n    print('caught')"
    execution = driver.begin(code)
    execution.wait_for_output(b"go")
    driver.interrupt()
    result = execution.finish()
    assert (result.exit_code, result.out) == (0, b"go\ncaught\n")


def test_idle_driver_ignores_interrupts(driver: Driver) -> None:
    for _ in range(3):
        driver.quiesce()
        driver.interrupt()
        driver.quiesce()
    result = driver.run("print(1)")
    assert (result.exit_code, result.out, result.err) == (0, b"1\n", b"")
    assert bytes(driver.idle_err.data) == b""


@pytest.mark.parametrize("code", ["pass", "print('x')", "1/0", "await nothing", "import sys; sys.exit(2)", "'value'"])
def test_interrupts_at_any_moment_lose_nothing(driver: Driver, code: str) -> None:
    """Interrupts strewn over the whole course of short executions: each of them ends, each with a code of its own or 130."""
    driver.run("kept = 1\nimport traceback, asyncio")
    expected = {0, 130, 1 if code in ("1/0", "await nothing") else 0, 2 if "exit" in code else 0}
    for number in range(60):
        execution = driver.begin(code)
        until = time.monotonic() + number * 0.00015
        while time.monotonic() < until:
            pass
        driver.interrupt()
        result = execution.finish(10)
        assert not result.died
        assert result.exit_code in expected, result
        assert b"hayfork_driver" not in result.err, result.err.decode()
        assert result.err == b"" or result.err.startswith((b"Traceback", b"KeyboardInterrupt")), result.err
    driver.quiesce()
    assert driver.run("print(kept)").out == b"1\n"
    assert bytes(driver.idle_err.data) == b""


def test_storm_of_interrupts_from_inside(driver: Driver) -> None:
    driver.run(
        "import os, signal, threading, time\n"
        "stop = threading.Event()\n"
        "def storm():\n"
        "    while not stop.is_set(): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.0005)\n"
        "t = threading.Thread(target=storm, daemon=True)\n"
    )
    driver.run("t.start()")
    for _ in range(30):
        result = driver.run("sum(range(100))", timeout=10)
        assert not result.died
        assert result.exit_code in (0, 130)
        assert b"hayfork_driver" not in result.err
    for _ in range(50):
        if driver.run("stop.set()").exit_code == 0:
            break
    driver.settle(0.1)
    assert driver.run("print('calm')").out == b"calm\n"


def test_handler_of_the_user_for_interrupts_lasts_but_does_not_run_while_idle(driver: Driver) -> None:
    driver.run("import signal\ndef h(s, f): print('mine')\nsignal.signal(signal.SIGINT, h)")
    driver.quiesce()
    driver.interrupt()
    driver.quiesce()
    execution = driver.begin("import time\nprint('go')\ntime.sleep(0.4)\nprint('end')")
    execution.wait_for_output(b"go")
    driver.interrupt()
    assert execution.finish().out == b"go\nmine\nend\n"
    assert driver.run("signal.getsignal(signal.SIGINT) is h").value == "True"
    assert b"mine" not in driver.idle_out.data
    driver.run("signal.signal(signal.SIGINT, signal.SIG_DFL)")
    driver.quiesce()
    driver.interrupt()
    driver.quiesce()
    assert driver.run("print('alive')").out == b"alive\n"
    execution = driver.begin("print('go')\ntime.sleep(100)")
    execution.wait_for_output(b"go")
    driver.interrupt()
    result = execution.finish()
    assert (result.exit_code, result.died) == (130, True)


def test_default_handler_looks_like_the_default_handler(driver: Driver) -> None:
    assert driver.run("import signal\nsignal.getsignal(signal.SIGINT) is signal.default_int_handler").value == "True"
    execution = driver.begin(
        "import asyncio\nasync def f():\n    try:\n        print('go'); await asyncio.sleep(100)\n"
        "    except asyncio.CancelledError:\n        print('cancelled'); raise\nasyncio.run(f())"
    )
    execution.wait_for_output(b"go")
    driver.interrupt()
    result = execution.finish()
    assert (result.exit_code, result.out) == (130, b"go\ncancelled\n")


@pytest.mark.parametrize("delay", [0.0005, 0.001, 0.002, 0.004, 0.05, 0.2])
def test_alarm_that_raises_long_after_its_execution(driver: Driver, delay: float) -> None:
    driver.run("import signal\ndef h(s, f): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, h)\nkept = 1")
    for _ in range(10):
        result = driver.run(f"signal.setitimer(signal.ITIMER_REAL, {delay})")
        assert result.exit_code in (0, 1)
        assert b"hayfork_driver" not in result.err
        driver.settle(delay * 1.5)
    result = driver.run("print(kept)")
    assert (result.exit_code, result.out) == (0, b"1\n")
    assert b"hayfork_driver" not in driver.idle_err.data
    if delay > 0.01:
        assert driver.idle_err.data.count(b"TimeoutError: late") == 10


def test_alarm_storm(driver: Driver) -> None:
    driver.run("import signal\ndef h(s, f): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, h)")
    driver.run("signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)")
    for _ in range(40):
        result = driver.run("x = sum(range(1000))", timeout=10)
        assert not result.died
        assert b"hayfork_driver" not in result.err
    for _ in range(200):
        if driver.run("signal.setitimer(signal.ITIMER_REAL, 0)").exit_code == 0:
            break
    assert driver.run("print('calm')").out == b"calm\n"


def test_signal_mask_and_handlers_of_the_user_last(driver: Driver) -> None:
    driver.run("import signal, os\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])")
    assert driver.run("signal.pthread_sigmask(signal.SIG_BLOCK, [])").value == "{<Signals.SIGUSR1: 10>}"
    driver.run(
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])\nsignal.signal(signal.SIGUSR1, lambda *a: print('usr1'))"
    )
    assert driver.run("os.kill(os.getpid(), signal.SIGUSR1)").out == b"usr1\n"
    os.kill(driver.pid, signal.SIGUSR1)
    driver.settle(0.1)
    assert bytes(driver.idle_out.data) == b"usr1\n"


def test_children_have_ordinary_signals(driver: Driver) -> None:
    result = driver.run(
        "import subprocess\nprint(subprocess.run(['grep', 'Sig', '/proc/self/status'], capture_output=True, text=True).stdout)"
    )
    fields = dict(line.split(":") for line in result.out.decode().split("\n") if ":" in line)
    assert int(fields["SigBlk"], 16) == 0
    # Python itself ignores SIGPIPE and SIGXFSZ, and gives them back to children. What this process was started with is
    # not the driver's doing.
    ours = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    inherited = int(ours["SigIgn"], 16) & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
    assert int(fields["SigIgn"], 16) & ~inherited == 0


def test_sigterm_kills_an_idle_driver(driver: Driver) -> None:
    os.kill(driver.pid, signal.SIGTERM)
    driver.settle(0.3)
    assert driver.process is not None
    assert driver.process.poll() == -signal.SIGTERM
