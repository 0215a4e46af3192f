"""The one-layer student for SUM-IS, which learns beside a deep trunk (paper, section 3).

Sequential importance sampling draws node after node in topological order, each given the evidence and all that was
drawn before it. A deep trunk would have to be run again for every node; the student's one layer only grows by a row:

    hidden_i = relu(b + A f(e) + sum over nodes j < i that were drawn of W[j, x_j])        f(e): the trunk's last layer
    h_i(k)   = lambda_i(k) + U[i, k] . hidden_i + c[i, k]                                  lambda: the message head, if there is one
    q_i(k)   proportional to P(x_i = k | pa_i) L_i(k) exp(h_i(k))                          L_i: a virtual finding on i

With a whole sample in hand (teacher forcing) all nodes are evaluated at once: the sums are cumulative. Where no node below i is
observed, P L is the exact answer, and h_i is neither used nor trained. The message head learns without L, so lambda_i is taken as 0
where i has a virtual finding.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.network import Network
from unimarg.trunk import Linear

BLOCK, BLOCK_ACCELERATED = 16, 256  # nodes whose hidden layers are computed together
ROWS, SHARE = 32, 8  # of a batch, one row in SHARE trains the student, but at least ROWS
MAX_NODES = 1 << 14  # up to here the matrix of descendants is made


class Student(eqx.Module):
    """K is the largest number of states; nodes with fewer leave their last slots unused."""

    evidence: Linear  # A and b, [features, units]
    rows: jax.Array  # W, [nodes, K, units]
    out: jax.Array  # U, [nodes, K - 1, units]
    bias: jax.Array  # c, [nodes, K - 1]

    @classmethod
    def make(cls, seed: int | None, units: int, features: int, nodes: int, card: int) -> Student:
        """Random weights; ``out`` is zero, so that a student starts at the tables. Without a seed all are zeros, as in ``Trunk``."""
        rng = None if seed is None else np.random.Generator(np.random.PCG64([seed, 1]))
        evidence = Linear.make(rng, features, units, np.sqrt(2))
        rows = Linear.make(rng, nodes, card * units, 1.0).weight.reshape(nodes, card, units)
        return cls(evidence, rows, jnp.zeros((nodes, card - 1, units)), jnp.zeros((nodes, card - 1)))

    def messages(self, features: jax.Array, states: jax.Array, drawn: jax.Array, half: bool = False) -> jax.Array:
        """h_i(k) - lambda_i(k) for every node of given samples, ``[nodes, K, samples]``.

        From the trunk's ``features [samples, width]``, ``states [nodes, samples]``, and which of them are ``drawn`` in place of
        observed (bool, likewise).
        """
        nodes, card, _ = self.rows.shape
        block, kind = (min(nodes, BLOCK_ACCELERATED), jnp.bfloat16) if half else (min(nodes, BLOCK), jnp.float32)
        chosen = (states[..., None] == jnp.arange(card, dtype=states.dtype)) & drawn[..., None]
        earlier = jnp.tri(block, k=-1, dtype=kind)

        def sums(added: jax.Array) -> jax.Array:
            """Over the nodes before each."""
            return jnp.dot(earlier, added.reshape(block, -1), precision=lax.Precision.HIGHEST).reshape(added.shape)

        def blocks(a: jax.Array) -> jax.Array:
            padded = jnp.pad(a, [(0, -nodes % block)] + [(0, 0)] * (a.ndim - 1))
            return padded.reshape(-1, block, *a.shape[1:])

        @jax.checkpoint  # hidden layers of all nodes would fill the memory
        def step(before: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            chosen, rows, out, bias = now
            added = jnp.einsum("bsk,bku->bsu", chosen.astype(kind), rows.astype(kind))
            hidden = jax.nn.relu(before.astype(kind) + sums(added))
            h = jnp.einsum("bku,bsu->bks", out.astype(kind), hidden, preferred_element_type=jnp.float32)
            return before + added.sum(axis=0, dtype=jnp.float32), h + bias[..., None]

        start = self.evidence(features, half)
        _, h = lax.scan(step, start, (blocks(chosen), blocks(self.rows), blocks(self.out), blocks(self.bias)))
        return jnp.pad(h.reshape(-1, *h.shape[2:])[:nodes], ((0, 0), (1, 0), (0, 0)))


def batch_rows(batch: int) -> int:
    """How many samples of a batch train the student."""
    return min(batch, max(ROWS, batch // SHARE))


def descendants(net: Network) -> np.ndarray | None:
    """bool ``[nodes, nodes]``, True where the second is below the first; None if that were too large."""
    if len(net) > MAX_NODES:
        return None
    below = np.zeros((len(net), len(net)), dtype=bool)
    for i in reversed(range(len(net))):
        for c in net.children[i]:
            below[i] |= below[c]
            below[i, c] = True
    return below
