"""The source text of executions, for tracebacks and `inspect.getsource`.

`linecache` is where Python looks for it. It is not imported for this: texts are kept here and put there when the user
imports it or an error is shown.
"""

from __future__ import annotations

from .plain import modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MOST = 8 << 20  # characters of source that are kept; the oldest are dropped

texts: dict[str, tuple[int, None, list[str], str]] = {}


def remember(filename: str, source: str) -> None:
    """Keeps the text of an execution."""
    lines = source.splitlines(True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    texts.pop(filename, None)
    texts[filename] = (len(source), None, lines, filename)
    total = sum(text[0] for text in texts.values())
    while total > MOST and len(texts) > 1:
        total -= texts.pop(next(iter(texts)))[0]
    publish()


def publish() -> None:
    """Puts the texts where Python finds them, if that module is there."""
    module = modules.get("linecache")
    if module is not None:
        hook(module)


def hook(linecache: ModuleType) -> None:
    """Called when `linecache` has been imported."""
    try:
        cache: Any = linecache.cache
        cache.update(texts)
    except Exception:  # the user has put something else in its place
        pass
