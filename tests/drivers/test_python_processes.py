"""Python driver: forked children, multiprocessing, threads (BEHAVIOURS 14, 15, 16)."""

from __future__ import annotations

import time

import pytest
from driver_harness import Driver

LANGUAGE = "python"


@pytest.mark.parametrize(
    ("child", "status", "out", "err"),
    [
        ("pass", 0, b"", b""),
        ("print('child')", 0, b"child\n", b""),
        ("import sys; sys.stdout.write('child')", 0, b"child", b""),
        ("import sys; sys.exit(3)", 3, b"", b""),
        ("import sys; sys.exit('why')", 1, b"", b"why\n"),
        ("print('child', end=''); os._exit(4)", 4, b"child", b""),
        ("raise KeyError(5)", 1, b"", b"KeyError: 5\n"),
        ("import atexit; atexit.register(print, 'at exit')", 0, b"at exit\n", b""),
        (
            "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
            0,
            b"thread\n",
            b"",
        ),
        ("display('shown')", 0, b"shown\n", b""),
        ("os.fork() == 0 and print('grandchild'); os.wait() if 0 else None", 0, b"grandchild\n", b""),
    ],
)
def test_forked_child_that_reaches_the_end(driver: Driver, child: str, status: int, out: bytes, err: bytes) -> None:
    code = (
        "import os\nprint('before')\nprint('partial', end='')\npid = os.fork()\n"
        f"if pid == 0:\n    {child}\nelse:\n    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "    import time; time.sleep(0.1)\n    print('parent', status)\n"
    )
    result = driver.run(code)
    assert result.exit_code == 0
    assert result.out == b"before\npartial" + out + f"parent {status}\n".encode()
    assert err in result.err if err else result.err == b""
    assert b"hayfork_driver" not in result.err
    assert result.of_kind("display") == []
    assert driver.run("print('next', pid > 0)").out == b"next True\n"


def test_exit_code_is_the_parents(driver: Driver) -> None:
    result = driver.run("import os, sys\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nsys.exit(3 if pid else 5)")
    assert (result.exit_code, result.died) == (3, False)


def test_child_that_outlives_its_execution(driver: Driver) -> None:
    result = driver.run(
        "import os, time\nif os.fork() == 0:\n    time.sleep(0.3)\n    print('late')\nelse:\n    print('parent')"
    )
    assert result.out == b"parent\n"
    assert driver.run("print('next')").out == b"next\n"
    driver.executions[0].wait_for_output(b"late\n", 5)


def test_fork_by_the_c_library(driver: Driver) -> None:
    code = "import ctypes, os\nlibc = ctypes.CDLL(None)\nif libc.fork() == 0: print('child')\nelse: os.wait(); print('parent')"
    assert driver.run(code).out == b"child\nparent\n"
    assert driver.run("print('next')").out == b"next\n"


def test_fork_in_async_code_and_in_threads(driver: Driver) -> None:
    code = "import os\nasync def f():\n    pid = os.fork()\n    if pid: os.waitpid(pid, 0)\n    print('child' if not pid else 'parent')\nawait f()"
    assert driver.run(code).out == b"child\nparent\n"
    code = (
        "import os, threading\ndef f():\n    pid = os.fork()\n    if pid == 0: print('child'); os._exit(0)\n    os.waitpid(pid, 0); print('parent')\n"
        "t = threading.Thread(target=f); t.start(); t.join()"
    )
    assert driver.run(code).out == b"child\nparent\n"


def test_many_children(driver: Driver) -> None:
    code = "import os\nfor i in range(20):\n    if os.fork() == 0:\n        print(i)\n        break\nelse:\n    for _ in range(20): os.wait()\n"
    result = driver.run(code)
    assert sorted(map(int, result.out.split())) == list(range(20))


