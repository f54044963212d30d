"""What L1 is made of: the archive, and the order of its modules."""

import io
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from hayfork_rig import base, recipe
from hayfork_rig.cpio import Archive
from hayfork_rig.errors import RigError
from hayfork_rig.modules import Module, ModuleTree, with_dependencies


def module(name: str, *depends: str) -> Module:
    """A module that says what it needs, as the kernel's build has it."""
    return Module(name, b"\x7fELF\0license=GPL\0depends=" + ",".join(depends).encode() + b"\0name=x\0")


def test_an_archive_has_what_was_put_in(tmp_path: Path) -> None:
    cpio = shutil.which("cpio")
    if cpio is None:
        pytest.skip("there is no cpio to read it with")
    out = io.BytesIO()
    archive = Archive(out)
    archive.directory("bin")
    archive.file("bin/odd-length", b"12345", 0o755)
    archive.file("empty", b"")
    archive.finish()
    subprocess.run([cpio, "-i", "--quiet"], input=out.getvalue(), cwd=tmp_path, check=True)
    assert (tmp_path / "bin/odd-length").read_bytes() == b"12345"
    assert (tmp_path / "bin/odd-length").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "empty").read_bytes() == b""


def test_the_same_calls_give_the_same_bytes() -> None:
    def made() -> bytes:
        out = io.BytesIO()
        archive = Archive(out)
        archive.device("dev/console", 5, 1)
        archive.finish()
        return out.getvalue()

    assert made() == made()
    assert made().startswith(b"070701")
    assert len(made()) % 4 == 0


def test_modules_come_after_what_they_need() -> None:
    tree = {
        each.name: each
        for each in (module("kvm_amd", "kvm", "ccp"), module("kvm", "irqbypass"), module("irqbypass"), module("ccp"))
    }
    order = [each.name for each in with_dependencies(["kvm-amd", "kvm"], tree.__getitem__)]
    assert order == ["irqbypass", "kvm", "ccp", "kvm_amd"]


def test_modules_that_need_each_other_are_an_error() -> None:
    tree = {each.name: each for each in (module("a", "b"), module("b", "a"))}
    with pytest.raises(RigError, match="a -> b -> a"):
        with_dependencies(["a"], tree.__getitem__)


def test_modules_are_found_whatever_their_compression(tmp_path: Path) -> None:
    (tmp_path / "kvm").mkdir()
    (tmp_path / "kvm/kvm-amd.ko.xz").write_bytes(lzma.compress(module("x", "kvm").content))
    (tmp_path / "plain.ko").write_bytes(module("x").content)
    (tmp_path / "new.ko.zst").write_bytes(b"?")
    tree = ModuleTree(tmp_path)
    assert tree.load("kvm_amd").depends == ["kvm"]
    assert tree.load("plain").depends == []
    with pytest.raises(RigError, match="no module missing"):
        tree.load("missing")
    with pytest.raises(RigError, match="unknown way"):
        tree.load("new")
    with pytest.raises(RigError, match="does not say"):
        _ = Module("broken", b"\x7fELF").depends


def test_the_init_script_is_a_part_of_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = recipe.base_inputs()
    other = tmp_path / "init.sh"
    other.write_bytes(recipe.INIT.read_bytes() + b"# changed\n")
    monkeypatch.setattr(recipe, "INIT", other)
    assert recipe.base_inputs() != before
    assert base.KERNEL != base.INITRAMFS
