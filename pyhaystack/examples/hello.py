"""Untrusted code, as a model might have written it: it looks around, computes, and shows what it found."""

import os
import platform
import socket
from pathlib import Path

print("Python", platform.python_version(), "on", platform.system(), platform.release())
print("user id", os.getuid(), "in", Path.cwd())
print("network interfaces:", [name for _, name in socket.if_nameindex()])
print("processes in sight:", sum(entry.name.isdigit() for entry in Path("/proc").iterdir()))
print("primes below 50:", [n for n in range(2, 50) if all(n % d for d in range(2, n))])
