"""BEHAVIOURS 27 and 28: files."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import resource
import time

import hayfork
import pytest


class Endless(io.RawIOBase):
    """A stream of that many pseudo-random bytes, which takes no memory."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.digest = hashlib.sha256()
        self.block = hashlib.shake_256(b"hayfork").digest(1 << 16)

    def read(self, size: int = -1) -> bytes:
        piece = self.block[: min(size, self.left, len(self.block))]
        self.left -= len(piece)
        self.digest.update(piece)
        return piece


class Digest(io.RawIOBase):
    """Takes bytes and keeps only their digest."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return len(content)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 262_144, 262_145, 1_000_000])
def test_round_trips(python, size):
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert python.files.write("f", content) == size
    assert python.files.read("f", format="bytes") == content
    assert python.files.get_info("f").size == size


class Resident:
    """The most memory that this process had while somebody looked, beyond what it had at first, in KiB."""

    def __init__(self) -> None:
        self.first = self.now()
        self.most = 0

    @staticmethod
    def now() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() // 1024

    def look(self) -> None:
        self.most = max(self.most, self.now() - self.first)


@pytest.fixture
def apart():
    """A sandbox whose own memory is another process's."""
    with hayfork.Sandbox.create(memory_mb=512, isolation="worker") as sandbox:
        # What is allocated once, whatever the size.
        sandbox.files.write("warm", Endless(3_000_000))
        sandbox.files.download("warm", Digest())
        yield sandbox


def test_a_large_file_with_flat_host_memory(apart):
    size = 150_000_000
    source, sink, memory = Endless(size), Digest(), Resident()
    assert apart.files.upload(source, "big", progress=lambda *_: memory.look()) == size
    assert apart.files.download("big", sink, progress=lambda *_: memory.look()) == size
    assert sink.digest.hexdigest() == source.digest.hexdigest()
    guest = apart.run_code("import hashlib; print(hashlib.file_digest(open('big', 'rb'), 'sha256').hexdigest())")
    assert guest.stdout.strip() == source.digest.hexdigest()
    assert memory.most < 20_000
    assert apart.stats().agent_pss_bytes < 4 << 20


@pytest.mark.parametrize("name", ["with space", "ünï-中-😀", ".hidden", "x" * 255, "a/b/c/deep", "-dash", "*?[x]"])
def test_names(python, name):
    python.files.write(name, name)
    assert python.files.read(name) == name
    assert python.files.exists(name)
    python.files.remove(name)
    assert not python.files.exists(name)


def test_a_name_of_256_bytes_is_a_clear_error(python):
    with pytest.raises(hayfork.SandboxFileError, match="255"):
        python.files.write("x" * 256, b"")


@pytest.mark.parametrize(
    "path", ["../up", "a/../../up", "/etc/passwd", "/root/x", "a\0b", "/proc/1/environ", "/usr/lib/hayfork/x"]
)
def test_escapes_are_errors_and_the_session_lives(python, path):
    with pytest.raises(hayfork.SandboxFileError):
        python.files.write(path, b"x")
    assert python.run_code("print('alive')").stdout == "alive\n"


def test_links_out_of_the_home_are_not_followed(python):
    python.run_code("import os; os.symlink('/etc', 'etc'); os.symlink('/etc/passwd', 'pw')")
    for path in ("etc/passwd", "pw"):
        with pytest.raises(hayfork.SandboxFileError):
            python.files.read(path)
    with pytest.raises(hayfork.SandboxFileError):
        python.files.write("etc/new", b"x")
    python.run_code("os.remove('etc'); os.remove('pw')")


def test_an_aborted_upload_leaves_nothing(python):
    class Broken(io.RawIOBase):
        pieces = 0

        def read(self, size=-1):
            self.pieces += 1
            if self.pieces > 3:
                raise OSError("the source broke")
            return b"x" * size

    python.files.write("kept", b"old")
    before = [e.name for e in python.files.list()]
    for name in ("fresh", "kept"):
        with pytest.raises(OSError, match="the source broke"):
            python.files.write(name, Broken())
    assert [e.name for e in python.files.list()] == before
    assert python.files.read("kept") == "old"


def test_listings_are_sorted_and_a_missing_folder_is_an_error(python):
    for name in ("b", "a", "c/x", "B"):
        python.files.write(f"listing/{name}", b"12")
    entries = python.files.list("listing")
    assert [(e.name, e.type, e.size) for e in entries] == [
        ("B", "file", 2),
        ("a", "file", 2),
        ("b", "file", 2),
        ("c", "dir", 0),
    ]
    with pytest.raises(hayfork.SandboxFileError) as caught:
        python.files.list("missing")
    assert caught.value.code == "not_found"
    assert python.run_code("print('alive')").stdout == "alive\n"


