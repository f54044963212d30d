"""Templates on disk: those of languages, which later processes begin with, and those with names."""

import asyncio
import json
import os
import subprocess
import sys
import time

import hayfork
import pytest


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory):
    """Folders of these tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HAYFORK_NAMED_TEMPLATES_DIR", str(tmp_path_factory.mktemp("named")))
        patch.setenv("HAYFORK_TEMPLATE_CACHE_DIR", str(tmp_path_factory.mktemp("store") / "templates"))
        try:
            hayfork.build_template("probe", language="shell")
        except hayfork.UnsupportedOptionError as error:
            pytest.skip(str(error))
        hayfork.remove_template("probe")
        yield


def python(script, **environment):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"HAYFORK_TEMPLATE_CACHE_MB": "500"} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def hayfork_command(*arguments, typed=""):
    return subprocess.run(
        [sys.executable, "-m", "hayfork.cli", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def entries():
    folder = os.environ["HAYFORK_TEMPLATE_CACHE_DIR"]
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name.endswith(".template")]


ONE = """
import hayfork
run = hayfork.run("import os, random, time, uuid; print(random.random(), uuid.uuid4(), os.urandom(8).hex(), int(time.time()))")
print(run.runs_on.made_from, run.stdout, end="")
"""

FILL = """
import os, time, hayfork
folder = os.environ["HAYFORK_TEMPLATE_CACHE_DIR"]
with hayfork.WarmPool(1) as pool:
    assert pool.wait()
    until = time.monotonic() + 60
    while not any(name.endswith(".template") for name in os.listdir(folder)):
        assert time.monotonic() < until
        time.sleep(0.05)
