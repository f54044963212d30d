"""Does something when the user imports one of a few modules, so that the driver need not import them itself.

A finder at the head of `sys.meta_path` lets the other finders do the work, and has the hook called after the module's
code has run.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def linecache_imported(module: ModuleType) -> None:
    """Sources of executions become known to it."""
    from .sources import hook

    hook(module)


def pyplot_imported(module: ModuleType) -> None:
    """`plt.show()` shows."""
    from .figures import hook

    hook(module)


class Finder:
    """The finder. It finds nothing of its own."""

    def __init__(self) -> None:
        self.hooks: dict[str, Callable[[ModuleType], None]] = {
            "linecache": linecache_imported,
            "matplotlib.pyplot": pyplot_imported,
        }

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called for every import of a module that is not loaded yet."""
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                call_after(spec.loader, hook)
                return spec
        self.hooks[name] = hook
        return None


def call_after(loader: Any, hook: Callable[[ModuleType], None]) -> None:
    """Has `hook` called when this loader has run a module's code."""
    usual = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        usual(module)
        try:
            hook(module)
        except Exception:
            pass

    try:
        loader.exec_module = exec_module
    except Exception:  # a loader without instance attributes: the hook is a convenience only
        pass


def install() -> None:
    """At start."""
    sys.meta_path.insert(0, Finder())
