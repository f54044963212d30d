"""Matplotlib: figures are shown as pictures by `plt.show()` and, if still open, at the end of an execution.

Loaded only when the user has imported `matplotlib.pyplot`. A figure that has been shown is closed, as in a notebook.
"""

from __future__ import annotations

from _io import BytesIO

from .plain import modules
from .records import emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


#: The figure that was the value of the last expression: it has been shown.
shown: list[Any] = []


def picture(figure: Any) -> bytes:
    """A figure as PNG."""
    file = BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()


def show_open_figures(pyplot: Any) -> None:
    """Shows and closes all open figures."""
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        try:
            if figure not in shown and (figure.axes or figure.get_children()[1:]):
                emit("display", [("text/plain", repr(figure).encode()), ("image/png", picture(figure))])
        finally:
            pyplot.close(figure)


def hook(pyplot: ModuleType) -> None:
    """Called when `matplotlib.pyplot` has been imported: `plt.show()` shows, unless the user has chosen a GUI."""
    usual = pyplot.show

    def show(*args: Any, **kwargs: Any) -> None:
        """Show all open figures."""
        if pyplot.get_backend().lower() == "agg":
            show_open_figures(pyplot)
        else:
            usual(*args, **kwargs)

    show.__module__ = usual.__module__
    pyplot.show = show  # type: ignore[attr-defined]


def show_rest() -> None:
    """At the end of an execution."""
    pyplot = modules.get("matplotlib.pyplot")
    if pyplot is not None and hasattr(pyplot, "get_fignums"):
        show_open_figures(pyplot)
    shown.clear()