"""


def test_a_process_begins_with_the_template_of_an_earlier_one():
    assert python(ONE).startswith("boot "), "one VM is no reason to make a template"
    assert entries() == []
    python(FILL)
    (entry,) = entries()
    assert os.stat(entry).st_mode & 0o777 == 0o400
    runs = [python(ONE).split() for _ in range(3)]
    assert [run[0] for run in runs] == ["template"] * 3
    for column in (1, 2, 3):
        assert len({run[column] for run in runs}) == 3, "each has randomness of its own"
    assert abs(int(runs[-1][4]) - time.time()) < 30
    assert python(ONE, HAYFORK_TEMPLATE_CACHE_MB="0").startswith("boot ")
    assert python(ONE, HAYFORK_TEMPLATES="off").startswith("boot ")


def test_a_damaged_template_is_removed_and_costs_nothing_else():
    if not entries():
        python(FILL)
    (entry,) = entries()
    with open(entry, "rb") as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    os.unlink(entry)
    with open(entry, "wb") as file:
        file.write(content)
    assert python(ONE).startswith("boot ")
    assert entries() == []


CODE = {
    "python": ("import decimal\nx = [40]", "x.append(2); print(sum(x), decimal.Decimal('1.5'))", "42 1.5\n"),
    "javascript": ("let x = [40]", "x.push(2); console.log(x.reduce((a, b) => a + b))", "42\n"),
    "shell": ("x=40; f() { echo $((x + 2)); }", "f", "42\n"),
}


@pytest.mark.parametrize("language", ["python", "javascript", "shell"])
def test_what_the_code_of_a_template_has_made_is_there(language):
    code, use, shown = CODE[language]
    built = hayfork.build_template(f"of.{language}", language=language, code=code)
    assert (built.name, built.language, built.cpus) == (f"of.{language}", language, 1)
    for _ in range(2):
        run = hayfork.run(use, template=built.name)
        assert (run.stdout, run.stderr, run.runs_on.made_from) == (shown, "", "template")
    with hayfork.Sandbox.create(built.name, env={"GREETING": "hello"}) as sandbox:
        assert (sandbox.language, sandbox.memory_mb) == (language, built.memory_mb)
        assert sandbox.run_code(use).stdout == shown
        assert sandbox.commands.run("echo $GREETING").stdout == "hello\n"
    with pytest.raises(hayfork.VmConfigError, match="language"):
        hayfork.run(use, template=built.name, language="shell" if language == "python" else "python")
    hayfork.remove_template(built.name)


def test_sandboxes_of_one_template_differ():
    hayfork.build_template("differ", code="import random, uuid, time")
    seen = {hayfork.run("print(random.random(), uuid.uuid4())", template="differ").stdout for _ in range(4)}
    assert len(seen) == 4
    assert abs(float(hayfork.run("print(time.time())", template="differ").stdout) - time.time()) < 5
    hayfork.remove_template("differ")


def test_what_a_template_fixes_must_agree():
    hayfork.build_template("large", memory_mb=320, cpus=2)
    try:
        with hayfork.Sandbox.create("large", memory_mb=320, cpus=2, language="python") as sandbox:
            assert sandbox.run_code("import os; os.cpu_count()").text == "2"
        for options in ({"memory_mb": 256}, {"cpus": 1}, {"language": "shell"}):
            with pytest.raises(hayfork.VmConfigError) as raised:
                hayfork.Sandbox.create("large", **options)
            assert raised.value.code == "bad_option"
    finally:
        hayfork.remove_template("large")


def test_a_start_has_its_time():
    hayfork.build_template("hurry", language="shell")
    try:
        with hayfork.Sandbox.create("hurry", boot_timeout=60) as sandbox:
            for template in ("hurry", sandbox.snapshot()):
                with pytest.raises(hayfork.VmBootTimeoutError):
                    hayfork.Sandbox.create(template, boot_timeout=0.000001)
    finally:
        hayfork.remove_template("hurry")


def test_code_that_fails_is_an_error_that_shows_its_output():
    with pytest.raises(hayfork.SnapshotError, match="no_such_module") as raised:
        hayfork.build_template("failed", code="print('before'); import no_such_module")
    assert raised.value.code == "template_code_failed"
    assert "before" in str(raised.value)
    with pytest.raises(hayfork.SnapshotError) as raised:
        hayfork.build_template("slow", code="while True: pass", timeout=0.5)
    assert raised.value.code == "template_code_failed"
    assert hayfork.list_templates() == []


@pytest.mark.parametrize("name", ["", ".", "../up", "a/b", "Upper", "x" * 65])
def test_names_are_no_paths(name):
    for use in (
        lambda: hayfork.build_template(name),
        lambda: hayfork.remove_template(name),
        lambda: hayfork.Sandbox.create(name),
    ):
        with pytest.raises(hayfork.VmConfigError):
            use()


def test_a_name_that_is_not_there():
    for use in (lambda: hayfork.run("1", template="nobody"), lambda: hayfork.remove_template("nobody")):
        with pytest.raises(hayfork.SnapshotError) as raised:
            use()
        assert raised.value.code == "template_missing"


OTHER = """
import hayfork
with hayfork.Sandbox.create("kept") as sandbox:
    print(sandbox.run_code("print(x, open('f').read())").stdout, end="")
