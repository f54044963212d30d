"""Templates: VMs at rest on disk, that sandboxes are made of by name."""

from __future__ import annotations

import os

from hayfork import _operations as operations
from hayfork._calls import run_async, run_blocking
from hayfork.models import Template

__all__ = ["abuild_template", "build_template", "list_templates", "remove_template"]

BUILD_TIMEOUT = 600.0


def build_template(
    name: str,
    *,
    language: str = "python",
    code: str | None = None,
    memory_mb: int | None = None,
    cpus: int | None = None,
    timeout: float | None = BUILD_TIMEOUT,
    backend: str | None = None,
    isolation: str | None = None,
    images: str | os.PathLike[str] | None = None,
) -> Template:
    """Build a template, and keep it on disk for this and other processes until it is removed.

        hayfork.build_template("data", code="import json, decimal")
        hayfork.run("print(json.dumps(1))", template="data")

    Each sandbox made of it goes on where it stands, with a time, randomness and identity of its own. It belongs to this
    host, its images and this version of hayfork; after a change of those it has to be built again.

    Args:
        name: 1 to 64 of `a-z`, `0-9`, `.`, `_` and `-`. An older template of that name is replaced.
        language: `"python"`, `"javascript"` or `"shell"`.
        code: Run once: what it has imported and defined is there in every sandbox.
        memory_mb: Memory of each VM in MiB.
        cpus: Virtual CPUs of each VM, 1 by default.
        timeout: Seconds that the code may take.
        backend: What runs the VMs; see `Sandbox.create`.
        isolation: Where the monitor runs the VM that it is made of.
        images: Folder of the image set; found without it.

    Returns:
        What was built.

    Raises:
        SnapshotError: If the code failed (`template_code_failed`, with its output), or the file cannot be written.
        UnsupportedOptionError: If the backend cannot do it.
        VmConfigError: If an option is impossible.
    """
    return run_blocking(
        operations.build_template(
            name,
            language=language,
            memory_mb=memory_mb,
            cpus=cpus,
            code=code,
            timeout=timeout,
            backend=backend,
            isolation=isolation,
            images=images,
        )
    )


async def abuild_template(
    name: str,
    *,
    language: str = "python",
    code: str | None = None,
    memory_mb: int | None = None,
    cpus: int | None = None,
    timeout: float | None = BUILD_TIMEOUT,
    backend: str | None = None,
    isolation: str | None = None,
    images: str | os.PathLike[str] | None = None,
) -> Template:
    """As `build_template`, for event loops."""
    return await run_async(
        operations.build_template(
            name,
            language=language,
            memory_mb=memory_mb,
            cpus=cpus,
            code=code,
            timeout=timeout,
            backend=backend,
            isolation=isolation,
            images=images,
        )
    )


def list_templates() -> list[Template]:
    """List this user's templates, by name."""
    return operations.list_templates()


def remove_template(name: str) -> None:
    """Remove a template from disk. Sandboxes made of it live on.

    Raises:
        SnapshotError: If there is none of that name.
    """
    operations.remove_template(name)
