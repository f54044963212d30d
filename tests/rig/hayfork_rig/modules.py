"""Kernel modules in a package that was unpacked, not installed: depmod has not yet listed what needs what."""

from __future__ import annotations

import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hayfork_rig.errors import RigError

# A module says itself which others it needs, in its section .modinfo: NUL-terminated strings of the form key=value.
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


@dataclass(frozen=True)
class Module:
    """A module, uncompressed. Its name has underscores where its file's has hyphens."""

    name: str
    content: bytes

    @property
    def depends(self) -> list[str]:
        """The names of those it needs directly.

        Raises:
            RigError: The content is no kernel module's.
        """
        found = _DEPENDS.search(self.content)
        if found is None:
            raise RigError(f"{self.name} does not say what it depends on")
        return [_name(each) for each in found[1].decode().split(",") if each]


def _name(text: str) -> str:
    return text.replace("-", "_")


def with_dependencies(wanted: list[str], load: Callable[[str], Module]) -> list[Module]:
    """The wanted modules and all that they need, each after those that it needs itself."""
    order: dict[str, Module] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        if name in order:
            return
        if name in above:
            raise RigError(f"modules need each other: {' -> '.join((*above, name))}")
        module = load(name)
        for each in module.depends:
            add(each, (*above, name))
        order[name] = module

    for each in wanted:
        add(_name(each), ())
    return list(order.values())


class ModuleTree:
    """The modules below a package's `lib/modules/VERSION`."""

    def __init__(self, folder: Path) -> None:
        self._files = {_name(path.name.split(".ko")[0]): path for path in folder.rglob("*.ko*")}

    def load(self, name: str) -> Module:
        """Reads a module.

        Raises:
            RigError: There is no such module, or it is compressed in a way unknown here.
        """
        path = self._files.get(name)
        if path is None:
            raise RigError(f"the kernel package has no module {name}")
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        elif path.suffix != ".ko":
            raise RigError(f"{path.name} is compressed in an unknown way")
        return Module(name, content)
