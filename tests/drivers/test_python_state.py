"""Python driver: what lasts between executions, names, exit codes, uncaught exceptions (BEHAVIOURS 1, 9, 10, 13, 18, 19, 21, 26)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from driver_harness import DRIVERS, Driver

LANGUAGE = "python"


def test_code_that_does_nothing(driver: Driver) -> None:
    for code in ("", "\n\n", "# only a comment", "   # indented", "pass"):
        result = driver.run(code)
        assert (result.exit_code, result.out, result.err, result.records) == (0, b"", b"", []), code


def test_bom_is_ignored(driver: Driver) -> None:
    result = driver.run(b"\xef\xbb\xbfprint('ok')")
    assert (result.exit_code, result.out) == (0, b"ok\n")


def test_nul_in_code_is_an_error_and_the_session_lives(driver: Driver) -> None:
    result = driver.run("print(1)\0")
    assert result.exit_code == 1
    assert b"null bytes" in result.err
    assert driver.run("print(2)").out == b"2\n"


def test_names_functions_classes_imports_and_cwd_last(driver: Driver) -> None:
    driver.run("import os, json as j\nx = [1]\ndef f(): return x\nclass C:\n    y = 3\nos.mkdir('d'); os.chdir('d')")
    result = driver.run("x.append(2)\nprint(f(), C.y, j.dumps({}), os.path.basename(os.getcwd()))")
    assert result.out == b"[1, 2] 3 {} d\n"


@pytest.mark.parametrize("exit_code", [0, 3, 1, 137, 255])
def test_exit_codes(driver: Driver, exit_code: int) -> None:
    driver.run("x = 5")
    result = driver.run(f"import sys\nprint('a')\nsys.exit({exit_code})")
    assert (result.exit_code, result.out, result.err, result.died) == (exit_code, b"a\n", b"", False)
    assert driver.run("print(x)").out == b"5\n"


@pytest.mark.parametrize(
    ("value", "exit_code", "printed"),
    [
        ("None", 0, b""),
        ("True", 1, b""),
        ("False", 0, b""),
        ("256", 0, b""),
        ("257", 1, b""),
        ("-1", 255, b""),
        ("-256", 0, b""),
        ("2**31", 0, b""),
        ("2**64", 255, b""),
        ("'msg'", 1, b"msg\n"),
        ("''", 1, b"\n"),
        ("1.5", 1, b"1.5\n"),
        ("[]", 1, b"[]\n"),
        ("(1, 2)", 1, b"(1, 2)\n"),
    ],
)
def test_exit_values_mean_what_they_mean_to_a_process(
    driver: Driver, value: str, exit_code: int, printed: bytes
) -> None:
    result = driver.run(f"import sys\nsys.exit({value})")
    assert (result.exit_code, result.err) == (exit_code, printed)
    assert driver.run("1").exit_code == 0


def test_exit_of_all_other_kinds(driver: Driver) -> None:
    assert driver.run("raise SystemExit").exit_code == 0
    assert driver.run("raise SystemExit(4)").exit_code == 4
    assert driver.run("exit(5)").exit_code == 5
    assert driver.run("quit()").exit_code == 0
    assert driver.run("def f(): raise SystemExit(6)\nf()").exit_code == 6
    assert driver.run("import sys\nasync def f(): sys.exit(7)\nawait f()").exit_code == 7
    assert driver.run("input()").exit_code == 1  # exit() has closed sys.stdin: it is there again, and empty


def test_exit_cannot_be_forged_by_its_value(driver: Driver) -> None:
    code = "class E(SystemExit):\n    @property\n    def code(self): raise ValueError\nraise E(3)"
    assert driver.run(code).exit_code in (1, 3)
    assert driver.run("class S:\n    def __str__(self): raise ValueError\nraise SystemExit(S())").exit_code == 1
    assert driver.run("print(1)").out == b"1\n"


def test_os_exit_keeps_output_and_gives_a_fresh_interpreter(driver: Driver) -> None:
    driver.run("x = 1")
    result = driver.run("import os, sys\nprint('a')\nsys.stdout.write('b')\nsys.stderr.write('c')\nos._exit(42)")
    assert (result.exit_code, result.out, result.err, result.died) == (42, b"a\nb", b"c", True)
    assert driver.run("x").error["name"] == "NameError"


def test_segmentation_fault(driver: Driver) -> None:
    result = driver.run("import ctypes\nprint('a')\nctypes.string_at(0)")
    assert (result.exit_code, result.out, result.died) == (139, b"a\n", True)
    assert driver.run("print(1)").out == b"1\n"


def test_death_by_signal(driver: Driver) -> None:
    assert driver.run("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nos.read(0, 1)").exit_code == 143
    assert driver.run("import os\nos.abort()").exit_code == 128 + signal.SIGABRT


@pytest.mark.parametrize(
    "name",
    """exit_code code header compiled code_len ns traceback sys _repl_os sentinel_id token folder main loop driver hayfork
    result Cell cell source os posix os_exit builtins print_ exec_ value error namespace __file__ __loader__ __spec__
    __doc__ __package__ asyncio display _ __name Border border settings guard""".split(),
)
def test_no_name_of_the_user_collides(driver: Driver, name: str) -> None:
    before = driver.run(f"print({name!r} in globals() or {name!r} in dir(__builtins__))").out
    if not name.startswith("__") and name not in ("display", "_"):
        assert before == b"False\n"
    assert driver.run(f"{name} = 5").exit_code == 0
    assert driver.run(f"print({name})\n{name} = None").out == b"5\n"
    assert driver.run(f"print({name})\n1/0").out == b"None\n"
    assert driver.run("class B:\n    def __getattr__(self, n): raise RuntimeError\n" + f"{name} = B()").exit_code == 0
    result = driver.run("print('alive'); 1/0")
    assert (result.out, result.exit_code) == (b"alive\n", 1)


def test_namespace_is_that_of_the_interactive_interpreter(driver: Driver) -> None:
    result = driver.run("print(sorted(globals()), __name__, __builtins__.__name__)")
    names = "['__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']"
    assert result.out.decode() == f"{names} __main__ builtins\n"
    assert driver.run("import __main__\nx = 1\nprint(__main__.x, __main__.__dict__ is globals())").out == b"1 True\n"
    assert driver.run("import sys\nprint(sys.argv, repr(sys.path[0]))").out == b"[''] ''\n"
    result = driver.run(
        "print([n for n in sys.modules if 'hayfork' in n or n in ('driver', 'loader', 'loop', 'cell')])"
    )
    assert result.out == b"[]\n"
    assert driver.run("if __name__ == '__main__': print('run')").out == b"run\n"


@pytest.mark.parametrize("name", ["driver", "loader", "loop", "cell", "guard", "hayfork_driver", "streams"])
def test_no_module_of_ours_can_be_imported_or_stands_in_the_way(driver: Driver, name: str) -> None:
    assert driver.run(f"import {name}").error["name"] == "ModuleNotFoundError"
    driver.run(f"open('{name}.py', 'w').write('who = 5')")
    assert driver.run(f"import {name}\nprint({name}.who)").out == b"5\n"


def test_deleting_everything_in_the_namespace(driver: Driver) -> None:
    assert driver.run("globals().clear()").exit_code == 0
    assert driver.run("x = 1\nprint(len('abc'))").out == b"3\n"
    assert driver.run("del __builtins__\nprint(x)").out == b"1\n"
    assert (
        driver.run("import builtins\nprint(__builtins__ is builtins or __builtins__ is builtins.__dict__)").out
        == b"True\n"
    )
    assert driver.run("import sys\nsys.modules.pop('__main__')").exit_code == 0
    assert (
        driver.run("import pickle\nclass K: pass\nprint(type(pickle.loads(pickle.dumps(K()))) is K)").out == b"True\n"
    )


def test_annotations_are_not_strings(driver: Driver) -> None:
    assert driver.run("def f(x: int): pass\nprint(f.__annotations__)").out == b"{'x': <class 'int'>}\n"
    code = "import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int\nprint(dataclasses.fields(D)[0].type)"
    assert driver.run(code).out == b"<class 'int'>\n"


def test_future_import_as_first_line_lasts_as_in_the_interactive_interpreter(driver: Driver) -> None:
    result = driver.run("from __future__ import annotations\ndef f(x: int): pass\nf.__annotations__")
    assert result.value == "{'x': 'int'}"
    assert driver.run("def g(x: int): pass\ng.__annotations__").value == "{'x': 'int'}"
    assert driver.run('"""doc"""\nfrom __future__ import annotations').exit_code == 0
    assert driver.run("x = 1\nfrom __future__ import annotations").error["name"] == "SyntaxError"


def test_traceback_starts_at_the_users_first_line_and_shows_source(driver: Driver) -> None:
    result = driver.run("def f(x):\n    return 1 / x\n\ny = 0\nf(y)")
    lines = [line for line in result.err.decode().splitlines() if not set(line.strip()) <= set("~^")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<cell 1>", line 5, in <module>',
        "    f(y)",
        '  File "<cell 1>", line 2, in f',
        "    return 1 / x",
        "ZeroDivisionError: division by zero",
    ]
    assert result.error["name"] == "ZeroDivisionError"
    assert result.error["value"] == "division by zero"
    assert result.error["traceback"] == result.err.decode()


def test_traceback_through_earlier_executions_shows_their_source(driver: Driver) -> None:
    driver.run("def f():\n    raise KeyError('from one')")
    err = driver.run("f()").err.decode()
    assert "File \"<cell 1>\", line 2, in f\n    raise KeyError('from one')" in err
    assert 'File "<cell 2>", line 1, in <module>\n    f()' in err


OURS = (b"hayfork_driver", b"driver.py", b"run_until_complete", b"base_events", b"loop.py")


@pytest.mark.parametrize(
    "code",
    [
        "1/0",
        "raise SystemError",
        "async def f():\n    1/0\nawait f()",
        "import asyncio\nawait asyncio.wait_for(asyncio.sleep(5), 0.01)",
        "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('second') from e",
        "try:\n    1/0\nexcept ZeroDivisionError:\n    raise ValueError('second')",
        "class R:\n    def __repr__(self): raise ValueError('no repr')\nR()",
        "class R:\n    def _repr_html_(self): raise ValueError('no html')\ndisplay(R()); 1/0",
        "class R:\n    def __repr__(self): raise ValueError('no repr')\ndisplay(R())",
        "import builtins\nraise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
        "x = y = (",
        "return 5",
        "def f():\n  x = 1\n y = 2",
        "import nothing_of_that_name",
        "import asyncio\nasyncio.run(nothing())",
        "def f(): f()\nf()",
        "exec('1/0')",
        "eval('1 +')",
        "import json; json.loads('{')",
        "raise KeyboardInterrupt",
        "raise BaseException('base')",
        "raise GeneratorExit",
        "assert False, 'asserted'",
        "import os\nos._exit = 1\nos.environ[5]",
        "raise type('E', (Exception,), {'__str__': lambda s: 1/0})",
        "import sys\nsys.excepthook = lambda *a: 1/0\n1/0",
    ],
)
def test_no_frame_of_ours_in_any_traceback(driver: Driver, code: str) -> None:
    result = driver.run(code)
    assert result.exit_code == (130 if "KeyboardInterrupt" in code else 1)
    shown = result.err + b"".join(record.header["traceback"].encode() for record in result.of_kind("error"))
    for name in OURS:
        if not (name == b"run_until_complete" and b"asyncio.run" in code.encode()):
            assert name not in shown, shown.decode()
    _, header, last = result.err.decode().rpartition("Traceback (most recent call last):\n")
    first = last.split("\n")[0] if header else ""
    if "excepthook" not in code and "exec" not in code:
        assert not first or "<cell 1>" in first, result.err.decode()
    assert driver.run("print('alive')").out == b"alive\n"


def test_printed_tracebacks_show_source_too(driver: Driver) -> None:
    code = "import traceback\ntry:\n    int('zzz')\nexcept ValueError:\n    traceback.print_exc()"
    assert b"int('zzz')" in driver.run(code).err
    assert b"    int('zzz')" in driver.run(code).err
    code = "import threading\ndef f():\n    raise ValueError('in a thread')\nt = threading.Thread(target=f); t.start(); t.join()"
    assert b"in a thread" in driver.run(code).err


def test_inspect_getsource_works(driver: Driver) -> None:
    driver.run("def f():\n    return 'this is f'")
    assert driver.run("import inspect\nprint(inspect.getsource(f))").out == b"def f():\n    return 'this is f'\n\n"


def test_syntax_error_runs_nothing(driver: Driver) -> None:
    result = driver.run("print('not printed')\nif:\n")
    assert (result.exit_code, result.out) == (1, b"")
    assert result.err.decode().startswith('  File "<cell 1>", line 2\n    if:\n')
    assert result.error["name"] == "SyntaxError"
    assert driver.run("print(1)").out == b"1\n"


def test_syntax_warnings_come_once(driver: Driver) -> None:
    result = driver.run(r"x = '\d'" + "\nx is 5")
    assert result.exit_code == 0
    assert result.err.count(b"invalid escape sequence") in (0, 1)  # silent by default in older versions
    assert result.err.count(b'"is" with') == 1


def test_errors_that_exhaust_something_keep_the_session(driver: Driver) -> None:
    driver.run("x = 1\nimport sys")
    assert driver.run("def f(): return f()\nf()").error["name"] == "RecursionError"
    assert driver.run("l = []\nl.append(l)\nfor _ in range(100000): l = [l]\nrepr(l)").error["name"] == "RecursionError"
    assert driver.run("bytearray(1 << 60)").error["name"] == "MemoryError"
    assert driver.run("'(' * 5000 and eval('(' * 5000)").exit_code == 1
    assert driver.run("class C:\n    def __getattr__(self, n): return getattr(self, n + 'x')\nC().y").exit_code == 1
    assert driver.run("print(x)").out == b"1\n"


def test_recursion_limit_of_the_user_is_kept_and_does_not_hurt(driver: Driver) -> None:
    assert driver.run("import sys\nsys.setrecursionlimit(40)").exit_code == 0
    result = driver.run("def f(n): return n and f(n - 1)\nprint(sys.getrecursionlimit())\nf(100)")
    assert (result.out, result.error["name"]) == (b"40\n", "RecursionError")
    assert driver.run("sys.setrecursionlimit(20000)").exit_code == 0
    assert driver.run("print(sys.getrecursionlimit())").out == b"20000\n"


def test_trace_and_profile_functions_do_not_see_us(driver: Driver) -> None:
    code = "import sys\nseen = set()\ndef t(frame, event, arg):\n    seen.add(frame.f_code.co_filename)\n    return t\n"
    assert driver.run(code + "sys.settrace(t)\nsys.setprofile(t)").exit_code == 0
    assert driver.run("def g(): return 1\ng()").exit_code == 0
    result = driver.run("sys.settrace(None); sys.setprofile(None)\nprint('<cell 2>' in seen)")
    assert result.out == b"True\n"
    assert (
        driver.run("def bad(*a): raise ValueError('traced')\nsys.settrace(bad)\nsys.setprofile(bad)\nlen('')").exit_code
        == 1
    )
    driver.run("def h(): return 1\nh()")
    driver.run("sys.settrace(None)")
    assert driver.run("print('alive')").died is False


def test_modules_written_meanwhile_import_at_once(driver: Driver) -> None:
    assert driver.run("import m").error["name"] == "ModuleNotFoundError"
    (driver.home / "m.py").write_text("def f(): return 'new'")
    assert driver.run("import m\nprint(m.f())").out == b"new\n"
    (driver.home / "p").mkdir()
    (driver.home / "p" / "__init__.py").write_text("")
    assert driver.run("from p import q").exit_code == 1
    (driver.home / "p" / "q.py").write_text("z = 3")
    assert driver.run("from p import q\nprint(q.z)").out == b"3\n"
    for number in range(30):
        (driver.home / f"n{number}.py").write_text(f"v = {number}")
        assert driver.run(f"import n{number}\nprint(n{number}.v)").out == f"{number}\n".encode()


def test_user_modules_with_the_names_of_the_standard_library(driver: Driver) -> None:
    for name in ("traceback", "linecache", "asyncio", "signal", "types", "re", "json", "posix", "_io", "contextlib"):
        (driver.home / f"{name}.py").write_text("raise RuntimeError('the user has a module of that name')")
    result = driver.run("1/0")
    assert (result.exit_code, result.error["name"]) == (1, "ZeroDivisionError")
    assert b"<cell 1>" in result.err
    assert driver.run("await nothing()").error["name"] == "NameError"


def test_standard_modules_replaced_by_the_user(driver: Driver) -> None:
    driver.run("import sys\nfor n in ('traceback', 'linecache', 'json', 'ctypes'): sys.modules[n] = None")
    assert driver.run("1/0").error["name"] == "ZeroDivisionError"
    driver.run("class Odd:\n    def __getattr__(self, n): raise RuntimeError(n)")
    driver.run("for n in ('traceback', 'linecache', 'asyncio', 'os', 'posix', 'signal'): sys.modules[n] = Odd()")
    assert driver.run("1/0").error["name"] == "ZeroDivisionError"
    assert driver.run("await nothing()").exit_code == 1
    driver.run("sys.meta_path.clear(); sys.path.clear(); sys.path_hooks.clear(); sys.path = 5")
    assert driver.run("1/0").error["name"] == "ZeroDivisionError"
    driver.run("sys.path_importer_cache = None; sys.modules.clear()")
    assert driver.run("1/0").error["name"] == "ZeroDivisionError"
    assert driver.run("print('alive')").out == b"alive\n"


def test_environment_holds_for_one_execution(driver: Driver) -> None:
    show = "import os\nprint(os.environ.get('A'), os.environ.get('B'), os.getenv('HOME') is not None)"
    assert driver.run(show, env={"A": "ä=\n 1", "B": ""}).out.decode() == "ä=\n 1  True\n"
    assert driver.run(show).out == b"None None True\n"
    driver.run("os.environ['A'] = 'mine'")
    assert driver.run(show, env={"A": "theirs"}).out == b"theirs None True\n"
    assert driver.run(show).out == b"mine None True\n"
    assert driver.run("os.system('echo $Q')", env={"Q": "child"}).out == b"child\n"
    assert driver.run("os.system('echo $Q')").out == b"\n"
    driver.run("os.environ = {}\nos.putenv = None", env={"A": "x"})
    assert driver.run("os.system('echo $A')", env={"A": "y"}).out == b"y\n"
    zone = "import time\nprint(time.localtime(0).tm_hour)"
    assert driver.run(zone, env={"TZ": "XXX-5"}).out == b"5\n"
    assert driver.run(zone).out == b"0\n"


def test_home_and_cwd(driver: Driver) -> None:
    result = driver.run("import os\nprint(os.getcwd(), os.path.expanduser('~'), os.getuid() != 0 or 'root')")
    assert result.out.split()[0] == result.out.split()[1] == str(driver.home).encode()


def test_a_hundred_executions(driver: Driver) -> None:
    driver.run("import os\nn = 0\nbefore = len(os.listdir('/proc/self/fd'))")
    for number in range(100):
        assert driver.run(f"n += 1\nprint(n)\nassert n == {number + 1}").exit_code == 0
    assert driver.run("print(n, len(os.listdir('/proc/self/fd')) - before)").out == b"100 0\n"


def test_current_folder_removed(driver: Driver) -> None:
    driver.run("import os\nos.mkdir('gone'); os.chdir('gone'); os.rmdir(os.path.join(os.environ['HOME'], 'gone'))")
    assert driver.run("print(1)").out == b"1\n"
    assert driver.run("1/0").error["name"] == "ZeroDivisionError"
    assert driver.run("os.chdir(os.environ['HOME'])\nprint(2)").out == b"2\n"


def test_start_is_quick(driver: Driver) -> None:
    assert driver.start_seconds < 5
    began = time.monotonic()
    driver.run("1")
    assert time.monotonic() - began < 1


def test_compiled_files_are_used_if_they_fit_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "hayfork_driver"
    shutil.copytree(DRIVERS / "python" / "hayfork_driver", folder, ignore=shutil.ignore_patterns("__pycache__"))
    python = os.environ.get("HAYFORK_DRIVER_PYTHON", "/usr/bin/python3")
    compiling = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(folder)]
    subprocess.run([python, *compiling], check=True, timeout=60)
    program = (
        "import builtins, sys\nplain = compile\nprivate = dict(vars(builtins))\n"
        "private['compile'] = lambda *a: print('compiles', a[1].rpartition('/')[2]) or plain(*a)\n"
        "here = sys.argv[1] + '/'\nnames = {'__name__': 'loader', '__builtins__': private, 'HERE': here}\n"
        "exec(plain(open(here + 'loader.py').read(), 'loader.py', 'exec'), names)\n"
        "print(names['load']('plain').is_own('x'))\n"
    )

    def load() -> str:
        done = subprocess.run(
            [python, "-c", program, str(folder)], check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    assert load() == "False\n"
    with (folder / "plain.py").open("a") as file:
        file.write("\n# changed\n")
    assert load() == "compiles plain.py\nFalse\n"
