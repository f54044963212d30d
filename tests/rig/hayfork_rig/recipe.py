"""What L1 is made of, and how QEMU is called: everything that its cache entries are keyed by.

A change here, or in `init.sh`, makes new entries; a change anywhere else in this package does not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

# Debian's cloud kernel, by the first of these names that the package index has (6.12 is an extra of Debian 12, and what
# Debian 13 calls simply linux-image-cloud). It has kvm_amd and few drivers, which is why it boots quickly.
KERNEL_PACKAGES = ("linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64")
BUSYBOX_PACKAGE = "busybox-static"

# In L1's initramfs, with whatever they depend on.
MODULES = ("kvm-amd", "virtio_blk", "erofs")

INIT = Path(__file__).with_name("init.sh")

# Nothing here is paid for by the host until L1 touches it: memory and disks are sparse files.
MEMORY_BYTES = 2 << 30
# L1 has seen its disks' sizes before it is stored, so they are always the same.
DISK_BYTES = 8 << 30

# nokaslr: the same addresses each time, for figures that repeat. no_timer_check, tsc=reliable: QEMU's timers are late
# when its host is busy, which Linux would take for broken ones. A kernel that has oopsed is of no use: it panics, and
# QEMU ends.
COMMAND_LINE = (
    "console=ttyS0 quiet nokaslr mitigations=off no_timer_check tsc=reliable random.trust_cpu=on "
    "oops=panic panic=-1 softlockup_panic=0 nowatchdog"
)

# q35: with `microvm` Linux hangs in timer calibration without KVM's own clock.
# icount: one nanosecond of L1's time for each instruction that it executes, L2's among them.
MACHINE = (
    *("-machine", "q35,memory-backend=memory", "-accel", "tcg", "-cpu", "EPYC,+svm,+npt", "-smp", "1"),
    *("-icount", "shift=0"),
)


@dataclass(frozen=True)
class Package:
    """A Debian package of a certain version."""

    name: str
    version: str


def base_inputs() -> dict[str, object]:
    """What goes into L1's kernel and initramfs beside the packages themselves."""
    return {"init": hashlib.sha256(INIT.read_bytes()).hexdigest(), "modules": list(MODULES)}


def machine_inputs() -> dict[str, object]:
    """What a stored L1 depends on beside kernel, initramfs and QEMU's version."""
    return {
        "machine": list(MACHINE),
        "memory": MEMORY_BYTES,
        "disk": DISK_BYTES,
        "command_line": COMMAND_LINE,
    }
