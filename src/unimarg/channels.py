"""Uncertain findings for training: some of what is shown is seen through a random channel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.counter import Key, words
from unimarg.ragged import Parts, Ragged


def through_channels(
    key: Key, share: float, known: jax.Array, values: Parts, ragged: Ragged, samples: jax.Array
) -> tuple[Parts, jax.Array]:
    """Some of the known nodes seen through a random channel: their likelihoods, and which stay certain.

    The channel splits the states at random in two and reports the half that holds the state, wrongly with
    probability noise / 2; noise ~ U[0, 1]. The likelihood of the report is (1 - noise) [same half] + noise / 2.
    """
    nodes = jnp.arange(known.shape[-1], dtype=jnp.uint32)
    high, low = words(key, samples, nodes)
    uncertain = known & (share > _fraction(high).T)
    noise = _fraction(words(key, samples, nodes.size + nodes)[0]).T
    wrong = noise / 2 > _fraction(low).T
    halves = words(key, samples, 2 * nodes.size + nodes)[0].T  # bit k: the half that state k is in
    seen = []
    for value, unsure, e, flip, bits in zip(values, *(ragged.nodes(a) for a in (uncertain, noise, wrong, halves)), strict=True):
        half = (bits[..., None] >> (jnp.arange(value.shape[-1], dtype=jnp.uint32) % 32)) & 1
        own = (half * value.astype(jnp.uint32)).sum(axis=-1)
        report = jnp.where(flip, 1 - own, own)[..., None]
        likelihood = jnp.where(half == report, 1 - e[..., None] / 2, e[..., None] / 2)
        seen.append(jnp.where(unsure[..., None], likelihood / likelihood.sum(axis=-1, keepdims=True), value))
    return seen, known & ~uncertain


def _fraction(word: jax.Array) -> jax.Array:
    return (word >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24)
