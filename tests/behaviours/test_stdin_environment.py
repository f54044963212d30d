"""BEHAVIOURS 25 and 26: standard input and environment."""

from __future__ import annotations

import io

import hayfork
import pytest


def test_without_stdin_every_read_finds_the_end(python, javascript, shell):
    code = "import os, sys\ntry:\n    input()\nexcept EOFError:\n    print('end')\nprint(os.read(0, 1), repr(sys.stdin.read()))"
    assert python.run_code(code).stdout == "end\nb'' ''\n"
    assert shell.run_code("read x; echo $?; cat | wc -c").stdout.split() == ["1", "0"]
    assert javascript.run_code("console.log(JSON.stringify(require('fs').readFileSync(0, 'utf8')))").stdout == '""\n'


def test_stdin_as_bytes_text_and_stream(python, shell):
    assert python.run_code("print(input(), input())", stdin=b"one\ntwo\n").stdout == "one two\n"
    assert python.run_code("import sys; print(len(sys.stdin.read()))", stdin="é" * 100_000).stdout == "100000\n"
    big = bytes(range(256)) * 8192  # 2 MB, more than any buffer on the way
    code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    import hashlib

    assert python.run_code(code, stdin=io.BytesIO(big)).stdout.strip() == hashlib.sha256(big).hexdigest()
    assert shell.run_code("wc -c", stdin=big).stdout.strip() == str(len(big))


def test_unread_stdin_does_no_harm(python):
    assert python.run_code("print('done')", stdin=b"x" * 5_000_000).stdout == "done\n"
    assert python.run_code("input()").exit_code == 1


def test_home_user_and_folder(python, javascript, shell):
    code = "import os; print(os.getuid(), os.getgid(), os.getcwd(), os.path.expanduser('~'), os.environ['HOME'])"
    assert python.run_code(code).stdout == "1000 1000 /home/user /home/user /home/user\n"
    assert shell.run_code("id -u; id -g; pwd; echo ~; id -un").stdout.split() == [
        "1000",
        "1000",
        "/home/user",
        "/home/user",
        "user",
    ]
    assert (
        javascript.run_code("console.log(process.cwd(), require('os').homedir())").stdout == "/home/user /home/user\n"
    )


def test_environment_holds_for_one_execution_exactly(python, javascript, shell):
    value = "a b\n'\"$x\\ é"
    for sandbox, code in (
        (python, "import os; print(os.environ.get('PROBE'), end='')"),
        (javascript, "process.stdout.write(String(process.env.PROBE ?? 'None'))"),
        (shell, 'printf %s "${PROBE-None}"'),
    ):
        assert sandbox.run_code(code, env={"PROBE": value}).stdout == value
        assert sandbox.run_code(code).stdout == "None"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "PYTHONPATH", "A=B", "", "1A"])
def test_dangerous_and_impossible_names_are_refused(python, name):
    with pytest.raises(hayfork.EnvVarValidationError):
        python.run_code("1", env={name: "x"})
    assert python.run_code("print('alive')").stdout == "alive\n"


def test_the_hosts_environment_does_not_reach_the_guest(python, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "hush")
    with hayfork.Sandbox.create() as sandbox:
        assert "hush" not in sandbox.run_code("import os; print(dict(os.environ))").stdout
