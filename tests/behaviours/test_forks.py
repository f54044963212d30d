"""Sandboxes that go on where another stood."""

import asyncio
import time

import hayfork
import pytest

SET = {
    "python": "import random; random.seed(1); x = [40]; open('f', 'w').write('kept')",
    "javascript": "let x = [40]; require('fs').writeFileSync('f', 'kept')",
    "shell": "x=40; RANDOM=1; printf kept > f",
}
ADD = {
    "python": "x.append(2); print(sum(x), open('f').read())",
    "javascript": "x.push(2); console.log(x.reduce((a, b) => a + b), require('fs').readFileSync('f', 'utf8'))",
    "shell": "x=$((x + 2)); echo $x $(cat f)",
}
DRAW = {
    "python": "import os, uuid; print(random.random(), random.random(), os.urandom(8).hex(), uuid.uuid4())",
    "javascript": "console.log(Math.random(), Math.random(), crypto.randomUUID(),"
    " require('crypto').randomBytes(8).toString('hex'))",
    "shell": "echo $RANDOM-$RANDOM-$RANDOM $SRANDOM $(head -c 8 /dev/urandom | od -An -tx8)",
}
NAME = {
    "python": "import socket; print(socket.gethostname(), open('/etc/machine-id').read().strip())",
    "javascript": "console.log(require('os').hostname(), require('fs').readFileSync('/etc/machine-id', 'utf8').trim())",
    "shell": "echo $(cat /proc/sys/kernel/hostname) $(cat /etc/machine-id)",
}


@pytest.mark.parametrize("language", ["python", "javascript", "shell"])
def test_forks_carry_the_state_and_are_nobody_s_twin(language):
    with hayfork.Sandbox.create(language=language) as sandbox:
        assert sandbox.run_code(SET[language]).status == "ok"
        forks = sandbox.fork(3)
        try:
            draws = [set(fork.run_code(DRAW[language]).stdout.split()) for fork in forks]
            names = [fork.run_code(NAME[language]).stdout for fork in forks]
            assert all(len(draw) >= 3 for draw in draws), draws
            assert not draws[0] & draws[1] and not draws[1] & draws[2] and not draws[0] & draws[2], draws
            assert len(set(names)) == 3, names
            assert len({fork.sandbox_id for fork in [sandbox, *forks]}) == 4
            for fork in [*forks, sandbox]:
                assert fork.run_code(ADD[language]).stdout == "42 kept\n"
            # Each is its own from there on.
            assert forks[0].run_code(ADD[language]).stdout == "44 kept\n"
            assert forks[1].run_code(ADD[language]).stdout == "44 kept\n"
        finally:
            for fork in forks:
                fork.kill()


def test_a_hundred_clones_draw_a_hundred_different_numbers():
    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code("import random, secrets, uuid; random.seed(7)")
        kept = sandbox.snapshot()
    draws = set()
    for _ in range(100):
        with kept.restore() as clone:
            draws.add(clone.run_code("print(random.random(), secrets.token_hex(8), uuid.uuid4())").stdout)
    assert len(draws) == 100
    for part in range(3):
        assert len({draw.split()[part] for draw in draws}) == 100


def test_clocks_of_a_clone():
    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code("import time; before = time.monotonic()")
        kept = sandbox.snapshot()
    time.sleep(3)
    with kept.restore() as clone:
        wall = float(clone.run_code("print(time.time())").stdout)
        assert abs(wall - time.time()) < 0.5
        passed = float(clone.run_code("print(time.monotonic() - before)").stdout)
        assert 0 <= passed < 2
        slept = clone.run_code("t = time.monotonic(); time.sleep(1); print(time.monotonic() - t)").stdout
        assert 1 <= float(slept) < 1.3


def test_background_work_goes_on_in_a_fork_and_runs_are_stopped():
    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code(
            "import threading, time\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1\n        time.sleep(0.01)\n"
            "threading.Thread(target=count, daemon=True).start()"
        )
        with sandbox.fork() as fork:
            first = int(fork.run_code("print(n)").stdout)
            time.sleep(0.3)
            assert int(fork.run_code("print(n)").stdout) > first


def test_a_fork_in_the_midst_of_a_run():
    async def go():
        async with await hayfork.AsyncSandbox.create() as sandbox:
            await sandbox.run_code("x = 1")
            # The first traceback of an interpreter takes seconds where a loaded host translates it, and one that is stopped prints one.
            await sandbox.run_code("1 / 0")
            run = asyncio.create_task(sandbox.run_code("import time; time.sleep(1.5); x = 2; print(x)"))
            await asyncio.sleep(0.5)
            async with await sandbox.fork() as fork:
                assert (await fork.run_code("print(x)")).stdout == "1\n"
            assert (await run).stdout == "2\n"

    asyncio.run(go())


def test_forks_of_forks():
    with hayfork.Sandbox.create() as sandbox:
        sandbox.run_code("generations = []")
        current, made = sandbox, []
        try:
            for number in range(6):
                current = current.fork()
                made.append(current)
                current.run_code(f"generations.append({number})")
            assert current.run_code("generations").text == "[0, 1, 2, 3, 4, 5]"
            assert sandbox.run_code("generations").text == "[]"
        finally:
            for fork in made:
                fork.kill()


def test_what_is_impossible_is_said():
    sandbox = hayfork.Sandbox.create()
    for count in (0, -1, 1001, True, 1.5):
        with pytest.raises(hayfork.VmConfigError):
            sandbox.fork(count)
    sandbox.kill()
    with pytest.raises(hayfork.SessionClosedError):
        sandbox.fork()
    with pytest.raises(hayfork.SessionClosedError):
        sandbox.snapshot()
