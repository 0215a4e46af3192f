"""Loopy belief propagation: a few rounds of Pearl's messages (1988) for many evidence sets at once.

Every node and its parents form a factor P(x_c | pa_c). In each round each factor tells each of its variables what it
has heard from the others, and a belief is the product of what a variable hears and its own evidence:

    message of c to v  =  sum over the others' states of P(x_c | pa_c) * prod over others u of (belief of u without c's message)

Exact where the graph is a tree and nearly so where its loops are long: a good start for a network that learns the rest.
A table is contracted as it is. With P(X <= k | pa) = L(k) prod_j F_j(k | pa_j) a noisy-max of independent parents needs no table:

    P(X <= k) = L(k) prod_j E[F_j(k | pa_j)],    to parent j in state s:  sum over k of lambda(k) P(X = k | pa_j = s)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unimarg.layout import power_of_two
from unimarg.network import Ints, Network, NoisyMax
from unimarg.ragged import Parts, Ragged

NEVER = -30.0  # the logarithm of what is impossible
TINY = 1e-13  # about exp(NEVER)
MOST = 20.0  # the largest logit
ROWS_ENTRIES, ROWS_ENTRIES_ACCELERATED = 1 << 24, 1 << 29  # of factors and messages, for the rows taken at once


class Sums:
    """Sums of rows by target, as gathers and not as scatters: in the same order on every device, each time."""

    def __init__(self, targets: Ints, count: int):
        degree = np.bincount(targets, minlength=count)
        start = np.concatenate([[0], np.cumsum(degree)])
        rows = np.argsort(targets, kind="stable")
        width = np.where(degree > 0, 2 ** np.ceil(np.log2(np.maximum(degree, 1))), 0).astype(int)
        self.classes = []  # of targets with about as many rows: [targets, width], padded with the row after the last
        order = []
        for w in np.unique(width):
            members = np.flatnonzero(width == w)
            at = start[members][:, None] + np.arange(w)
            padded = np.where(np.arange(w) < degree[members][:, None], rows[np.minimum(at, len(rows) - 1)] if len(rows) else 0, len(rows))
            self.classes.append(padded.astype(np.int32))
            order.append(members)
        self.place = np.argsort(np.concatenate(order)).astype(np.int32)

    def __call__(self, rows: jax.Array) -> jax.Array:
        padded = jnp.pad(rows, [(0, 1)] + [(0, 0)] * (rows.ndim - 1))
        return jnp.concatenate([padded[c].sum(axis=1) for c in self.classes])[self.place]


class Arcs(NamedTuple):
    """Arcs from parents of one width to noisy-max nodes of one width."""

    parents: int  # the width of the parents
    first: int  # number of the first message to a parent, among those of that width
    child: Ints  # [arcs], among the noisy nodes of their width
    factors: np.ndarray  # float32 [arcs, width of the parents, width - 1]: F by the parent's state


@dataclass(frozen=True, eq=False)
class Noisy:
    """All noisy-max nodes of one width, arc by arc; the last state's cumulative probability is 1 and left out."""

    width: int
    leak: np.ndarray  # float32 [nodes, width - 1]: log L
    arcs: list[Arcs]
    first: int  # number of the first message to a node itself, among those of its width
    sums: Sums  # over arcs, by node


Widths = dict[int, jax.Array]  # for each width [messages or nodes, width, n]


