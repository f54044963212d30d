"""BEHAVIOURS 37 and 38, and errors: nothing is left behind, and every way of calling works."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import hayfork
import pytest


def qemu_children(pid: int) -> list[int]:
    """QEMU processes whose parent is that process."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as stat:
                head, _, tail = stat.read().rpartition(")")
            if int(tail.split()[1]) == pid and "qemu" in head:
                found.append(int(entry))
        except OSError:
            continue
    return found


def script(text: str, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sigkill_of_the_host_leaves_no_vm():
    process = script(
        """
        import hayfork, sys, time
        sandbox = hayfork.Sandbox.create(backend="qemu")
        sandbox.run_code("1")
        print("up", flush=True)
        time.sleep(100)
        """
    )
    assert process.stdout.readline() == "up\n"
    children = qemu_children(process.pid)
    assert children
    process.kill()
    process.wait()
    deadline = time.monotonic() + 1
    while any(alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in children)


def test_a_script_may_end_with_sandboxes_streams_and_callbacks_alive():
    process = script(
        """
        import hayfork, threading, time
        sandbox = hayfork.Sandbox.create()
        def forever():
            sandbox.run_code("import time\\nwhile True: print('x' * 100, flush=True); time.sleep(.001)", on_stdout=lambda t: None)
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(2)
        print("end", flush=True)
        """
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "end\n"), err
    assert "Fatal" not in err
    assert "panicked" not in err


def test_ctrl_c_ends_a_running_call_at_once():
    process = script(
        """
        import hayfork, time
        with hayfork.Sandbox.create() as sandbox:
            sandbox.run_code("1")
            print("up", flush=True)
            try:
                sandbox.run_code("import time; time.sleep(100)")
            except KeyboardInterrupt:
                print("interrupted", time.time(), flush=True)
            print(sandbox.run_code("print('alive')").stdout, flush=True)
        """
    )
    assert process.stdout.readline() == "up\n"
    time.sleep(1)
    sent = time.time()
    process.send_signal(signal.SIGINT)
    word, when = process.stdout.readline().split()
    assert word == "interrupted"
    assert float(when) - sent < 0.5
    out, err = process.communicate(timeout=60)
    assert "alive" in out, err


def test_an_event_loop_may_run_many_at_once_and_cancel():
    async def main():
        async with await hayfork.AsyncSandbox.create() as sandbox:
            await sandbox.run_code("v = 1")
            beats = []

            async def beat():
                while True:
                    beats.append(time.monotonic())
                    await asyncio.sleep(0.02)

            heart = asyncio.ensure_future(beat())
            slow = asyncio.ensure_future(sandbox.run_code("import time; time.sleep(60)"))
            await asyncio.sleep(1)
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            result = await sandbox.run_code("print('after')")
            heart.cancel()
            assert result.stdout == "after\n"
            assert max(b - a for a, b in itertools.pairwise(beats)) < 0.5, "the loop was blocked"
            await sandbox.files.write("f", b"x" * 100_000)
            assert len(await sandbox.files.read("f")) == 100_000

    asyncio.run(main())


def test_two_loops_and_many_threads_share_a_sandbox():
    with hayfork.Sandbox.create() as sandbox:
        outputs = []

        def use(i):
            outputs.append(sandbox.run_code(f"print({i})", context=i % 3).stdout)

        threads = [threading.Thread(target=use, args=(i,)) for i in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outputs) == [f"{i}\n" for i in range(9)]
    for _ in range(2):
        assert asyncio.run(hayfork.arun("print('loop')")).stdout == "loop\n"


def test_a_forked_child_gets_a_clear_error():
    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code("1")
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                sandbox.run_code("1")
                os.write(writer, b"no error")
            except hayfork.SandboxError as error:
                os.write(writer, error.code.encode())
            finally:
                os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        assert os.read(reader, 100) == b"forked_process"
        assert sandbox.run_code("print('parent')").stdout == "parent\n"


def test_a_forked_child_has_sandboxes_of_its_own():
    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code("x = 'parent'")
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                with hayfork.Sandbox.create() as own:
                    os.write(writer, own.run_code("print('child')").stdout.encode())
            finally:
                os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        assert os.read(reader, 100) == b"child\n"
        assert sandbox.run_code("print(x)").stdout == "parent\n"


def test_runs_leave_nothing_behind():
    hayfork.run("1")
    time.sleep(1)
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(3):
        hayfork.run("print(1)")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (
        qemu_children(os.getpid())
        or len(os.listdir("/proc/self/fd")) > descriptors
        or len(os.listdir("/proc/self/task")) > threads
    ):
        time.sleep(0.1)
    assert qemu_children(os.getpid()) == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(os.listdir("/proc/self/task")) <= threads


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"language": "cobol"}, hayfork.VmConfigError, "unknown_language"),
        ({"memory_mb": 1}, hayfork.VmConfigError, "memory_too_small"),
        ({"memory_mb": 0}, hayfork.VmConfigError, "bad_option"),
        ({"cpus": 0}, hayfork.VmConfigError, "bad_option"),
        ({"timeout": 0}, hayfork.VmConfigError, "bad_option"),
        ({"backend": "nonsense"}, hayfork.VmConfigError, "bad_option"),
        ({"images": "/nonexistent"}, hayfork.AssetNotFoundError, "images_missing"),
    ],
)
def test_bad_options_are_one_clear_error(options, error, code):
    with pytest.raises(error) as caught:
        hayfork.run("print(1)", **options)
    assert caught.value.code == code
    assert caught.value.remedy


def test_unsupported_options_are_refused_not_ignored():
    with pytest.raises(hayfork.UnsupportedOptionError):
        hayfork.Sandbox.create(allow_network=True)
    with pytest.raises(hayfork.UnsupportedOptionError):
        hayfork.Sandbox.create(packages=["numpy"])


def test_qemu_missing_from_the_path(monkeypatch):
    process = script(
        """
        import hayfork
        try:
            hayfork.run("print(1)", backend="qemu")
        except hayfork.VmDependencyError as error:
            print(error.code, bool(error.remedy))
        """,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("HAYFORK_QEMU")}, "PATH": "/nonexistent"},
    )
    out, err = process.communicate(timeout=60)
    assert out == "qemu_missing True\n", err
