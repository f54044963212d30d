"""Structured results: records that go to the FIFO `results` of the execution that runs.

A record is one line of JSON followed by the bytes of its parts. Its length is bounded by what the agent takes.
"""

from __future__ import annotations

from _thread import allocate_lock
from posix import O_WRONLY, close, getpid, write

from .guard import shielded
from .streams import open_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LARGEST = 15 << 20  # the agent takes 16 MiB
LARGEST_ERROR = 48 << 10  # bytes of JSON for the strings of an error; the agent takes 64 KiB


class Current:
    """The execution that runs. `folder` is empty while none does, and in forked children."""

    folder = ""
    token = ""
    lock = allocate_lock()
    process = getpid()


current = Current()


def quote(text: str) -> str:
    """A JSON string in ASCII."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    pieces = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            pieces.append("\\" + char)
        elif 32 <= code < 127:
            pieces.append(char)
        elif code < 0x10000:
            # A lone surrogate has no UTF-8 form, and readers of JSON refuse its escape.
            pieces.append("\\ufffd" if 0xD800 <= code < 0xE000 else f"\\u{code:04x}")
        else:
            code -= 0x10000
            pieces.append(f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}")
    return '"' + "".join(pieces) + '"'


def shorten(text: str, limit: int = LARGEST_ERROR) -> str:
    """Cuts out the middle of what would take more than `limit` bytes of JSON."""
    if len(text) * 12 <= limit:
        return text
    half = limit // 2
    head, tail = text[:half], text[-half:] if len(text) > half else ""
    while len(quote(head)) > half:
        head = head[: len(head) * half // len(quote(head))]
    while len(quote(tail)) > half:
        tail = tail[len(tail) - len(tail) * half // len(quote(tail)) :]
    if len(head) + len(tail) >= len(text):
        return text
    return f"{head}\n[...]\n{tail}"


def emit(kind: str, parts: Iterable[tuple[str, bytes]]) -> None:
    """Writes a record with MIME parts. The largest parts are left out if the whole is too long, plain text is cut."""
    kept = list(parts)
    while sum(len(data) for _, data in kept) > LARGEST:
        largest = max(kept, key=lambda part: len(part[1]))
        at = kept.index(largest)
        if largest[0] == "text/plain":
            room = max(0, LARGEST - sum(len(data) for _, data in kept if data is not largest[1]) - 100)
            cut = largest[1][: min(room, 1 << 20)].decode(errors="ignore").encode()
            kept[at] = ("text/plain", cut + b"\n[...]")
        else:
            del kept[at]
    names = ",".join(f"[{quote(mime)},{len(data)}]" for mime, data in kept)
    send(f'"kind":{quote(kind)},"parts":[{names}]', [data for _, data in kept])


def emit_error(name: str, value: str, traceback: str) -> None:
    """Writes the record of an uncaught exception."""
    name = quote(shorten(name, 1 << 10))
    value = quote(shorten(value, LARGEST_ERROR // 3))
    traceback = quote(shorten(traceback, LARGEST_ERROR * 2 // 3))
    send(f'"kind":"error","parts":[],"name":{name},"value":{value},"traceback":{traceback}', [])


def send(fields: str, parts: list[bytes]) -> None:
    """Writes one record to the agent: whole, not mixed with other threads' ones, not cut by a signal handler."""
    shielded(write_all, f'{{"token":"{current.token}",{fields}}}\n'.encode() + b"".join(parts))


def write_all(data: bytes) -> None:
    """Writes to the FIFO. A write to a pipe may take less than it is given."""
    rest = memoryview(data)
    with current.lock:
        fd = open_path(current.folder + "/results", O_WRONLY)
        try:
            while rest:
                rest = rest[write(fd, rest) :]
        finally:
            close(fd)
