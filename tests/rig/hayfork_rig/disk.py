"""Read-only disks for L1: EROFS images, always of the size that the stored L1 has seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hayfork_rig import recipe
from hayfork_rig.errors import RigError

_MKFS_SECONDS = 300


def empty(path: Path) -> None:
    """Makes a disk without a file system; it takes no space."""
    with path.open("wb") as disk:
        disk.truncate(recipe.DISK_BYTES)


def of_files(path: Path, files: Mapping[str, Path]) -> None:
    """Makes a disk with copies of files in its root.

    Args:
        path: The disk.
        files: Where each is on the host, by its name on the disk.

    Raises:
        RigError: A file is missing, or the disk cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="hayfork-rig-") as name:
        for entry, source in files.items():
            try:
                shutil.copy2(source, Path(name) / entry)
            except OSError as error:
                raise RigError(f"cannot copy {source}: {error}") from error
        of_folder(path, Path(name))


def of_folder(path: Path, folder: Path) -> None:
    """Makes a disk with the contents of a folder. The same contents give the same bytes.

    Raises:
        RigError: The disk cannot be made.
    """
    program = shutil.which("mkfs.erofs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise RigError("there is no mkfs.erofs: install the package erofs-utils")
    done = subprocess.run(
        [program, "-T0", "-x-1", "--all-root", "-U00000000-0000-0000-0000-000000000000", str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=_MKFS_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RigError(f"mkfs.erofs failed ({done.returncode}): {done.stderr.strip()}")
    if path.stat().st_size > recipe.DISK_BYTES:
        raise RigError(f"{folder} is too large for L1's disk")
    os.truncate(path, recipe.DISK_BYTES)