def test_parents_and_files_belong_to_the_user(python):
    python.files.write("mine/inner/file", b"x", mode=0o755)
    code = "import os\nfor p in ('mine', 'mine/inner', 'mine/inner/file'): print(os.stat(p).st_uid, end=' ')\nopen('mine/inner/sibling', 'w').write('y'); os.access('mine/inner/file', os.X_OK)"
    execution = python.run_code(code)
    assert execution.stdout == "1000 1000 1000 "
    assert execution.text == "True"


def test_folders_and_renames(python):
    python.files.make_dir("d/e")
    python.files.make_dir("d/e")
    python.files.write("d/e/f", b"1")
    python.files.rename("d/e/f", "d/g")
    assert python.files.read("d/g") == "1"
    python.files.remove("d")
    assert not python.files.exists("d")
    with pytest.raises(hayfork.SandboxFileError):
        python.files.read("d/g")


def test_download_to_a_host_file_is_whole_or_absent(python, tmp_path):
    python.files.write("out", b"content")
    assert python.files.download("out", tmp_path / "new" / "out") == 7
    assert (tmp_path / "new" / "out").read_bytes() == b"content"
    with pytest.raises(hayfork.SandboxFileError):
        python.files.download("not there", tmp_path / "none")
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_an_iterable_that_raises_leaves_nothing_and_its_exception_comes_out(python):
    class Broken(Exception):
        pass

    def pieces():
        yield b"x" * 300_000
        yield b"y" * 1_000_000
        raise Broken("in the middle")

    python.files.write("iterable/kept", b"old")
    for name in ("iterable/kept", "iterable/fresh"):
        with pytest.raises(Broken, match="in the middle"):
            python.files.write(name, pieces())
    assert [e.name for e in python.files.list("iterable")] == ["kept"]
    assert python.files.read("iterable/kept") == "old"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], b""),
        ([b"", b"a", b""], b"a"),
        ((b"%d," % n for n in range(1000)), b"".join(b"%d," % n for n in range(1000))),
        ([bytearray(b"a"), memoryview(b"bcd")[::2], "ü"], b"abd\xc3\xbc"),
        ([b"z" * 3_000_000, b"!"], b"z" * 3_000_000 + b"!"),
        (io.StringIO("text ü"), "text ü".encode()),
        (memoryview(b"abcdef")[::2], b"ace"),
    ],
    ids=["none", "empty pieces", "generator", "kinds", "large", "text stream", "strided"],
)
def test_iterables_are_written_piece_by_piece(python, content, expected):
    assert python.files.write("pieces", content) == len(expected)
    assert python.files.read("pieces", "bytes") == expected


@pytest.mark.parametrize("content", [7, None, object(), [b"a", 7], {1: 2}])
def test_content_that_is_none_is_a_clear_error(python, content):
    with pytest.raises(hayfork.InputValidationError, match="iterable of bytes") as caught:
        python.files.write("refused", content)
    assert caught.value.code == "bad_content"
    assert not python.files.exists("refused")
    with pytest.raises(hayfork.InputValidationError, match="stream"):
        python.files.upload(b"content", "refused")
    with pytest.raises(hayfork.InputValidationError, match="format"):
        python.files.read("refused", format="json")


@pytest.mark.parametrize("size", [0, 1, 262_144, 3_000_001])
def test_streams_give_the_whole_file(python, size):
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    python.files.write("stream", content)
    with python.files.read("stream", format="stream") as stream:
        assert stream.size == size
        assert b"".join(stream) == content
        assert list(stream) == []
    with pytest.raises(hayfork.SandboxFileError) as caught:
        python.files.read("no such file", format="stream")
    assert caught.value.code == "not_found"


def test_streams_that_are_closed_early_free_both_sides(python):
    python.commands.run("head -c 20000000 /dev/zero > much", check=True)
    # More than there are workers for file operations at once: each must be let go.
    for round_ in range(12):
        stream = python.files.read("much", format="stream")
        assert len(next(stream)) > 0
        if round_ % 2:
            stream.close()
            stream.close()
        else:
            del stream
            continue
        assert list(stream) == []
    open_ones = [python.files.read("much", format="stream") for _ in range(3)]
    assert sum(len(piece) for piece in open_ones[1]) == 20_000_000
    python.files.remove("much")
    assert sum(len(piece) for piece in open_ones[2]) == 20_000_000
    open_ones[0].close()
    used = python.stats().user_memory_bytes
    deadline = time.monotonic() + 10
    while used > 15_000_000 + 40_000_000 and time.monotonic() < deadline:
        used = python.stats().user_memory_bytes
    assert python.files.write("after", b"1") == 1


