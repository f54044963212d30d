"""A driver that is told to renew has random numbers of its own, and user code sees nothing of how that was done.

Snapshots are not needed for that: two drivers are brought into the same state and renewed with different seeds. What
cannot be set from outside (BoringSSL's generators, Bun's supply of random bytes) is copied by a fork.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from conftest import MakeDriver
from driver_harness import DRIVERS, Driver

LANGUAGES = ("python", "javascript", "shell")

#: Brings the generator into a known state.
SAME = {
    "python": "import random; random.seed(1); random.gauss(0, 1)",
    "javascript": "(await import('bun:jsc')).setRandomSeed(1)",
    "shell": "RANDOM=1",
}
#: Prints what the generator gives then.
DRAW = {
    "python": "import random; print(random.random(), random.gauss(0, 1), random.randrange(10**9))",
    "javascript": "console.log(Math.random(), Math.random())",
    "shell": "echo $RANDOM $RANDOM $RANDOM",
}


def draw(driver: Driver) -> bytes:
    result = driver.run(DRAW[driver.language])
    assert (result.exit_code, result.err) == (0, b"")
    return result.out


@pytest.mark.parametrize("language", LANGUAGES)
def test_equal_drivers_differ_after_different_seeds(make_driver: MakeDriver, language: str) -> None:
    one, other = make_driver(language), make_driver(language)
    drawn = []
    for driver in (one, other):
        driver.run(SAME[language])
        drawn.append(draw(driver))
        driver.run(SAME[language])
    assert drawn[0] == drawn[1], "the test's own assumption"
    one.renew("a")
    other.renew("b")
    drawn += [draw(one), draw(other)]
    assert len(set(drawn)) == 3
    # Nothing but the seed counts.
    one.run(SAME[language])
    one.renew("b")
    assert draw(one) == drawn[3]


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_comes_between_executions_in_any_number(make_driver: MakeDriver, language: str) -> None:
    driver = make_driver(language)
    driver.renew(0)  # before anything has run
    drawn = []
    for turn in range(5):
        driver.run(SAME[language])
        for seed in range(turn + 1):
            driver.renew(f"{turn} {seed}", wait=seed % 2 == 0)
        drawn.append(draw(driver))  # lines to renew may stand before that of the execution
        assert driver.renewals == 0
    assert len(set(drawn)) == 5
    for seed in range(8):
        driver.renew(seed, wait=False)
    assert driver.run_last(DRAW[language]).exit_code == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_told_while_code_runs_it_renews_before_the_next_execution(make_driver: MakeDriver, language: str) -> None:
    if language == "javascript":
        pytest.skip("the agent waits until the code is done: this runtime reads ahead")
    driver = make_driver(language)
    driver.run(SAME[language])
    first = draw(driver)
    wait = {"python": "import time; print('go', flush=True); time.sleep(0.3)", "shell": "echo go; sleep 0.3"}
    execution = driver.begin(f"{SAME[language]}\n{wait[language]}\n{DRAW[language]}")
    execution.wait_for_output(b"go\n")
    driver.renew("while it runs", wait=False)
    assert execution.finish().out == b"go\n" + first
    driver.pump(lambda: driver.renewals == 0, 30, "the driver to be renewed")
    driver.run(SAME[language])
    assert draw(driver) == first, "and only once"


@pytest.mark.parametrize("language", LANGUAGES)
def test_user_code_sees_nothing_of_it(make_driver: MakeDriver, language: str) -> None:
    look = {
        "python": "import sys; print(sorted(globals()), sorted(set(sys.modules) - {'_random'}), dir(random), dir(sys))",
        "javascript": "console.log(Reflect.ownKeys(globalThis), Reflect.ownKeys(Math), Math.random.toString(),"
        " Reflect.ownKeys(crypto), Object.keys(require.cache), Reflect.ownKeys(process))",
        "shell": "set +o posix; declare -F; declare -p | grep -Ev 'RANDOM|SECONDS|EPOCH|BASH_|_=|hayfork|MONO'; shopt; set +o",
    }
    driver = make_driver(language)
    driver.run(SAME[language])
    before = driver.run(look[language])
    driver.renew(1)
    after = driver.run(look[language])
    driver.settle(0.1)
    assert before.exit_code == 0
    assert (after.out, after.err, after.exit_code) == (before.out, before.err, before.exit_code)
    assert (bytes(driver.idle_out.data), bytes(driver.idle_err.data)) == (b"", b"")


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_interrupt_behind_it_reaches_the_execution(make_driver: MakeDriver, language: str) -> None:
    sleep = {
        "python": "import time; print('go', flush=True); time.sleep(60)",
        "javascript": "console.log('go'); await new Promise((resolve) => setTimeout(resolve, 60_000))",
        "shell": "echo go; sleep 60",
    }
    driver = make_driver(language)
    driver.run(SAME[language])
    for _ in range(5):
        driver.renew(1, wait=False)
        execution = driver.begin(sleep[language])
        time.sleep(0.05)  # as the agent does: less, and the driver may still be idle
        if language == "shell":
            execution.wait_for_output(b"go\n")
        driver.interrupt()
        assert execution.finish().exit_code == 130
    driver.quiesce()
    driver.renew(2)
    driver.quiesce()
    driver.interrupt()  # while idle it does nothing
    driver.quiesce()
    assert draw(driver)


# Python -------------------------------------------------------------------------------------------------------------------


def test_python_renews_what_is_loaded_and_nothing_else(make_driver: MakeDriver) -> None:
    driver = make_driver("python")
    driver.run("import sys; before = set(sys.modules)")
    driver.renew(1)
    assert driver.run("sorted(set(sys.modules) - before)").value == "[]"
    assert (
        driver.run("import random, ssl; own = random.Random(1); a = own.getstate(); b = ssl.RAND_bytes(8)").out == b""
    )
    driver.renew(1)
    assert driver.run("own.getstate() == a, ssl.RAND_bytes(8) == b").value == "(True, False)"


def test_python_uuids_and_temporary_names(make_driver: MakeDriver) -> None:
    code = "import tempfile, uuid; node = uuid.uuid1().node; names = tempfile._get_candidate_names(); next(names)"
    nodes = set()
    for seed in (1, 2):
        driver = make_driver("python")
        driver.run(code)
        driver.renew(seed)
        test = "one = uuid.uuid1(); one.version, one.node != node, tempfile._get_candidate_names() is names, one != uuid.uuid1()"
        assert driver.run(test).value == "(1, True, False, True)"
        nodes.add(driver.run("one.node").value)
    assert len(nodes) == 2


def test_python_numpy(make_driver: MakeDriver) -> None:
    drawn = []
    for seed in (1, 2, 1):
        driver = make_driver("python")
        if driver.run("import numpy; numpy.random.seed(5); numpy.random.standard_normal()").exit_code:
            pytest.skip("no NumPy here")
        driver.run("own = numpy.random.default_rng(5)")
        driver.renew(seed)
        assert driver.run("int(own.integers(10**9) - numpy.random.default_rng(5).integers(10**9))").value == "0"
        drawn.append(driver.run("numpy.random.standard_normal(3).tolist()").value)
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]


@pytest.mark.parametrize(
    "harm",
    [
        "import sys, types; sys.modules['random'] = types.ModuleType('random')",
        "import random; random.seed = random._inst = None",
        "import random; random.Random.seed = lambda *_: 1 / 0",
        "import builtins; builtins.int = builtins.isinstance = None",
        "import sys; sys.setrecursionlimit(30)",
        "import sys; sys.modules['uuid'] = sys.modules['numpy.random.mtrand'] = 5",
        "import asyncio\nasync def tick():\n    while True: await asyncio.sleep(0.01)\ntask = asyncio.create_task(tick())",
        "import signal; signal.signal(signal.SIGALRM, lambda *_: 1 / 0); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)",
    ],
)
def test_python_code_that_is_in_the_way(make_driver: MakeDriver, harm: str) -> None:
    driver = make_driver("python")
    driver.run(harm)
    for seed in range(3):
        driver.renew(seed)
    # A timer may strike this code too, before it has done anything; where imports are broken it never succeeds.
    for _ in range(20):
        if driver.begin("import signal; signal.setitimer(signal.ITIMER_REAL, 0)").finish().exit_code == 0:
            break
    assert driver.run("print('well')").out == b"well\n"


def test_python_keeps_a_mersenne_twister_that_the_user_has_patched(make_driver: MakeDriver) -> None:
    driver = make_driver("python")
    driver.run("import random; random.seed(1); random.Random.seed = lambda *_: None")
    state = driver.run("random.getstate()[1][:3]").value
    driver.renew(1)
    assert driver.run("random.getstate()[1][:3]").value != state


# JavaScript ---------------------------------------------------------------------------------------------------------------

CLONE = """
const fs = require("node:fs"), vm = require("node:vm"), nodeCrypto = require("node:crypto");
const { dlopen } = require("bun:ffi");
const { setRandomSeed } = require("bun:jsc");
const { symbols: c } = dlopen("libc.so.6", {
  fork: { args: [], returns: "int" }, waitpid: { args: ["int", "ptr", "int"], returns: "int" },
  madvise: { args: ["ptr", "u64", "int"], returns: "int" }, memset: { args: ["ptr", "int", "u64"], returns: "ptr" },
  _exit: { args: ["int"], returns: "void" },
});
const decoder = new TextDecoder();
const renewer = {};
vm.runInThisContext(`(exports) => {${fs.readFileSync(process.argv[2], "utf8")}}`)(renewer);
const smaps = process.argv[3] === "blind" ? () => Buffer.from("") : fs.readFileSync;
const renew = renewer.makeRenewer({
  random: Math.random, setRandomSeed, memset: c.memset, Uint8Array, readFileSync: smaps, decode: (b) => decoder.decode(b),
  randomUUID: crypto.randomUUID.bind(crypto), getRandomValues: crypto.getRandomValues.bind(crypto),
});
const key = () => nodeCrypto.generateKeyPairSync("x25519").publicKey.export({ type: "spki", format: "der" }).toString("hex");
const show = (name) => fs.writeSync(1, [
  name, Math.random(), crypto.randomUUID(), nodeCrypto.randomUUID(), Bun.randomUUIDv7().slice(-12), nodeCrypto.randomInt(1e12),
  nodeCrypto.randomBytes(8).toString("hex"), crypto.getRandomValues(new Uint32Array(2)), key(),
].join(" ") + "\\n");
show("warm");
// A fork copies all memory, as a snapshot does, if the kernel is told not to leave out some of it.
let range = [];
for (const line of fs.readFileSync("/proc/self/smaps", "latin1").split("\\n")) {
  const head = /^([0-9a-f]+)-([0-9a-f]+) /.exec(line);
  if (head) range = head.slice(1).map((digits) => parseInt(digits, 16));
  else if (/^VmFlags:.* wf/.test(line)) c.madvise(range[0], range[1] - range[0], 19);
  else if (/^VmFlags:.* dc/.test(line)) c.madvise(range[0], range[1] - range[0], 11);
}
for (const [name, seed] of [["none", ""], ["a", "0123456789abcdef"], ["b", "fedcba9876543210"], ["self", ""]]) {
  const pid = name === "self" ? 0 : c.fork();
  if (pid !== 0) { c.waitpid(pid, null, 0); continue; }
  if (seed) renew(seed);
  show(name);
  c._exit(0);
}
"""


@pytest.mark.parametrize("way", ["usual", "blind"])
def test_javascript_clones_differ_in_all_random_numbers(make_driver: MakeDriver, tmp_path: Path, way: str) -> None:
    script = tmp_path / "clone.js"
    script.write_text(CLONE)
    program = make_driver("javascript", start=False).argv()[0]
    renewer = DRIVERS / "javascript" / "realm" / "renew.js"
    done = subprocess.run([program, script, renewer, way], capture_output=True, text=True, timeout=60, check=False)
    lines = {line.split(" ")[0]: line.split(" ")[1:] for line in done.stdout.splitlines()}
    assert list(lines) == ["warm", "none", "a", "b", "self"], done
    assert lines["none"] == lines["self"], "without a renewal all is alike"
    for index in range(len(lines["self"])):
        assert len({lines[name][index] for name in ("self", "a", "b")}) == 3, (index, lines)


def test_javascript_code_that_is_in_the_way(make_driver: MakeDriver) -> None:
    driver = make_driver("javascript")
    driver.run(
        "Math.random = () => 4; crypto.randomUUID = crypto.getRandomValues = null; delete globalThis.crypto;"
        "RegExp.prototype.exec = String.prototype.split = String.prototype.slice = null; globalThis.parseInt = null"
    )
    driver.renew(1)
    assert driver.run("console.log(Math.random())").out == b"4\n"
    driver.run("setInterval(() => {}, 1)")
    driver.renew(1)
    assert driver.run("console.log('well')").out == b"well\n"


# Shell --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("unset RANDOM", b"unset"),
        ("unset RANDOM; RANDOM=5", b"5"),
        ("unset RANDOM; declare -i RANDOM=5; readonly RANDOM", b"5"),
    ],
)
def test_shell_leaves_a_variable_of_that_name_alone(make_driver: MakeDriver, code: str, value: bytes) -> None:
    driver = make_driver("shell")
    driver.run(code)
    driver.renew(1)
    assert driver.run("echo ${RANDOM-unset}").out == value + b"\n"


@pytest.mark.parametrize(
    "harm",
    [
        "set -eu -o pipefail -x",
        "readonly RANDOM",
        "set -o posix; shopt -s nocasematch",
        "printf() { echo no; }; builtin() { :; }",
        "trap 'echo debug' DEBUG; set -T",
        "trap 'echo bye' EXIT",
        "IFS=0123456789abcdef",
        "exit 3",
    ],
)
def test_shell_code_that_is_in_the_way(make_driver: MakeDriver, harm: str) -> None:
    driver = make_driver("shell")
    driver.run(harm)
    for seed in range(3):
        driver.renew(seed)
    driver.settle(0.1)
    assert (bytes(driver.idle_out.data), bytes(driver.idle_err.data)) == (b"", b"")
    assert b"well\n" in driver.run("echo well").out