def test_pool_with_functions_and_lambdas_of_all_kinds(driver: Driver) -> None:
    driver.run(
        "def square(x): return x * x\nfactor = 10\nscaled = lambda x: x * factor\ndef adder(n):\n    return lambda x: x + n"
    )
    driver.run("def outer(x):\n    def inner(y): return y and x + inner(y - 1)\n    return inner")
    driver.run(
        "import functools\ndef noisy(f):\n    @functools.wraps(f)\n    def wrapper(*a): return ('noisy', f(*a))\n    return wrapper\n@noisy\ndef g(x): return x"
    )
    driver.run(
        "class C:\n    def __init__(self, n): self.n = n\n    def m(self, x): return x + self.n\n    @staticmethod\n    def s(x): return -x\n    def __call__(self, x): return x * self.n"
    )
    code = (
        "from multiprocessing import Pool\n"
        "with Pool(2) as pool:\n"
        "    print(pool.map(square, range(3)), pool.map(lambda x: x + 1, range(3)), pool.map(scaled, range(3)), pool.map(adder(5), range(3)))\n"
        "    print(pool.map(outer(2), range(3)), pool.map(g, range(2)), pool.map(C(3).m, range(2)), pool.map(C.s, range(2)), pool.map(C(2), range(2)))\n"
        "    print(pool.starmap(lambda a, b=7, *, k=1: a + b + k, [(1, 2), (3,)]), pool.apply(functools.partial(lambda a, b: a - b, 9), (1,)))\n"
        "    print(pool.map(lambda f: f(3), [square, lambda x: -x]), pool.apply(lambda: (lambda q: q + 1))(1))\n"
    )
    result = driver.run(code)
    assert result.err == b""
    assert result.out.decode().splitlines() == [
        "[0, 1, 4] [1, 2, 3] [0, 10, 20] [5, 6, 7]",
        "[0, 2, 4] [('noisy', 0), ('noisy', 1)] [3, 4] [0, -1] [0, 2]",
        "[4, 11] 8",
        "[9, -3] 2",
    ]


def test_pool_that_lives_longer_than_an_execution(driver: Driver) -> None:
    driver.run("from multiprocessing import Pool\npool = Pool(2)\ndef f(x): return x")
    assert driver.run("def f(x): return x + 100\npool.map(f, range(3))").value == "[100, 101, 102]"
    assert driver.run("def late(x): return x * 2\npool.map(late, range(3))").value == "[0, 2, 4]"
    result = driver.run("pool.map(lambda x: 1 / x, [0])")
    assert result.error["name"] == "ZeroDivisionError"
    assert driver.run("pool.map(lambda x: x, [1]), pool.terminate()").value == "([1], None)"


def test_executors_and_processes(driver: Driver) -> None:
    code = "from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2) as e: print(list(e.map(lambda x: x * 2, range(4))))"
    assert driver.run(code).out == b"[0, 2, 4, 6]\n"
    code = (
        "import multiprocessing as mp\nq = mp.Queue()\np = mp.Process(target=lambda: (q.put('from child'), print('printed')))\n"
        "p.start(); print(q.get()); p.join(); print(p.exitcode)"
    )
    result = driver.run(code)
    assert sorted(result.out.split()) == [b"0", b"child", b"from", b"printed"]
    assert driver.run("p = mp.Process(target=lambda: 1/0); p.start(); p.join()\np.exitcode").value == "1"


def test_ordinary_pickling_is_untouched(driver: Driver) -> None:
    assert driver.run("import pickle\npickle.dumps(lambda: 0)").exit_code == 1
    assert driver.run("def f(): pass\npickle.loads(pickle.dumps(f)) is f").value == "True"


def test_threads_and_daemons_live_on(driver: Driver) -> None:
    driver.run(
        "import threading, queue\njobs, done = queue.Queue(), queue.Queue()\n"
        "def work():\n    while True: done.put(jobs.get() * 2)\n"
        "t = threading.Thread(target=work, daemon=True); t.start()"
    )
    assert driver.run("jobs.put(21)\ndone.get(timeout=5)").value == "42"
    assert driver.run("[t.name for t in threading.enumerate()] == ['MainThread', t.name]").value == "True"
    assert driver.run("threading.current_thread() is threading.main_thread()").value == "True"
    driver.run("import subprocess\nd = subprocess.Popen(['sleep', '30'])")
    assert driver.run("d.poll()").value is None
    assert driver.run("d.kill(); d.wait()").value == "-9"


def test_no_thread_of_ours(driver: Driver) -> None:
    assert driver.run("import os\nlen(os.listdir('/proc/self/task'))").value == "1"


WORK = "import asyncio\nticks = []\nasync def work():\n    for i in range(1000):\n        ticks.append(i); await asyncio.sleep(0.01)\n"


