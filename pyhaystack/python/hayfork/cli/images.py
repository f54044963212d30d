"""`hayfork images`: which kernel and root images are in use."""

from __future__ import annotations

import argparse
import json
from typing import Any

from hayfork import errors
from hayfork._engine import engine
from hayfork._native import NativeError


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "images",
        parents=[common],
        help="show the kernel and root images in use",
        description="Shows where the kernel, initramfs and root images were found, and what they hold.",
    )
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Run it."""
    try:
        folder, manifest_text = engine(images=options.images, backend=options.backend).images()
    except NativeError as error:
        raise errors.from_code(*error.args) from None
    manifest = json.loads(manifest_text)
    if options.json:
        print(json.dumps({"directory": str(folder), **manifest}))
        return 0
    print(f"image set {folder} (version {manifest['version']})")
    rows = [
        ("kernel", manifest["kernel"]),
        *((f"kernel {flavour}", kernel) for flavour, kernel in sorted(manifest.get("kernels", {}).items())),
        ("initramfs", manifest["initramfs"]),
        *sorted(manifest["images"].items()),
    ]
    for name, entry in rows:
        size = entry["bytes"] / 1e6
        print(f"  {name:<11} {size:8.1f} MB  {entry['blake3'][:16]}  {entry.get('source') or ''}".rstrip())
    return 0
