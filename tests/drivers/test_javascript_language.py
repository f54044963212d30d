"""JavaScript driver: the language as user code sees it (BEHAVIOURS 1, 18, 19, 22)."""

from __future__ import annotations

import json

import pytest
from driver_harness import Driver, Result

LANGUAGE = "javascript"


def value_of(result: Result) -> object:
    """The value of the last expression as data."""
    assert result.exit_code == 0, (result.out, result.err)
    (record,) = result.of_kind("result")
    return json.loads(record.parts["application/json"])


def evaluate(driver: Driver, *codes: str) -> object:
    """Runs all, and gives the value of the last."""
    for code in codes[:-1]:
        result = driver.run(code)
        assert result.exit_code == 0, (code, result.err)
    return value_of(driver.run(codes[-1]))


# Code without effect ---------------------------------------------------------------------------------------------------


def test_code_that_does_nothing(driver: Driver) -> None:
    for code in ("", "\n\n", "// only a comment", "/* a\n b */", ";", "#!/usr/bin/env bun", '"use strict";void 0'):
        result = driver.run(code)
        assert (result.exit_code, result.out, result.err, result.records) == (0, b"", b"", []), code


def test_bom_is_ignored(driver: Driver) -> None:
    result = driver.run(b"\xef\xbb\xbfconsole.log('ok')")
    assert (result.exit_code, result.out) == (0, b"ok\n")


def test_nul_in_code_is_an_error_and_the_session_lives(driver: Driver) -> None:
    assert driver.run("console.log(1)\0").exit_code == 1
    assert driver.run("console.log(2)").out == b"2\n"


# Declarations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "value"),
    [
        (["const a = 1", "a"], 1),
        (["let a = 1", "a += 1", "a"], 2),
        (["var a = 1", "a"], 1),
        (["a = 1", "a"], 1),
        (["function f() { return 1 }", "f()"], 1),
        (["async function f() { return 1 }", "await f()"], 1),
        (["function* f() { yield 1; yield 2 }", "[...f()]"], [1, 2]),
        (["async function* f() { yield 1 }", "const r = []; for await (const x of f()) r.push(x)", "r"], [1]),
        (["class A { static s = 3; #p = 4; get p() { return this.#p } }", "[A.s, new A().p, A.name]"], [3, 4, "A"]),
        (["class A {}\nclass B extends A {}", "new B() instanceof A"], True),
        (["const {a, b: {c = 5}, ...rest} = {a: 1, b: {}, d: 2, e: 3}", "[a, c, rest]"], [1, 5, {"d": 2, "e": 3}]),
        (["const [a, , b = 2, ...c] = [1, 9, undefined, 4, 5]", "[a, b, c]"], [1, 2, [4, 5]]),
        (["let a, b = 2, c", "[typeof a, b, typeof c]"], ["undefined", 2, "undefined"]),
        (["const f = () => {}, g = class {}, h = function () {}", "[f.name, g.name, h.name]"], ["f", "g", "h"]),
        (["for (var i = 0; i < 3; i++) { var inner = i }", "[i, inner]"], [3, 2]),
        (["if (true) { var v = 1; let hidden = 2 }", "[v, typeof hidden]"], [1, "undefined"]),
        (["try { throw 1 } catch (e) { var caught = e }", "caught"], 1),
        (["function outer() { var v = 1; const w = 2 } outer()", "[typeof v, typeof w]"], ["undefined", "undefined"]),
        (["label: for (const x of [1, 2]) { for (;;) continue label }\nlet after = 1", "after"], 1),
        (["let \\u0061b = 3", "ab"], 3),
        (["const π = 3, $ = 4, _ = 5", "[π, $, _]"], [3, 4, 5]),
    ],
)
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "await"])
def test_what_is_declared_lasts(driver: Driver, codes: list[str], value: object, awaits: bool) -> None:
    if awaits:
        codes = [f"await 0;\n{codes[0]}", *codes[1:]]
    assert evaluate(driver, *codes) == value


