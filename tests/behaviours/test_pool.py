"""VMs that are kept ready, and those that are made of templates: BEHAVIOURS 35 to 37 and 39."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time

import hayfork
import pytest
from hayfork import Sandbox, Scheduler, SchedulerConfig, SyncScheduler, WarmPool

IDENTITY = "print(open('/etc/machine-id').read().strip())"


@pytest.fixture(scope="module")
def pool():
    with WarmPool(2) as made:
        assert made.wait()
        yield made


def test_every_run_has_a_vm_of_its_own_that_nobody_used(pool):
    seen = set()
    for number in range(12):
        assert pool.wait()
        run = hayfork.run(f"{IDENTITY}\nimport os\nprint(os.path.exists('secret'), 'secret' in globals())")
        assert run.runs_on.made_from == "pool"
        machine_id, traces = run.stdout.splitlines()
        assert traces == "False False"
        seen.add(machine_id)
        planted = hayfork.run(f"secret = open('secret', 'w').write('{number}')")
        assert planted.exit_code == 0
    assert len(seen) == 12


def test_clones_of_a_template_differ_and_show_the_right_time(pool):
    code = (
        "import time; now = time.time()\n"
        "import os, random, uuid, ssl, secrets, socket\n"
        "print(os.urandom(8).hex(), random.random(), uuid.uuid4(), uuid.uuid1(), secrets.token_hex(8), ssl.RAND_bytes(8).hex(),"
        " socket.gethostname(), now, sep='\\n')"
    )
    drawn = []
    for _ in range(8):
        before = time.time()
        run = hayfork.run(code)
        after = time.time()
        *values, now = run.stdout.splitlines()
        assert before - 0.5 < float(now) < after + 0.5
        drawn += values
    assert len(set(drawn)) == len(drawn)


def test_options_are_honoured_whatever_is_in_stock(pool):
    assert pool.wait()
    with Sandbox.create(memory_mb=512) as larger:
        assert larger.memory_mb == 512
        total = larger.run_code("int(open('/proc/meminfo').read().split()[1])").text
        assert int(total) > 400_000
    with Sandbox.create(cpus=2) as broader:
        assert broader.run_code("import os; os.cpu_count()").text == "2"
    assert pool.wait()
    with Sandbox.create(env={"GREETING": "hello"}, timeout=30) as sandbox:
        assert sandbox.runs_on.made_from == "pool"
        assert sandbox.run_code("import os; os.environ['GREETING']").text == "'hello'"
        with pytest.raises(hayfork.RootNotGrantedError):
            sandbox.commands.run("id -u", user="root")
    assert pool.wait()
    with Sandbox.create(allow_root=True) as sandbox:
        assert sandbox.runs_on.made_from == "pool"
        assert sandbox.commands.run("id -u", user="root").stdout == "0\n"


def test_an_exhausted_pool_still_answers(pool):
    answers: list[str] = []
    lock = threading.Lock()

    def one(number: int) -> None:
        run = hayfork.run(f"print({number})")
        with lock:
            answers.append(run.stdout)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(f"{number}\n" for number in range(16))


def test_many_tasks_of_an_event_loop(pool):
    async def main() -> list[str]:
        runs = await asyncio.gather(*(hayfork.arun(f"print({number})") for number in range(12)))
        assert await pool.wait_async()
        return [run.stdout for run in runs]

    assert asyncio.run(main()) == [f"{number}\n" for number in range(12)]


def test_an_interpreter_of_the_pool_is_as_a_fresh_one(pool):
    code = (
        "import sys, json, gc, threading, signal, locale\n"
        "print(json.dumps([sorted(n for n in globals() if n != 'sys'), sys.argv, sys.flags[:], threading.active_count(),"
        " gc.get_threshold(), sorted(sys.modules), locale.setlocale(locale.LC_ALL), __name__,"
        " sorted((s, str(signal.getsignal(s))) for s in range(1, 32)), sys.getrecursionlimit()]))"
    )
    assert pool.wait()
    pooled = hayfork.run(code)
    assert pooled.runs_on.made_from == "pool"
    environment = os.environ | {"HAYFORK_TEMPLATES": "off"}
    script = f"import hayfork; run = hayfork.run({code!r}); assert run.runs_on.made_from == 'boot'; print(run.stdout, end='')"
    booted = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert pooled.stdout == booted.stdout


def test_memory_that_runs_out_ends_the_code_in_restored_vms_too(pool):
    assert pool.wait()
    with Sandbox.create() as sandbox:
        assert sandbox.runs_on.made_from == "pool"
        assert sandbox.run_code("x = []\nwhile True:\n    x.append(bytearray(1 << 20))").status == "oom"
        assert sandbox.run_code("print('well')").stdout == "well\n"


@pytest.mark.parametrize("language", ["javascript", "shell"])
def test_other_languages(language):
    code = {
        "javascript": "console.log(Math.random(), crypto.randomUUID()); console.log(require('fs').readFileSync('/etc/machine-id', 'utf8'))",
        "shell": "echo $RANDOM$RANDOM $SRANDOM; cat /etc/machine-id",
    }[language]
    with WarmPool(1, language=language) as pool:
        seen = []
        for _ in range(4):
            assert pool.wait()
            run = hayfork.run(code, language=language)
            assert (run.runs_on.made_from, run.exit_code, run.stderr) == ("pool", 0, "")
            seen.append(run.stdout)
    assert len(set(seen)) == 4


def test_the_third_sandbox_of_a_kind_needs_no_boot():
    made_from = []
    until = time.monotonic() + 60
    while "template" not in made_from and time.monotonic() < until:
        made_from.append(hayfork.run("print(1)", memory_mb=200).runs_on.made_from)
    assert made_from[:2] == ["boot", "boot"]
    assert made_from[-1] == "template"


def test_several_pools_of_a_kind_add_up_and_end_one_by_one():
    first, second = WarmPool(1, memory_mb=160), WarmPool(1, memory_mb=160)
    assert first.wait()
    made = [Sandbox.create(memory_mb=160) for _ in range(2)]
    assert [sandbox.runs_on.made_from for sandbox in made] == ["pool", "pool"]
    first.close()
    first.close()
    assert second.wait()
    with pytest.raises(hayfork.SessionClosedError):
        first.wait()
    second.close()
    for sandbox in made:
        assert sandbox.run_code("1 + 1").text == "2"  # they live on
        sandbox.kill()


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2", 100_000])
def test_impossible_sizes(size):
    with pytest.raises(hayfork.VmConfigError) as caught:
        WarmPool(size)
    assert caught.value.remedy


def test_schedulers_say_where_a_vm_came_from():
    config = SchedulerConfig(warm_pool_size=1)
    with SyncScheduler(config) as scheduler:
        scheduler.wait_pool_ready()
        result = scheduler.run("print(1)", language="python")
        assert (result.stdout, result.warm_pool_hit) == ("1\n", True)
        result = scheduler.run("print(1)", language="python", memory_mb=300)
        assert not result.warm_pool_hit
        lines: list[str] = []
        result = scheduler.run("print(1)", language="python", on_boot_log=lines.append)
        assert not result.warm_pool_hit
        scheduler.wait_pool_ready()
        with scheduler.session(language="javascript") as session:
            assert session.exec("console.log(1)").stdout == "1\n"

    async def main() -> None:
        async with Scheduler(config) as scheduler:
            await scheduler.wait_pool_ready()
            assert (await scheduler.run("print(2)", language="python")).warm_pool_hit

    asyncio.run(main())


def test_a_forked_child_leaves_its_parents_pool_alone(pool):
    script = """
        import os, hayfork
        with hayfork.WarmPool(1) as pool:
            assert pool.wait()
            if os.fork() == 0:
                pool.close()
                try:
                    hayfork.WarmPool(1).close()
                finally:
                    os._exit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            run = hayfork.run("print('well')")
            print(run.runs_on.made_from, run.stdout, end="")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "pool well\n", "")


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def test_an_idle_pool_uses_next_to_nothing(pool):
    assert pool.wait()
    time.sleep(2)  # what was just made comes to rest
    before, began = cpu_seconds(), time.monotonic()
    time.sleep(5)
    share = (cpu_seconds() - before) / (time.monotonic() - began)
    assert share < 0.02, f"{share:.1%} of a core for two VMs"


def test_a_script_may_end_with_a_pool():
    script = "import hayfork; p = hayfork.WarmPool(2); p.wait(); hayfork.run('print(1)'); print('end')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_script_may_end_while_a_pool_is_being_filled():
    script = "import hayfork; p = hayfork.WarmPool(8); print('end')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
