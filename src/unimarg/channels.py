"""Uncertain findings for training: some of what is shown is seen through a random channel.

They are those of one sample in a few, which has as many more of them: nothing need be computed for the others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.counter import Key, mixed, threefry
from unimarg.encoding import one_hot
from unimarg.ragged import Parts, Ragged

FEW_STATES = 8  # whose halves leave 24 bits of their word

FEW = (8, 4, 2, 1)  # samples of which one has the uncertain findings

Words = tuple[jax.Array, jax.Array]  # uint32 [samples, nodes] each


def one_of(share: float, batch: int) -> int:
    """How many samples there are for one with uncertain findings, if they are to be a share of all that is shown.

    At most half of what it shows is uncertain, or no sample would have findings of both kinds, as most questions do.

    >>> one_of(0.02, 256), one_of(0.125, 256), one_of(0.6, 256), one_of(0.02, 2)
    (8, 4, 1, 2)
    """
    return next(k for k in FEW if k <= batch and (k == 1 or k * share <= 0.5))


def interleaved(some: jax.Array, every: jax.Array, k: int) -> jax.Array:
    """``every``, with its rows 0, k, 2 k and so on replaced."""
    # a choice, not a concatenation: see encoding.encode
    repeated = jnp.broadcast_to(some[:, None], (some.shape[0], k, *some.shape[1:])).reshape(every.shape)
    first = jnp.arange(every.shape[0]) % k == 0
    return jnp.where(first.reshape(-1, *[1] * (every.ndim - 1)), repeated, every)


def channel_words(key: Key, samples: jax.Array, nodes: int) -> Words:
    """Random numbers for ``through_channels``, two words for every sample and node."""
    return threefry(key, samples[:, None], jnp.arange(nodes, dtype=jnp.uint32)[None])


def through(drawn: Words, share: float) -> jax.Array:
    """Which nodes are seen through a channel if they are shown at all."""
    return share > _fraction(drawn[0] >> np.uint32(16), 16)


def through_channels(drawn: Words, share: float, known: jax.Array, states: jax.Array, ragged: Ragged) -> tuple[Parts, jax.Array]:
    """Values of ``[samples, nodes]`` states, some of the known ones seen through a random channel: their likelihoods; which stay certain.

    The channel splits the states at random in two and reports the half that holds the state, wrongly with
    probability noise / 2; noise ~ U[0, 1]. The likelihood of the report is (1 - noise) [same half] + noise / 2.
    """
    high, halves = drawn
    uncertain, noise = known & through(drawn, share), _fraction(high & np.uint32(0xFFFF), 16)
    seen = []
    for value, state, unsure, e, half, word in zip(
        one_hot(states, ragged), *(ragged.nodes(a) for a in (states, uncertain, noise, halves, high)), strict=True
    ):
        k = value.shape[-1]
        coin = half if k <= FEW_STATES else mixed(word ^ mixed(half))  # bits that say nothing of the halves
        seen.append(jnp.where(unsure[..., None], _likelihoods(k, state, e, half, coin), value))
    return seen, known & ~uncertain


def _likelihoods(k: int, state: jax.Array, noise: jax.Array, half: jax.Array, coin: jax.Array) -> jax.Array:
    """Of a report for all k states, adding up to 1; bit j of ``half`` is the half that state j is in. What can be is done once a node."""
    own = (half >> (state.astype(jnp.uint32) % 32)) & 1 == 1
    told = jnp.where(own ^ (noise / 2 > _fraction(coin >> np.uint32(8), 24)), half, ~half)  # bit j: whether j is in the half reported
    bits = (np.arange(k) % 32).astype(np.uint32)  # of each state
    inside = jnp.asarray(sum(((told >> bit) & 1) * np.uint32(n) for bit, n in zip(*np.unique(bits, return_counts=True), strict=True)))
    least = noise / 2 / (inside.astype(jnp.float32) * (1 - noise) + k * noise / 2)
    return jnp.where((told[..., None] >> bits) & 1 == 1, (least * (2 / noise - 1))[..., None], least[..., None])


def _fraction(word: jax.Array, bits: int) -> jax.Array:
    """A number between 0 and 1 from so many bits."""
    return (word.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-bits)
