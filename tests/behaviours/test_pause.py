"""Sandboxes that are paused to disk and resumed, here and in another process."""

import asyncio
import os
import subprocess
import sys
import time

import hayfork
import pytest


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory):
    """A folder of this test's own: the user's paused sandboxes are nobody else's business."""
    before = os.environ.get("HAYFORK_PAUSED_DIR")
    os.environ["HAYFORK_PAUSED_DIR"] = str(tmp_path_factory.mktemp("paused"))
    try:
        yield
    finally:
        if before is None:
            del os.environ["HAYFORK_PAUSED_DIR"]
        else:
            os.environ["HAYFORK_PAUSED_DIR"] = before


SET = {
    "python": "x = [40]; open('f', 'w').write('kept')",
    "javascript": "let x = [40]; require('fs').writeFileSync('f', 'kept')",
    "shell": "x=40; printf kept > f",
}
ADD = {
    "python": "x.append(2); print(sum(x), open('f').read())",
    "javascript": "x.push(2); console.log(x.reduce((a, b) => a + b), require('fs').readFileSync('f', 'utf8'))",
    "shell": "x=$((x + 2)); echo $x $(cat f)",
}

OTHER = """
import sys
import hayfork

with hayfork.Sandbox.resume(sys.argv[1]) as sandbox:
    print(sandbox.language, sandbox.memory_mb, sandbox.metadata)
    print(sandbox.run_code(sys.argv[2]).stdout, end="")
"""


