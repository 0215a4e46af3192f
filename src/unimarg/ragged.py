"""Nodes of different cardinality side by side without padding.

Nodes are taken in the order of their number of states, so that all nodes with K states form one dense
block ``[..., nodes, K - 1]``: state 0 is the reference and has no slot, which makes a binary node one
number, as in the paper. ``slots`` = sum over nodes of (K - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.network import Ints

Parts: TypeAlias = list[jax.Array]  # one array for each group of nodes with the same number of states
States: TypeAlias = list[jax.Array]  # one array for each state of a group
SHORT = 8  # states


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
    def member(self) -> list[tuple[int, int]]:
        """For each node of the network, its group and its position there."""
        inside = [(g, j) for g, (_, n) in enumerate(self.groups) for j in range(n)]
        return [inside[p] for p in self.place]

    @property
    def largest(self) -> int:
        """The largest number of states, but at least 2."""
        return max(2, *self.cards)

    @property
    def slots(self) -> int:
        return sum((k - 1) * n for k, n in self.groups)

    @cached_property
    def slot(self) -> Ints:
        """``[nodes, largest - 1]``: the slot of state k + 1 of each node of the network; ``slots`` where it has no such state."""
        cards = np.asarray(self.cards)
        starts = np.empty(len(cards), dtype=np.int64)
        starts[self.order] = np.cumsum([0, *(cards[self.order] - 1)])[:-1]
        states = np.arange(self.largest - 1)
        return np.where(states < cards[:, None] - 1, starts[:, None] + states, self.slots)

    def split(self, slots: jax.Array) -> Parts:
        """``[..., slots]`` as one ``[..., nodes, K - 1]`` for each group."""
        out, at = [], 0
        for k, n in self.groups:
            out.append(slots[..., at : at + n * (k - 1)].reshape(*slots.shape[:-1], n, k - 1))
            at += n * (k - 1)
        return out

    def nodes(self, by_node: jax.Array) -> Parts:
        """``[..., nodes]``, in ``order``, as one ``[..., nodes]`` for each group."""
        out, at = [], 0
        for _, n in self.groups:
            out.append(by_node[..., at : at + n])
            at += n
        return out

    def rows(self, states: jax.Array) -> jax.Array:
        """``[nodes, samples]`` in the network's order, as ``[samples, nodes]`` in this one."""
        if (self.order == np.arange(len(self.order))).all():
            return states.T
        return take_rows(states, jnp.asarray(self.order)).T

    def with_reference(self, logits: jax.Array) -> Parts:
        """Logits ``[..., slots]`` with those of the first states, which are 0: ``[..., nodes, K]`` for each group."""
        # padding, not concatenation: see encoding.encode
        return [jnp.pad(part, [(0, 0)] * (part.ndim - 1) + [(1, 0)]) for part in self.split(logits)]

    def by_states(self, logits: jax.Array) -> list[States]:
        """The same, ``[..., nodes]`` for each state of each group."""
        return [[jnp.zeros_like(logits, shape=p.shape[:-1]), *(p[..., k] for k in range(p.shape[-1]))] for p in self.split(logits)]

    def probabilities(self, slots: jax.Array) -> Parts:
        """All states' probabilities, ``[..., nodes, K]`` for each group, from those of all but the first, ``[..., slots]``."""
        return [jnp.concatenate([1 - part.sum(axis=-1, keepdims=True), part], axis=-1) for part in self.split(slots)]


def over_states(combine: Any, part: jax.Array, axis: int = -1) -> jax.Array:
    """Along an axis, written out where it is short: a CPU takes six times as long for it otherwise."""
    if part.shape[axis] > SHORT:
        return combine.reduce(part, axis=axis)
    return reduce(combine, [lax.index_in_dim(part, k, axis, keepdims=False) for k in range(part.shape[axis])])


def log_normalised(logits: States) -> States:
    """log P of each state, written out likewise."""
    if len(logits) > SHORT:
        log_p = jax.nn.log_softmax(jnp.stack(logits, axis=-1), axis=-1)
        return [log_p[..., k] for k in range(len(logits))]
    top = lax.stop_gradient(reduce(jnp.maximum, logits))
    total = top + jnp.log(reduce(jnp.add, [jnp.exp(part - top) for part in logits]))
    return [part - total for part in logits]


def take_rows(array: jax.Array, rows: jax.Array) -> jax.Array:
    """array[rows]; a CPU copies rows one by one much faster than it gathers."""
    return lax.platform_dependent(
        array,
        rows,
        cpu=lambda a, r: lax.map(lambda i: lax.dynamic_index_in_dim(a, i, 0, keepdims=False), r),
        default=lambda a, r: a[r],
    )


# --- between the network's order and the groups


def by_group(ragged: Ragged, marginals: list[jax.Array]) -> Parts:
    """``[K, samples]`` for each node, as ``[samples, nodes, K]`` for each group."""
    out, at = [], 0
    for _, n in ragged.groups:
        out.append(jnp.moveaxis(jnp.stack([marginals[i] for i in ragged.order[at : at + n]]), -1, 0))
        at += n
    return out


def grouped(by_node: jax.Array, ragged: Ragged) -> Parts:
    """``[nodes, card, samples]`` in the network's order, as ``[samples, nodes, K]`` for each group."""
    out, at = [], 0
    for k, n in ragged.groups:
        nodes = jnp.asarray(ragged.order[at : at + n])
        out.append(jnp.moveaxis(take_rows(by_node, nodes)[:, :k], -1, 0))
        at += n
    return out


def by_node(rows: jax.Array, ragged: Ragged) -> jax.Array:
    """``[samples, nodes]`` in the order of ``ragged``, as ``[nodes, samples]`` in the network's."""
    return take_rows(rows.T, jnp.asarray(ragged.place))


def by_state(parts: Parts, ragged: Ragged, missing: float = 0.0) -> jax.Array:
    """``[samples, nodes, K]`` for each group, as ``[nodes, K, samples]`` in the network's order; ``missing`` for states a node lacks."""
    padded = [jnp.pad(part, ((0, 0), (0, 0), (0, ragged.largest - part.shape[-1])), constant_values=missing) for part in parts]
    return take_rows(jnp.moveaxis(jnp.concatenate(padded, axis=1), 0, -1), jnp.asarray(ragged.place))
