"""The last execution of a context ends with its interpreter, as a program of the language ends."""

from __future__ import annotations

import time

import pytest
from conftest import MakeDriver
from driver_harness import Driver

LANGUAGES = ("python", "javascript", "shell")

# All languages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys; print(x, sys.stdin.read(), end='')\nimport os; os.environ['A']"),
        ("javascript", "process.stdout.write(x + ' ' + require('fs').readFileSync(0)); process.env.A"),
        ("shell", 'printf "%s %s" "$x" "$(cat)"; [ "$A" = b ]'),
    ],
)
def test_state_input_environment_and_value_are_as_ever(make_driver: MakeDriver, language: str, code: str) -> None:
    driver = make_driver(language)
    driver.run({"python": "x = 'kept'", "javascript": "let x = 'kept'", "shell": "x=kept"}[language])
    result = driver.run_last(code, stdin=b"input", env={"A": "b"})
    assert (result.exit_code, result.out, result.err) == (0, b"kept input", b"")
    assert result.value == {"python": "'b'", "javascript": '"b"', "shell": None}[language]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys; sys.stdout.write('x' * 300_000 + 'end'); sys.exit(7)"),
        ("javascript", "process.stdout.write('x'.repeat(300_000) + 'end'); process.exit(7)"),
        ("shell", "head -c 300000 /dev/zero | tr '\\0' x; printf end; exit 7"),
    ],
)
def test_exit_codes_and_what_was_printed_before(make_driver: MakeDriver, language: str, code: str) -> None:
    result = make_driver(language).run_last(code)
    assert (result.exit_code, result.out, result.err) == (7, b"x" * 300_000 + b"end", b"")


@pytest.mark.parametrize(
    ("language", "code"),
    [("python", "1 +"), ("python", "1 / 0"), ("javascript", "let a = ;"), ("javascript", "throw new TypeError('no')")],
)
def test_errors(make_driver: MakeDriver, language: str, code: str) -> None:
    result = make_driver(language).run_last(code)
    assert result.exit_code == 1
    assert result.error["name"] in ("SyntaxError", "ZeroDivisionError", "TypeError")
    assert result.error["traceback"].strip() in result.err.decode()


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_next_execution_gets_a_fresh_interpreter(make_driver: MakeDriver, language: str) -> None:
    driver = make_driver(language)
    driver.run_last({"python": "x = 1", "javascript": "var x = 1", "shell": "x=1"}[language])
    code = {"python": "print('x' in dir())", "javascript": "console.log('x' in globalThis)", "shell": "echo ${x-False}"}
    assert driver.run(code[language]).out.lower() == b"false\n"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import time\nprint('go', flush=True)\ntime.sleep(60)"),
        ("python", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start(); print('go')"),
        (
            "python",
            "import time\nfrom concurrent.futures import ThreadPoolExecutor as Pool\n"
            "pool = Pool(1); pool.submit(time.sleep, 2); print('go')",
        ),
        ("python", "import asyncio\ntry:\n    print('go'); await asyncio.sleep(60)\nfinally: print('cleaned')"),
        ("javascript", "console.log('go'); for (;;);"),
        ("javascript", "console.log('go'); setInterval(() => {}, 1000); process.on('exit', () => console.log('no'))"),
        ("javascript", "console.log('go'); await new Promise((resolve) => setTimeout(resolve, 60_000))"),
        ("shell", "echo go; sleep 60"),
        ("shell", "trap 'echo go; sleep 60' EXIT"),
    ],
)
def test_an_interrupt_at_any_stage(make_driver: MakeDriver, language: str, code: str) -> None:
    driver = make_driver(language)
    execution = driver.begin(code, last=True)
    execution.wait_for_output(b"go\n")
    driver.quiesce() if "for (;;)" not in code else time.sleep(0.2)
    driver.interrupt()
    result = execution.finish()
    assert (result.died, result.exit_code) == (True, 130)
    assert b"driver" not in result.err
    assert b"no\n" not in result.out


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_interrupt_at_no_particular_moment(make_driver: MakeDriver, language: str) -> None:
    code = {
        "python": "import atexit; atexit.register(print, 'bye'); print('go')",
        "javascript": "process.on('exit', () => console.log('bye')); console.log('go')",
        "shell": "trap 'echo bye' EXIT; echo go",
    }
    for turn in range(8):
        driver = make_driver(language)
        execution = driver.begin(code[language], last=True)
        if turn % 2:
            execution.wait_for_output(b"go\n")
        time.sleep(turn * 0.001)
        if driver.process is not None and driver.process.poll() is None:
            driver.interrupt()
        result = execution.finish()
        assert result.died, result
        assert result.exit_code in (0, 130), result
        assert b"hayfork" not in result.err, result


# Python -------------------------------------------------------------------------------------------------------------------