@pytest.mark.parametrize(
    "start", ["task = asyncio.create_task(work())", "task = asyncio.create_task(work())\nawait asyncio.sleep(0.03)"]
)
def test_tasks_of_the_event_loop_live_on(driver: Driver, start: str) -> None:
    driver.run(WORK + start)
    driver.run("await asyncio.sleep(0.05)")
    seen = int(driver.run("len(ticks)").value or 0)
    assert seen >= 2
    driver.settle(0.3)
    idle = int(driver.run("len(ticks)").value or 0)
    assert idle > seen + 5  # it went on while the session was idle
    assert driver.run("await asyncio.sleep(0.05)\ntask.done()").value == "False"
    assert (
        driver.run("task.cancel()\ntry: await task\nexcept asyncio.CancelledError: print('cancelled')").out
        == b"cancelled\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "task = asyncio.create_task(f())\nawait task",
        "loop = asyncio.get_running_loop()\nawait loop.create_task(f())",
        "x = [asyncio.create_task(f()) for _ in range(2)]\n[await t for t in x][0]",
        "x = asyncio.ensure_future(f())\nawait x",
        "async def g(): return await asyncio.create_task(f())\nasyncio.run(g())",
        "with asyncio.Runner() as r: x = r.run(f())\nx",
        "async with asyncio.TaskGroup() as g: t = g.create_task(f())\nt.result()",
    ],
)
def test_ways_to_use_the_loop(driver: Driver, code: str) -> None:
    driver.run("import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 5")
    result = driver.run(code)
    assert (result.value, result.err) == ("5", b"")


def test_async_objects_can_be_used_in_later_executions(driver: Driver) -> None:
    driver.run("import asyncio\nq = asyncio.Queue()\nlock = asyncio.Lock()\nawait q.put(1)")
    assert driver.run("async with lock: x = await q.get()\nx").value == "1"
    assert (
        driver.run(
            "[i async for i in agen()] if 0 else await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))"
        ).value
        == "[1, 2]"
    )
    assert (
        driver.run("async def agen():\n    for i in range(3): yield i\n[i async for i in agen()]").value == "[0, 1, 2]"
    )


def test_asyncio_run_works_beside_top_level_await(driver: Driver) -> None:
    driver.run("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x")
    assert driver.run("asyncio.run(f(1))").value == "1"
    assert driver.run("await f(2)").value == "2"
    assert driver.run("asyncio.run(f(3))").value == "3"
    assert driver.run("await f(4)").value == "4"
    assert driver.run("asyncio.new_event_loop().run_until_complete(f(5))").value == "5"


def test_event_loop_broken_by_the_user(driver: Driver) -> None:
    driver.run("import asyncio\nasync def g(): asyncio.get_running_loop().stop()\nawait asyncio.sleep(0)")
    driver.run("await g()")
    driver.run("await asyncio.sleep(0)")  # plain asyncio may still see the stop here
    assert driver.run("await asyncio.sleep(0, 'x')").value == "'x'"
    driver.run("asyncio.get_event_loop_policy().get_event_loop().close()")
    assert driver.run("await asyncio.sleep(0, 'y')").value == "'y'"


def test_task_that_does_not_yield_can_be_interrupted(driver: Driver) -> None:
    driver.run(
        "import asyncio, time\nasync def hog():\n    await asyncio.sleep(0.1)\n    while True: pass\nasync def b(): return asyncio.create_task(hog())\nt = await b()"
    )
    driver.settle(0.3)
    execution = driver.begin("print('never mind')")
    driver.settle(0.3)
    assert execution.result is None
    driver.interrupt()
    assert execution.finish(10).exit_code in (0, 130)
    assert driver.run("print('alive')").out == b"alive\n"


def test_errors_in_tasks_while_idle(driver: Driver) -> None:
    driver.run(
        "import asyncio, sys\nasync def bad():\n    await asyncio.sleep(0.05)\n    sys.exit(3)\nasync def b(): return asyncio.create_task(bad())\nt = await b()"
    )
    driver.settle(0.3)
    assert driver.run("print('alive')").out == b"alive\n"


def test_zombies_do_not_pile_up_from_us(driver: Driver) -> None:
    driver.run("import subprocess")
    for _ in range(5):
        driver.run("subprocess.run(['true'])")
    count = driver.run(
        "import os\nsum(' Z ' in open(f'/proc/{p}/stat').read() for p in os.listdir('/proc') if p.isdigit() and os.stat(f'/proc/{p}').st_uid == os.getuid() and open(f'/proc/{p}/stat').read().rpartition(')')[2].split()[1] == str(os.getpid()))"
    )
    assert count.value == "0"


def test_pool_is_quick_enough(driver: Driver) -> None:
    began = time.monotonic()
    driver.run("from multiprocessing import Pool\nwith Pool(2) as p: p.map(lambda x: x, range(100))")
    assert time.monotonic() - began < 10
