"""BEHAVIOURS 18 to 24: state of a session."""

from __future__ import annotations

import threading
import time

import hayfork
import pytest


def test_variables_stay_over_a_hundred_executions(python):
    python.run_code("n = 0")
    for _ in range(100):
        python.run_code("n += 1")
    assert python.run_code("n").text == "100"


def test_python_state_of_every_kind_survives(python):
    python.run_code(
        "import math, os\nclass C:\n    def m(self): return math.sqrt(16)\nos.makedirs('sub', exist_ok=True); os.chdir('sub')"
    )
    assert python.run_code("C().m(), os.path.basename(os.getcwd())").text == "(4.0, 'sub')"
    python.run_code("os.chdir('..')")


def test_shell_state_of_every_kind_survives(shell):
    shell.run_code("v=1; a=(x 'y z'); f() { echo \"f $1\"; }; mkdir -p d; cd d; shopt -s extglob; set -o pipefail")
    execution = shell.run_code(
        "echo $v ${a[1]}; f 2; basename $PWD; shopt -q extglob && echo on; set -o | grep pipefail"
    )
    assert execution.stdout.split() == ["1", "y", "z", "f", "2", "d", "on", "pipefail", "on"]


def test_javascript_declarations_may_be_repeated(javascript):
    for value in (1, 2):
        assert javascript.run_code(f"const a = {value}; let b = a + 1; class K {{ v() {{ return b }} }}").exit_code == 0
    assert javascript.run_code("console.log(a, b, new K().v())").stdout == "2 3 3\n"


def test_user_names_never_collide_with_ours(python):
    names = [
        "code",
        "exit_code",
        "ns",
        "sentinel",
        "display",
        "driver",
        "run",
        "cell",
        "globals_",
        "namespace",
        "token",
        "result",
    ]
    python.run_code("; ".join(f"{name} = {i}" for i, name in enumerate(names)), context=3)
    values = python.run_code(f"[{', '.join(names)}]", context=3).text
    assert values == str(list(range(len(names))))
    assert python.run_code("__name__").text == "'__main__'"
    python.close_context(3)
    fresh = hayfork.run("print(sorted(n for n in globals() if not n.startswith('__')))")
    assert fresh.stdout == "[]\n"


def test_annotations_are_not_strings_and_future_imports_work(python):
    assert python.run_code("def f(x: int) -> str: ...\nf.__annotations__['x'] is int").text == "True"
    assert python.run_code("from __future__ import annotations\nprint('fine')").stdout == "fine\n"


def test_top_level_await_and_the_last_value(python, javascript):
    assert python.run_code("import asyncio\nawait asyncio.sleep(0.01)\n6 * 7").text == "42"
    assert javascript.run_code("await new Promise(r => setTimeout(r, 10)); 6 * 7").text == "42"
    assert python.run_code("x = 1").results == []
    assert python.run_code("None").results == []


def test_display_hooks_give_mime_bundles(python):
    execution = python.run_code(
        "class Shown:\n    def _repr_html_(self): return '<b>hi</b>'\n    def _repr_png_(self): return b'\\x89PNG\\r\\n'\n"
        "display(Shown())\nShown()"
    )
    shown, last = execution.results
    assert (shown.html, shown.png, shown.is_main_result) == ("<b>hi</b>", b"\x89PNG\r\n", False)
    assert (last.html, last.is_main_result) == ("<b>hi</b>", True)


def test_written_modules_import_at_once(python):
    python.run_code("import os")
    for value in (1, 2):
        python.files.write(f"module{value}.py", f"value = {value}")
        assert python.run_code(f"import module{value}; module{value}.value").text == str(value)


def test_typescript_modules_and_globals(javascript):
    code = """
import { join } from 'node:path';
interface Point { x: number; y: number }
enum Colour { Red = 1, Green }
const p: Point = { x: 1, y: 2 } as Point;
const fs = await import('node:fs');
console.log(join('a', 'b'), p.x + p.y, Colour.Green, typeof fs.readFileSync);
console.log("import(x) const a = require('y')", `import(${1})`);
console.log([setImmediate, WebSocket, Worker, MessageChannel, File, Buffer, fetch].every(g => typeof g === 'function'), [] instanceof Array);
"""
    execution = javascript.run_code(code)
    assert execution.stdout == "a/b 3 2 function\nimport(x) const a = require('y') import(1)\ntrue true\n", execution


def test_concurrent_calls_run_in_order_and_never_mix(python):
    python.run_code("log = []")
    results = {}

    def call(i):
        results[i] = python.run_code(
            f"import time\nfor _ in range(3):\n    print({i}, flush=True); time.sleep(.05)\nlog.append({i})"
        )

    threads = []
    for i in range(4):
        threads.append(threading.Thread(target=call, args=(i,)))
        threads[-1].start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert [results[i].stdout for i in range(4)] == [f"{i}\n" * 3 for i in range(4)]
    assert python.run_code("log").text == "[0, 1, 2, 3]"


def test_files_and_interrupts_work_while_code_runs(python):
    done = []

    def busy():
        done.append(
            python.run_code(
                "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print(open('late').read())"
            )
        )

    thread = threading.Thread(target=busy)
    thread.start()
    time.sleep(1)
    python.files.write("late", "written meanwhile")
    assert python.files.read("late") == "written meanwhile"
    assert python.commands.run("cat late").stdout == "written meanwhile"
    python.interrupt()
    thread.join(30)
    assert done[0].stdout == "written meanwhile\n"


def test_idle_time_closes_and_use_resets_it():
    with hayfork.Sandbox.create(idle_timeout=3) as sandbox:
        for _ in range(3):
            time.sleep(1.5)
            sandbox.run_code("1")
        deadline = time.monotonic() + 20
        while sandbox.is_running and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not sandbox.is_running
        with pytest.raises(hayfork.SessionClosedError):
            sandbox.run_code("1")


def test_closing_twice_is_fine_and_use_after_it_an_error():
    sandbox = hayfork.Sandbox.create()
    sandbox.kill()
    sandbox.kill()
    with pytest.raises(hayfork.SessionClosedError):
        sandbox.run_code("1")
    with pytest.raises(hayfork.SessionClosedError):
        sandbox.files.write("a", b"")


def test_contexts_keep_their_own_variables(python):
    python.run_code("v = 'zero'")
    python.run_code("v = 'one'", context=1)
    assert python.run_code("v").text == "'zero'"
    assert python.run_code("v", context=1).text == "'one'"
    python.close_context(1)


def test_two_sandboxes_at_once_do_not_mix():
    with hayfork.Sandbox.create() as one, hayfork.Sandbox.create() as two:
        one.run_code("who = 'one'")
        two.run_code("who = 'two'")
        one.files.write("who", "one")
        assert one.run_code("who").text == "'one'"
        assert two.run_code("who").text == "'two'"
        assert not two.files.exists("who")