def test_python_exit_handlers_and_threads(make_driver: MakeDriver) -> None:
    code = """
import atexit, threading, time

def work():
    time.sleep(0.3)
    print("thread")

def leave():
    display("from a handler")
    print("last words", end="")

atexit.register(leave)
threading.Thread(target=work).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("end of code")
1 + 1
"""
    result = make_driver("python").run_last(code)
    assert (result.exit_code, result.out, result.err) == (0, b"end of code\nthread\nlast words", b"")
    assert [(record.kind, record.text()) for record in result.records] == [
        ("result", "2"),
        ("display", "'from a handler'"),
    ]


@pytest.mark.parametrize("end", ["sys.exit(3)", "1 / 0", "raise KeyboardInterrupt", "sys.exit('why')"])
def test_python_exit_handlers_run_however_the_code_ends(make_driver: MakeDriver, end: str) -> None:
    code = f"import atexit, sys, threading\natexit.register(print, 'bye')\nthreading.Thread(target=print, args=('t',)).start()\n{end}"
    result = make_driver("python").run_last(code)
    expected = {"sys.exit(3)": 3, "raise KeyboardInterrupt": 130}.get(end, 1)
    assert (result.exit_code, result.out) == (expected, b"t\nbye\n")
    assert (result.err == b"why\n") == ("why" in end)


def test_python_tasks_end_as_those_of_a_program(make_driver: MakeDriver) -> None:
    code = """
import asyncio, time

async def work(n):
    try:
        await asyncio.sleep(60)
    finally:
        print("cancelled", n)

async def generate():
    try:
        yield 1
        yield 2
    finally:
        print("closed")

kept = generate()
await anext(kept)
tasks = [asyncio.create_task(work(n)) for n in range(2)]
asyncio.get_running_loop().run_in_executor(None, lambda: (time.sleep(0.2), print("executor")))
await asyncio.sleep(0)
"""
    result = make_driver("python").run_last(code)
    assert (result.exit_code, result.err) == (0, b"")
    assert sorted(result.out.splitlines()) == [b"cancelled 0", b"cancelled 1", b"closed", b"executor"]


def test_python_objects_and_streams_are_torn_down(make_driver: MakeDriver) -> None:
    code = """
import sys

class Thing:
    def __del__(self):
        print("deleted")

class Tee:
    def __init__(self, stream): self.stream = stream
    def write(self, text): return self.stream.write(text)
    def flush(self): pass

thing = Thing()
sys.stdout = Tee(sys.stdout)
print("through the tee", end="; ")
"""
    assert make_driver("python").run_last(code).out == b"through the tee; deleted\n"


def test_python_children_end_as_programs_too(make_driver: MakeDriver) -> None:
    code = """
import atexit, os, sys
me = os.getpid()
atexit.register(lambda: print("parent" if os.getpid() == me else "child"))
child = os.fork()
if child == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = make_driver("python").run_last(code)
    assert (result.exit_code, result.out, result.err) == (0, b"child\n5\nparent\n", b"")


def test_python_one_interrupt_ends_the_wait_for_threads_and_the_handlers_run(make_driver: MakeDriver) -> None:
    driver = make_driver("python")
    code = """
import atexit, signal, threading, time
atexit.register(print, "bye")
threading.Thread(target=time.sleep, args=(60,)).start()
print("go")
"""
    execution = driver.begin(code, last=True)
    execution.wait_for_output(b"go\n")
    driver.quiesce()
    driver.interrupt()
    # The thread still sleeps, which keeps no process alive.
    result = execution.finish()
    assert (result.exit_code, result.out) == (130, b"go\nbye\n")
    assert result.error["name"] == "KeyboardInterrupt"


def test_python_signal_handlers_are_the_users_own_to_the_end(make_driver: MakeDriver) -> None:
    code = """
import atexit, os, signal
signal.signal(signal.SIGINT, lambda *_: print("INT"))
signal.signal(signal.SIGUSR1, lambda *_: print("USR1"))
def leave():
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGINT)
    print("done", signal.pthread_sigmask(signal.SIG_BLOCK, ()))
