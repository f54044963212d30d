"""The `hayfork` command."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest


def hayfork(*arguments, stdin=b"", env=None):
    return subprocess.run(
        [sys.executable, "-m", "hayfork.cli", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
    )


def test_each_language():
    python = hayfork("run", "import sys; print(sys.version)")
    assert python.returncode == 0
    assert python.stdout.startswith(b"3.13")
    assert hayfork("run", "-l", "javascript", "console.log([1,2].map((x: number) => x*2))").stdout == b"[ 2, 4 ]\n"
    waits = hayfork("run", "-l", "javascript", "setTimeout(() => console.log(1), 10)")
    assert (waits.stdout, waits.returncode) == (b"1\n", 0)
    shell = hayfork("run", "-l", "shell", "uname -a; id")
    assert b"Linux" in shell.stdout
    assert b"uid=1000(user)" in shell.stdout


def test_a_long_script_from_a_file(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("total = 0\n" + "".join(f"total += {i}\n" for i in range(198)) + "print(total)\n")
    assert hayfork("run", str(script)).stdout == f"{sum(range(198))}\n".encode()


def test_piped_input_and_code_from_stdin():
    assert hayfork("run", "import sys; print(len(sys.stdin.read()))", stdin=b"x" * 100_000).stdout == b"100000\n"
    assert hayfork("run", "-", stdin=b"print('from stdin')").stdout == b"from stdin\n"


def test_exit_codes_and_the_timeout():
    assert hayfork("run", "import sys; print('out'); sys.exit(7)").returncode == 7
    began = time.monotonic()
    timeout = hayfork("run", "-t", "3", "print('part', flush=True)\nwhile True: pass")
    assert (timeout.returncode, timeout.stdout) == (124, b"part\n")
    assert b"ended after 3 s" in timeout.stderr
    assert time.monotonic() - began < 30


def test_ten_megabytes_of_output_are_limited():
    done = hayfork("run", "for i in range(10_000): print(f'{i:09}' + 'x' * 990)")
    assert done.returncode == 0
    assert done.stdout.startswith(b"000000000x")
    assert done.stdout.endswith(b"000009999" + b"x" * 990 + b"\n")
    assert len(done.stdout) < 1_000_300
    assert b"left out" in done.stderr


def test_a_file_of_100_mb_up_and_down(tmp_path):
    block = hashlib.shake_256(b"x").digest(1_000_000)
    source = tmp_path / "source"
    with source.open("wb") as out:
        for _ in range(100):
            out.write(block)
    target = tmp_path / "target"
    done = hayfork(
        "run",
        "-m",
        "512",
        "--upload",
        f"{source}:data",
        "--download",
        f"data:{target}",
        "import os; print(os.path.getsize('data'))",
    )
    assert done.stdout == b"100000000\n", done.stderr
    digests = [hashlib.file_digest(path.open("rb"), "sha256").hexdigest() for path in (source, target)]
    assert digests[0] == digests[1]


def test_json():
    done = hayfork("run", "--json", "print('x')\n6 * 7")
    result = json.loads(done.stdout)
    assert (result["stdout"], result["exit_code"], result["status"]) == ("x\n", 0, "ok")
    assert result["results"] == [{"text/plain": "42"}]
    assert result["timings"]["boot_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        (["run", "-l", "cobol", "x"], {}, b"no language 'cobol'"),
        (["run", "  "], {}, b"empty"),
        (["run", "-m", "1", "print(1)"], {}, b"1 MiB of memory is too little"),
        (["run", "--images", "/nonexistent", "print(1)"], {}, b"/nonexistent"),
        (["run", "--backend", "qemu", "print(1)"], {"PATH": "/nonexistent"}, b"QEMU was not found"),
        (["run", "missing.py"], {}, b"there is no file missing.py"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, env, message):
    done = hayfork(*arguments, env=env)
    assert done.returncode == 125
    assert message in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_a_session_that_one_types_into():
    done = hayfork("shell", "-q", stdin=b"x = 41\ndef f(y):\n    return y + 1\n\nprint(f(x))\nf(x) * 2\n")
    assert done.stdout == b"42\n84\n", done.stderr


def test_images_and_doctor():
    images = json.loads(hayfork("images", "--json").stdout)
    assert set(images["images"]) == {"python", "javascript", "shell"}
    doctor = hayfork("doctor", "--json")
    report = json.loads(doctor.stdout)
    assert doctor.returncode == 0
    assert {"images", "backend", "isolation", "kvm"} <= {check["name"] for check in report["checks"]}
    assert b"backend: " in hayfork("doctor").stdout