"""


def test_a_snapshot_with_a_name_outlives_its_process_and_is_replaced_by_the_next():
    with hayfork.Sandbox.create(env={"A": "1"}) as sandbox:
        sandbox.run_code("x = 1; open('f', 'w').write('one')")
        snapshot = sandbox.snapshot("kept")
        assert python(OTHER) == "1 one\n"
        with hayfork.Sandbox.create("kept", env={"B": "2"}) as clone:
            assert clone.commands.run("echo $A$B").stdout == "12\n"
        sandbox.run_code("x = 2")
        sandbox.snapshot("kept")
    assert python(OTHER) == "2 one\n"
    assert hayfork.run("print(x)", template="kept").stdout == "2\n", "not the one that is in memory"
    # The snapshot itself is a template as well.
    with hayfork.Sandbox.create(snapshot, env={"B": "3"}) as clone:
        assert clone.run_code("x").text == "1"
        assert clone.commands.run("echo $A$B").stdout == "13\n"
    with pytest.raises(hayfork.VmConfigError):
        hayfork.Sandbox.create(snapshot, language="shell")
    hayfork.remove_template("kept")


def test_a_damaged_template_is_named():
    hayfork.build_template("damaged", language="shell")
    path = os.path.join(os.environ["HAYFORK_NAMED_TEMPLATES_DIR"], "damaged.template")
    os.chmod(path, 0o600)
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(hayfork.SnapshotError) as raised:
        hayfork.Sandbox.create("damaged")
    assert raised.value.code == "snapshot_truncated"
    hayfork.remove_template("damaged")


IDENTITY = "print(open('/etc/machine-id').read().strip(), random.random(), x)"


def identity():
    run = hayfork.run(IDENTITY, template="stock")
    assert run.stderr == ""
    return (run.runs_on.made_from, *run.stdout.split())


def test_a_pool_of_a_template_has_what_it_holds_and_follows_its_name():
    hayfork.build_template("stock", code="import random; x = 1")
    with hayfork.WarmPool(2, template="stock", language="python") as pool:
        seen = []
        for _ in range(5):
            assert pool.wait()
            seen.append(identity())
        assert {(one[0], one[3]) for one in seen} == {("pool", "1")}
        assert len({one[1] for one in seen}) == len({one[2] for one in seen}) == 5
        assert pool.wait()
        assert hayfork.run("print('random' in globals())").stdout == "False\n", "others get none of them"
        # What has the name next is what it is of.
        with hayfork.Sandbox.create("stock") as sandbox:
            sandbox.run_code("x = 2")
            sandbox.snapshot("stock")
        assert pool.wait()
        first = identity()
        assert (first[0], first[3]) == ("pool", "2")
        # Another process gives the name away.
        python("import hayfork; hayfork.build_template('stock', code='import random; x = 3')")
        assert identity()[3] == "3"
        assert pool.wait()
        first = identity()
        assert (first[0], first[3]) == ("pool", "3")
        with hayfork.WarmPool(1, template="stock"):
            hayfork.remove_template("stock")
            with pytest.raises(hayfork.SnapshotError):
                identity()
        hayfork.build_template("stock", code="import random; x = 4")
        assert pool.wait()
        first = identity()
        assert (first[0], first[3]) == ("pool", "4")
    first = identity()
    assert (first[0], first[3]) == ("template", "4")
    hayfork.remove_template("stock")


def test_a_pool_of_a_template_that_cannot_be():
    with pytest.raises(hayfork.SnapshotError) as raised:
        hayfork.WarmPool(1, template="nobody")
    assert raised.value.code == "template_missing"
    hayfork.build_template("agreed", language="shell")
    try:
        for options in ({"language": "python"}, {"memory_mb": 1024}, {"cpus": 2}):
            with pytest.raises(hayfork.VmConfigError) as raised:
                hayfork.WarmPool(1, template="agreed", **options)
            assert raised.value.code == "bad_option"
        with hayfork.Sandbox.create("agreed") as sandbox, pytest.raises(hayfork.VmConfigError):
            hayfork.WarmPool(1, template=sandbox.snapshot())
    finally:
        hayfork.remove_template("agreed")


def test_async_twins():
    async def use():
        built = await hayfork.abuild_template("twin", code="x = 5")
        assert (await hayfork.arun("print(x)", template="twin")).stdout == "5\n"
        async with await hayfork.AsyncSandbox.create(template=built.name) as sandbox:
            await sandbox.run_code("x = 6")
            snapshot = await sandbox.snapshot("twin")
        async with await hayfork.AsyncSandbox.create(snapshot) as sandbox:
            assert (await sandbox.run_code("x")).text == "6"

    asyncio.run(use())
    hayfork.remove_template("twin")


def test_the_command_line(tmp_path):
    (tmp_path / "warm.js").write_text("let x = 41")
    built = hayfork_command("build", "line", "--code", str(tmp_path / "warm.js"), "--json")
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["language"] == "javascript"
    assert "line" in hayfork_command("build", "--list").stdout
    run = hayfork_command("run", "--template", "line", "console.log(x + 1)")
    assert (run.stdout, run.returncode) == ("42\n", 0), run.stderr
    shell = hayfork_command("shell", "-q", "--template", "line", typed="console.log(x + 2)\n")
    assert (shell.stdout, shell.returncode) == ("43\n", 0), shell.stderr
    assert hayfork_command("shell", "--template", "line", "-l", "python").returncode == 125
    failed = hayfork_command("build", "bad", "-c", "import no_such_module")
    assert failed.returncode == 125
    assert "no_such_module" in failed.stderr
    assert hayfork_command("build", "--remove", "line").returncode == 0
    assert hayfork_command("build", "--remove", "line").returncode == 125