@pytest.mark.parametrize("first", ["const", "let", "var", "class", "function", "import", "none"])
@pytest.mark.parametrize("second", ["const", "let", "var", "class", "function", "import"])
def test_any_kind_of_declaration_may_follow_any_other(driver: Driver, first: str, second: str) -> None:
    texts = {
        "const": "const x = 'const'",
        "let": "let x = 'let'",
        "var": "var x = 'var'",
        "class": "class x { static toString() { return 'class' } }",
        "function": "function x() {} x.toString = () => 'function'",
        "import": "import x from './m.mjs'",
        "none": "x = 'none'",
    }
    (driver.home / "m.mjs").write_text("export default 'import'")
    assert evaluate(driver, texts[first], texts[second], "String(x)") == second
    texts = {
        kind: text.replace("x", "y", 1) if kind != "function" else text.replace("x", "y")
        for kind, text in texts.items()
    }
    assert evaluate(driver, texts[first], f"await 0; {texts[second]}", "String(y)") == second


def test_closures_see_new_values_of_redeclared_names(driver: Driver) -> None:
    driver.run("let n = 1; const c = 'old'; function helper() { return 'old' }\nconst read = () => [n, c, helper()]")
    assert evaluate(driver, "n = 5", "read()") == [5, "old", "old"]
    assert evaluate(driver, "let n = 7; const c = 'new'; function helper() { return 'new' }", "read()") == [
        7,
        "new",
        "new",
    ]


def test_functions_are_hoisted(driver: Driver) -> None:
    assert evaluate(driver, "const r = f(); function f() { return g() } function g() { return 3 }", "r") == 3
    assert evaluate(driver, "const q = await h(); async function h() { return 4 }", "q") == 4


@pytest.mark.parametrize(
    "assignment",
    ["c = 2", "c += 2", "c++", "--c", "[c] = [2]", "({c} = {c: 2})", "({c = 1} = {})", "({a: c} = {a: 2})", "[...c] = [2]",
     "for (c of [2]) {}", "for (c in {a: 1}) {}", "c ??= 2, c = 2", "(() => { c = 2 })()", "eval('1'); { let d = (c = 2) }"],
)  # fmt: skip
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "await"])
def test_constants_cannot_be_assigned_to(driver: Driver, assignment: str, awaits: bool) -> None:
    prefix = "await 0; " if awaits else ""
    for code in (f"const c = 1; {assignment}", assignment):
        result = driver.run(prefix + code)
        assert (result.exit_code, result.error["name"]) == (1, "TypeError"), (code, result.err)
        assert evaluate(driver, "c") == 1


def test_names_of_inner_scopes_may_be_called_like_constants(driver: Driver) -> None:
    code = """
    const c = 1, d = 1
    function parameter(c) { c = 2; return c }
    const arrow = ({d}, [c] = []) => { c = d = 2; return c + d }
    function variables() { { var c } for (var d in {a: 1}); c = 2; d = 2; return c + d }
    function blocks() { let s = 0; { let c = 1; c = 2; s += c } for (let d = 0; d < 2; d++) s += d; try { throw 1 } catch (c) { c = 2; s += c } return s }
    function named() { const f = function c() { }; class d { static m() { return d } } function c() {} c = 2; return c }
    switch (1) { case 1: let c = 1; c = 2 }
    const o = {c: 1}; o.c = 2; o["d"] = 3
    """
    assert evaluate(driver, code, "[parameter(1), arrow({}), variables(), blocks(), named(), c, d, o]") == [
        2, 4, 4, 5, 2, 1, 1, {"c": 2, "d": 3},
    ]  # fmt: skip
    assert evaluate(driver, "let c = 5; c = 6; c") == 6
    assert evaluate(driver, "c = 7; c") == 7


def test_names_declared_twice_in_one_text_are_a_syntax_error(driver: Driver) -> None:
    result = driver.run("const x = 1; const x = 2")
    assert result.exit_code == 1
    assert result.error["name"] == "SyntaxError"
    assert evaluate(driver, "typeof x") == "undefined"


def test_lines_without_semicolons(driver: Driver) -> None:
    code = "let a = [1, 2]\nlet b = a\nconst {c} = {c: 3}\nclass D {}\n[a, b].length\nlet e = 4\nconst f = `x`\n;[c, e, f, b.length]"
    assert evaluate(driver, code) == [3, 4, "x", 2]


