"""Debian packages: which version there is, and what is in it. No root is needed, and nothing is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hayfork_rig.errors import RigError
from hayfork_rig.recipe import BUSYBOX_PACKAGE, KERNEL_PACKAGES, Package

_APT_SECONDS = 300


def _output(*command: str, cwd: Path | None = None) -> str:
    """Runs a program and gives its standard output.

    Raises:
        RigError: It cannot be run, fails, or takes too long.
    """
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=_APT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RigError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise RigError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def resolve() -> list[Package]:
    """The packages that L1 is made of, in the newest versions that the local package index has.

    Raises:
        RigError: The index lacks one of them.
    """
    return [_newest(_kernel_package()), _newest(BUSYBOX_PACKAGE)]


def _kernel_package() -> str:
    """The kernel's own package, which the name without a version depends on."""
    for name in KERNEL_PACKAGES:
        try:
            text = _output("apt-cache", "depends", "--important", name)
        except RigError:
            continue
        for line in text.splitlines():
            kind, _, target = line.strip().partition(": ")
            if kind == "Depends" and target.startswith("linux-image-"):
                return target
    raise RigError(f"the package index has none of {', '.join(KERNEL_PACKAGES)} (apt-get update?)")


def _newest(name: str) -> Package:
    for line in _output("apt-cache", "show", "--no-all-versions", name).splitlines():
        if line.startswith("Version: "):
            return Package(name, line.removeprefix("Version: ").strip())
    raise RigError(f"the package index has no {name}")


def unpack(package: Package, into: Path) -> None:
    """Fetches a package and unpacks its files.

    Args:
        package: Which one; another version of it is not taken.
        into: A folder of its own, which may exist.

    Raises:
        RigError: It cannot be fetched.
    """
    into.mkdir(parents=True, exist_ok=True)
    # As root apt-get drops its rights for the download, which fails (with a mere warning) in a folder of root's.
    _output("apt-get", "download", "-o", "APT::Sandbox::User=root", f"{package.name}={package.version}", cwd=into)
    archives = list(into.glob("*.deb"))
    if len(archives) != 1:
        raise RigError(f"apt-get download {package.name} left {len(archives)} packages")
    _output("dpkg-deb", "--extract", str(archives[0]), str(into))
    archives[0].unlink()
