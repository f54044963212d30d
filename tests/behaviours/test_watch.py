"""Watching folders: every change is told once, floods are bounded and say so, and nobody's tricks lead out of the home."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
import time

import hayfork
import pytest
from hayfork import FilesystemEventType as Type

TYPES = {"create": "+", "write": "~", "remove": "-", "chmod": "*"}


def short(event):
    """Spell an event: "+a", "+a/" for a folder, "~a" written, "-a", "a>b", "*a" attributes, "!" overflow."""
    slash = "/" if event.is_dir else ""
    if event.type == Type.OVERFLOW:
        return "!"
    if event.type == Type.RENAME:
        return f"{event.path}{slash}>{event.new_path or ''}"
    return f"{TYPES[event.type]}{event.path}{slash}"


def news(watch):
    return [short(event) for event in watch.get_new_events()]


def run(sandbox, code):
    execution = sandbox.run_code(code)
    assert execution.ok, execution
    return execution


@contextlib.contextmanager
def background(sandbox, line):
    handle = sandbox.commands.start(line)
    yield handle
    handle.wait(check=True)


def test_changes_of_every_kind(python):
    files = python.files
    files.make_dir("kinds")
    with files.watch("kinds") as watch:
        assert news(watch) == []
        run(
            python,
            "import os, shutil\n"
            "open('kinds/a', 'w').write('x')\n"
            "os.mkdir('kinds/d'); open('kinds/d/unseen', 'w').close()\n"
            "os.chmod('kinds/a', 0o600)\n"
            "os.rename('kinds/a', 'kinds/b')\n"
            "os.rename('kinds/b', 'out'); os.rename('out', 'kinds/in')\n"
            "os.remove('kinds/in')\n",
        )
        events = watch.get_new_events()
        assert [short(e) for e in events] == ["+a", "~a", "+d/", "*a", "a>b", "-b", "+in", "-in"]
        assert events[0].name == events[0].path == "a"
        assert events[0].type == "create"
        assert news(watch) == []


def test_what_the_host_does_is_seen_too(python):
    files = python.files
    files.make_dir("host")
    with files.watch_dir("host") as watch:
        files.write("host/new", b"1")
        assert news(watch) == ["+new"]
        files.write("host/new", b"2")
        files.rename("host/new", "host/other")
        files.remove("host/other")
        temporary, *rest = watch.get_new_events()
        assert (temporary.type, temporary.path[:9]) == ("create", ".hayfork-")
        assert [short(e) for e in rest] == [f"{temporary.path}>new", "new>other", "-other"]


def test_a_thousand_quick_changes_are_all_told_in_order(python):
    python.files.make_dir("quick")
    with python.files.watch("quick") as watch, python.files.watch("quick", recursive=True) as second:
        run(python, "for n in range(1000): open(f'quick/{n}', 'w').close()")
        expected = [f"+{n}" for n in range(1000)]
        assert news(watch) == expected
        # Two watches on one folder do not take from each other.
        assert news(second) == expected


def test_iterating_waits_for_changes_and_a_timeout_ends_it(python):
    python.files.make_dir("wait")
    with python.files.watch("wait") as watch:
        assert list(watch.events(timeout=0.05)) == []
        with background(python, "sleep 0.3; touch wait/late; sleep 0.1; touch wait/later"):
            began = time.monotonic()
            first = next(iter(watch))
            assert (short(first), time.monotonic() - began > 0.1) == ("+late", True)
            # What an iteration that was given up did not take is for the next one.
            rest = [short(event) for event in watch.events(timeout=2)]
            assert [event for event in rest if not event.startswith("*")] == ["+later"]
        with pytest.raises(hayfork.VmConfigError):
            next(watch.events(timeout=-1))


def test_stop_lets_go_whoever_waits(python):
    watch = python.files.watch()
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(watch))
    thread.start()
    time.sleep(0.2)
    assert watch.active
    watch.stop()
    watch.stop()
    thread.join(10)
    assert not thread.is_alive() and seen == [] and not watch.active
    assert watch.get_new_events() == []
    assert list(watch) == []


def test_recursive_watches_follow_folders_made_later_and_moved(python):
    python.files.make_dir("tree/old")
    with python.files.watch("tree", recursive=True) as watch:
        run(python, "import os\nos.makedirs('tree/n/x/y'); open('tree/n/x/y/f', 'w').close()")
        assert sorted(news(watch)) == ["+n/", "+n/x/", "+n/x/y/", "+n/x/y/f"]
        run(python, "os.rename('tree/n', 'tree/old/m'); open('tree/old/m/x/y/g', 'w').close()")
        assert news(watch) == ["n/>old/m", "+old/m/x/y/g"]
        run(python, "os.rename('tree/old/m', 'moved'); open('moved/x/h', 'w').close()")
        assert news(watch) == ["-old/m/"]
        run(python, "open('moved/x/i', 'w').close(); os.rename('moved', 'tree/back')")
        assert sorted(news(watch)) == sorted(
            ["+back/", "+back/x/", "+back/x/y/", "+back/x/y/f", "+back/x/y/g", "+back/x/h", "+back/x/i"]
        )
        run(python, "import shutil; shutil.rmtree('tree/back')")
        assert news(watch)[-1] == "-back/"


def test_removing_or_renaming_the_folder_ends_its_watch(python):
    for recursive in (False, True):
        python.files.make_dir("gone")
        watch = python.files.watch("gone", recursive=recursive)
        run(python, "import os; os.rmdir('gone')")
        events = list(watch)
        assert [(e.type, e.path, e.is_dir) for e in events] == [("remove", "", True)]
        assert not watch.active and watch.get_new_events() == []
    python.files.make_dir("away")
    watch = python.files.watch("away")
    run(python, "os.rename('away', 'away2'); os.symlink('/etc', 'away'); open('away2/x', 'w').close()")
    assert [short(event) for event in watch] == ["/>"]
    run(python, "os.remove('away')")


def test_what_cannot_be_watched_is_a_clear_error(python):
    run(python, "import os\nopen('plain', 'w').close(); os.symlink('/etc', 'leads-out'); os.mkdir('shut', 0)")
    for path, code in {
        "missing": "not_found",
        "plain": "wrong_type",
        "plain/below": "wrong_type",
        "leads-out": "bad_path",
        "/etc": "bad_path",
        "..": "bad_path",
        "a\0b": "bad_path",
        "/proc/1/root": "bad_path",
        "shut": "permission_denied",
    }.items():
        with pytest.raises(hayfork.SandboxFileError) as caught:
            python.files.watch(path, recursive=True)
        assert (path, caught.value.code, bool(caught.value.remedy)) == (path, code, True)
    run(python, "os.rmdir('shut')")
    assert run(python, "print('alive')").stdout == "alive\n"


def test_there_are_at_most_32_and_one_that_ends_makes_room(python):
    watches = [python.files.watch() for _ in range(32)]
    with pytest.raises(hayfork.SandboxFileError, match="32") as caught:
        python.files.watch()
    assert caught.value.code == "too_many"
    watches.pop().stop()
    watches.append(python.files.watch())
    run(python, "open('counted', 'w').close()")
    for watch in watches:
        assert news(watch) == ["+counted"]
        watch.stop()
    run(python, "import os; os.remove('counted')")


def test_a_flood_is_bounded_and_says_so_and_other_watches_lose_nothing():
    with hayfork.Sandbox.create(memory_mb=512) as sandbox:
        for name in ("flood", "quiet"):
            sandbox.files.make_dir(name)
        flood = sandbox.files.watch("flood", recursive=True)
        quiet = sandbox.files.watch("quiet")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        code = "import os\nfor n in range(60_000):\n    p = f'flood/{n}'\n    os.close(os.open(p, os.O_CREAT)); os.remove(p)\n"
        run(sandbox, code + "open('quiet/f', 'w').close(); os.makedirs('flood/late/er')")
        assert news(quiet) == ["+f"]
        told = news(flood)
        assert "!" in told
        assert 10_000 < len(told) < 60_000
        # Folders that were made while changes were lost are watched all the same.
        run(sandbox, "open('flood/late/er/f', 'w').close()")
        assert news(flood) == ["+late/er/f"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB
        assert sandbox.stats().agent_pss_bytes < 4 << 20


def test_hostile_games_with_folders_lead_nowhere(python):
    python.files.make_dir("games")
    with python.files.watch("games", recursive=True) as watch:
        run(
            python,
            "import os, shutil\n"
            "os.chdir('games')\n"
            "for n in range(100):\n"
            "    os.makedirs('a/b/c'); open('a/b/c/f', 'w').close()\n"
            "    os.rename('a/b', 't'); os.rename('a', 't/c/a'); os.rename('t', 'a')\n"
            "    os.symlink('/etc', 'l'); os.symlink('../..', 'u')\n"
            "    shutil.rmtree('a'); os.symlink('/', 'a')\n"
            "    for p in ('l', 'u', 'a'): os.remove(p)\n"
            "os.mkdir('end'); os.chdir('..')\n",
        )
        events = watch.get_new_events()
        # Nothing of what the links lead to.
        assert not any({"passwd", "usr", "hostname"} & set(event.path.split("/")) for event in events)
        assert short(events[-1]) == "+end/"
        run(python, "open('games/end/f', 'w').close()")
        assert news(watch) == ["+end/f"]
    deep = "import os\nfor _ in range(600):\n    os.mkdir('d' * 10); os.chdir('d' * 10)\nos.chdir('/home/user')"
    python.files.make_dir("deep")
    with python.files.watch("deep", recursive=True) as watch:
        run(python, "os.chdir('deep')\n" + deep)
        told = news(watch)
        # Deeper than a path can be long: told of, as far as paths go.
        assert "!" in told and len(max(told, key=len)) <= 4096 + 2
    python.files.remove("deep")
    assert run(python, "print('alive')").stdout == "alive\n"


def free_instances(sandbox):
    """How many inotify instances the user's programs can make."""
    code = (
        "import ctypes, os\n"
        "libc, fds = ctypes.CDLL(None), []\n"
        "while (fd := libc.inotify_init()) >= 0: fds.append(fd)\n"
        "for fd in fds: os.close(fd)\n"
        "print(len(fds))"
    )
    return int(run(sandbox, code).stdout)