def test_strict_mode_is_kept(driver: Driver) -> None:
    assert evaluate(driver, "(function () { return typeof this })()") == "object"
    strict = '"use strict";\n(function () { return typeof this })()'
    assert evaluate(driver, strict) == "undefined"
    assert evaluate(driver, f"{strict}; await 0; (function () {{ return typeof this }})()") == "undefined"
    driver.run('"use strict"; await 0; function declared() { return typeof this }')
    assert evaluate(driver, "declared()") == "undefined"
    result = driver.run('"use strict"; undeclared = 1')
    assert result.error["name"] == "ReferenceError"


@pytest.mark.parametrize(
    "declaration",
    [
        "const crypto = require('crypto')",
        "const {URL, URLSearchParams} = {URL: 1, URLSearchParams: 2}",
        "class Event {}",
        "function fetch() { return 'mine' }",
        "var performance = 1",
        "let process = 5",
        "const console = {log() {}}",
        "const Promise = 1, Array = 2, Object = 3, Symbol = 4",
        "import { setTimeout } from 'node:timers/promises'",
    ],
)
def test_names_of_the_runtime_may_be_declared_and_stay_as_they_are_for_others(driver: Driver, declaration: str) -> None:
    names = "crypto URL URLSearchParams Event fetch performance process console Promise Array Object Symbol setTimeout"
    checks = ", ".join(f"globalThis.{name}" for name in names.split())
    driver.run(f"const pristine = [{checks}]")
    for code in (declaration, f"await 0; {declaration}"):
        assert driver.run(code).exit_code == 0, code
        assert evaluate(driver, f"[{checks}].every((one, i) => one === pristine[i])") is True, code
    (driver.home / "other.cjs").write_text(
        "module.exports = typeof setTimeout + typeof process.version + typeof crypto.subtle"
    )
    assert evaluate(driver, "require('./other.cjs')") == "functionstringobject"


def test_shadowing_a_name_of_the_runtime(driver: Driver) -> None:
    driver.run("const URL = 'mine'; function fetch(x) { return x ? fetch(x - 1) + 1 : 0 }")
    assert evaluate(driver, "[URL, fetch(3), fetch.name, globalThis.URL.name]") == ["mine", 3, "fetch", "URL"]
    assert evaluate(driver, "await 0; const r = () => URL; [r(), fetch(1)]") == ["mine", 1]
    assert evaluate(driver, "const URL = 'newer'", "r()") == "newer"
    assert evaluate(driver, '"use strict"; const URL = 1; (function () { return [typeof this, URL] })()') == [
        "undefined",
        1,
    ]


def test_no_name_of_ours_is_in_the_way(driver: Driver) -> None:
    names = (
        "runtime user dir driver context load exports module require run plan scope code display token id hooks main"
    )
    for name in names.split():
        assert evaluate(driver, f"let {name} = '{name}'", f"{name}") == name
    assert (
        evaluate(
            driver,
            "Object.keys(globalThis).filter((k) => /hayfork|driver|plan/.test(k) && k !== 'driver' && k !== 'plan')",
        )
        == []
    )


# Modules ---------------------------------------------------------------------------------------------------------------


def test_static_imports_of_all_shapes(driver: Driver) -> None:
    (driver.home / "m.mjs").write_text(
        "console.log('loaded'); export default 1; export const a = 2; export { a as b, a as 'odd name' };"
    )
    code = (
        "import './m.mjs'\nimport one from './m.mjs'\nimport * as all from './m.mjs';\n"
        "import dflt, {a, b as bee, 'odd name' as odd} from './m.mjs'\n[one, all.a, dflt, a, bee, odd]"
    )
    result = driver.run(code)
    assert value_of(result) == [1, 2, 1, 2, 2, 2]
    assert result.out == b"loaded\n"
    assert evaluate(driver, "[one, a, bee]") == [1, 2, 2]


def test_imports_are_hoisted_and_need_not_come_first(driver: Driver) -> None:
    assert evaluate(driver, "const s = sep\nimport { sep } from 'path'\ns") == "/"


def test_imports_are_live(driver: Driver) -> None:
    (driver.home / "counter.mjs").write_text("export let n = 0; export function more() { n++ }")
    driver.run("import { n, more } from './counter.mjs'")
    assert evaluate(driver, "more(); more()", "n") == 2
    result = driver.run("n = 5")
    assert result.error["name"] == "TypeError"


