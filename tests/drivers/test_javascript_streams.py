"""JavaScript driver: output, input, environment, background work, hostile user code (BEHAVIOURS 2, 4, 6, 7, 8, 14, 16, 25, 26)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from conftest import MakeDriver
from driver_harness import Driver

LANGUAGE = "javascript"

# Output ----------------------------------------------------------------------------------------------------------------


def test_output_is_byte_exact(driver: Driver) -> None:
    result = driver.run(
        r"process.stdout.write('a\0b\r\nc\rd\x1b[31m'); process.stderr.write(Buffer.from([0, 255, 254, 10]))"
    )
    assert (result.out, result.err) == (b"a\0b\r\nc\rd\x1b[31m", b"\0\xff\xfe\n")


def test_text_in_every_script(driver: Driver) -> None:
    text = "aé漢🦊\u0416" * 20_000
    code = "const t = 'aé漢🦊\\u0416'.repeat(20_000)"
    driver.run(code)
    for write in (
        "process.stdout.write(t)",
        "console.log(t)",
        "require('fs').writeSync(1, t)",
        "await Bun.write(Bun.stdout, t)",
    ):
        assert driver.run(f"{write}; 0").out.decode().rstrip("\n") == text, write
    for write in ("process.stderr.write(t)", "console.error(t)"):
        assert driver.run(f"{write}; 0").err.decode().rstrip("\n") == text, write


@pytest.mark.parametrize(
    "write",
    [
        "for (let i = 0; i < 5000; i++) console.log('x'.repeat(99))",
        "for (let i = 0; i < 5000; i++) process.stdout.write('x'.repeat(99) + '\\n')",
        "process.stdout.write(('x'.repeat(99) + '\\n').repeat(5000))",
        "console.log(('x'.repeat(99) + '\\n').repeat(5000).trimEnd())",
        "for (let i = 0; i < 5000; i++) require('fs').writeSync(1, 'x'.repeat(99) + '\\n')",
        "await Bun.write(Bun.stdout, ('x'.repeat(99) + '\\n').repeat(5000))",
        "const w = Bun.stdout.writer(); for (let i = 0; i < 5000; i++) w.write('x'.repeat(99) + '\\n'); await w.end()",
        "const { stdout } = await import('node:process'); for (let i = 0; i < 5000; i++) stdout.write('x'.repeat(99) + '\\n')",
        "require('stream').Readable.from(Array(5000).fill('x'.repeat(99) + '\\n')).pipe(process.stdout); await Bun.sleep(300)",
        "require('child_process').spawnSync('sh', ['-c', 'yes xxxxxxxxx | head -c 500000'], {stdio: 'inherit'})",
    ],
)
def test_bursts_are_complete(driver: Driver, write: str) -> None:
    for _ in range(2):
        result = driver.run(f"{{ {write} }}\nvoid 0")
        assert (len(result.out), result.exit_code) == (500_000, 0), result.err
        assert result.out.replace(b"\n", b"").strip(b"x") == b""


def test_ten_megabytes_through_a_slow_pipe(driver: Driver) -> None:
    execution = driver.begin("process.stdout.write('y'.repeat(10_000_000)); console.log('end'); process.exit(3)")
    time.sleep(0.3)  # nobody reads meanwhile
    result = execution.finish()
    assert (len(result.out), result.out[-5:], result.exit_code) == (10_000_004, b"yend\n", 3)


def test_output_order_between_ways_of_writing(driver: Driver) -> None:
    code = "for (let i = 0; i < 300; i++) { console.log(3 * i); process.stdout.write(3 * i + 1 + '\\n'); require('fs').writeSync(1, 3 * i + 2 + '\\n') }"
    assert driver.run(code).out == b"".join(b"%d\n" % i for i in range(900))


def test_output_arrives_while_the_code_runs(driver: Driver) -> None:
    for write in ("console.log('first')", "process.stdout.write('first')"):
        execution = driver.begin(
            f"{write}; const end = Date.now() + 1500; while (Date.now() < end); console.log('last')"
        )
        began = time.monotonic()
        execution.wait_for_output(b"first")
        assert time.monotonic() - began < 1.2
        assert b"last" not in execution.out
        assert execution.finish().out.endswith(b"last\n")


def test_non_blocking_pipe_loses_nothing(driver: Driver) -> None:
    # A child that shares the pipe may make it non-blocking, as Node does.
    code = (
        "const { dlopen } = require('bun:ffi'); const { symbols } = dlopen('libc.so.6', {fcntl: {args: ['int', 'int', 'int'], returns: 'int'}});"
        "symbols.fcntl(1, 4, 0o4001); process.stdout.write('z'.repeat(400_000)); console.log('z'.repeat(99_999)); 0"
    )
    execution = driver.begin(code)
    time.sleep(0.2)
    assert len(execution.finish().out) == 500_000


def test_done_comes_at_once(driver: Driver) -> None:
    driver.run("1")
    times = []
    for code in ("1", "console.log(1)", "await 0; 1", "process.exit(3)"):
        for _ in range(5):
            began = time.monotonic()
            driver.run(code)
            times.append(time.monotonic() - began)
    times.sort()
    assert times[len(times) // 2] < 0.05


# Nothing in the output is special --------------------------------------------------------------------------------------


def test_output_cannot_end_or_forge_an_execution(driver: Driver) -> None:
    code = """
    for (const word of ["ready", "done 0", "00000000000000000000000000000000 done 0", '{"kind":"result"}'])
      for (const fd of [1, 2]) require("fs").writeSync(fd, word + "\\n");
    const open = require("fs").readdirSync("/proc/self/fd").map((n) => { try { return require("fs").readlinkSync("/proc/self/fd/" + n) } catch { return "" } });
    open.filter((name) => /control|events|results/.test(name))
    """
    result = driver.run(code)
    assert (result.exit_code, result.value) == (0, "[]")
    assert result.out.count(b"\n") == 4


def test_the_token_is_not_in_reach(driver: Driver) -> None:
    result = driver.run("JSON.stringify([process.argv, process.env, Object.getOwnPropertyNames(globalThis)])")
    assert driver.executions[-1].token not in (result.value or "")


# Hostile or careless code ----------------------------------------------------------------------------------------------

BREAKING = [
    "Array.prototype.push = () => { throw 1 }; Array.prototype.map = null; Array.prototype[Symbol.iterator] = null",
    "String.prototype.split = String.prototype.replace = null; RegExp.prototype.exec = null; Map.prototype.get = null; Map.prototype.set = null",
    "Promise = null; setImmediate = null; queueMicrotask = null; setTimeout = null",
    "JSON.stringify = null; JSON.parse = null; Reflect.apply = null; Reflect.defineProperty = null",
    "Function.prototype.call = null; Function.prototype.apply = null",
    "console.log = () => {}",
    "process.stdout = null; process.stderr = 5; process.stdin = null",
    "process.exit = process.on = process.emit = process.listeners = process.listenerCount = process.cwd = null",
    "process.exitCode = 3; process.argv = null; process.execPath = null",
    "process.removeAllListeners()",
    "globalThis.globalThis = 5; global = 6",
    "for (const k of Object.getOwnPropertyNames(globalThis)) if (k !== 'console' && k !== 'process') try { delete globalThis[k] } catch {}",
    "require('fs').closeSync(0); require('fs').closeSync(1); require('fs').closeSync(2)",
    "require('fs').closeSync(1); globalThis.file = require('fs').openSync('/dev/null', 'w')",
    "const fs = require('fs'); fs.writeSync = fs.openSync = fs.readFileSync = fs.closeSync = fs.readSync = null",
    "process.stdout.end(); process.stderr.destroy(); process.stdin.destroy()",
    "process.stdout.on('error', () => {}); process.stdout.destroy(new Error('x'))",
    "Error.prepareStackTrace = () => 5; Error.stackTraceLimit = 0; Error.captureStackTrace = null",
    "Object.freeze(Object.prototype); Object.freeze(Array.prototype); Object.freeze(Function.prototype)",
    "for (const k of ['get', 'set', 'value', 'code', 'length', 'inShadow', 'id', 'start']) Object.defineProperty(Object.prototype, k, "
    "{get() { return undefined }, set() {}, configurable: true})",
    "ReadableStream = Uint8Array = Blob = TextDecoder = null; ReadableStreamDefaultReader.prototype.read = null; Blob.prototype.stream = null",
    "TextDecoder.prototype.decode = TextEncoder.prototype.encode = null",
    "Bun.file = Bun.inspect = Bun.resolveSync = null",
    "require('vm').Script = null; require('vm').Script.prototype.runInThisContext = null",
    "require('module').createRequire = null; require('path').join = require('path').dirname = null",
    "Math.random = Date.now = performance.now = null; Date = null",
    "process.env = {}; process.chdir('/')",
    "console.log(\"in a group\"); console.group('g')",
]


@pytest.mark.parametrize("code", BREAKING)
def test_the_session_survives(driver: Driver, code: str) -> None:
    execution = driver.begin(f"{code}\nvoid 0")
    assert not execution.finish(10).died
    result = driver.run("process.stdout.write('w\\n'); const ok = 42; ok", timeout=10)
    assert (result.exit_code, result.out.strip(), result.value, result.died) == (0, b"w", "42", False), result.err
    result = driver.run("await 0; console.error('e'); ok", timeout=10)
    assert (result.exit_code, result.value, result.died) == (0, "42", False), result.err
    result = driver.run("import { sep } from 'node:path'; throw new Error(sep + ok)", timeout=10)
    assert (result.exit_code, result.error["value"], result.died) == (1, "/42", False), result.err


@pytest.mark.parametrize(
    "code",
    [
        "for (let fd = 3; fd < 100; fd++) try { require('fs').closeSync(fd) } catch {}",
        "Object.prototype.then = function (resolve) { resolve(1) }",
        "Promise.prototype.then = function () { throw new Error('no') }",
        "const open = []; try { for (;;) open.push(require('fs').openSync('/dev/null')) } catch {}",
    ],
)
def test_what_breaks_the_runtime_itself_never_hangs(driver: Driver, code: str) -> None:
    """The session goes on, if need be with a fresh process."""
    execution = driver.begin(f"{code}\nvoid 0")
    execution.finish(10)
    driver.run("1", timeout=10)
    result = driver.run("console.log('ok')", timeout=10)
    assert (result.exit_code, result.out) == (0, b"ok\n")


def test_a_patched_stdout_is_the_users_own_business(driver: Driver) -> None:
    code = "const got = []; const write = process.stdout.write; process.stdout.write = (s) => got.push(s); process.stdout.write('a'); process.stdout.write = write; got"
    assert driver.run(code).value == '[ "a" ]'
    assert driver.run("process.stdout.write('b')").out == b"b"


# Input -----------------------------------------------------------------------------------------------------------------

READERS = [
    ("require('fs').readFileSync(0, 'utf8')", "a\nbé\n"),
    ("require('fs').readFileSync('/dev/stdin', 'utf8')", "a\nbé\n"),
    ("import { readFileSync as r } from 'fs'; r('/dev/stdin').toString()", "a\nbé\n"),
    ("await Bun.stdin.text()", "a\nbé\n"),
    ("await new Response(Bun.stdin.stream()).text()", "a\nbé\n"),
    ("let all = ''; for await (const piece of process.stdin) all += piece; all", "a\nbé\n"),
    (
        "let all = ''; process.stdin.setEncoding('utf8').on('data', (d) => all += d); await new Promise((r) => process.stdin.on('end', r)); all",
        "a\nbé\n",
    ),
    ("const lines = []; for await (const line of console) lines.push(line); lines.join('|')", "a|bé"),
    (
        "const lines = []; for await (const line of require('readline').createInterface({input: process.stdin})) lines.push(line); lines.join('|')",
        "a|bé",
    ),
    (
        "import { stdin } from 'node:process'; let all = ''; for await (const piece of stdin) all += piece; all",
        "a\nbé\n",
    ),
    ("require('child_process').execSync('cat', {stdio: ['inherit', 'pipe', 'inherit']}).toString()", "a\nbé\n"),
]


@pytest.mark.parametrize(("code", "value"), READERS)
def test_standard_input(driver: Driver, code: str, value: str) -> None:
    """With input, without, and neither sees what was meant for the other."""
    for given, wanted in ((None, ""), ("a\nbé\n".encode(), value), (None, ""), ("a\nbé\n".encode(), value)):
        result = driver.run(code, stdin=given, timeout=10)
        assert result.exit_code == 0, result.err
        (record,) = result.records
        assert json.loads(record.parts["application/json"]) == wanted


def test_prompt_confirm_and_questions(driver: Driver) -> None:
    result = driver.run(
        "[prompt('name?'), prompt('b', 'dflt'), confirm('sure?'), prompt('end')]", stdin=b"Ann\n\nyes\n"
    )
    assert result.value == '[ "Ann", "dflt", true, null ]'
    assert result.out == b"name? b [dflt] sure? [y/N] end "
    assert driver.run("prompt('x')", stdin=b"only this\nrest\n").value == '"only this"'
    assert driver.run("prompt('x')").value == "null"
    code = (
        "import * as readline from 'node:readline/promises'; import { stdin as input, stdout as output } from 'node:process';"
        "const rl = readline.createInterface({ input, output }); const answer = await rl.question('who? '); rl.close(); answer"
    )
    result = driver.run(code, stdin=b"me\n")
    assert (result.value, result.out) == ('"me"', b"who? ")


def test_input_that_comes_while_the_code_runs(driver: Driver) -> None:
    code = "for await (const line of require('readline').createInterface({input: process.stdin})) console.log('got', line); 'end'"
    execution = driver.begin(code, keep_stdin_open=True)
    execution.feed(b"one\n")
    execution.wait_for_output(b"got one")
    execution.feed(b"two\n")
    execution.wait_for_output(b"got two")
    execution.close_stdin()
    assert execution.finish(5).value == '"end"'


def test_unread_input_does_not_reach_the_next_execution(driver: Driver) -> None:
    execution = driver.begin(
        "process.stdin.on('data', (d) => console.log('first', String(d))); 0", keep_stdin_open=True
    )
    assert execution.finish(5).exit_code == 0
    result = driver.run(
        "let all = ''; for await (const piece of process.stdin) all += piece; all", stdin=b"second", timeout=10
    )
    assert (result.value, result.out) == ('"second"', b"")
    execution.close_stdin()


# Environment -----------------------------------------------------------------------------------------------------------


def test_environment_holds_for_one_execution(driver: Driver) -> None:
    env = {"A": "x=y", "MULTI": "l1\nl2 é", "HOME": "/elsewhere", "EMPTY": ""}
    code = "[process.env.A, process.env.MULTI, process.env.HOME, process.env.EMPTY, require('child_process').execSync('echo $A').toString()]"
    (record,) = driver.run(code, env=env).records
    assert json.loads(record.parts["application/json"]) == ["x=y", "l1\nl2 é", "/elsewhere", "", "x=y\n"]
    driver.run("process.env.A = 'changed'; process.env.B = 'kept'", env={"A": "given"})
    (record,) = driver.run("[process.env.A ?? null, process.env.HOME, process.env.B, 'EMPTY' in process.env]").records
    assert json.loads(record.parts["application/json"]) == [None, str(driver.home), "kept", False]


def test_environment_is_restored_after_errors_and_exit(driver: Driver) -> None:
    for code in ("throw 1", "process.exit(2)", "let x = ;"):
        driver.run(code, env={"A": "1"})
        assert driver.run("process.env.A").of_kind("result") == [], code


def test_nothing_of_ours_is_in_the_environment(driver: Driver) -> None:
    (record,) = driver.run("Object.keys(process.env)").records
    wanted = {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG"}
    extra = set(json.loads(record.parts["application/json"])) - wanted
    assert all(name.startswith(("BUN_", "DO_NOT_TRACK")) for name in extra), extra


@pytest.mark.parametrize("name", ["bunfig.toml", "package.json", "tsconfig.json", ".env", ".npmrc"])
def test_broken_files_in_the_home_do_not_keep_the_driver_from_starting(driver: Driver, name: str) -> None:
    (driver.home / name).write_text("{{{ not = [valid\npreload = ['./x.ts']\nHAYFORK_FROM_FILE=1\n")
    assert driver.run("process.reallyExit(1)").died
    result = driver.run("console.log(process.env.HAYFORK_FROM_FILE)")
    assert (result.exit_code, result.out) == (0, b"undefined\n")


# Background ------------------------------------------------------------------------------------------------------------


def test_background_output_is_kept_apart(driver: Driver) -> None:
    result = driver.run(
        "setTimeout(() => { console.log('log'); process.stdout.write('out\\n'); console.error('err') }, 400); console.log('now'); 0"
    )
    assert (result.out, result.err) == (b"now\n", b"")
    driver.settle(0.9)
    assert (bytes(driver.idle_out.data), bytes(driver.idle_err.data)) == (b"log\nout\n", b"err\n")
    assert driver.run("console.log('next')").out == b"next\n"


def test_timers_servers_and_promises_go_on_between_executions(driver: Driver) -> None:
    driver.run(
        "let ticks = 0; const timer = setInterval(() => ticks++, 10); let settled = 0; Bun.sleep(50).then(() => settled++); 0"
    )
    driver.settle(0.4)
    assert driver.run("clearInterval(timer); ticks > 10 && settled === 1").value == "true"


def test_output_of_a_child_left_behind(driver: Driver) -> None:
    execution = driver.begin(
        "require('child_process').spawn('sh', ['-c', 'sleep 1; echo late'], {stdio: 'inherit', detached: true}).unref(); console.log('now'); 0"
    )
    assert execution.finish().out == b"now\n"
    assert driver.run("console.log('next')").out == b"next\n"
    execution.wait_for_output(b"late", 10)
    assert execution.out == b"now\nlate\n"


def test_idle_uses_no_cpu(driver: Driver) -> None:
    driver.run("1")
    driver.settle(0.3)

    def used() -> float:
        fields = Path(f"/proc/{driver.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    driver.settle(3)
    assert used() - before <= 0.03


def test_many_executions_do_not_leak(driver: Driver) -> None:
    def state() -> tuple[int, int]:
        status = Path(f"/proc/{driver.pid}/status").read_text()
        rss = int(status.split("VmRSS:")[1].split()[0])
        return len(os.listdir(f"/proc/{driver.pid}/fd")), rss

    def round_of(count: int) -> None:
        for i in range(count):
            result = driver.run(
                f"let v = {i}; await 0; const f = () => v; process.stdout.write(String(f()))",
                stdin=b"x" if i % 2 else None,
            )
            assert result.out == str(i).encode()

    round_of(40)
    fds, rss = state()
    round_of(160)
    fds_after, rss_after = state()
    assert fds_after <= fds + 2
    assert rss_after < rss + 30_000


def test_concurrent_drivers_do_not_mix(make_driver: MakeDriver) -> None:
    one, two = make_driver("javascript"), make_driver("javascript")
    one.run("let name = 'one'")
    two.run("let name = 'two'")
    assert (one.run("name").value, two.run("name").value) == ('"one"', '"two"')
