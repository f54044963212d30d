"""Random numbers of its own for an interpreter that was restored from a snapshot, beside others with the same memory.

Renewed is what the standard library and NumPy keep for all of a program, as far as it is loaded: what is loaded later
begins with the kernel's random numbers, which the agent has renewed before. Generators that user code has made itself
(`random.Random(1)`, `numpy.random.default_rng(1)`) stay as they are.
"""

from __future__ import annotations

from .plain import modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MULTICAST = 1 << 40  # the bit by which RFC 9562 marks node numbers that are random


def renew(seed: bytes) -> None:
    """Renews everything; 32 bytes of seed. What user code has replaced or broken is left out."""
    for name, action in ACTIONS.items():
        module = modules.get(name)
        if module is not None:
            try:
                action(module, seed)
            except Exception:
                pass


def renew_random(random: Any, seed: bytes) -> None:
    """The generator behind the module's functions, without those functions: user code may have replaced them."""
    from _random import Random

    generator = random._inst
    if isinstance(generator, Random):
        Random.seed(generator, int.from_bytes(seed, "little"))
        generator.gauss_next = None  # the second one of a pair


def renew_numpy(mtrand: Any, seed: bytes) -> None:
    """The generator behind the functions of `numpy.random`."""
    mtrand._rand.seed([int.from_bytes(seed[at : at + 4], "little") for at in range(0, len(seed), 4)])


def renew_ssl(ssl: Any, seed: bytes) -> None:
    """OpenSSL's generators: this makes the first one take fresh bytes from the kernel, and the others follow it."""
    ssl.RAND_add(seed, float(len(seed)))


def renew_tempfile(tempfile: Any, _: bytes) -> None:
    """The names to come."""
    tempfile._name_sequence = None


def renew_uuid(uuid: Any, seed: bytes) -> None:
    """Version 1: Python makes the random clock sequence and node number from here on; those of libuuid stay."""
    uuid._last_timestamp = None
    if uuid._generate_time_safe is not None or (uuid._node is not None and uuid._node & MULTICAST):
        uuid._generate_time_safe = None
        uuid._node = int.from_bytes(seed[:6], "little") | MULTICAST


ACTIONS: dict[str, Callable[[Any, bytes], None]] = {
    "random": renew_random,
    "numpy.random.mtrand": renew_numpy,
    "_ssl": renew_ssl,
    "tempfile": renew_tempfile,
    "uuid": renew_uuid,
}
