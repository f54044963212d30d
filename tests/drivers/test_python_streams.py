"""Python driver: input and output (BEHAVIOURS 2, 4, 6, 7, 8, 14, 16, 25)."""

from __future__ import annotations

import time

import pytest
from driver_harness import Driver

LANGUAGE = "python"

MIXED = "aé中😀ż≠𝄞\t" * 4000


def test_output_is_byte_exact(driver: Driver) -> None:
    result = driver.run("import os\nos.write(1, bytes(range(256)) * 4)\nprint('a\\0b\\rc\\r\\nd\\x1b[31m')")
    assert result.out == bytes(range(256)) * 4 + b"a\0b\rc\r\nd\x1b[31m\n"


def test_text_in_any_script_on_both_streams(driver: Driver) -> None:
    result = driver.run(f"import sys\ns = {MIXED!r}\nfor i in range(3):\n    sys.stdout.write(s); sys.stderr.write(s)")
    assert result.out.decode() == result.err.decode() == MIXED * 3
    assert len(result.out) > 200_000


def test_surrogates(driver: Driver) -> None:
    assert driver.run("print('\\udcff')").out == b"\xff\n"
    assert driver.run("import sys\nsys.stderr.write('\\ud800')").err == b"\\ud800"
    result = driver.run("print('\\ud800')")
    assert (result.exit_code, result.error["name"]) == (1, "UnicodeEncodeError")
    result = driver.run("raise ValueError('\\ud800')")
    assert b"ValueError: \\ud800" in result.err
    assert result.error["value"] == "\ufffd"
    assert driver.run("'\\ud800'").value == "'\\ud800'"


def test_much_output_arrives_whole_and_in_order(driver: Driver) -> None:
    assert driver.run("for i in range(10000): print(i)").out == b"".join(b"%d\n" % i for i in range(10000))
    assert driver.run("print('x' * 131072)").out == b"x" * 131072 + b"\n"
    assert driver.run("import sys\nsys.stdout.write('y' * 500_000)").out == b"y" * 500_000
    assert driver.run("import os\nfor i in range(50): os.write(1, b'z' * 10_000)").out == b"z" * 500_000
    assert driver.run("import sys\nsys.stdout.buffer.write(b'w' * 300_001)").out == b"w" * 300_001


def test_first_output_arrives_while_the_code_runs(driver: Driver) -> None:
    execution = driver.begin("import time\nprint('first')\ntime.sleep(1)\nprint('second', end='')")
    execution.wait_for_output(b"first", 5)
    assert execution.result is None
    assert execution.finish().out == b"first\nsecond"


def test_end_is_told_at_once(driver: Driver) -> None:
    driver.run("1")
    began = time.monotonic()
    for _ in range(20):
        driver.run("print('x')")
    assert time.monotonic() - began < 1.5


