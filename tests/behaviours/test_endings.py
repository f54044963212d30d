"""BEHAVIOURS 9 to 13: exit codes, signals, time."""

from __future__ import annotations

import time

import hayfork
import pytest


@pytest.mark.parametrize(
    ("argument", "code"),
    [("0", 0), ("3", 3), ("None", 0), ("'msg'", 1), ("True", 1), ("256", 0), ("-1", 255)],
)
def test_sys_exit(python, argument, code):
    python.run_code("kept = 1")
    execution = python.run_code(f"import sys; print('before'); sys.exit({argument})")
    assert execution.exit_code == code
    assert execution.status == ("ok" if code == 0 else "error")
    assert execution.stdout == "before\n"
    assert python.run_code("print(kept)").stdout == "1\n"


def test_a_hard_exit_keeps_output_and_says_that_state_is_gone(python):
    execution = python.run_code("import os, sys; kept = 1; print('out', flush=True); os._exit(42)")
    assert (execution.exit_code, execution.stdout, execution.state_reset) == (42, "out\n", True)
    assert python.run_code("'kept' in globals()").text == "False"


def test_a_segmentation_fault(python):
    execution = python.run_code("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (execution.exit_code, execution.state_reset) == (139, True)
    assert python.run_code("print('alive')").stdout == "alive\n"


def test_a_timeout_that_yields_keeps_state_and_output(python):
    # The first traceback imports what prints it. That takes seconds under emulation on a busy host, and an interpreter
    # that has not yielded after five of them is ended.
    python.run_code("1 / 0")
    began = time.monotonic()
    execution = python.run_code("kept = 7\nprint('part', flush=True)\nimport time; time.sleep(60)", timeout=3)
    took = time.monotonic() - began
    assert execution.status == "timeout"
    assert execution.stdout == "part\n"
    assert 2.5 < took < 10
    assert not execution.state_reset
    assert python.run_code("print(kept)").stdout == "7\n"


def test_a_timeout_that_does_not_yield_is_killed(python):
    python.run_code("import signal, subprocess")  # takes seconds under emulation
    code = """
child = subprocess.Popen(['sleep', '1000'])
print(child.pid, flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    pass
"""
    execution = python.run_code(code, timeout=3)
    assert (execution.status, execution.state_reset) == ("timeout", True)
    pid = int(execution.stdout)
    assert python.run_code(f"import os; print(os.path.exists('/proc/{pid}'))").stdout == "False\n"


def test_children_of_a_timed_out_execution_are_gone(python):
    python.run_code("import subprocess, time")  # takes seconds under emulation
    code = "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)\ntime.sleep(60)"
    pid = int(python.run_code(code, timeout=3).stdout)
    state = python.run_code(
        f"import os; print(os.path.exists('/proc/{pid}') and open('/proc/{pid}/stat').read().split()[2])"
    )
    assert state.stdout in ("False\n", "Z\n")


def test_interrupt_is_ctrl_c(python):
    import threading

    python.run_code("kept = 5")
    threading.Timer(1.5, python.interrupt).start()
    execution = python.run_code(
        "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('caught')\n    raise"
    )
    assert execution.stdout == "caught\n"
    assert execution.exit_code == 130
    assert python.run_code("print(kept)").stdout == "5\n"


def test_memory_exhaustion_ends_the_code_only():
    with hayfork.Sandbox.create(memory_mb=256, timeout=60) as sandbox:
        execution = sandbox.run_code("blocks = []\nwhile True: blocks.append(bytearray(10**7))")
        assert execution.status == "oom"
        assert sandbox.run_code("print('alive')").stdout == "alive\n"


def test_tracebacks_show_the_users_lines_and_none_of_ours(python):
    execution = python.run_code("def f(x):\n    return 1 / x\n\nf(0)\n")
    assert execution.exit_code == 1
    lines = execution.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "line 4" in lines[1]
    assert "    f(0)" in execution.stderr
    assert "return 1 / x" in execution.stderr
    assert "driver" not in execution.stderr
    assert "hayfork" not in execution.stderr
    assert execution.error is not None
    assert (execution.error.name, execution.error.value) == ("ZeroDivisionError", "division by zero")


@pytest.mark.parametrize("code", ["def f(): f()\nf()", "x ="])
def test_recursion_and_syntax_errors_keep_the_session(python, code):
    python.run_code("kept = 9")
    assert python.run_code(code).exit_code == 1
    assert python.run_code("print(kept)").stdout == "9\n"


def test_a_last_run_ends_as_a_python_program_does(python):
    code = """
import atexit, threading, time
atexit.register(print, "bye")
threading.Thread(target=lambda: (time.sleep(1), print("thread"))).start()
print("end of code")
6 * 7
"""
    execution = python.run_code(code, last=True)
    assert (execution.stdout, execution.stderr) == ("end of code\nthread\nbye\n", "")
    assert (execution.text, execution.exit_code, execution.state_reset) == ("42", 0, True)
    assert execution.timings.run >= 1
    assert python.run_code("print('threading' in globals())").stdout == "False\n"
    endless = python.run_code(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()", last=True, timeout=3
    )
    assert endless.status == "timeout"


def test_a_last_run_ends_as_a_javascript_program_does(javascript):
    code = "setTimeout(() => { console.log('later'); process.exitCode = 3 }, 500); 'now'"
    execution = javascript.run_code(code, last=True)
    assert (execution.stdout, execution.text, execution.exit_code) == ("later\n", '"now"', 3)
    # Another interpreter starts within that time, of a translated guest on a loaded host too.
    endless = javascript.run_code("setInterval(() => {}, 1000); console.log('go')", last=True, timeout=12)
    assert (endless.status, endless.stdout) == ("timeout", "go\n")
    assert javascript.run_code("console.log(1)").stdout == "1\n"


def test_a_last_run_ends_as_a_shell_program_does(shell):
    execution = shell.run_code("trap 'echo bye $?' EXIT; echo hi; exit 4", last=True)
    assert (execution.stdout, execution.exit_code) == ("hi\nbye 4\n", 4)
    assert shell.run_code("echo alive").stdout == "alive\n"


def test_other_languages_give_exit_codes(javascript, shell):
    assert javascript.run_code("process.exit(3)").exit_code == 3
    assert javascript.run_code("throw new Error('no')").exit_code == 1
    assert shell.run_code("(exit 4)").exit_code == 4
    assert shell.run_code("exit 3").exit_code == 3
    assert shell.run_code("echo alive").stdout == "alive\n"
