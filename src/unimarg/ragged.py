"""Nodes of different cardinality side by side without padding.

Nodes are taken in the order of their number of states, so that all nodes with K states form one dense
block ``[..., nodes, K - 1]``: state 0 is the reference and has no slot, which makes a binary node one
number, as in the paper. ``slots`` = sum over nodes of (K - 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.network import Ints


@dataclass(frozen=True)
class Ragged:
    """The layout; ``cards`` are the network's."""

    cards: tuple[int, ...]

    @cached_property
    def order(self) -> Ints:
        """Node numbers by number of states, otherwise as in the network."""
        return np.argsort(self.cards, kind="stable")

    @cached_property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(number of states, nodes that have it), ascending."""
        values, counts = np.unique(self.cards, return_counts=True)
        return tuple((int(k), int(n)) for k, n in zip(values, counts, strict=True))

    @cached_property
    def place(self) -> Ints:
        """For each node of the network, its position in ``order``."""
        return np.argsort(self.order)

    @cached_property
    def slot(self) -> Ints:
        """For each node of the network, its first slot."""
        return np.cumsum([0, *(self.cards[i] - 1 for i in self.order)])[self.place]

    @property
    def slots(self) -> int:
        return sum((k - 1) * n for k, n in self.groups)

    @cached_property
    def states_order(self) -> Ints:
        """For each (node, state) of the network in order, its place in ``probabilities``."""
        starts = np.cumsum([0, *(self.cards[i] for i in self.order)])[:-1]
        by_node = dict(zip(self.order.tolist(), starts.tolist(), strict=True))
        return np.concatenate([by_node[i] + np.arange(k) for i, k in enumerate(self.cards)])

    def split(self, slots: jax.Array) -> Iterator[jax.Array]:
        """``[..., slots]`` as one ``[..., nodes, K - 1]`` for each group."""
        at = 0
        for k, n in self.groups:
            yield slots[..., at : at + n * (k - 1)].reshape(*slots.shape[:-1], n, k - 1)
            at += n * (k - 1)

    def join(self, parts: list[jax.Array]) -> jax.Array:
        """The reverse of ``split``; also joins ``[..., nodes, K]``."""
        return jnp.concatenate([p.reshape(*p.shape[:-2], -1) for p in parts], axis=-1)

    def by_node(self, parts: list[jax.Array]) -> jax.Array:
        """One ``[..., nodes]`` for each group, joined in ``order``."""
        return jnp.concatenate(parts, axis=-1)

    def rows(self, states: jax.Array) -> jax.Array:
        """``[nodes, samples]`` in the network's order, as ``[samples, nodes]`` in this one."""
        if (self.order == np.arange(len(self.order))).all():
            return states.T
        return take_rows(states, jnp.asarray(self.order)).T

    def log_softmax(self, logits: jax.Array) -> list[jax.Array]:
        """log P of all states, ``[..., nodes, K]`` for each group, from logits ``[..., slots]`` against state 0."""
        out = []
        for part in self.split(logits):
            full = jnp.concatenate([jnp.zeros((*part.shape[:-1], 1), part.dtype), part], axis=-1)
            out.append(jax.nn.log_softmax(full, axis=-1))
        return out


def take_rows(array: jax.Array, rows: jax.Array) -> jax.Array:
    """array[rows]; a CPU copies rows one by one much faster than it gathers."""
    return lax.platform_dependent(
        array,
        rows,
        cpu=lambda a, r: lax.map(lambda i: lax.dynamic_index_in_dim(a, i, 0, keepdims=False), r),
        default=lambda a, r: a[r],
    )
