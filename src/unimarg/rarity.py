"""Rarer evidence to learn from: of several samples the one whose shown states are the least probable.

What people ask about is seldom ordinary: a patient comes with what is wrong, and most that a random mask shows of a sample is normal.
A choice among samples that looks at nothing but the shown states leaves all else as it was: what is hidden is still a draw from
P(x | x_m), and every kind of label stays right.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from unimarg.counter import Key, threefry
from unimarg.ragged import Ragged, by_state

CANDIDATES = 64  # samples to choose from at most, a power of two
LEAST = 1e-6  # of a prior probability: it is estimated


def rarer(
    ragged: Ragged, priors: jax.Array, key: Key, samples: jax.Array, share: float, states: jax.Array, shown: jax.Array, together: int
) -> jax.Array:
    """``states`` ``[nodes, n]``, for a ``share`` of the samples those of another, whose ``shown`` states are rarer.

    Each is chosen among as many samples of its ``together`` as a random number says, log-uniform up to all of them: some of
    what is learnt from is hardly rare, some very.
    """
    nodes, n = states.shape
    log_p = jnp.log(jnp.maximum(by_state([p[None] for p in ragged.probabilities(priors)], ragged), LEAST))[..., 0]
    rarity = -log_p.ravel()[(jnp.arange(nodes) * ragged.largest)[:, None] + states]

    def blocks(a: jax.Array) -> jax.Array:
        return a.astype(jnp.float32).reshape(nodes, n // together, together)

    score = jnp.einsum("iba,ibc->bac", blocks(shown), blocks(rarity))  # of the samples c with the mask of a
    word, other = threefry(key, samples, jnp.zeros_like(samples))
    whether, many = ((w >> np.uint32(8)).astype(jnp.float32) * np.float32(2.0**-24) for w in (word, other))
    count = jnp.where(whether < share, jnp.exp(many * np.log(together + 1)), 1).astype(jnp.int32).reshape(-1, together, 1)
    ahead = (np.arange(together) - np.arange(together)[:, None]) % together  # a itself is 0 ahead
    best = jnp.argmax(jnp.where(ahead < count, score, -jnp.inf), axis=-1)
    return states[:, (best + together * jnp.arange(n // together)[:, None]).ravel()]
