"""JavaScript driver: how executions end: values, exit codes, errors, interrupts (BEHAVIOURS 9, 10, 11, 13, 20)."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from driver_harness import Driver

LANGUAGE = "javascript"


# Values ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "data"),
    [
        ("1 + 1", "2", 2),
        ("'a'", '"a"', "a"),
        ("({a: 1})", "{\n  a: 1,\n}", {"a": 1}),
        ("[1, null, [true]]", None, [1, None, [True]]),
        ("null", "null", None),
        ("NaN", "NaN", ...),
        ("10n", "10n", ...),
        ("Symbol('s')", "Symbol(s)", ...),
        ("new Map([[1, 2]])", None, ...),
        ("new Date(0)", None, ...),
        ("() => 1", None, ...),
        ("({get a() { throw 1 }})", None, ...),
        ("const loop = {}; loop.loop = loop; loop", None, ...),
        ("await 5", "5", 5),
        ("Promise.resolve(6)", "6", 6),
        ("(async () => { await Bun.sleep(5); return 7 })()", "7", 7),
        ("1; // comment at the end", "1", 1),
        ("(1);;\nfunction f() {}", "1", 1),
        ("x = 5", "5", 5),
        ("new Proxy({}, { ownKeys() { throw 2 } })", None, ...),
        ("Object.create(null)", None, {}),
        ("class A { a = 1 }\nnew A()", None, ...),
    ],
)
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "await"])
def test_value_of_the_last_expression(driver: Driver, code: str, text: str | None, data: object, awaits: bool) -> None:
    result = driver.run(f"await 0; {code}" if awaits else code)
    assert result.exit_code == 0, result.err
    (record,) = result.records
    assert record.kind == "result"
    if text is not None:
        assert record.text() == text
    if data is ...:
        assert "application/json" not in record.parts
    else:
        assert json.loads(record.parts["application/json"]) == data


@pytest.mark.parametrize(
    "code", ["undefined", "void 0", "let a = 1", "if (1) { 2 }", "for (;;) { 1; break }", "console.log()", "class A {}"]
)
def test_no_value(driver: Driver, code: str) -> None:
    assert driver.run(code).of_kind("result") == []
    assert driver.run(f"await 0; {code}").of_kind("result") == []


def test_functions_after_the_last_expression_do_not_hide_it(driver: Driver) -> None:
    assert driver.run("f();\nfunction f() { return 3 }\n").value == "3"
    assert driver.run("await f();\nasync function f() { return 4 }\n").value == "4"
    assert driver.run("function g() {}").of_kind("result") == []


def test_huge_values_are_cut(driver: Driver) -> None:
    (record,) = driver.run("'x'.repeat(30_000_000)").records
    assert 1 << 20 <= len(record.parts["text/plain"]) < 1100000
    assert "application/json" not in record.parts
    (record,) = driver.run("Array.from({length: 500_000}, (_, i) => i)").records
    assert len(record.parts["text/plain"]) < 1100000


def test_own_display_methods_and_display(driver: Driver) -> None:
    code = """
    class Chart {
      [Symbol.for("hayfork.display")]() {
        return {"text/html": "<b>1</b>", "image/png": new Uint8Array([137, 80, 0, 255]), "application/json": {a: 1}}
      }
    }
    display(new Chart()); display(1, 2)
    ;({[Symbol.for("Jupyter.display")]: () => ({"text/plain": "plain", "text/markdown": "# x"})})
    """
    result = driver.run(code)
    assert result.exit_code == 0, result.err
    chart, one, two, last = result.records
    assert (chart.kind, chart.text("text/html"), chart.parts["image/png"]) == ("display", "<b>1</b>", b"\x89P\x00\xff")
    assert json.loads(chart.parts["application/json"]) == {"a": 1}
    assert (one.text(), two.text()) == ("1", "2")
    assert (last.kind, last.parts) == ("result", {"text/plain": b"plain", "text/markdown": b"# x"})


# Exit codes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("process.exit()", 0),
        ("process.exit(0)", 0),
        ("process.exit(3)", 3),
        ("process.exit('4')", 4),
        ("process.exit(256)", 0),
        ("process.exit(-1)", 255),
        ("process.exit(137)", 137),
        ("process.exitCode = 5", 5),
        ("process.exitCode = 5; process.exit()", 5),
        ("process.exitCode = 5; process.exit(0)", 0),
        ("require('process').exit(6)", 6),
        ("import { exit } from 'node:process'; exit(7)", 7),
        ("(function deep(n) { return n ? deep(n - 1) : process.exit(8) })(100)", 8),
        ("[1].forEach(() => process.exit(9))", 9),
        ("try { process.exit(10) } catch (e) { console.log('caught') } finally { console.log('finally') }", 10),
        ("setTimeout(() => process.exit(11), 10); await new Promise(() => {})", 11),
        (
            "setImmediate(() => process.exit(12)); setTimeout(() => {}, 1000); await new Promise((r) => setTimeout(r, 2000))",
            12,
        ),
        ("await 0; process.exit(13)", 13),
        (
            "await Bun.sleep(5); try { process.exit(14) } catch (e) { console.log(e) } finally { console.log('finally') }",
            14,
        ),
        (
            "main().then(() => process.exit(15)).catch((e) => { console.error(e); process.exit(1) }); async function main() {}",
            15,
        ),
        (
            "async function main() { process.exit(16) }\nmain().catch((e) => { console.error('failed', e); process.exit(1) })",
            16,
        ),
        ("process.nextTick(() => process.exit(17)); await Bun.sleep(20)", 17),
        ("require('child_process').exec('true', () => process.exit(18)); await new Promise(() => {})", 18),
    ],
)
def test_exit_codes_with_state_kept(driver: Driver, code: str, status: int) -> None:
    driver.run("const kept = [1]")
    result = driver.run(f"console.log('before');\n{code}")
    assert (result.exit_code, result.out, result.err, result.died) == (status, b"before\n", b"", False)
    assert driver.run("kept").value == "[ 1 ]"
    assert driver.run("1").exit_code == 0
    driver.settle(0.1)
    assert (bytes(driver.idle_out.data), bytes(driver.idle_err.data)) == (b"", b"")


def test_exit_with_an_impossible_code_is_an_error(driver: Driver) -> None:
    for code in ("process.exit(true)", "process.exit('x')", "process.exit(1.5)"):
        result = driver.run(code)
        assert (result.exit_code, result.error["name"] in {"TypeError", "RangeError"}) == (1, True), code


def test_nothing_runs_on_after_exit(driver: Driver) -> None:
    driver.run("const after = []; try { process.exit(1) } finally { after.push('finally') }; after.push('next')")
    assert driver.run("after.length").value == "0"


def test_exit_in_the_background_ends_nothing(driver: Driver) -> None:
    assert driver.run("setTimeout(() => { process.exit(3); console.log('not') }, 400); 1").exit_code == 0
    driver.settle(0.8)
    assert driver.run("console.log('alive')").out == b"alive\n"
    assert b"not" not in driver.idle_out.data


def test_real_end_of_the_process(driver: Driver) -> None:
    driver.run("const gone = 1")
    result = driver.run("console.log('out'); process.reallyExit(42)")
    assert (result.exit_code, result.out, result.died) == (42, b"out\n", True)
    assert driver.run("typeof gone").value == '"undefined"'
    result = driver.run("process.kill(process.pid, 'SIGKILL'); await Bun.sleep(5000)")
    assert (result.exit_code, result.died) == (128 + signal.SIGKILL, True)
    result = driver.run("process.abort()")
    assert (result.exit_code, result.died) == (128 + signal.SIGABRT, True)


# Errors ----------------------------------------------------------------------------------------------------------------


def test_traceback_is_the_users_alone(driver: Driver) -> None:
    driver.run("function outer(f) {\n  return inner(f);\n}\nfunction inner(f) { return f() }")
    code = "const a = 1,\n  b = 2;\n\nclass C { m() {\n  null.x } }\nouter(() => new C().m())"
    for text, file in ((code, "<cell 2>"), (f"await 0;{code}", "<cell 3>")):
        result = driver.run(text)
        assert result.exit_code == 1
        lines = result.err.decode().splitlines()
        assert lines[:4] == [f"{file}:5", "  null.x } }", "      ^", ""]
        assert lines[4].startswith("TypeError: null is not an object")
        assert lines[5:9] == [
            f"    at m ({file}:5:7)",
            f"    at <anonymous> ({file}:6:22)",
            "    at inner (<cell 1>:4:29)",
            "    at outer (<cell 1>:2:15)",
        ]
        assert len(lines) == 10
        assert f"{file}:6:" in lines[9]
        assert result.error["name"] == "TypeError"
        assert result.error["traceback"] == result.err.decode().rstrip("\n")


def test_stack_that_user_code_prints_has_no_frame_of_ours(driver: Driver) -> None:
    code = "function f() { return new Error('x').stack }\nconsole.log(f()); console.error(new Error('y'))"
    for text in (code, f"await 0; {code}", f"{code}; setTimeout(() => console.log(f()), 1); await Bun.sleep(20)"):
        result = driver.run(text)
        assert result.exit_code == 0
        for stream in (result.out, result.err):
            assert b"drivers" not in stream
            assert b"realm" not in stream


def test_positions_in_edited_lines(driver: Driver) -> None:
    for prefix in ("", "await 0; ", "const URL = 1; "):
        text = f"{prefix}let q = 1, r, s = [2]; class K {{}}; null.x"
        result = driver.run(text)
        column = text.index(".x") + 2
        file = f"<cell {driver.number}>"
        assert result.err.decode().splitlines()[0] == f"{file}:1"
        caret = result.err.decode().splitlines()[2]
        assert abs(caret.index("^") + 1 - column) <= 1, (prefix, result.err)


def test_syntax_errors(driver: Driver) -> None:
    driver.run("const kept = 1")
    for code, line in (
        ("let x = ;", 1),
        ("\n\nfunction (", 3),
        ("const s = 'unterminated", 1),
        ("return 5", 1),
        ("await = 1", 1),
        ("{", 1),
    ):
        result = driver.run(code)
        assert result.exit_code == 1, code
        assert result.error["name"] == "SyntaxError", code
        assert result.err.decode().splitlines()[0] == f"<cell {driver.number}>:{line}", (code, result.err)
    assert driver.run("kept").value == "1"


def test_thrown_values_of_all_kinds(driver: Driver) -> None:
    for code, name, value in (
        ("throw 'text'", "Uncaught", '"text"'),
        ("throw null", "Uncaught", "null"),
        ("throw undefined", "Uncaught", "undefined"),
        ("throw {a: 1}", "Uncaught", "{\n  a: 1,\n}"),
        ("class MyError extends Error {}; throw new MyError('m')", "MyError", "m"),
        ("throw Object.assign(new Error('m'), {name: 'Named'})", "Named", "m"),
        ("throw new DOMException('m', 'AbortError')", "AbortError", "m"),
        ("Promise.reject(new RangeError('m'))", "RangeError", "m"),
        ("throw new Proxy({}, { get() { throw 1 } })", "Uncaught", None),
        ("const e = new Error('m'); Object.defineProperty(e, 'stack', {get() { throw 1 }}); throw e", "Error", "m"),
    ):
        result = driver.run(code)
        assert result.exit_code == 1, code
        assert result.error["name"] == name, (code, result.error)
        assert value is None or result.error["value"] == value, (code, result.error)
        assert result.err, code


def test_causes_properties_and_several_errors(driver: Driver) -> None:
    result = driver.run("throw new Error('top', {cause: new TypeError('below')})")
    assert b"[cause]: TypeError: below" in result.err
    result = driver.run("require('fs').readFileSync('/nope')")
    assert b"ENOENT" in result.err
    assert b"code" in result.err
    result = driver.run("await Promise.any([Promise.reject(new Error('one')), Promise.reject(new Error('two'))])")
    assert b"one" in result.err
    assert b"two" in result.err


def test_errors_in_files_of_the_user(driver: Driver) -> None:
    (driver.home / "bad.ts").write_text(
        "interface A {\n  a: number\n}\nexport function f(): never {\n  throw new Error('in file')\n}\n"
    )
    result = driver.run("import { f } from './bad.ts'\nf()")
    lines = result.err.decode().splitlines()
    assert lines[0] == f"{driver.home}/bad.ts:5"
    assert lines[1] == "  throw new Error('in file')"
    (driver.home / "broken.js").write_text("let x = ;\n")
    result = driver.run("import './broken.js'")
    assert result.exit_code == 1
    assert b"broken.js" in result.err
    assert driver.run("1").value == "1"


def test_deep_recursion(driver: Driver) -> None:
    driver.run("const kept = 1; function f(n) { return f(n + 1) + 1 }")
    for code in (
        "f(0)",
        "await 0; f(0)",
        "function g() { g() } g()",
        "JSON.stringify((() => { let a = {}; for (let i = 0; i < 1e6; i++) a = {a}; return a })())",
    ):
        result = driver.run(code)
        assert (result.exit_code, result.error["name"]) == (1, "RangeError"), result.err
    assert driver.run("kept").value == "1"


@pytest.mark.parametrize(
    "code",
    [
        "setTimeout(() => { throw new Error('later') }, 5); await Bun.sleep(10_000)",
        "setImmediate(() => { throw new Error('later') }); await Bun.sleep(10_000)",
        "queueMicrotask(() => { throw new Error('later') }); 1",
        "process.nextTick(() => { throw new Error('later') }); await Bun.sleep(10_000)",
        "Promise.reject(new Error('later')); 1",
        "(async () => { throw new Error('later') })(); 1",
        "await 0; Promise.resolve().then(() => { throw new Error('later') }); await Bun.sleep(10_000)",
        "new (require('events'))().emit('error', new Error('later'))",
        "require('fs').readFile('/etc/hostname', () => { throw new Error('later') }); await Bun.sleep(10_000)",
    ],
)
def test_uncaught_errors_from_elsewhere_end_the_execution(driver: Driver, code: str) -> None:
    driver.run("const kept = 1")
    began = time.monotonic()
    result = driver.run(code)
    assert (result.exit_code, result.died) == (1, False)
    assert b"Error: later" in result.err
    assert result.error["value"] == "later"
    assert time.monotonic() - began < 8
    assert driver.run("kept").value == "1"


def test_rejections_that_are_handled_in_time_are_no_errors(driver: Driver) -> None:
    code = "const p = Promise.reject(new Error('x')); await 0; p.catch(() => {}); await Promise.allSettled([Promise.reject(1)]); 5"
    assert driver.run(code).value == "5"


def test_the_users_own_handlers_come_first(driver: Driver) -> None:
    code = (
        "process.once('uncaughtException', (e) => console.log('got', e.message)); setTimeout(() => { throw new Error('a') }, 1);"
        "await Bun.sleep(30); process.once('unhandledRejection', (e) => console.log('rejected', e.message));"
        "Promise.reject(new Error('b')); await Bun.sleep(30); 'end'"
    )
    result = driver.run(code)
    assert (result.exit_code, result.out, result.value) == (0, b"got a\nrejected b\n", '"end"')


def test_uncaught_errors_in_the_background_do_no_harm(driver: Driver) -> None:
    driver.run(
        "const kept = 1; setTimeout(() => { throw new Error('background') }, 400); setTimeout(() => Promise.reject(new Error('second')), 400); 0"
    )
    driver.settle(0.8)
    assert b"Error: background" in driver.idle_err.data
    assert b"Error: second" in driver.idle_err.data
    result = driver.run("kept")
    assert (result.value, result.err) == ("1", b"")


def test_awaiting_what_will_never_come(driver: Driver) -> None:
    driver.run("const kept = 1")
    result = driver.run("console.log('x'); await new Promise(() => {})", timeout=5)
    assert (result.exit_code, result.out, result.died) == (13, b"x\n", False)
    assert driver.run("kept").value == "1"


# Interrupts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "console.log('go'); for (;;) {}",
        "console.log('go'); while (true) { try { for (;;) {} } catch {} finally {} }",
        "console.log('go'); (function f() { for (;;) { [1, 2].map((x) => x + 1) } })()",
        "console.log('go'); for (;;) { JSON.parse('[1,2,3]'); /(a+)+b/.test('aaaaaaaaaaaaaaac') }",
        "console.log('go'); await Bun.sleep(60_000)",
        "console.log('go'); await new Promise((r) => setTimeout(r, 60_000))",
        "await 0; console.log('go'); await fetch('http://127.0.0.1:' + hole.address().port)",
        "console.log('go'); await new Promise((r) => require('child_process').spawn('sleep', ['60']).on('close', r))",
        "import 'node:fs'; console.log('go'); for (;;) {}",
        "console.log('go'); (async () => { for (;;) await 0 })(); await new Promise((r) => setTimeout(r, 60_000))",
    ],
)
def test_interrupt_keeps_the_state(driver: Driver, code: str) -> None:
    if "for (;;) await 0" in code:
        pytest.xfail("a loop of microtasks never lets the event loop see the signal; the agent ends the process")
    driver.run("const kept = 1; const hole = require('net').createServer(() => {}).listen(0, '127.0.0.1'); 0")
    execution = driver.begin(code)
    execution.wait_for_output(b"go")
    time.sleep(0.05)
    began = time.monotonic()
    driver.interrupt()
    result = execution.finish(5)
    assert (result.exit_code, result.died, result.out) == (130, False, b"go\n")
    assert result.error["name"] == "Interrupted"
    assert time.monotonic() - began < 1
    assert driver.run("kept").value == "1"


def test_interrupt_again_and_again(driver: Driver) -> None:
    driver.run("let n = 0")
    for _ in range(5):
        for code in ("console.log('go'); for (;;) n++", "console.log('go'); await Bun.sleep(60_000)"):
            execution = driver.begin(code)
            execution.wait_for_output(b"go")
            driver.interrupt()
            assert execution.finish(5).exit_code == 130
    assert driver.run("n > 0").value == "true"


def test_interrupt_while_idle_does_nothing(driver: Driver) -> None:
    driver.run("const kept = 1; process.removeAllListeners('SIGINT')")
    for _ in range(3):
        driver.interrupt()
        driver.settle(0.05)
    assert driver.run("kept").value == "1"
    assert bytes(driver.idle_err.data) == b""


def test_the_users_own_signal_handlers(driver: Driver) -> None:
    code = "process.once('SIGINT', () => { console.log('handled'); process.exit(9) }); console.log('go'); await Bun.sleep(60_000)"
    execution = driver.begin(code)
    execution.wait_for_output(b"go")
    time.sleep(0.1)  # in the part before the first await, an interrupt ends the execution whatever handlers there are
    driver.interrupt()
    result = execution.finish(5)
    assert (result.exit_code, result.out) == (9, b"go\nhandled\n")
    code = (
        "process.once('SIGINT', () => console.log('self')); process.kill(process.pid, 'SIGINT'); await Bun.sleep(20); 1"
    )
    result = driver.run(code)
    assert (result.value, result.out) == ("1", b"self\n")
    code = "process.once('SIGTERM', () => { console.log('term'); process.reallyExit(4) }); console.log('go'); await Bun.sleep(60_000)"
    execution = driver.begin(code)
    execution.wait_for_output(b"go")
    os.kill(driver.pid, signal.SIGTERM)
    result = execution.finish(5)
    assert (result.exit_code, result.out, result.died) == (4, b"go\nterm\n", True)