def test_import_attributes_json_and_typescript_files(driver: Driver) -> None:
    (driver.home / "d.json").write_text('{"k": [1]}')
    (driver.home / "t.ts").write_text(
        "export interface T { a: number }\nexport enum E { X = 7 }\nexport const f = (t: T) => t.a"
    )
    code = "import d from './d.json' with { type: 'json' }; import { E, f, T } from './t.ts'; const t: T = {a: 1}; [d, E.X, f(t)]"
    assert evaluate(driver, code) == [{"k": [1]}, 7, 1]
    assert evaluate(driver, "(await import('./d.json', { with: { type: 'json' } })).default.k") == [1]


def test_dynamic_import_everywhere(driver: Driver) -> None:
    (driver.home / "m.mjs").write_text("export const a = 2")
    assert evaluate(driver, "(await import('./m.mjs')).a") == 2
    assert evaluate(driver, "function later() { return import('./' + 'm.mjs') }", "(await later()).a") == 2
    assert evaluate(driver, "import('node:fs').then((fs) => typeof fs.readFileSync)") == "function"
    assert evaluate(driver, "await import('./nope.mjs').catch((e) => e.code)") == "ERR_MODULE_NOT_FOUND"


def test_modules_written_later_are_found(driver: Driver) -> None:
    for how in ("import x from './late.mjs'", "await import('./late.mjs')", "require('./late.cjs')"):
        assert driver.run(how).exit_code == 1, how
    (driver.home / "late.mjs").write_text("export default 3")
    (driver.home / "late.cjs").write_text("module.exports = 4")
    assert evaluate(
        driver, "import x from './late.mjs'; [x, (await import('./late.mjs')).default, require('./late.cjs')]"
    ) == [3, 3, 4]


def test_modules_are_found_from_the_working_directory(driver: Driver) -> None:
    (driver.home / "sub").mkdir()
    (driver.home / "sub" / "m.cjs").write_text("module.exports = 'sub'")
    (driver.home / "sub" / "node_modules" / "pkg").mkdir(parents=True)
    (driver.home / "sub" / "node_modules" / "pkg" / "index.js").write_text("exports.p = 1")
    driver.run("process.chdir('sub')")
    assert evaluate(driver, "import { p } from 'pkg'; [require('./m.cjs'), p, require('pkg').p]") == ["sub", 1, 1]


def test_missing_module_or_export(driver: Driver) -> None:
    result = driver.run("// first\nimport x from 'no-such-package'")
    assert result.exit_code == 1
    assert b"Cannot find package 'no-such-package'" in result.err
    assert b"<cell 1>:2" in result.err
    result = driver.run("\nimport { nope } from 'node:fs'")
    assert result.error["name"] == "SyntaxError"
    assert "'nope'" in result.error["value"]
    assert result.error["traceback"].startswith("<cell 2>:2\nimport { nope }")


def test_require_module_and_import_meta(driver: Driver) -> None:
    assert evaluate(
        driver, "[typeof require('fs').readFileSync, require.main === module, typeof require.resolve('fs')]"
    ) == [
        "function",
        True,
        "string",
    ]
    assert evaluate(
        driver, "[import.meta.main, import.meta.url.startsWith('file:///'), typeof import.meta.dirname]"
    ) == [
        True,
        True,
        "string",
    ]
    assert evaluate(driver, "await 0; function f() { return import.meta.main } f()") is True
    assert evaluate(driver, "[typeof __filename, typeof __dirname, process.argv.length]") == ["string", "string", 2]


def test_exports_of_the_text_are_ordinary_names(driver: Driver) -> None:
    code = "export const a = 1; export function f() { return 2 } export class C {} export default class D {}\nexport { a as z }"
    assert driver.run(code).exit_code == 0
    assert evaluate(driver, "[a, f(), C.name, D.name]") == [1, 2, "C", "D"]
    for code in ("export default 5", "export default {a: 1}", "export default () => 1", "export * from 'node:fs'"):
        assert driver.run(code).exit_code == 0, code