BREAKAGES = [
    ("import sys, io\nsys.stdout = io.StringIO()\nprint('hidden')", b"", b""),
    ("import sys, io\nsys.stderr = io.StringIO()\n1/0", b"", b""),
    ("import sys\nsys.stdout = sys.stderr\nprint('there')", b"", b"there\n"),
    ("import sys\nsys.stdout.close()", b"", b""),
    ("import sys\nsys.stderr.close()", b"", b""),
    ("import sys\nsys.stderr.close()\n1/0", b"", b""),
    ("import sys\nsys.stdout.buffer.close()", b"", b""),
    ("import sys\nx = sys.stdout.detach()", b"", b""),
    ("import sys\nx = sys.stdout.buffer.detach()", b"", b""),
    ("import sys\nx = sys.stdout.detach(); x.write(b'raw')", b"raw", b""),
    ("import sys\ndel sys.stdout, sys.stderr, sys.stdin", b"", b""),
    ("import sys\nsys.stdout = sys.stderr = sys.stdin = None\nprint('nowhere')\n1/0", b"", b""),
    ("import sys\nsys.stdout = sys.__stdout__ = 5", b"", b""),
    ("import os\nos.close(1)", b"", b""),
    ("import os\nos.close(2); os.close(0)", b"", b""),
    ("import os\nos.close(2)\n1/0", b"", b""),
    ("import os\nos.closerange(0, 1000)", b"", b""),
    ("import os\nos.close(1)\nprint('lost')", b"", b"Bad file descriptor"),
    ("import os, sys\nsys.stdout.write('lost'); os.close(1)", b"", b""),
    ("import os\nos.dup2(2, 1)\nprint('there')", b"", b"there\n"),
    ("import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nprint('nowhere')", b"", b""),
    ("import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('full')", b"", b"No space"),
    ("import builtins\nnames = vars(builtins)\nfor n in list(names):\n    if n[0] != '_': names[n] = None", b"", b""),
    ("import builtins\nnames = vars(builtins)\nfor n in list(names): del names[n]", b"", None),
    ("import builtins\nbuiltins.__import__ = None\nbuiltins.__build_class__ = None", b"", b""),
    ("import os\nfor n in dir(os):\n    if callable(getattr(os, n)) and n[0] != '_': setattr(os, n, None)", b"", None),
    ("import posix\nfor n in dir(posix):\n    if n[0] != '_': setattr(posix, n, None)", b"", b""),
    (
        "import sys\nfor n in dir(sys):\n    if n not in ('modules', 'path') and n[:2] != '__': setattr(sys, n, None)",
        b"",
        b"",
    ),
    ("import sys\nsys.modules.clear()", b"", b""),
    ("import sys\nfor n in list(sys.modules): sys.modules[n] = None", b"", b""),
    ("import sys\nsys.exit = sys.excepthook = sys.displayhook = sys.unraisablehook = lambda *a: 0\n1/0", b"", b""),
    ("import sys\nsys.excepthook = None\n1/0", b"", None),
    ("import io\nio.TextIOWrapper = io.open = io.BytesIO = None", b"", b""),
    ("import gc\ngc.disable()\nfor o in gc.get_objects():\n    if type(o) is dict and 0: o.clear()", b"", b""),
    ("import sys\nsys.stdout.reconfigure(line_buffering=False)\nprint('buffered')", b"buffered\n", b""),
    (
        "import os, sys\nsys.stdout = os.fdopen(os.dup(1), 'w')\nprint('through another object')",
        b"through another object\n",
        b"",
    ),
    ("import warnings\nwarnings.simplefilter('error')\n", b"", b""),
    ("class O:\n    def write(self, t): raise RuntimeError\nimport sys\nsys.stderr = O()\n1/0", b"", b""),
    ("import signal\nfor s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)", b"", b""),
    ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())", b"", b""),
    ("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", b"", b""),
    ("l = []\nimport os\ntry:\n    while 1: l.append(os.dup(0))\nexcept OSError: pass", b"", b""),
    ("l = []\nimport os\ntry:\n    while 1: l.append(os.dup(0))\nexcept OSError: pass\n1/0", b"", None),
    ("import threading\nthreading._shutdown = threading.Thread = None", b"", b""),
    ("import sys\nsys.setswitchinterval(100)", b"", b""),
    ("import sys\nsys.addaudithook(lambda e, a: 1/0 if e == 'import' else None)", b"", None),
    ("import os\nos.umask(0o777)", b"", b""),
]


@pytest.mark.parametrize(("code", "out", "err"), BREAKAGES)
def test_nothing_that_user_code_breaks_loses_the_session(
    driver: Driver, code: str, out: bytes, err: bytes | None
) -> None:
    driver.run("kept = 1")
    result = driver.run(code)
    assert not result.died
    assert result.out == out
    if err:
        assert err in result.err
    elif err == b"" and "1/0" not in code:
        assert result.err == b""
    result = driver.run("print(f'{kept} after')" if "builtins" not in code else "kept")
    assert not result.died
    if "builtins" not in code and "audit" not in code:
        assert (result.exit_code, result.out, result.err) == (0, b"1 after\n", b"")
    result = driver.run("nobody_knows_this")
    assert result.exit_code == 1
    if "audit" not in code and "builtins" not in code and "hook" not in code:
        assert b"NameError" in result.err
    assert result.error["name"] == "NameError" or "builtins" in code or "audit" in code


def test_what_was_printed_to_a_broken_descriptor_does_not_come_later(driver: Driver) -> None:
    driver.run(
        "import os, sys\nos.close(1)\ntry: print('lost')\nexcept OSError: pass\nos.close(2)\nsys.stderr.write('too')"
    )
    result = driver.run("print('next')")
    assert (result.out, result.err) == (b"next\n", b"")


def test_objects_that_keep_a_stream_go_on_working(driver: Driver) -> None:
    driver.run("import sys, logging\nkept = sys.stdout\nlogging.basicConfig(format='%(message)s')")
    assert driver.run("kept.write('k'); logging.warning('w')").err == b"w\n"
    assert driver.run("_ = kept.write('k\\n')").out == b"k\n"


def test_stdin_is_empty_if_none_is_given(driver: Driver) -> None:
    result = driver.run("input('prompt')")
    assert (result.exit_code, result.error["name"], result.out) == (1, "EOFError", b"prompt")
    code = "import os, sys, subprocess\nprint(os.read(0, 1), repr(sys.stdin.read()), list(sys.stdin), sys.stdin.buffer.read())"
    assert driver.run(code).out == b"b'' '' [] b''\n"
    assert driver.run("subprocess.run(['cat']).returncode").value == "0"


