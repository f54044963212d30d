"""Commands: any program, with its arguments, environment, folder, input and signals."""

from __future__ import annotations

import signal
import time

import hayfork
import pytest


def test_lines_and_argument_vectors(shell):
    assert shell.commands.run("echo $((6 * 7)) | tr 4 5").stdout == "52\n"
    assert shell.commands.run(["printf", "%s|", "a b", "$x", "*"]).stdout == "a b|$x|*|"


def test_a_failure_is_a_result_unless_checked(shell):
    assert shell.commands.run("exit 3").exit_code == 3
    with pytest.raises(hayfork.CommandFailedError) as caught:
        shell.commands.run("echo why >&2; exit 3", check=True)
    assert caught.value.result.exit_code == 3
    assert "why" in str(caught.value)


def test_folder_environment_and_input(shell):
    assert shell.commands.run("pwd; echo $V", cwd="/tmp", env={"V": "x y"}).stdout == "/tmp\nx y\n"
    assert shell.commands.run("cat", stdin="given").stdout == "given"
    assert shell.commands.run("cat").stdout == ""


def test_a_missing_program_is_a_clear_error(shell):
    with pytest.raises(hayfork.VmPermanentError, match="no-such-program"):
        shell.commands.run(["no-such-program"])
    with pytest.raises(hayfork.SandboxError):
        shell.commands.run("pwd", cwd="/not/there")


def test_a_timeout_ends_the_whole_tree(shell):
    began = time.monotonic()
    execution = shell.commands.run("sleep 7531 & echo out; sleep 7531", timeout=2)
    assert execution.status == "timeout"
    assert execution.stdout == "out\n"
    assert time.monotonic() - began < 15
    assert shell.commands.run("pgrep -f 'sleep 753[1]'").stdout == ""


def test_background_commands(shell):
    handle = shell.commands.start("read line; echo got $line; exit 4", stdin=True)
    handle.send_stdin("hello\n")
    execution = handle.wait()
    assert (execution.stdout, execution.exit_code) == ("got hello\n", 4)
    handle = shell.commands.start(["sleep", "1000"])
    handle.signal(signal.SIGTERM)
    assert handle.wait().exit_code == 128 + signal.SIGTERM
    handle = shell.commands.start("trap '' TERM INT; sleep 1000")
    handle.kill()
    assert handle.wait().status == "killed"


def test_the_usual_tools_are_there(shell):
    tools = [
        "bash",
        "git",
        "curl",
        "jq",
        "find",
        "grep",
        "sed",
        "gawk",
        "diff",
        "patch",
        "tar",
        "gzip",
        "unzip",
        "file",
        "make",
        "less",
        "tree",
    ]
    execution = shell.commands.run("; ".join(f"command -v {tool} >/dev/null || echo {tool}" for tool in tools))
    assert execution.stdout == ""
    assert (
        shell.commands.run(
            "git init -q repo && cd repo && git status --short && echo '{\"a\": [1, 2]}' | jq -c .a"
        ).stdout
        == "[1,2]\n"
    )