@pytest.mark.parametrize("language", ["python", "javascript", "shell"])
def test_a_paused_sandbox_goes_on_in_another_process(language):
    sandbox = hayfork.Sandbox.create(language=language, metadata={"who": "me"}, env={"GREETING": "hello"})
    assert sandbox.run_code(SET[language]).status == "ok"
    sandbox_id = sandbox.pause()
    assert sandbox_id == sandbox.sandbox_id
    assert not sandbox.is_running
    with pytest.raises(hayfork.SessionClosedError, match="paused"):
        sandbox.run_code("1")
    listed = {paused.sandbox_id: paused for paused in hayfork.Sandbox.list_paused()}[sandbox_id]
    assert (listed.language, listed.memory_mb) == (language, sandbox.memory_mb)
    assert abs(listed.paused_at - time.time()) < 60
    assert 1 << 20 < listed.size < sandbox.memory_mb << 20

    other = subprocess.run(
        [sys.executable, "-c", OTHER, sandbox_id, ADD[language]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert other.returncode == 0, other.stderr
    assert other.stdout == f"{language} {sandbox.memory_mb} {{'who': 'me'}}\n42 kept\n"
    assert sandbox_id not in {paused.sandbox_id for paused in hayfork.Sandbox.list_paused()}
    with pytest.raises(hayfork.SnapshotError) as missing:
        hayfork.Sandbox.resume(sandbox_id)
    assert missing.value.code == "paused_missing"


def test_kept_at_rest_each_resume_is_a_clone_and_nobody_s_twin():
    sandbox = hayfork.Sandbox.create(timeout=30)
    sandbox.run_code("import random, uuid; random.seed(1); x = 40")
    sandbox_id = sandbox.pause()
    draw = "print(random.random(), uuid.uuid4(), open('/proc/sys/kernel/random/uuid').read())"
    with (
        hayfork.Sandbox.resume(sandbox_id, keep=True) as one,
        hayfork.Sandbox.resume(sandbox_id, keep=True, timeout=5) as two,
    ):
        draws = [set(clone.run_code(draw).stdout.split()) for clone in (one, two)]
        assert len(draws[0]) == 3 and not draws[0] & draws[1]
        one.run_code("x = 1")
        assert two.run_code("x").text == "40"
        assert one.sandbox_id != two.sandbox_id
        # Its timeout goes with it unless another is asked for.
        start = time.monotonic()
        assert two.run_code("import time; time.sleep(60)").status == "timeout"
        assert time.monotonic() - start < 20
    hayfork.Sandbox.discard(sandbox_id)
    with pytest.raises(hayfork.SnapshotError):
        hayfork.Sandbox.discard(sandbox_id)


def test_the_wall_clock_is_right_and_monotonic_time_goes_on():
    sandbox = hayfork.Sandbox.create()
    before = float(sandbox.run_code("import time; print(time.monotonic())").stdout)
    sandbox_id = sandbox.pause()
    time.sleep(3)
    with hayfork.Sandbox.resume(sandbox_id) as resumed:
        wall, monotonic = map(float, resumed.run_code("print(time.time(), time.monotonic())").stdout.split())
        assert abs(wall - time.time()) < 2
        assert 0 <= monotonic - before < 3


def test_what_runs_in_the_background_goes_on():
    sandbox = hayfork.Sandbox.create(language="shell")
    sandbox.run_code("(while :; do echo beat >> beats; sleep 0.05; done) & ")
    sandbox_id = sandbox.pause()
    with hayfork.Sandbox.resume(sandbox_id) as resumed:
        counts = []
        for _ in range(2):
            counts.append(int(resumed.run_code("wc -l < beats").stdout))
            time.sleep(1)
        assert counts[1] > counts[0] > 0


def test_ids_of_anything_are_refused():
    for bad in ["", "..", "../../etc/passwd", "x" * 10_000, "0123456789ab"]:
        with pytest.raises(hayfork.SandboxError) as refused:
            hayfork.Sandbox.resume(bad)
        assert refused.value.code in {"paused_missing", "code_invalid", "input_invalid", "bad_option"}, refused.value


def test_a_damaged_file_is_refused_and_stays():
    sandbox_id = hayfork.Sandbox.create(language="shell").pause()
    path = os.path.join(os.environ["HAYFORK_PAUSED_DIR"], f"{sandbox_id}.sandbox")
    assert os.stat(path).st_mode & 0o777 == 0o400
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(100_000)
        byte = file.read(1)
        file.seek(100_000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(hayfork.SnapshotError) as damaged:
        hayfork.Sandbox.resume(sandbox_id)
    assert damaged.value.code == "snapshot_corrupt"
    assert damaged.value.remedy
    hayfork.Sandbox.discard(sandbox_id)


def test_of_other_images_nothing_is_resumed(tmp_path):
    sandbox_id = hayfork.Sandbox.create(language="shell").pause()
    images = os.environ["HAYFORK_IMAGES_DIR"]
    for name in os.listdir(images):
        os.symlink(os.path.join(os.path.realpath(images), name), tmp_path / name)
    manifest = (tmp_path / "manifest.json").read_text()
    (tmp_path / "manifest.json").unlink()
    import json

    digest = json.loads(manifest)["initramfs"]["blake3"]
    (tmp_path / "manifest.json").write_text(manifest.replace(digest, "0" * 64))
    with pytest.raises(hayfork.SnapshotError) as foreign:
        hayfork.Sandbox.resume(sandbox_id, images=tmp_path)
    assert foreign.value.code == "snapshot_foreign" and "initramfs" in str(foreign.value)
    with hayfork.Sandbox.resume(sandbox_id) as resumed:
        assert resumed.run_code("echo 1").stdout == "1\n"


def test_async():
    async def run():
        sandbox = await hayfork.AsyncSandbox.create(metadata={"a": "b"})
        await sandbox.run_code("x = 41")
        sandbox_id = await sandbox.pause()
        assert sandbox_id in {paused.sandbox_id for paused in hayfork.AsyncSandbox.list_paused()}
        async with await hayfork.AsyncSandbox.resume(sandbox_id) as resumed:
            assert resumed.metadata == {"a": "b"}
            assert (await resumed.run_code("x + 1")).text == "42"
        # Of many at once one gets it.
        sandbox_id = await (await hayfork.AsyncSandbox.create(language="shell")).pause()
        results = await asyncio.gather(
            *(hayfork.AsyncSandbox.resume(sandbox_id) for _ in range(4)), return_exceptions=True
        )
        there = [result for result in results if isinstance(result, hayfork.AsyncSandbox)]
        assert len(there) == 1, results
        assert all(result.code in {"paused_busy", "paused_missing"} for result in results if result not in there)
        await there[0].kill()

    asyncio.run(run())


PAUSING = """
import hayfork

sandbox = hayfork.Sandbox.create(language="shell")
sandbox.run_code("x=42")
print("pausing", flush=True)
print(sandbox.pause(), flush=True)
"""


def test_a_process_that_is_killed_while_it_pauses_leaves_nothing_or_all_of_it():
    folder = os.environ["HAYFORK_PAUSED_DIR"]
    whole = 0
    for round_ in range(8):
        with subprocess.Popen([sys.executable, "-c", PAUSING], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "pausing\n"
            time.sleep(round_ * 0.06)
            child.kill()
        paused = hayfork.Sandbox.list_paused()
        # Leftovers of the dead are gone by now.
        assert sorted(os.listdir(folder)) == [f"{entry.sandbox_id}.sandbox" for entry in paused]
        for entry in paused:
            with hayfork.Sandbox.resume(entry.sandbox_id) as resumed:
                assert resumed.run_code("echo $x").stdout == "42\n"
            whole += 1
    print(f"{whole} of 8 were paused before they were killed")