class Propagation:
    """Messages of a network's factors; ``rounds`` of them.

    Numbers of states are padded to powers of two, ``width``, so that few shapes are few operations and soon compiled. Everything is
    kept apart by width: a network of many binary nodes does not pay for its largest one.
    """

    def __init__(self, net: Network, rounds: int):
        self.net = net
        self.ragged, self.rounds = Ragged(tuple(net.cards.tolist())), rounds
        widths = np.array([power_of_two(int(k)) for k in net.cards])
        self.counts = {int(w): int((widths == w).sum()) for w in np.unique(widths)}  # nodes, in the order of ``ragged``
        start = dict(zip(self.counts, np.cumsum([0, *self.counts.values()]).tolist(), strict=False))
        self.place = self.ragged.place - np.array([start[int(w)] for w in widths])  # of each node among those of its width
        targets: dict[int, list[int]] = {w: [] for w in self.counts}
        self.tables = [self._stacked(members, shape, targets) for shape, members in self._shapes().items()]
        self.noisy = [n for w in self.counts if (n := self._noisy(w, targets)) is not None]
        self.targets = {w: np.array(found, np.int64) for w, found in targets.items()}
        self.sums = {w: Sums(found, self.counts[w]) for w, found in self.targets.items()}
        # what a row takes
        arcs = sum(a.factors.size for n in self.noisy for a in n.arcs)
        self.entries = float(sum(t.size for _, t in self.tables) + arcs + 8 * sum(w * len(found) for w, found in targets.items()))

    def __hash__(self) -> int:
        return hash((self.rounds, self.ragged))

    def __eq__(self, other: object) -> bool:
        """Of equal networks: their programs are the same, and compiled once."""
        return self is other or (isinstance(other, Propagation) and self.rounds == other.rounds and self.net == other.net)

    def _shapes(self) -> dict[tuple[int, ...], list[int]]:
        """Nodes with tables, by the sorted widths of their axes."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for i, m in enumerate(self.net.mechanisms):
            if not isinstance(m, NoisyMax):
                shapes.setdefault(tuple(sorted(map(power_of_two, (*m.parent_cards, m.card)))), []).append(i)
        return shapes

    def _stacked(self, members: list[int], shape: tuple[int, ...], targets: dict[int, list[int]]) -> tuple[list[int], np.ndarray]:
        """The number of the first message to each axis, and the tables ``[n, *shape]``; padded with impossible states."""
        tables = np.zeros((len(members), *shape), np.float32)
        scopes = np.zeros((len(members), len(shape)), int)
        for at, i in enumerate(members):
            table, scope = self.net.mechanisms[i].expand(), np.array([*self.net.parents[i], i])
            axes = np.argsort(table.shape, kind="stable")
            tables[(at, *(slice(k) for k in np.take(table.shape, axes)))] = table.transpose(axes)
            scopes[at] = self.place[scope[axes]]
        return [_numbered(targets[w], to) for w, to in zip(shape, scopes.T.tolist(), strict=True)], tables

    def _noisy(self, width: int, targets: dict[int, list[int]]) -> Noisy | None:
        """Noisy-max nodes of a width, if there are any."""
        mechanisms = enumerate(self.net.mechanisms)
        nodes = [(i, m) for i, m in mechanisms if isinstance(m, NoisyMax) and power_of_two(m.card) == width]
        if not nodes:
            return None
        leak = np.zeros((len(nodes), width - 1), np.float32)
        found: dict[int, list[tuple[int, int, np.ndarray]]] = {}  # by the parent's width: child, parent, factors
        for at, (i, m) in enumerate(nodes):
            log_leak, log_factors = m.log_cdfs
            leak[at, : m.card - 1] = np.maximum(log_leak[:-1], NEVER)
            for parent, f in zip(self.net.parents[i], log_factors, strict=True):
                full = np.ones((power_of_two(len(f)), width - 1), np.float32)
                full[: len(f), : m.card - 1] = np.exp(f[:, :-1])
                found.setdefault(len(full), []).append((at, int(self.place[parent]), full))
        arcs = []
        for w, each in sorted(found.items()):
            child, parents, factors = zip(*each, strict=True)
            arcs.append(Arcs(w, _numbered(targets[w], list(parents)), np.array(child, int), np.stack(factors)))
        first = _numbered(targets[width], self.place[[i for i, _ in nodes]].tolist())
        children = np.concatenate([np.zeros(0, int), *(a.child for a in arcs)])
        return Noisy(width, leak, arcs, first, Sums(children, len(nodes)))

    def logits(self, known: jax.Array, values: Parts, accelerated: bool) -> jax.Array:
        """Beliefs against each node's first state, ``[n, slots]``, from what is known ``[n, nodes]`` and its likelihoods."""
        most = (ROWS_ENTRIES_ACCELERATED if accelerated else ROWS_ENTRIES) / self.entries
        return by_blocks(lambda block: self._logits(*block), (known, values), most)

    def _logits(self, known: jax.Array, values: Parts) -> jax.Array:
        n = known.shape[0]
        evidence = self._evidence(known, values)
        start = {w: jnp.zeros((len(found), w, n)) for w, found in self.targets.items()}
        messages = lax.fori_loop(0, self.rounds, lambda _, old: self._round(evidence, old), start)
        beliefs = lax.optimization_barrier({w: e + self.sums[w](messages[w]) for w, e in evidence.items()})
        out, at = [], dict.fromkeys(self.counts, 0)
        for k, count in self.ragged.groups:
            w = power_of_two(k)
            rows = beliefs[w][at[w] : at[w] + count]
            out.append((rows[:, 1:k] - rows[:, :1]).reshape(count * (k - 1), n))
            at[w] += count
        return jnp.clip(jnp.concatenate(out), -MOST, MOST).T

    def _evidence(self, known: jax.Array, values: Parts) -> Widths:
        """Log likelihoods of the nodes, ``[nodes, width, n]``; states that a node lacks are impossible."""
        rows: dict[int, Parts] = {w: [] for w in self.counts}
        for flag, value in zip(self.ragged.nodes(known), values, strict=True):
            log = jnp.where(flag[..., None], jnp.log(jnp.maximum(value, TINY)), 0)
            w = power_of_two(log.shape[-1])
            rows[w].append(jnp.pad(log, ((0, 0), (0, 0), (0, w - log.shape[-1])), constant_values=2 * NEVER))
        return {w: jnp.moveaxis(lax.optimization_barrier(jnp.concatenate(parts, axis=1)), 0, -1) for w, parts in rows.items()}

    def _round(self, evidence: Widths, old: Widths) -> Widths:
        heard = {}
        for w, messages in old.items():
            beliefs = evidence[w] + self.sums[w](messages)
            heard[w] = lax.optimization_barrier(jax.nn.softmax(beliefs[self.targets[w]] - messages, axis=1))  # [messages, width, n]
        new: dict[int, Parts] = {w: [] for w in old}
        for first, table in self.tables:
            for w, message in zip(table.shape[1:], _table_messages(first, table, heard), strict=True):
                new[w].append(message)
        for noisy in self.noisy:
            for w, message in _noisy_messages(noisy, heard):
                new[w].append(message)
        return lax.optimization_barrier({w: jnp.log(jnp.maximum(jnp.concatenate(parts), TINY)) for w, parts in new.items()})