atexit.register(leave)
"""
    result = make_driver("python").run_last(code)
    assert (result.exit_code, result.out, result.err) == (0, b"USR1\nINT\ndone set()\n", b"")


# JavaScript ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "out", "exit_code"),
    [
        ("setTimeout(() => console.log(1), 10)", b"1\n", 0),
        ("(async () => { await Bun.sleep(10); console.log(1) })(); 2", b"1\n", 0),
        ("let n = 0; const t = setInterval(() => { console.log(n); if (++n > 2) clearInterval(t) }, 5); 0", b"0\n1\n2\n", 0),
        ("Bun.spawn(['sh', '-c', 'sleep 0.2; echo child'], { stdout: 'inherit' }); 0", b"child\n", 0),
        ("setTimeout(() => { process.exitCode = 4 }, 5); 0", b"", 4),
        ("setTimeout(() => { console.log('a'); process.exit(5) }, 5); setTimeout(() => console.log('b'), 60_000); 0", b"a\n", 5),
        ("process.on('beforeExit', () => console.log('before')).on('exit', (c) => console.log('exit', c)); 0", b"before\nexit 0\n", 0),
        ("let n = 0; process.on('beforeExit', () => { if (n++ < 2) setTimeout(() => console.log(n), 1) }); 0", b"1\n2\n", 0),
        ("process.on('exit', (c) => { console.log('exit', c); process.exit(9) }); process.exit(3)", b"exit 3\n", 9),
        ("setTimeout(() => console.log(1), 60_000).unref(); 0", b"", 0),
        ("process.on('exit', (c) => console.log('exit', c)); await new Promise(() => {})", b"exit 13\n", 13),
    ],
)  # fmt: skip
def test_javascript_ends_when_nothing_is_left_to_do(
    make_driver: MakeDriver, code: str, out: bytes, exit_code: int
) -> None:
    result = make_driver("javascript").run_last(code)
    assert (result.out, result.exit_code) == (out, exit_code), result


def test_javascript_servers_live_until_they_are_stopped(make_driver: MakeDriver) -> None:
    code = """
const server = Bun.serve({ port: 0, fetch: () => new Response("hello") });
setTimeout(async () => { console.log(await (await fetch(server.url)).text()); server.stop() }, 20);
display("shown");
setTimeout(() => display("later"), 5);
42
"""
    result = make_driver("javascript").run_last(code)
    assert (result.exit_code, result.out) == (0, b"hello\n"), result
    assert [(one.kind, one.text()) for one in result.records] == [
        ("display", '"shown"'),
        ("result", "42"),
        ("display", '"later"'),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "setTimeout(() => { throw new RangeError('late') }, 5); setTimeout(() => console.log('no'), 60_000); 0",
        "setTimeout(() => Promise.reject(new RangeError('late')), 5); setTimeout(() => console.log('no'), 60_000); 0",
        "process.on('exit', () => { throw new RangeError('late') }); 0",
    ],
)
def test_javascript_late_errors(make_driver: MakeDriver, code: str) -> None:
    result = make_driver("javascript").run_last(code)
    assert (result.exit_code, result.out) == (1, b"")
    assert (result.error["name"], result.error["value"]) == ("RangeError", "late")
    assert b"RangeError: late" in result.err


def test_javascript_a_listener_gets_the_interrupt(make_driver: MakeDriver) -> None:
    driver = make_driver("javascript")
    code = "const t = setInterval(() => {}, 1000); process.on('SIGINT', () => { console.log('int'); clearInterval(t) }); console.log('go')"
    execution = driver.begin(code, last=True)
    execution.wait_for_output(b"go\n")
    driver.quiesce()
    driver.interrupt()
    result = execution.finish()
    assert (result.exit_code, result.out) == (0, b"go\nint\n")


# Shell --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "out", "exit_code"),
    [
        ("trap 'echo bye $?' EXIT; echo hi; (exit 3)", b"hi\nbye 3\n", 3),
        ("trap 'echo bye $?' EXIT; exit 4", b"bye 4\n", 4),
        ("trap 'echo bye; exit 6' EXIT; true", b"bye\n", 6),
        ("set -e; trap 'echo bye $?' EXIT; false; echo no", b"bye 1\n", 1),
        ("set -u; trap 'echo a $nosuch; echo no' EXIT; true", b"", 0),
        ("set -- a b; f() { trap 'echo [$@]' EXIT; }; f c", b"[a b]\n", 0),
        ("shopt -s expand_aliases; alias say='echo said'; trap 'say 1' EXIT", b"said 1\n", 0),
        ("exit() { echo mine; }; builtin() { echo mine; }; trap 'echo bye' EXIT; true", b"bye\n", 0),
        ("trap 'echo debug' DEBUG; trap 'echo bye' EXIT; :", b"debug\ndebug\nbye\n", 0),
        ("exec sh -c 'echo replaced; exit 6'", b"replaced\n", 6),
        ("echo 'no newline after', unfinished | cat; kill -TERM $$", b"no newline after, unfinished\n", 143),
    ],
)
def test_shell_runs_its_trap_and_ends(make_driver: MakeDriver, code: str, out: bytes, exit_code: int) -> None:
    result = make_driver("shell").run_last(code)
    assert (result.out, result.exit_code) == (out, exit_code), result


def test_shell_a_trap_of_an_earlier_execution_runs(make_driver: MakeDriver) -> None:
    driver: Driver = make_driver("shell")
    driver.run("trap 'echo earlier $?' EXIT")
    result = driver.run_last("echo now; (exit 2)")
    assert (result.out, result.err, result.exit_code) == (b"now\nearlier 2\n", b"", 2)
