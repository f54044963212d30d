"""The engines of this process: one for each set of options, ended before the interpreter is."""

from __future__ import annotations

import atexit
import os
import threading
from importlib import resources
from pathlib import Path

from hayfork import errors
from hayfork._native import Engine, NativeError

_Key = tuple[int, str | None, str | None, str | None, str | None]

_engines: dict[_Key, Engine] = {}
_lock = threading.Lock()


def engine(
    *,
    images: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    isolation: str | None = None,
    qemu: str | None = None,
) -> Engine:
    """Get the process's engine for these options.

    Args:
        images: Folder of the image set. By default the one named by `HAYFORK_IMAGES_DIR`, else the installed
            data package, else the user's cache.
        backend: `"auto"`, `"monitor"` or `"qemu"`. By default what `HAYFORK_BACKEND` names, else `"auto"`.
        isolation: Where the monitor runs VMs: `"process"`, this one; `"worker"`, a confined process for each; or
            `"auto"`, this one for the first 16 and workers for further ones. By default what `HAYFORK_ISOLATION`
            names, else `"auto"`.
        qemu: The QEMU program. By default what `HAYFORK_QEMU` names, else the one in `PATH`.

    Raises:
        SandboxError: If an option is impossible.
    """
    folder = os.fspath(images) if images is not None else _packaged_images()
    backend = backend or os.environ.get("HAYFORK_BACKEND") or None
    isolation = isolation or os.environ.get("HAYFORK_ISOLATION") or None
    # The process is part of the key: a forked child must not use its parent's VMs.
    key = (os.getpid(), folder, backend, isolation, qemu)
    with _lock:
        found = _engines.get(key)
        if found is None:
            try:
                found = Engine(
                    images=folder,
                    backend=backend,
                    isolation=isolation,
                    qemu=qemu,
                    worker=_packaged_worker(),
                    templates=os.environ.get("HAYFORK_TEMPLATES") != "off",
                )
            except NativeError as error:
                raise errors.from_code(*error.args) from None
            _engines[key] = found
        return found


def _packaged_images() -> str | None:
    """Find the companion data package's folder, unless the environment names another one."""
    if os.environ.get("HAYFORK_IMAGES_DIR"):
        return None
    try:
        folder = Path(str(resources.files("hayfork_images")))
    except ModuleNotFoundError:
        return None
    return str(folder) if (folder / "manifest.json").is_file() else None


def _packaged_worker() -> str | None:
    """Find the program of worker processes in this package, unless the environment names another one."""
    if os.environ.get("HAYFORK_WORKER"):
        return None
    program = Path(__file__).with_name("hayfork-worker")
    return str(program) if program.is_file() else None


def _shutdown() -> None:
    pid = os.getpid()
    with _lock:
        ours = [engine for key, engine in _engines.items() if key[0] == pid]
        _engines.clear()
    for found in ours:
        found.shutdown()


def _forget_lock_after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it while the process forked
    _lock = threading.Lock()


atexit.register(_shutdown)
os.register_at_fork(after_in_child=_forget_lock_after_fork)
