"""BEHAVIOURS 14 to 17: processes and threads."""

from __future__ import annotations

import time

import hayfork


def test_forked_children_neither_double_nor_lose_output(python):
    code = """
import os, sys
print('before')
pid = os.fork()
if pid == 0:
    print('child')
    sys.exit(5)
os.waitpid(pid, 0)
print('parent')
sys.exit(3)
"""
    execution = python.run_code(code)
    assert execution.exit_code == 3
    assert sorted(execution.stdout.split()) in (
        ["before", "child", "parent"],
        ["before", "before", "child", "parent"],  # unflushed buffers are copied by fork in plain Python as well
    )
    assert python.run_code("print('one')").stdout == "one\n"


def test_a_child_that_falls_off_the_end_does_not_join_the_session(python):
    code = "import os\nif os.fork() == 0:\n    print('child', flush=True)\nelse:\n    os.wait()\n    print('parent')"
    execution = python.run_code(code)
    assert sorted(execution.stdout.split()) == ["child", "parent"]
    assert python.run_code("print('one')").stdout == "one\n"


def test_a_pool_takes_lambdas_and_earlier_functions(python):
    python.run_code("def square(x): return x * x")
    execution = python.run_code(
        "import multiprocessing\nwith multiprocessing.Pool(2) as pool:\n"
        "    print(pool.map(square, range(4)), pool.map(lambda x: x + 1, range(3)))"
    )
    assert execution.stdout == "[0, 1, 4, 9] [1, 2, 3]\n", execution


def test_threads_and_daemons_survive_and_zombies_are_reaped(python):
    python.run_code(
        "import threading, time, subprocess\nticks = []\n"
        "def tick():\n    while True:\n        ticks.append(1); time.sleep(.05)\n"
        "threading.Thread(target=tick, daemon=True).start()\n"
        "daemon = subprocess.Popen(['sleep', '300'])\n"
        "subprocess.run(['sh', '-c', 'sleep 0.1 & sleep 0.1 & exit 0'])"
    )
    before = int(python.run_code("len(ticks)").text)
    time.sleep(1)
    assert int(python.run_code("len(ticks)").text) > before
    assert python.run_code("daemon.poll() is None").text == "True"
    zombies = python.run_code(
        "import glob\nprint([p for p in glob.glob('/proc/[0-9]*/stat') if ') Z ' in open(p).read()])"
    )
    assert zombies.stdout == "[]\n"


def test_output_of_background_work_is_kept_apart(python):
    python.run_code(
        "import threading, time\n"
        "def later():\n    time.sleep(.7); print('from behind', flush=True)\n"
        "threading.Thread(target=later).start()"
    )
    time.sleep(2)
    assert python.run_code("print('mine')").stdout == "mine\n"
    assert "from behind" in python.background_output()[0]


def test_bombs_are_contained():
    with hayfork.Sandbox.create(timeout=30) as sandbox:
        forks = sandbox.run_code(
            "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(100)\n            os._exit(0)\n"
            "        n += 1\nexcept OSError as error:\n    print(n < 5000, type(error).__name__)",
            timeout=20,
        )
        assert "True BlockingIOError" in forks.stdout or forks.status in ("timeout", "oom"), forks
        files = sandbox.run_code(
            "try:\n    for i in range(10**7): open(f'f{i}', 'w').close()\nexcept OSError as error: print(error.errno)",
            timeout=25,
        )
        assert files.stdout in ("28\n", "122\n") or files.status in ("timeout", "oom"), files
        disk = sandbox.commands.run("rm -rf f*; head -c 1000000000 /dev/zero > big; rm -f big")
        assert disk.status in ("ok", "error", "oom")
        assert sandbox.run_code("print('alive')").stdout == "alive\n"
