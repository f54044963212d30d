"""Firecracker with our kernel and root image, as a yardstick for a cold start.

Firecracker is not part of this project: `HAYFORK_FIRECRACKER` names a binary that was built elsewhere. It boots the
same kernel with the same root image, read-only, whose Python is the guest's init and prints one line on the serial
console: no agent, no driver, no result, so the least that a cold run can be there.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import hayfork

VARIABLE = "HAYFORK_FIRECRACKER"


def guest_parameters() -> list[str]:
    """The kernel parameters that this host asks for, as the monitor gives them to its own guests."""
    with hayfork.Sandbox.create(language="shell", backend="monitor") as sandbox:
        line = sandbox.run_code("cat /proc/cmdline").stdout
    wanted = ("noreplace-smp", "clocksource=", "nokaslr", "no_timer_check", "clearcpuid=", "rcupdate.", "quiet")
    return [word for word in line.split() if word.startswith(wanted)]


def binary() -> Path | None:
    """The binary to measure, if one is named."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def cold_run(firecracker: Path, images: Path, kernel: str, parameters: list[str]) -> float:
    """Seconds from the start of a Firecracker process to the first byte that the guest's Python prints."""
    line = " ".join(
        [
            "console=ttyS0 reboot=k panic=-1 pci=off root=/dev/vda rootfstype=erofs ro",
            *parameters,
            "init=/usr/bin/python3 -- -S -c print('<started>')",
        ]
    )
    config = {
        "boot-source": {"kernel_image_path": str(images / kernel), "boot_args": line},
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 256},
        "drives": [
            {
                "drive_id": "root",
                "path_on_host": str(images / "python.erofs"),
                "is_root_device": False,
                "is_read_only": True,
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        began = time.monotonic()
        with subprocess.Popen(
            [firecracker, "--no-api", "--config-file", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            seen = b""
            try:
                while b"<started>" not in seen:
                    piece = os.read(process.stdout.fileno(), 4096)
                    if not piece:
                        raise SystemExit(f"Firecracker's guest did not print what it should: {seen[-500:]!r}")
                    seen += piece
                return time.monotonic() - began
            finally:
                process.kill()