def _numbered(targets: list[int], more: list[int]) -> int:
    """Further messages; the number of the first."""
    targets += more
    return len(targets) - len(more)


def _table_messages(first: list[int], table: np.ndarray, heard: Widths) -> list[jax.Array]:
    """``[tables, K, n]`` for each axis, largest 1."""
    shape = table.shape[1:]
    given = [heard[w][at : at + len(table)] for at, w in zip(first, shape, strict=True)]
    n = given[0].shape[-1]
    out = []
    for axis in range(len(shape)):
        message, sizes = jnp.asarray(table)[..., None], list(shape)
        for other in reversed(range(len(shape))):  # contracted one by one; few and long axes are what compilers like
            if other != axis:
                before, after = math.prod(sizes[:other]), math.prod(sizes[other + 1 :])
                wide = message.reshape(len(table), before, sizes[other], after, -1)
                message = (wide * given[other].reshape(len(table), 1, sizes[other], 1, n)).sum(axis=2)
                sizes[other] = 1
        message = jnp.broadcast_to(message.reshape(len(table), shape[axis], -1), (len(table), shape[axis], n))
        out.append(message / jnp.maximum(message.max(axis=1, keepdims=True), TINY))
    return out


def _noisy_messages(noisy: Noisy, heard: Widths) -> Iterator[tuple[int, jax.Array]]:
    """To all parents, and to the nodes themselves, each with its width."""
    own = heard[noisy.width][noisy.first : noisy.first + len(noisy.leak)]  # [nodes, width, n]
    expected = [jnp.zeros((0, noisy.width - 1, own.shape[-1]))]
    for arcs in noisy.arcs:
        parents = heard[arcs.parents][arcs.first : arcs.first + len(arcs.child)]
        expected.append((parents[:, :, None] * jnp.asarray(arcs.factors)[..., None]).sum(axis=1))  # [arcs, width - 1, n]
    log = lax.optimization_barrier(jnp.log(jnp.maximum(jnp.concatenate(expected), TINY)))
    log_cdf = noisy.sums(log) + jnp.asarray(noisy.leak)[..., None]
    at = 0
    for arcs in noisy.arcs:
        # sum over k of lambda(k) P(X = k) = lambda(last) + sum over k < last of P(X <= k) (lambda(k) - lambda(k + 1))
        mine = log[at : at + len(arcs.child)]
        falls = (own[:, :-1] - own[:, 1:])[arcs.child] * jnp.exp(log_cdf[arcs.child] - mine)
        up = own[arcs.child, -1:] + (jnp.asarray(arcs.factors)[..., None] * falls[:, None]).sum(axis=2)
        up = jnp.maximum(up, 0)
        yield arcs.parents, up / jnp.maximum(up.max(axis=1, keepdims=True), TINY)
        at += len(arcs.child)
    pmf = jnp.diff(jnp.pad(jnp.exp(log_cdf), ((0, 0), (1, 1), (0, 0)), constant_values=((0, 0), (0, 1), (0, 0))), axis=1)
    yield noisy.width, pmf / jnp.maximum(pmf.max(axis=1, keepdims=True), TINY)


def by_blocks(function: Any, rows: Any, most: float) -> Any:
    """function(rows), arrays with a first axis of rows, for at most so many rows at once."""
    n = jax.tree.leaves(rows)[0].shape[0]
    size = 1 << int(np.log2(max(most, 1)))
    if n <= size:
        return function(rows)
    while n % size:
        size //= 2
    blocks = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), rows)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), lax.map(function, blocks))