def test_forks_have_no_watch_and_keep_no_dead_ones():
    with hayfork.Sandbox.create() as sandbox:
        before = free_instances(sandbox)
        watches = [sandbox.files.watch(recursive=True), sandbox.files.watch()]
        assert free_instances(sandbox) == before - 2
        with sandbox.fork() as fork:
            assert free_instances(fork) == before
            run(fork, "open('in-the-fork', 'w').close()")
            with fork.files.watch() as own:
                run(fork, "open('own', 'w').close()")
                assert news(own) == ["+own"]
        # The original's go on, and saw nothing of the fork.
        run(sandbox, "open('in-the-original', 'w').close()")
        for watch in watches:
            assert news(watch) == ["+in-the-original"]
            watch.stop()
        deadline = time.monotonic() + 10
        while free_instances(sandbox) < before:
            assert time.monotonic() < deadline


def test_a_paused_sandbox_goes_on_without_its_watches(tmp_path, monkeypatch):
    monkeypatch.setenv("HAYFORK_PAUSED_DIR", str(tmp_path))
    sandbox = hayfork.Sandbox.create()
    before = free_instances(sandbox)
    watch = sandbox.files.watch(recursive=True)
    assert free_instances(sandbox) == before - 1
    sandbox_id = sandbox.pause()
    with pytest.raises(hayfork.SessionClosedError):
        list(watch)
    with hayfork.Sandbox.resume(sandbox_id) as resumed:
        assert free_instances(resumed) == before
        with resumed.files.watch() as own:
            run(resumed, "open('own', 'w').close()")
            assert news(own) == ["+own"]