# Text that looks like code ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ('"import(x)"', "import(x)"),
        ("'const a = 1; let b'", "const a = 1; let b"),
        ("`import x from 'y'; ${'const'} ${`let ${1}`}`", "import x from 'y'; const let 1"),
        ("/const \\/x = import(y)/.source", "const \\/x = import(y)"),
        ("String.raw`\\n${1}`", "\\n1"),
        ("1 /* import x from 'y' */ + 1 // const z = 1", 2),
        ('"import.meta.url" + (import.meta.main ? "" : "")', "import.meta.url"),
        ("({import: 1, const: 2, let: 3}).const", 2),
        (
            "(function f(a) { const b = a; let c = b; return c }).toString()",
            "function f(a) { const b = a; let c = b; return c }",
        ),
        ("'a\\u00e9\\x41'", "aéA"),
        ("`line\r\nline`.length", 9),
        ("'export default 1'.length", 16),
        ("[1,2,3].map((x) => x < 2 && x > 0)", [True, False, False]),
        ("const a = 1, b = 5, c = 2; [a < b, b > c]", [True, True]),
        ("`<T>(x)` + '<string>(y)'", "<T>(x)<string>(y)"),
    ],
)
def test_text_in_literals_is_never_rewritten(driver: Driver, code: str, value: object) -> None:
    assert evaluate(driver, code) == value
    assert evaluate(driver, f"await 0;\n{code}") == value
    assert evaluate(driver, f"const typed: number = 1;\n{code}") == value


def test_function_source_is_the_users(driver: Driver) -> None:
    text = "function f ( a,b ) { /* c */ return `x${a}` + 'const' }"
    assert evaluate(driver, f"{text}\nf.toString()") == text
    assert evaluate(driver, f"await 0; {text}\nf.toString()") == text


# TypeScript ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("const n: number = 1; n", 1),
        ("let u: string | undefined; typeof u", "undefined"),
        ("interface I { a: number }\ntype T = I & {b?: string}\nconst o: T = {a: 1}; o", {"a": 1}),
        ("enum E { A, B = 5, C = 'c' as any }\n[E.A, E[5], E.C]", [0, "B", "c"]),
        ("const enum E { A = 2 }\nE.A", 2),
        ("namespace N { export const x = 1; export namespace M { export const y = 2 } }\n[N.x, N.M.y]", [1, 2]),
        ("function id<T>(x: T): T { return x }\nid<string>('s')", "s"),
        ("const m = new Map<string, number[]>([['a', [1]]]); [...m]", [["a", [1]]]),
        ("const s = new Set<number>([1]); s.size", 1),
        ("const f = <T,>(x: T) => x; f<{a: number}>({a: 1})", {"a": 1}),
        ("const v = {a: 1} as const; const w = v satisfies object; (w as any).a", 1),
        ("let x: any = {a: {b: 1}}; x!.a!.b", 1),
        (
            "class P { constructor(private readonly a: number, public b = 2) {} sum(): number { return this.a + this.b } } new P(1).sum()",
            3,
        ),
        (
            "abstract class B { abstract m(): number; protected x?: number; declare y: string }\nclass C extends B { m() { return 4 } } new C().m()",
            4,
        ),
        ("class G<T> implements Iterable<T> { *[Symbol.iterator](): Iterator<T> {} } [...new G<number>()]", []),
        (
            "function over(a: string): string; function over(a: number): number; function over(a: any) { return a }\nover(1)",
            1,
        ),
        ("declare const nothing: number; declare module 'x' { }\n1", 1),
        (
            "import type { Stats } from 'fs'; import { type Dirent, existsSync } from 'fs'; const s: Stats | null = null; existsSync('/')",
            True,
        ),
        ("const x = (a?: number, ...r: string[]): a is number => true; x()", True),
        ("let t: [a: string, b?: number] = ['x']; const k: keyof typeof t = 0; t[k]", "x"),
        ("function d(v: any, c?: any): any { return class extends v { extra = 1 } }\n@d class D {}\nnew D().extra", 1),
        ("const p: Promise<number> = Promise.resolve(3); await p", 3),
        ("type A<T> = T extends infer U ? U : never; let z: A<1> = 1; z", 1),
        ("try { throw new Error('x') } catch (e: unknown) { (e as Error).message }", "x"),
        ("const o = { m(this: {a: number}) { return this.a }, a: 5 }; o.m()", 5),
        ("using res = { [Symbol.dispose]() {} }; typeof res", "object"),
    ],
)
def test_typescript(driver: Driver, code: str, value: object) -> None:
    if "catch (e" in code:
        code = f"let m; {code.replace('(e as', 'm = (e as')}; m"
    assert evaluate(driver, code) == value