def test_progress_is_monotone_and_exact_at_the_end(python, tmp_path):
    size = 12_000_000
    source = tmp_path / "source"
    source.write_bytes(b"p" * size)
    for transfer in (
        lambda progress: python.files.upload(source, "p", progress=progress),
        lambda progress: python.files.upload(str(source), "p", progress=progress),
        lambda progress: python.files.upload(io.BytesIO(source.read_bytes()), "p", progress=progress),
        lambda progress: python.files.download("p", tmp_path / "back", progress=progress),
        lambda progress: python.files.download("p", io.BytesIO(), progress=progress),
    ):
        calls, began = [], time.monotonic()
        assert transfer(lambda done, total, calls=calls: calls.append((done, total))) == size
        took = time.monotonic() - began
        assert calls[0] == (0, size) and calls[-1] == (size, size)
        assert all(total == size for _, total in calls)
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert len(calls) <= 3 + took / 0.1
    calls = []
    assert python.files.upload(Endless(1_000_000), "p", progress=lambda *call: calls.append(call)) == 1_000_000
    assert calls[0] == (0, None) and calls[-1] == (1_000_000, 1_000_000)
    calls = []
    python.files.write("empty", b"")
    assert python.files.download("empty", io.BytesIO(), progress=lambda *call: calls.append(call)) == 0
    assert set(calls) == {(0, 0)}


def test_a_progress_callback_that_raises_is_disabled_alone(python, tmp_path, caplog):
    calls = []

    def progress(done, total):
        calls.append(done)
        raise RuntimeError("mine")

    source = tmp_path / "source"
    source.write_bytes(b"x" * 2_000_000)
    assert python.files.upload(source, "whole", progress=progress) == 2_000_000
    assert python.files.download("whole", tmp_path / "back", progress=progress) == 2_000_000
    assert calls == [0, 0]
    assert caplog.text.count("progress raised an exception and is not called again") == 2
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_a_host_file_that_is_missing_writes_nothing(python, tmp_path):
    with pytest.raises(FileNotFoundError):
        python.files.upload(tmp_path / "none", "never")
    with pytest.raises(IsADirectoryError):
        python.files.upload(tmp_path, "never")
    assert not python.files.exists("never")
    with pytest.raises(hayfork.SandboxFileError):
        python.files.upload(io.BytesIO(b"x" * 3_000_000), "/etc/never")


def test_the_async_twins():
    async def pieces(count, fails=False):
        for n in range(count):
            await asyncio.sleep(0)
            yield b"%05d" % n * 1000
        if fails:
            raise LookupError("mine")

    async def main():
        async with await hayfork.AsyncSandbox.create() as sandbox:
            files = sandbox.files
            assert await files.write("a", pieces(200)) == 1_000_000
            expected = b"".join([piece async for piece in pieces(200)])
            stream = await files.read("a", format="stream")
            assert stream.size == 1_000_000
            assert b"".join([piece async for piece in stream]) == expected
            assert await files.write("b", [b"x", b"y"]) == 2
            with pytest.raises(LookupError, match="mine"):
                await files.write("c", pieces(200, fails=True))
            # Given up in the middle by its task's end.
            started = asyncio.Event()

            async def endless():
                while True:
                    started.set()
                    yield b"z" * 1000
                    await asyncio.sleep(0.001)

            task = asyncio.create_task(files.write("d", endless()))
            await started.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [e.name for e in await files.list()] == ["a", "b"]
            async with await files.read("a", format="stream") as early:
                assert await anext(early)
            assert [piece async for piece in early] == []
            calls = []
            assert await files.upload(io.BytesIO(expected), "e", progress=lambda *c: calls.append(c)) == 1_000_000
            assert await files.download("e", io.BytesIO(), progress=lambda *c: calls.append(c)) == 1_000_000
            assert calls[0] == (0, 1_000_000) and calls[-1] == (1_000_000, 1_000_000)

    asyncio.run(main())


def test_a_blocking_call_refuses_async_iterables(python):
    async def pieces():
        yield b"x"

    with pytest.raises(hayfork.InputValidationError, match="blocking"):
        python.files.write("never", pieces())


def test_streams_and_iterables_of_any_size_take_flat_host_memory(apart):
    size = 150_000_000
    source, digest, memory = Endless(size), hashlib.sha256(), Resident()

    def pieces():
        for n in itertools.count():
            if not (piece := source.read(50_000)):
                return
            if n % 64 == 0:
                memory.look()
            yield piece

    assert apart.files.write("big", pieces()) == size
    for n, piece in enumerate(apart.files.read("big", format="stream")):
        digest.update(piece)
        if n % 16 == 0:
            memory.look()
    assert digest.hexdigest() == source.digest.hexdigest()
    assert memory.most < 20_000
    assert apart.stats().agent_pss_bytes < 4 << 20
