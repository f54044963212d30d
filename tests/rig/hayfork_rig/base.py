"""L1's kernel and initramfs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hayfork_rig import debian, recipe
from hayfork_rig.cpio import Archive
from hayfork_rig.errors import RigError
from hayfork_rig.modules import Module, ModuleTree, with_dependencies
from hayfork_rig.recipe import Package

KERNEL = "vmlinuz"
INITRAMFS = "initramfs.cpio"


def build(packages: list[Package], into: Path) -> None:
    """Makes `KERNEL` and `INITRAMFS` in a folder.

    Args:
        packages: The kernel's package and busybox's, as `debian.resolve` gives them.
        into: The folder, which exists.

    Raises:
        RigError: A package cannot be fetched, or lacks something.
    """
    kernel, busybox = packages
    with tempfile.TemporaryDirectory(prefix="hayfork-rig-") as name:
        scratch = Path(name)
        debian.unpack(kernel, scratch / "kernel")
        debian.unpack(busybox, scratch / "busybox")
        image = _only(scratch / "kernel", "boot/vmlinuz-*")
        modules = ModuleTree(_only(scratch / "kernel", "lib/modules/*"))
        (into / KERNEL).write_bytes(image.read_bytes())
        _write_initramfs(
            into / INITRAMFS,
            _only(scratch / "busybox", "**/bin/busybox").read_bytes(),
            with_dependencies(list(recipe.MODULES), modules.load),
        )


def _only(folder: Path, pattern: str) -> Path:
    found = [path for path in folder.glob(pattern) if not path.is_symlink()]
    if len(found) != 1:
        raise RigError(f"{len(found)} files in {folder.name}'s package are {pattern}")
    return found[0]


def _write_initramfs(path: Path, busybox: bytes, modules: list[Module]) -> None:
    with path.open("wb") as out:
        archive = Archive(out)
        for folder in ("bin", "dev", "files", "modules", "proc", "sys", "tests", "tmp"):
            archive.directory(folder)
        archive.device("dev/console", 5, 1)
        archive.device("dev/null", 1, 3, 0o666)
        archive.file("bin/busybox", busybox, 0o755)
        archive.file("init", recipe.INIT.read_bytes(), 0o755)
        for module in modules:
            archive.file(f"modules/{module.name}.ko", module.content)
        archive.file("modules/order", "".join(f"{module.name}.ko\n" for module in modules).encode())
        archive.finish()