def test_typescript_keeps_line_numbers(driver: Driver) -> None:
    lines = [
        "interface I {",
        "  a: number",
        "}",
        "enum E {",
        "  A,",
        "  B",
        "}",
        "type T =",
        "  | I",
        "  | E",
        "",
        "throw new Error('x')",
    ]
    result = driver.run("\n".join(lines))
    assert result.error["traceback"].startswith("<cell 1>:12\nthrow new Error('x')\n")


# The runtime -----------------------------------------------------------------------------------------------------------


def test_globals_of_the_runtime_are_there_in_one_realm(driver: Driver) -> None:
    names = (
        "setImmediate setTimeout queueMicrotask structuredClone fetch WebSocket Worker MessageChannel BroadcastChannel File Blob "
        "FormData Headers Request Response URL URLPattern AbortController ReadableStream TextEncoder Buffer process global "
        "performance crypto navigator WebAssembly Bun console Intl Temporal Atomics SharedArrayBuffer EventTarget atob"
    )
    checks = ", ".join(f"['{name}', typeof {name}]" for name in names.split())
    missing = evaluate(driver, f"[{checks}].filter(([, t]) => t === 'undefined')")
    assert missing in ([], [["Temporal", "undefined"]])
    assert (
        evaluate(
            driver,
            "[[] instanceof Array, {} instanceof Object, new Error() instanceof Error, Buffer.from('a') instanceof Uint8Array, "
            "require('util').types.isProxy(new Proxy({}, {})), (() => {}) instanceof Function, Promise.resolve() instanceof Promise]",
        )
        == [True] * 7
    )
    assert evaluate(driver, "this === globalThis && global === globalThis") is True


def test_worker_threads_and_message_channels(driver: Driver) -> None:
    (driver.home / "w.ts").write_text("self.onmessage = (e: MessageEvent) => postMessage(e.data * 2)")
    code = (
        "const w = new Worker('./w.ts'); const got = await new Promise((r) => { w.onmessage = (e) => r(e.data); w.postMessage(21) });"
        "w.terminate(); got"
    )
    assert evaluate(driver, code) == 42
    code = (
        "const { port1, port2 } = new MessageChannel(); const m = await new Promise((r) => { port2.onmessage = (e) => r(e.data);"
        "port1.postMessage({a: 1}) }); port1.close(); port2.close(); m"
    )
    assert evaluate(driver, code) == {"a": 1}


def test_http_server_and_client_on_localhost(driver: Driver) -> None:
    code = (
        "import http from 'node:http'; const server = http.createServer((q, s) => s.end('hi ' + q.url));"
        "await new Promise((r) => server.listen(0, '127.0.0.1', r)); const { port } = server.address();"
        "await (await fetch(`http://127.0.0.1:${port}/a`)).text()"
    )
    assert evaluate(driver, code) == "hi /a"
    assert evaluate(driver, "await (await fetch(`http://127.0.0.1:${port}/b`)).text()") == "hi /b"
    driver.run("server.close()")


def test_child_processes(driver: Driver) -> None:
    assert evaluate(driver, "require('child_process').execSync('echo $((1+1))').toString()") == "2\n"
    assert evaluate(driver, "(await Bun.$`echo from ${'bun'}`.text())") == "from bun\n"
    result = driver.run(
        "const r = require('child_process').spawnSync('sh', ['-c', 'echo o; echo e >&2; exit 3'], {stdio: 'inherit'}); r.status"
    )
    assert (value_of(result), result.out, result.err) == (3, b"o\n", b"e\n")
    (driver.home / "child.js").write_text("process.on('message', (m) => { process.send(m + 1); process.exit() })")
    code = "const c = require('child_process').fork('./child.js'); const a = await new Promise((r) => { c.on('message', r); c.send(1) }); a"
    assert evaluate(driver, code) == 2


def test_home_cwd_and_user(driver: Driver) -> None:
    code = "[process.env.HOME, require('os').homedir(), process.cwd(), process.env.USER]"
    home = str(driver.home)
    assert evaluate(driver, code) == [home, home, home, "user"]