def test_a_closed_sandbox_ends_its_watches():
    sandbox = hayfork.Sandbox.create()
    watch = sandbox.files.watch()
    run(sandbox, "open('last', 'w').close()")
    assert next(watch.events(timeout=10)).path == "last"
    sandbox.kill()
    with pytest.raises(hayfork.SessionClosedError):
        watch.get_new_events()
    with pytest.raises(hayfork.SessionClosedError):
        list(watch)
    assert not watch.active
    with pytest.raises(hayfork.SessionClosedError):
        sandbox.files.watch()


def test_a_watch_keeps_no_idle_sandbox():
    with hayfork.Sandbox.create(idle_timeout=2) as sandbox:
        watch = sandbox.files.watch()
        with pytest.raises(hayfork.SessionClosedError, match="idle"):
            list(watch)


def test_the_async_twin():
    async def main():
        async with await hayfork.AsyncSandbox.create() as sandbox:
            await sandbox.files.make_dir("d")
            seen, done = [], asyncio.Event()

            async def on_event(event):
                await asyncio.sleep(0)
                seen.append(short(event))
                if event.path == "99":
                    done.set()

            async with (
                await sandbox.files.watch("d") as watch,
                await sandbox.files.watch_dir("d", recursive=True, on_event=on_event) as second,
            ):
                # A wait that is cancelled takes nothing.
                for _ in range(20):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(watch), 0.005)
                writing = asyncio.create_task(sandbox.run_code("for n in range(100): open(f'd/{n}', 'w').close()"))
                told = []
                while len(told) < 100:
                    try:
                        told.append(short(await asyncio.wait_for(anext(watch), 0.002)))
                    except TimeoutError:
                        continue
                await writing
                expected = [f"+{n}" for n in range(100)]
                assert told == expected
                assert await watch.get_new_events() == []
                await asyncio.wait_for(done.wait(), 30)
                assert seen == expected
                assert [e async for e in watch.events(timeout=0.05)] == []
                await sandbox.files.write("d/x", b"")
                assert [short(e) async for e in watch.events(timeout=0.5)] == ["+x"]
            assert not watch.active and not second.active
            assert [e async for e in watch] == []

            def raises(event):
                raise RuntimeError(event.path)

            broken = await sandbox.files.watch("d", on_event=raises)
            await sandbox.files.write("d/y", b"")
            deadline = time.monotonic() + 10
            while broken.active:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            assert (await sandbox.run_code("print('alive')")).stdout == "alive\n"

    asyncio.run(main())
