"""`display()` and the value of the last expression: MIME bundles as notebooks make them.

An object's forms are its `repr` and whatever the methods `_repr_html_`, `_repr_png_` and so on, or `_repr_mimebundle_`,
give. `display` is in the builtins, so that a name `display` of the user's own wins.
"""

from __future__ import annotations

import builtins
from posix import getpid

from .plain import displayhook
from .records import current, emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}
NOBODY_HAS_THIS = "_ipython_canary_method_should_not_exist_"
BINARY = ("image/png", "image/jpeg", "application/pdf")


def display(*objects: Any, raw: bool = False, **options: Any) -> None:
    """Shows objects in all the forms that they have; with `raw` they are MIME bundles (dictionaries) already.

    Other options that notebooks know are taken and have no effect.
    """
    for thing in objects:
        if not current.folder or getpid() != current.process:
            print(thing)  # nobody is there to take a bundle: a thread while nothing runs, or a forked child
        elif raw:
            emit("display", [(mime, encode(mime, data)) for mime, data in thing.items()])
        else:
            emit("display", bundle(thing))


display.__module__ = "builtins"


def show_value(value: Any) -> None:
    """`sys.displayhook`: reports the value of the last expression and keeps it as `_`, as Python at a prompt does."""
    if value is None:
        return
    if not current.folder or getpid() != current.process:
        displayhook(value)
        return
    builtins._ = None  # type: ignore[attr-defined]
    emit("result", bundle(value))
    builtins._ = value  # type: ignore[attr-defined]
    if is_figure(value):
        from .figures import shown

        shown.append(value)


def bundle(thing: Any) -> list[tuple[str, bytes]]:
    """All forms of an object, plain text first."""
    forms: dict[str, bytes] = {"text/plain": repr(thing).encode("utf-8", "backslashreplace")}
    if type(thing) in PLAIN or isinstance(thing, type):
        return list(forms.items())
    if attribute(thing, NOBODY_HAS_THIS) is not None:  # it claims to have every attribute
        return list(forms.items())
    for name, mime in METHODS.items():
        data = call(thing, name)
        if isinstance(data, tuple) and len(data) == 2:  # with metadata
            data = data[0]
        add(forms, mime, data)
    made = call(thing, "_repr_mimebundle_", include=None, exclude=None)
    if isinstance(made, tuple) and made:
        made = made[0]
    if isinstance(made, dict):
        for mime, data in made.items():
            add(forms, str(mime), data)
    if "image/png" not in forms:
        add(forms, "image/png", figure(thing))
    return list(forms.items())


PLAIN = (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset)


def add(forms: dict[str, bytes], mime: str, data: Any) -> None:
    """Adds a form if there is one and it can be encoded."""
    if data is None:
        return
    try:
        forms[mime] = encode(mime, data)
    except Exception as error:
        complain(error)


def attribute(thing: Any, name: str) -> Any:
    """An attribute, or None."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def call(thing: Any, name: str, **options: Any) -> Any:
    """What a method gives; None if there is none. An error in it is shown, and the other forms still count."""
    method = attribute(thing, name)
    if not callable(method):
        return None
    try:
        return method(**options)
    except NotImplementedError:
        return None
    except Exception as error:
        complain(error)
        return None


def complain(error: Exception) -> None:
    """Shows the traceback of an error that does not end the execution."""
    from .errors import print_error

    print_error(error)


def encode(mime: str, data: Any) -> bytes:
    """The bytes of one form. Binary forms may be given in Base64, as notebooks allow."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    if isinstance(data, str):
        if mime in BINARY:
            import binascii

            return binascii.a2b_base64(data)
        return data.encode("utf-8", "backslashreplace")
    if mime == "application/json" or mime.endswith("+json"):
        import json

        return json.dumps(data).encode()
    return str(data).encode("utf-8", "backslashreplace")


def is_figure(thing: Any) -> bool:
    """Whether it is a figure of Matplotlib."""
    return str(type(thing).__module__) == "matplotlib.figure"


def figure(thing: Any) -> bytes | None:
    """The picture of a Matplotlib figure."""
    if not is_figure(thing):
        return None
    from .figures import picture

    return picture(thing)
