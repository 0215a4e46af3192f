"""Uncertain findings for training: some of what is shown is seen through a random channel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.counter import Key, mixed, threefry
from unimarg.ragged import Parts, Ragged

Words = tuple[jax.Array, jax.Array]  # uint32 [samples, nodes] each


def channel_words(key: Key, samples: jax.Array, nodes: int) -> Words:
    """Random numbers for ``through_channels``, two words for every sample and node."""
    return threefry(key, samples[:, None], jnp.arange(nodes, dtype=jnp.uint32)[None])


def through_channels(drawn: Words, share: float, known: jax.Array, values: Parts, ragged: Ragged) -> tuple[Parts, jax.Array]:
    """Some of the known nodes seen through a random channel: their likelihoods, and which stay certain.

    The channel splits the states at random in two and reports the half that holds the state, wrongly with
    probability noise / 2; noise ~ U[0, 1]. The likelihood of the report is (1 - noise) [same half] + noise / 2.
    """
    high, halves = drawn  # bit k of the second: the half that state k is in
    uncertain = known & (share > _fraction(high >> np.uint32(16), 16))
    noise = _fraction(high & np.uint32(0xFFFF), 16)
    wrong = noise / 2 > _fraction(mixed(high ^ mixed(halves)) >> np.uint32(8), 24)
    seen = []
    for value, unsure, e, flip, bits in zip(values, *(ragged.nodes(a) for a in (uncertain, noise, wrong, halves)), strict=True):
        half = (bits[..., None] >> (jnp.arange(value.shape[-1], dtype=jnp.uint32) % 32)) & 1
        own = (half * value.astype(jnp.uint32)).sum(axis=-1)
        report = jnp.where(flip, 1 - own, own)[..., None]
        likelihood = jnp.where(half == report, 1 - e[..., None] / 2, e[..., None] / 2)
        seen.append(jnp.where(unsure[..., None], likelihood / likelihood.sum(axis=-1, keepdims=True), value))
    return seen, known & ~uncertain


def _fraction(word: jax.Array, bits: int) -> jax.Array:
    """A number between 0 and 1 from so many bits."""
    return (word.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-bits)