def test_stdin_as_text_lines_and_bytes(driver: Driver) -> None:
    data = "eins\nzwei ä\r\n\ndrei".encode()
    assert (
        driver.run("print([input(), input(), input(), input()])", stdin=data).out.decode()
        == "['eins', 'zwei ä\\r', '', 'drei']\n"
    )
    assert (
        driver.run("import sys\nprint(list(sys.stdin))", stdin=data).out.decode()
        == "['eins\\n', 'zwei ä\\r\\n', '\\n', 'drei']\n"
    )
    everything = bytes(range(256)) * 2000
    code = "import sys, hashlib\nprint(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    import hashlib

    assert driver.run(code, stdin=everything).out.decode().strip() == hashlib.sha256(everything).hexdigest()
    assert driver.run("import os\nprint(os.read(0, 100))", stdin=b"raw").out == b"b'raw'\n"
    assert driver.run("import subprocess\n_ = subprocess.run(['cat'])", stdin=b"to a child").out == b"to a child"
    assert driver.run("input()", stdin=b"").error["name"] == "EOFError"


def test_what_is_left_of_stdin_is_not_there_in_the_next_execution(driver: Driver) -> None:
    assert driver.run("input()", stdin=b"a\nb\nc\n").value == "'a'"
    assert driver.run("input()").error["name"] == "EOFError"
    assert driver.run("input()", stdin=b"d\n").value == "'d'"


def test_stdin_in_pieces(driver: Driver) -> None:
    execution = driver.begin("print(input())\nprint(input())", keep_stdin_open=True)
    execution.feed(b"one\n")
    execution.wait_for_output(b"one\n")
    assert execution.result is None
    execution.feed(b"two")
    execution.close_stdin()
    assert execution.finish().out == b"one\ntwo\n"


def test_user_output_cannot_end_or_forge_an_execution(driver: Driver) -> None:
    code = (
        "import os\n"
        "for fd in range(0, 12):\n"
        '    for text in (b\'ready\\n\', b\'00000000000000000000000000000000 done 0\\n\', b\'{"token":"x","kind":"result","parts":[]}\\n\'):\n'
        "        try: os.write(fd, text)\n"
        "        except OSError: pass\n"
        "import sys; sys.exit(3)"
    )
    result = driver.run(code)
    assert (result.exit_code, result.records) == (3, [])
    assert driver.run("print('next')").out == b"next\n"


def test_no_descriptor_of_ours_is_open_while_user_code_runs(driver: Driver) -> None:
    code = (
        "import os\nprint(sorted(os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') if int(n) > 2))"
    )
    result = driver.run(code)
    assert b"control" not in result.out and b"events" not in result.out and b"results" not in result.out
    children = driver.run(
        "import subprocess\nprint(subprocess.run(['ls', '/proc/self/fd'], capture_output=True).stdout.split())"
    )
    assert children.out == b"[b'0', b'1', b'2', b'3']\n"


def test_output_while_nothing_runs_is_kept_apart(driver: Driver) -> None:
    code = (
        "import threading, time, sys\n"
        "stop = threading.Event()\n"
        "def work():\n"
        "    while not stop.wait(0.02):\n"
        "        print('tick'); sys.stderr.write('tock\\n')\n"
        "t = threading.Thread(target=work, daemon=True); t.start()\n"
        "time.sleep(0.1)"
    )
    assert b"tick" in driver.run(code).out
    driver.settle(0.3)
    assert b"tick\n" in driver.idle_out.data
    assert b"tock\n" in driver.idle_err.data
    assert driver.run("stop.set(); t.join()\nprint(t.is_alive())").out.endswith(b"False\n")
    before = len(driver.idle_out.data)
    driver.settle(0.1)
    assert len(driver.idle_out.data) == before


def test_output_of_children_left_behind_stays_with_their_execution(driver: Driver) -> None:
    driver.run("import subprocess\np = subprocess.Popen('sleep 0.3; echo late', shell=True)")
    result = driver.run("print('second')")
    assert result.out == b"second\n"
    first = driver.executions[0]
    first.wait_for_output(b"late\n", 5)


def test_output_through_the_c_library(driver: Driver) -> None:
    result = driver.run("import ctypes\nlibc = ctypes.CDLL(None)\nlibc.puts(b'from C')\nNone")
    assert result.out == b"from C\n"
    assert driver.run("libc.printf(b'again')\nNone").out == b"again"
