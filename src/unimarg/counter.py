"""Random numbers by counter: the number for (sample, node) is a function of (key, sample index, node).

Threefry-2x32 with 20 rounds (Salmon et al. 2011), bit-identical to JAX's own generator but written out
round by round, which a CPU runs several times faster. Counting by sample and node makes every draw the
same whatever the chunk size, batch or number of devices.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.errors import UsageError, whole_number

Key: TypeAlias = jax.Array  # uint32 [2]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def check_32_bits() -> None:
    """The programs here count on JAX's usual types."""
    if jax.config.read("jax_enable_x64"):
        raise UsageError(
            "JAX's 64-bit mode is on, and unimarg computes with 32 bits; switch it off with"
            " jax.config.update('jax_enable_x64', False), or without JAX_ENABLE_X64 in the environment"
        )


def key_from_seed(seed: int) -> Key:
    """The key of a seed between 0 and 2**64 - 1.

    >>> key_from_seed(7).tolist()
    [0, 7]
    """
    check_32_bits()
    seed = whole_number(seed, "a seed", 0, 2**64 - 1)
    return jnp.array([seed >> 32, seed & 0xFFFFFFFF], dtype=jnp.uint32)


def key_of_stream(seed: int, number: int) -> Key:
    """A key for another purpose of the same seed."""
    return key_from_seed((seed + number) % 2**64)


def threefry(key: Key, x0: jax.Array, x1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two random words for the counter (x0, x1), elementwise over uint32 arrays that broadcast."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))) ^ x0
        x0 = x0 + keys[(i + 1) % 3]
        x1 = x1 + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def mixed(word: jax.Array) -> jax.Array:
    """Every bit depends on all (the last part of Appleby's MurmurHash3)."""
    word = (word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return word ^ (word >> np.uint32(16))


def words(key: Key, samples: jax.Array, nodes: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A high and a low random word for every node and sample: ``[nodes, samples]`` uint32 each."""
    return threefry(key, samples[None, :], nodes[:, None])
