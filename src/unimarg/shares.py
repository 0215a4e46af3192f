"""How much of what the network adds to beliefs is believed.

The marginal head's logits are start + r. A network that has seen few samples of a node, or has nothing to tell of it, adds noise to a
start that was right. Along start + a r, with p_a = softmax(start + a r), the loss on samples not yet learnt from falls by sum (y - p_a) r,
y being the label. Taken as straight between the start and a = 1, that is 0 at

    a = 1 + sum (y - p_1) r / sum (p_1 - p_0) r

for each node, over samples and states. (Newton's step from a = 1 is the same for small r, and far too long where p_1 is too sure.) Every
batch is judged before it is learnt from, by some of its rows and the weights of that moment; the last steps count. The second sum is
about the Fisher information on a: a node that has little of it has the share of all nodes.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from unimarg.ragged import Parts, Ragged, States, log_normalised
from unimarg.trunk import Trunk

SHARE, ROWS = 4, 64  # of a batch, one row in SHARE is judged, but at least ROWS: all of them would take a quarter of a step on a CPU
LAST = 8  # of the steps, the last of so many parts count
INFORMATION = 30.0  # on a node's share, from which its own samples say more than all nodes together


def judged_rows(batch: int) -> slice:
    """Those of a batch of so many."""
    return slice(min(batch, max(ROWS, batch // SHARE)))


def judged(ragged: Ragged, start: jax.Array, logits: jax.Array, log_p: list[States], labels: Parts, counted: jax.Array) -> jax.Array:
    """Both sums over the counted samples, ``[2, nodes]``; ``log_p`` is of the logits, ``[samples, slots]``. 0 where there is no number."""
    sums = []
    added = ragged.by_states(logits - start)
    for before, logs, r, label, count in zip(ragged.by_states(start), log_p, added, labels, ragged.nodes(counted), strict=True):
        terms = [(jnp.exp(log), jnp.exp(old), part) for log, old, part in zip(logs, log_normalised(before), r, strict=True)]
        gain = reduce(add, [(label[..., k] - p) * part for k, (p, _, part) in enumerate(terms)])
        information = reduce(add, [(p - p_0) * part for p, p_0, part in terms])
        sums.append(jnp.where(count, jnp.stack([gain, information]), 0).sum(axis=1))
    out = jnp.concatenate(sums, axis=1)
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(out).all(axis=0), out, 0))


def later(before: jax.Array, now: jax.Array, steps: jax.Array) -> jax.Array:
    """The sums after one more step of a run of so many."""
    return before * jnp.maximum(1 - LAST / steps, 0).astype(jnp.float32) + now


def shares(sums: jax.Array) -> jax.Array:
    """Of each node, from 0 to 1; 1 where nothing is known."""
    gain, information = sums
    together = gain.sum() / jnp.maximum(information.sum(), 1e-30)
    return jnp.clip(1 + (gain + INFORMATION * together) / (information + INFORMATION), 0, 1)


def shared(trunk: Trunk, sums: jax.Array, ragged: Ragged) -> Trunk:
    """A trunk whose marginal head adds to its start what is believed of it."""
    made = trunk.architecture
    slots = shares(sums)[np.repeat(np.arange(len(ragged.cards)), np.sort(ragged.cards) - 1)]
    parts = [jnp.ones_like(slots)] * made.outputs
    parts[0] = slots
    if made.gated:
        parts[len(made.heads)] = slots
    scale = jnp.concatenate(parts)
    head = trunk.head
    return eqx.tree_at(lambda t: (t.head.weight, t.head.bias), trunk, (head.weight * scale, head.bias * scale))
