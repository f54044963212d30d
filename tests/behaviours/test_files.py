"""BEHAVIOURS 27 and 28: files."""

from __future__ import annotations

import hashlib
import io

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


def test_a_large_file_with_flat_host_memory():
    import resource

    size = 100_000_000
    with hayfork.Sandbox.create(memory_mb=512) as sandbox:
        source, sink = Endless(size), Digest()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert sandbox.files.write("big", source) == size
        assert sandbox.files.download("big", sink) == size
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert sink.digest.hexdigest() == source.digest.hexdigest()
        guest = sandbox.run_code("import hashlib; print(hashlib.file_digest(open('big', 'rb'), 'sha256').hexdigest())")
        assert guest.stdout.strip() == source.digest.hexdigest()
        assert grown < 30_000  # KiB
        assert sandbox.stats().agent_pss_bytes < 4 << 20


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
