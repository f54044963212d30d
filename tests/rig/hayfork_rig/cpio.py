"""Writer of cpio archives in the "newc" format, which Linux unpacks as initramfs.

Documentation/driver-api/early-userspace/buffer-format.rst in Linux's source. Owner is root and the time is 1970, so
that the same calls give the same bytes.
"""

from __future__ import annotations

from typing import BinaryIO

_DIRECTORY = 0o040000
_REGULAR = 0o100000
_DEVICE = 0o020000


class Archive:
    """An archive being written; a directory comes before what is in it."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._entries = 0

    def directory(self, name: str, mode: int = 0o755) -> None:
        """Adds a directory."""
        self._entry(name, _DIRECTORY | mode, b"")

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Adds a regular file."""
        self._entry(name, _REGULAR | mode, content)

    def device(self, name: str, major: int, minor: int, mode: int = 0o600) -> None:
        """Adds a character device."""
        self._entry(name, _DEVICE | mode, b"", (major, minor))

    def finish(self) -> None:
        """Ends the archive."""
        self._entries = -1  # the trailer's inode number is 0
        self._entry("TRAILER!!!", 0, b"")

    def _entry(self, name: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
        self._entries += 1
        path = name.encode() + b"\0"
        # inode, mode, uid, gid, links, time, size, device of the file system (2), device number (2), length of the
        # name, checksum (unused in this variant)
        numbers = (self._entries, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers)
        for piece in (header + path, content):
            self._out.write(piece)
            self._out.write(bytes(-len(piece) % 4))
